"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from symmoe._version import __version__


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _caches() -> dict[str, str]:
    """Size of each data cache of processor 0, by level."""
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if (index / "type").read_text().strip() != "Instruction":
            level = (index / "level").read_text().strip()
            found[f"L{level}"] = (index / "size").read_text().strip()
    return found


def usable_cpus() -> list[int]:
    """Processors that this process may run on."""
    return sorted(os.sched_getaffinity(0))


def describe_machine() -> dict[str, Any]:
    """Processor, caches, memory, system and versions."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": _processor(),
        "cpus": len(usable_cpus()),
        "caches": _caches(),
        "memory_GiB": round(pages / (1 << 30), 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "symmoe": __version__,
        "isa": _isa(),
    }


def _isa() -> str:
    from symmoe import _core

    return _core.isa_name()
