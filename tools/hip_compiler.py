"""Compiles the device sources as HIP with clang for AMD's data-centre GPUs: whether they do."""

from __future__ import annotations

import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from compile_cache import ROOT, CompileError, compiled, device_sources, digest_of_headers

COMPILERS = ("clang++-19", "clang++-18", "clang++-17", "amdclang++")
ARCHITECTURE = "gfx942"
HEADER = Path("/usr/include/hip/hip_runtime.h")
PACKAGES = "clang-19 lld-19 libamdhip64-dev rocm-device-libs"
FLAGS = (
    *("-x", "hip", f"--offload-arch={ARCHITECTURE}", "--rocm-path=/usr", "-nogpulib"),
    *("--offload-device-only", "-S", "-std=c++20", "-O3", "-ffp-contract=off", "-Wall", "-Werror"),
    f"-I{ROOT / 'csrc'}",
)
KERNEL = re.compile(
    r"^\s*\.name:\s+(\w+)\s*\n\s*\.private_segment_fixed_size:\s*(\d+)", re.MULTILINE
)


@dataclass(frozen=True)
class Report:
    """What came of it.

    Attributes:
        compiler: The program, or None if the machine has none with HIP.
        errors: The compiler's words on each source that it refused.
        kernels: How many kernels were compiled.
        scratch: Bytes of memory of its own that a thread needs, for the kernels that need any.
    """

    compiler: str | None
    errors: list[str]
    kernels: int
    scratch: dict[str, int]


def check() -> Report:
    """Compiles all device sources that have changed since the last time."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None or not HEADER.is_file():
        return Report(None, [], 0, {})
    headers = digest_of_headers()

    def run(source: Path) -> Path | CompileError:
        return compiled([compiler, *FLAGS], source, ".s", headers)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(run, device_sources()))
    errors = [str(result) for result in results if isinstance(result, CompileError)]
    found = [
        (name, int(size))
        for result in results
        if isinstance(result, Path)
        for name, size in KERNEL.findall(result.read_text())
    ]
    scratch = {name: size for name, size in found if size > 0}
    return Report(compiler, errors, len(found), scratch)
