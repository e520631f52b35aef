"""Compiles the device kernels for every GPU and holds the machine code to the project's bars.

- nvcc and ptxas have nothing to warn of; no kernel spills registers or uses local memory.
- No kernel accesses memory by addresses of which the compiler does not know the kind.
- A vector kernel loads and stores 16 bytes at once; only kernels of memory that nobody else writes
  load through the read-only cache; nothing flushes subnormals.
- clang compiles the same sources as HIP. Under CI a missing clang is a breach.

Prints a table of what the kernels cost and puts it into build/device_kernels.md. With --write, into
docs/device_kernels.md too, which must otherwise hold the same table.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hip_compiler
from compile_cache import ROOT, CompileError, device_sources
from cuda_toolchain import ToolchainError, find_nvcc
from device_compiler import ARCHITECTURES, Job, compile_all
from kernel_rules import VECTORS_ONLY, Rule, rule_for, short_name
from kernel_table import table
from sass import Kernel, read

BUILT = ROOT / "build" / "device_kernels.md"
DOCUMENT = ROOT / "docs" / "device_kernels.md"
MARK = "<!-- What follows is written by tools/check_device.py --write. -->\n"
# Another compiler allots registers otherwise, which is no reason to call the document stale.
DOCUMENTED_NVCC = (13, 0, 88)

# By short name and architecture.
Kernels = dict[str, dict[str, Kernel]]


def breaches(kernel: Kernel, rule: Rule | None) -> Iterator[str]:
    """What is wrong with a kernel's machine code."""
    if rule is None:
        yield "tools/kernel_rules.py says nothing of this kernel"
        return
    for resource in ("STACK", "LOCAL"):
        if kernel.resources.get(resource, 0):
            yield f"{kernel.resources[resource]} bytes of {resource.lower()} memory"
    local = [instruction for instruction in kernel.instructions if instruction.is_local]
    if local:
        yield f"{len(local)} accesses of local memory, the first {local[0]}"
    flushing = [instruction for instruction in kernel.instructions if instruction.flushes]
    if len(flushing) > rule.flushing:
        yield f"flushes subnormals: {flushing[0]}"
    generic = [instruction for instruction in kernel.instructions if instruction.is_generic]
    if generic:
        yield f"{len(generic)} accesses of no known memory, the first {generic[0]}"
    cached = [instruction for instruction in kernel.instructions if instruction.is_read_only_load]
    if cached and not rule.read_only_cache:
        yield f"loads through the read-only cache: {cached[0]}"
    loads = sum(instruction.is_load_128 for instruction in kernel.instructions)
    stores = sum(instruction.is_store_128 for instruction in kernel.instructions)
    fresh = sum(i.is_load_128 and not i.is_read_only_load for i in kernel.instructions)
    if fresh < rule.fresh_loads_128:
        yield f"{fresh} fresh loads of 16 bytes, at least {rule.fresh_loads_128} expected"
    if loads < rule.loads_128:
        yield f"{loads} loads of 16 bytes, at least {rule.loads_128} expected"
    if stores < rule.stores_128:
        yield f"{stores} stores of 16 bytes, at least {rule.stores_128} expected"
    narrow = [instruction for instruction in kernel.vector_body if instruction.is_narrow]
    if rule.loads_128 and len(narrow) > rule.narrow_accesses:
        yield (
            f"{len(narrow)} accesses of less than 16 bytes in the vector body, at most "
            f"{rule.narrow_accesses} expected: {', '.join(map(str, narrow[:9]))}"
        )


def check_cuda(jobs: list[Job], rule: Rule | None) -> tuple[list[str], Kernels]:
    """Breaches of all kernels, of their own rules or the one given; and the kernels."""
    cubins = compile_all(jobs)
    found: list[str] = []
    kernels: Kernels = {}
    for job, cubin in zip(jobs, cubins, strict=True):
        for kernel in read(cubin):
            name = short_name(kernel.name)
            kernels.setdefault(name, {})[job.architecture] = kernel
            found += [
                f"{name} ({job.architecture}): {breach}"
                for breach in breaches(kernel, rule or rule_for(name))
            ]
    return found, kernels


def check_document(text: str) -> list[str]:
    """Whether the document holds the table; only the documented compiler can tell."""
    if find_nvcc().version != DOCUMENTED_NVCC:
        print("docs/device_kernels.md not compared: it is of another nvcc")
        return []
    held = DOCUMENT.read_text().partition(MARK)[2] if DOCUMENT.is_file() else ""
    if held.strip() == text.strip():
        return []
    return ["docs/device_kernels.md is not up to date: python tools/check_device.py --write"]


def write_document(text: str) -> None:
    """Puts the table into the document, below what people have written."""
    words = DOCUMENT.read_text().partition(MARK)[0]
    DOCUMENT.write_text(words + MARK + "\n" + text)


def check_hip() -> list[str]:
    """Whether clang compiles the sources as HIP."""
    report = hip_compiler.check()
    if report.compiler is None:
        missing = f"no clang with HIP: apt-get install {hip_compiler.PACKAGES}"
        if os.environ.get("CI") == "true":
            return [missing]
        print(f"HIP NOT CHECKED: {missing}")
        return []
    print(f"HIP: {report.kernels} kernels for {hip_compiler.ARCHITECTURE} by {report.compiler}")
    for name, size in report.scratch.items():
        print(f"  {short_name(name)}: {size} bytes of scratch memory per thread")
    return report.errors


def main() -> int:
    """Runs all checks and returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="update docs/device_kernels.md")
    parser.add_argument("--brief", action="store_true", help="do not print the table")
    parser.add_argument(
        "--source", nargs="+", type=Path, help="only these, as kernels of nothing but vectors"
    )
    parser.add_argument("--define", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--loose", action="store_true", help="let ptxas pass what it warns of")
    arguments = parser.parse_args()
    jobs = [
        Job(source, name, "cubin", tuple(arguments.define), not arguments.loose)
        for name in ARCHITECTURES
        for source in arguments.source or device_sources()
    ]
    try:
        found, kernels = check_cuda(jobs, VECTORS_ONLY if arguments.source else None)
        text = table(kernels)
        if not arguments.source:
            BUILT.write_text(text)
            if arguments.write:
                write_document(text)
            found += check_document(text)
            found += check_hip()
    except (CompileError, ToolchainError, subprocess.CalledProcessError) as error:
        print(error)
        return 1
    if not arguments.brief:
        print(text)
    for breach in found:
        print(breach)
    instances = sum(len(by_architecture) for by_architecture in kernels.values())
    print(f"{instances} device kernels, {len(found)} breaches")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
