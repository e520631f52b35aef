"""The real NCCL: its header against our declarations, its library against what the core expects.

The library loads without a GPU; what needs one is expected to fail cleanly where there is none.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import subprocess
from pathlib import Path

import pytest

from test_cpp import ROOT, build_folder, build_step, tool

WHEELS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
ABI_CHECK = ROOT / "tests" / "cpp" / "nccl" / "abi_check.cpp"

pytestmark = [pytest.mark.cpp, pytest.mark.timeout(900)]


@functools.cache
def wheel() -> tuple[importlib.metadata.Distribution, Path]:
    """The installed NCCL and the folder nvidia/nccl of it."""
    for name in WHEELS:
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in distribution.files or ():
            if file.name == "libnccl.so.2":
                return distribution, Path(str(distribution.locate_file(file))).parent.parent
    pytest.fail(f"none of {', '.join(WHEELS)} is installed: `make test` installs one (216 MB)")


def wheel_version() -> tuple[int, ...]:
    return tuple(int(part) for part in wheel()[0].version.split(".")[:3])


def encoded(version: tuple[int, ...]) -> int:
    return version[0] * 10000 + version[1] * 100 + version[2]


def compile_abi_check(source: Path) -> subprocess.CompletedProcess[str]:
    folders = [ROOT / "csrc", ABI_CHECK.parent / "cuda_stub", wheel()[1] / "include"]
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, "-std=c++20", "-fsyntax-only", *(f"-I{folder}" for folder in folders)]
    return subprocess.run([*command, str(source)], check=False, capture_output=True, text=True)


def test_our_declarations_are_those_of_the_real_header() -> None:
    done = compile_abi_check(ABI_CHECK)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("ours", "wrong"),
    [
        ("kNcclBfloat16, ncclBfloat16", "kNcclBfloat16, ncclFloat16"),
        ("comm_count, ncclCommCount", "comm_count, ncclCommDestroy"),
        ("mem_alloc, ncclMemAlloc", "mem_free, ncclMemAlloc"),
    ],
)
def test_a_wrong_declaration_would_be_noticed(ours: str, wrong: str, tmp_path: Path) -> None:
    text = ABI_CHECK.read_text()
    assert text.count(ours) == 1
    changed = tmp_path / "abi_check.cpp"
    changed.write_text(text.replace(ours, wrong))
    done = compile_abi_check(changed)
    assert done.returncode != 0
    assert "static assertion failed" in done.stderr


@functools.cache
def findings() -> dict[str, str]:
    """What tests/cpp/nccl/real_library.cpp prints about the library."""
    folder = build_folder("plain")
    build_step(tool("cmake"), "--build", str(folder), "--target", "nccl_real_library")
    library = wheel()[1] / "lib" / "libnccl.so.2"
    command = [str(folder / "nccl_real_library"), str(library)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def test_the_library_says_the_version_of_its_wheel() -> None:
    assert int(findings()["version"]) == encoded(wheel_version())
    assert Path(findings()["path"]).samefile(wheel()[1] / "lib" / "libnccl.so.2")


def test_the_gates_follow_from_the_version() -> None:
    version = encoded(wheel_version())
    assert findings()["windows"] == str(int(version >= 22703))
    assert findings()["direct"] == str(int(version >= 23007))
    assert findings()["peer_pointers"] == str(int(version >= 22902))


def test_memory_is_there_or_refused_with_a_reason() -> None:
    memory = findings()["memory"]
    assert memory == "yes" or re.fullmatch(r"no: .+ \(\d+\): .+", memory), memory
