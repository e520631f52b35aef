"""What needs real CUDA, and what depends on this machine's NCCL."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_device
import pytest
import torch
import torch.distributed as dist

from ranks import Ranks
from symmoe import Config, _core
from symmoe.device import libraries

pytest_plugins = ("gpu_fixtures",)
SECONDS = 120.0
ROWS, HIDDEN = 64, 1024
REPLAYS = 120
# Below it the symmetric kernels lack a wait, and graphs may read what is not yet written.
SAFE_NCCL = (2, 30, 7)

real = pytest.mark.skipif(gpu_device.emulated(), reason="only a GPU can show it")


def acquire(group: Any, world: int, dtype: torch.dtype) -> torch.Tensor:
    window = group.acquire("combine", (ROWS * world, HIDDEN), dtype)
    assert isinstance(window, torch.Tensor)
    return window


def check_replays(
    rank: int, world: int, write: Callable[[torch.Tensor, torch.Tensor], None], dtype: torch.dtype
) -> None:
    """Captures somebody's kernel and the collective; each replay sums what it read just then."""
    lab = gpu_device.lab_of(rank)
    with lab.init() as group:
        group.reserve(ROWS * world, HIDDEN, dtype, graph=True)
        source = torch.ones(ROWS * world, HIDDEN, dtype=dtype, device=lab.device)
        out = torch.empty(ROWS, HIDDEN, dtype=dtype, device=lab.device)
        window = acquire(group, world, dtype)
        write(window, source)  # compiled and loaded before the capture
        group.reduce_scatter(window, out)
        lab.synchronize()
        with lab.capture(lab.stream()) as graph:
            window = acquire(group, world, dtype)
            write(window, source)
            group.reduce_scatter(window, out)
        for turn in range(REPLAYS):
            if turn % 10 == rank:
                lab.slow(0.002)
            source.fill_(turn % 50 + rank)
            graph.replay()
            wanted = world * (turn % 50) + world * (world - 1) // 2
            assert bool((lab.host(out) == wanted).all()), turn
        graph.reset()
        group.release_graphs()


def by_torch(window: torch.Tensor, source: torch.Tensor) -> None:
    torch.add(source, 0, out=window)


def by_cupy(window: torch.Tensor, source: torch.Tensor) -> None:
    cupy = importlib.import_module("cupy")
    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        cupy.copyto(cupy.asarray(window), cupy.asarray(source))


def by_interface(window: torch.Tensor, source: torch.Tensor) -> None:
    """Through the window's __cuda_array_interface__, as any library would read it."""

    class Foreign:
        __cuda_array_interface__ = window.__cuda_array_interface__

    foreign = torch.as_tensor(Foreign(), device=window.device)
    assert foreign.data_ptr() == window.data_ptr()
    foreign.copy_(source)


@real
@pytest.mark.parametrize("write", [by_torch, by_interface, by_cupy])
def test_foreign_kernels_in_a_graph(
    gpu_ranks: Ranks, no_windows: str, write: Callable[..., None]
) -> None:
    if no_windows:
        pytest.skip(f"no windows here: {no_windows}")
    if write is by_cupy and importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed here")
    gpu_ranks.run(gpu_device.world(), check_replays, write, torch.float32, seconds=SECONDS)


def nccl_version() -> tuple[int, ...]:
    path = str(libraries.fake_nccl()) if gpu_device.emulated() else ""
    found = _core.nccl_description(path, libraries.nccl_wheels(), False)
    return tuple(int(part) for part in found["version"].split("."))


def test_direct_path_follows_the_nccl_version(no_windows: str) -> None:
    """Refused with the reason where NCCL is too old, and only there."""
    version = nccl_version()
    if version >= SAFE_NCCL:
        assert no_windows == ""
    else:
        assert ".".join(str(part) for part in version) in no_windows


def old_library(rank: int, world: int) -> None:
    """Without windows everything works, by NCCL's ordinary kernels."""
    lab = gpu_device.lab_of(rank)
    with lab.init(Config(windows=False)) as group:
        rows = lab.tensor(torch.full((ROWS * world, HIDDEN), 1.0 + rank, dtype=torch.bfloat16))
        decision = group.explain("reduce_scatter", rows)
        assert decision.path == "plain"
        found = lab.host(group.reduce_scatter(rows))
        assert bool((found == world * (world + 1) / 2).all())
        ordered = lab.host(group.reduce_scatter(rows, deterministic=True))
        assert torch.equal(ordered, found)


def test_without_the_direct_path(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(gpu_device.world(), old_library, seconds=SECONDS)


def talk(rank: int, world: int) -> None:
    lab = gpu_device.lab_of(rank)
    with lab.init() as group:
        window = acquire(group, world, torch.bfloat16)
        lab.put(window, lab.tensor(torch.ones(window.shape, dtype=torch.bfloat16)))
        assert group.explain("reduce_scatter", window).path == "direct"
        assert bool((lab.host(group.reduce_scatter(window)) == world).all())


@real
def test_nccl_says_that_its_symmetric_kernel_ran(no_windows: str) -> None:
    if no_windows:
        pytest.skip(f"no windows here: {no_windows}")
    with tempfile.TemporaryDirectory() as folder:
        told = {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "TUNING",
            "NCCL_DEBUG_FILE": f"{folder}/nccl.%p",
        }
        workers = Ranks(environment=gpu_device.environment() | told)
        try:
            workers.run(gpu_device.world(), talk, seconds=SECONDS)
        finally:
            workers.stop()
        log = "".join(file.read_text(errors="replace") for file in Path(folder).iterdir())
    lines = [line for line in log.splitlines() if "ReduceScatter" in line]
    assert any("[Symmetric]" in line for line in lines), log[-4000:]


def with_torchs_communicator(rank: int, world: int) -> str:
    """Of torch: its ncclComm_t serves; "" or why it cannot be had."""
    lab = gpu_device.lab_of(rank)
    process_group = dist.new_group(backend="nccl")
    backend = process_group._get_backend(lab.device)
    pointer = getattr(backend, "_comm_ptr", None)
    if pointer is None:
        return "this torch does not show its communicator"
    dist.all_reduce(torch.ones(1, device=lab.device), group=process_group)
    with lab.init(comm_ptr=pointer()) as group:
        rows = lab.tensor(torch.ones(ROWS * world, HIDDEN, dtype=torch.bfloat16))
        assert bool((lab.host(group.reduce_scatter(rows)) == world).all())
    dist.destroy_process_group(process_group)
    return ""


@real
def test_torchs_communicator(gpu_ranks: Ranks) -> None:
    if gpu_device.count() < 2:
        pytest.skip("torch gives each rank a GPU of its own, and there is only one")
    reasons = gpu_ranks.run(gpu_device.world(), with_torchs_communicator, seconds=SECONDS)
    if reasons[0]:
        pytest.skip(reasons[0])


def test_kernels_under_compute_sanitizer() -> None:
    program = [sys.executable, str(Path(__file__).parent / "kernels_program.py")]
    if not gpu_device.emulated():
        tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if not Path(tool).exists():
            pytest.skip("compute-sanitizer is not installed here")
        program = [tool, "--tool", "memcheck", "--error-exitcode", "9", *program]
    done = subprocess.run(
        program,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "kernels: right" in done.stdout
