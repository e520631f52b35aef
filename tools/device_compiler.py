"""Compiles device sources with nvcc, several at a time; what was compiled before is not again.

As a program it prints the path of each result: for the tests, which read PTX.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from compile_cache import ROOT, CompileError, compiled, device_sources, digest_of_headers
from cuda_toolchain import ToolchainError, find_nvcc

# The oldest the library is built for, and one for each later generation of data-centre GPUs.
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
# Only an fma that the source asks for may be one: the CPU kernels' bits depend on it.
FLAGS = ("-std=c++20", "-O3", "-fmad=false", "-Werror", "all-warnings")
# ptxas only warns of these; as errors they name the kernel.
CUBIN_FLAGS = ("-Xptxas", "-warn-spills,-warn-lmem-usage,-Werror")


@dataclass(frozen=True)
class Job:
    """One source for one architecture.

    Attributes:
        kind: "ptx" or "cubin".
        strict: Whether spills and local memory are errors.
    """

    source: Path
    architecture: str
    kind: str
    defines: tuple[str, ...] = ()
    strict: bool = True

    def arguments(self) -> list[str]:
        """What nvcc is given, without source and output."""
        flags = [*FLAGS, f"-I{ROOT / 'csrc'}", f"-arch={self.architecture}", f"-{self.kind}"]
        if self.kind == "cubin" and self.strict:
            flags += CUBIN_FLAGS
        return [*flags, *(f"-D{define}" for define in self.defines)]


def compile_all(jobs: list[Job], workers: int | None = None) -> list[Path]:
    """Compiles what is not in the cache; results in the order of the jobs.

    Raises:
        CompileError: nvcc refused a source.
        ToolchainError: There is no nvcc.
    """
    nvcc = find_nvcc()
    contents = f"{nvcc} {digest_of_headers()}"

    def run(job: Job) -> Path | CompileError:
        command = [str(nvcc.path), *job.arguments()]
        return compiled(command, job.source, f".{job.kind}", contents)

    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        results = list(pool.map(run, jobs))
    errors = [str(result) for result in results if isinstance(result, CompileError)]
    if errors:
        raise CompileError("\n".join(errors))
    return [result for result in results if isinstance(result, Path)]


def main() -> int:
    """Compiles the sources named, or all device kernels, and prints the results' paths."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=("ptx", "cubin"))
    parser.add_argument("sources", nargs="*", type=Path)
    parser.add_argument("--arch", nargs="+", default=ARCHITECTURES, metavar="sm_N")
    parser.add_argument("--define", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--loose", action="store_true", help="allow spills and local memory")
    arguments = parser.parse_args()
    jobs = [
        Job(source, name, arguments.kind, tuple(arguments.define), not arguments.loose)
        for source in arguments.sources or device_sources()
        for name in arguments.arch
    ]
    try:
        results = compile_all(jobs)
    except (CompileError, ToolchainError) as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(map(str, results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
