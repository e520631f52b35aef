"""`symmoe doctor`: what this machine and process offer, and which path calls would take.

Facts are read; then two processes are started that reduce something through windows, which is the
only proof that they work here.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from . import _core
from ._version import __version__
from .bootstrap import init
from .config import Config
from .device.facts import gpu
from .errors import SymmoeError

PROBE_RANKS = 2
PROBE_SECONDS = 60
_SHMEM_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


def versions() -> dict[str, str]:
    """Of everything that takes part."""
    return {
        "symmoe": __version__,
        "core": _core.VERSION,
        "compiler": str(getattr(_core, "COMPILER", "unknown")),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def machine() -> dict[str, Any]:
    """Processors, memory, and what windows need of the kernel."""
    return {
        "host": _core.host_identity(),
        "processors": os.cpu_count(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "instruction_sets": _core.available_isas(),
        "instruction_set": _or_error(_core.isa_name),
        "memfd": _or_error(_try_memfd),
        "pidfd": _or_error(_try_pidfd),
        "huge_pages_for_windows": _chosen(_SHMEM_HUGE_PAGES),
        "memory_available_bytes": _memory_available(),
        "cgroup_memory_limit": _first_line(Path("/sys/fs/cgroup/memory.max")) or "none found",
        "dev_shm_bytes": _dev_shm_bytes(),
    }


def _or_error(function: Any) -> Any:
    try:
        return function()
    except (AttributeError, OSError, ValueError) as error:
        return f"no: {error}"


def _try_memfd() -> str:
    os.close(os.memfd_create("symmoe-doctor", os.MFD_CLOEXEC))
    return "yes"


def _try_pidfd() -> str:
    os.close(os.pidfd_open(os.getpid()))
    return "yes"


def _first_line(path: Path) -> str:
    try:
        return path.read_text().partition("\n")[0]
    except OSError:
        return ""


def _chosen(path: Path) -> str:
    """The entry in brackets of a kernel setting."""
    line = _first_line(path)
    return line.partition("[")[2].partition("]")[0] or "unknown"


def _memory_available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _dev_shm_bytes() -> int:
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return status.f_frsize * status.f_blocks


def settings() -> dict[str, Any]:
    """The SYMMOE_* variables that are set, and what they come to."""
    given = {name: text for name, text in sorted(os.environ.items()) if name.startswith("SYMMOE_")}
    try:
        effect = Config.from_env().fingerprint()
    except ValueError as error:
        return {"environment": given, "error": str(error)}
    return {"environment": given, "config": effect}


def backends() -> dict[str, bool]:
    """Which process groups torch was built with; the fallback needs one that serves CPU tensors."""
    if not dist.is_available():
        return {"gloo": False, "mpi": False}
    return {"gloo": dist.is_gloo_available(), "mpi": dist.is_mpi_available()}


def _probe_rank(rank: int, folder: str) -> None:
    """One of the processes of the probe; writes what came of it to a file."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=PROBE_RANKS
    )
    try:
        with init() as group:
            ones = torch.ones(PROBE_RANKS * 4, 64, dtype=torch.bfloat16)
            window = group.acquire("combine", tuple(ones.shape), ones.dtype)
            start = time.perf_counter()
            if window is not None:
                window.copy_(ones)
            source = ones if window is None else window
            decision = group.explain("reduce_scatter", source)
            result = group.reduce_scatter(source)
            answer = {
                "path": decision.path,
                "reason": decision.reason,
                "right": bool((result == PROBE_RANKS).all()),
                "first_call_us": round((time.perf_counter() - start) * 1e6),
            }
    except (SymmoeError, ValueError, OSError) as error:
        answer = {"path": "none", "reason": f"{type(error).__name__}: {error}", "right": False}
    Path(folder, f"answer{rank}").write_text(json.dumps(answer))
    dist.destroy_process_group()


def probe() -> dict[str, Any]:
    """Lets two processes combine something; the answer of the first that failed, or of rank 0."""
    if not backends()["gloo"]:
        return {
            "path": "none",
            "reason": "torch has no gloo to set a group up with",
            "right": False,
        }
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="symmoe-doctor-") as folder:
        processes = [
            context.Process(target=_probe_rank, args=(rank, folder)) for rank in range(PROBE_RANKS)
        ]
        for process in processes:
            process.start()
        end = time.monotonic() + PROBE_SECONDS
        for process in processes:
            process.join(max(0.0, end - time.monotonic()))
        answers: list[dict[str, Any]] = []
        for rank, process in enumerate(processes):
            answer = Path(folder, f"answer{rank}")
            if process.exitcode is None:
                process.kill()
                process.join()
                reason = f"rank {rank} did not finish within {PROBE_SECONDS} s"
            else:
                reason = f"rank {rank} ended with code {process.exitcode}"
            if answer.exists():
                answers.append(json.loads(answer.read_text()))
            else:
                answers.append({"path": "none", "reason": reason, "right": False})
    return next((answer for answer in answers if not answer["right"]), answers[0])


def examine() -> dict[str, Any]:
    """Everything, ready for JSON. `ok` is whether windows work here."""
    found: dict[str, Any] = {
        "versions": versions(),
        "machine": machine(),
        "backends": backends(),
        "gpu": gpu(),
        "settings": settings(),
        "probe": probe(),
    }
    found["ok"] = bool(found["probe"]["path"] == "pull" and found["probe"]["right"])
    return found


def render(found: dict[str, Any]) -> str:
    """The report for people."""
    lines = []
    for section in ("versions", "machine", "backends", "gpu", "settings", "probe"):
        lines.append(section)
        lines += [f"  {name:24} {_text(name, it)}" for name, it in found[section].items()]
    answer = found["probe"]
    lines.append("")
    lines.append(f"path here, CPU tensors: {answer['path']} ({answer['reason']})")
    if not found["ok"]:
        lines.append("windows do NOT work here; calls go through the process group where they can")
    return "\n".join(lines)


def _text(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        text = f"{value / 2**30:.1f} GiB"
        return text + " (not used: windows are memfd memory)" if name == "dev_shm_bytes" else text
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}={it}" for key, it in value.items()) or "-"
    return str(value)


def main(as_json: bool) -> int:
    """Prints the report; 0 if windows work here, else 1."""
    found = examine()
    sys.stdout.write((json.dumps(found, indent=2) if as_json else render(found)) + "\n")
    return 0 if found["ok"] else 1
