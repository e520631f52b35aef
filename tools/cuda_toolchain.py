"""Finds nvcc, cuobjdump and nvdisasm; with --install, adds what is missing to this environment.

Each tool is looked for by itself, in CUDACXX, PATH, CUDA_HOME, /usr/local/cuda and NVIDIA's wheels
in this environment: a CUDA installation often comes without the disassemblers. Needs no GPU and no
driver. Prints one line per tool and exits with 1 if one is not there.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# The first nvcc that knows sm_100.
OLDEST_NVCC = (12, 8)
# Pinned: another compiler is another table in docs/device_kernels.md.
NVCC_WHEELS = (
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
)
# The disassemblers came to PyPI with 13.2; they read what older compilers wrote.
CUOBJDUMP_WHEELS = ("nvidia-cuda-cuobjdump==13.2.51", "nvidia-cuda-nvdisasm==13.2.51")
NVDISASM_WHEELS = ("nvidia-cuda-nvdisasm==13.2.51",)
WHEELS = {"nvcc": NVCC_WHEELS, "cuobjdump": CUOBJDUMP_WHEELS, "nvdisasm": NVDISASM_WHEELS}
VARIABLES = {"nvcc": "CUDACXX"}
DEFAULT_HOME = Path("/usr/local/cuda")


class ToolchainError(RuntimeError):
    """A tool is not there, or is too old."""


@dataclass(frozen=True)
class Tool:
    """A program of the tool chain.

    Attributes:
        path: Where it lies.
        version: As it says itself, such as (13, 0, 88).
    """

    path: Path
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.path} {'.'.join(map(str, self.version))}"


def wheel_folders() -> list[Path]:
    """The bin folders of NVIDIA's wheels in this interpreter's environment, newest CUDA first."""
    sites = dict.fromkeys(Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib"))
    found = [folder for site in sites for folder in site.glob("nvidia/cu*/bin")]
    return sorted(found, key=lambda folder: int(folder.parent.name[2:] or 0), reverse=True)


def places(name: str) -> Iterator[Path]:
    """Paths at which a tool may lie, in order of preference."""
    variable = os.environ.get(VARIABLES.get(name, ""))
    if variable:
        yield Path(shutil.which(variable) or variable)
    on_path = shutil.which(name)
    if on_path:
        yield Path(on_path)
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), DEFAULT_HOME]
    yield from (Path(home, "bin", name) for home in homes if home)
    yield from (folder / name for folder in wheel_folders())


def version_of(path: Path) -> tuple[int, ...]:
    """The version that a tool states, empty if it states none."""
    try:
        said = subprocess.run([path, "--version"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return ()
    match = re.search(r"\bV(\d+(?:\.\d+)+)", said.stdout)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def find(name: str, oldest: tuple[int, ...] = ()) -> Tool | None:
    """The first usable program of that name with at least version `oldest`."""
    for path in places(name):
        if os.access(path, os.X_OK) and path.is_file():
            version = version_of(path)
            if version and version >= oldest:
                return Tool(path, version)
    return None


def find_nvcc() -> Tool:
    """The compiler.

    Raises:
        ToolchainError: There is none that knows all architectures.
    """
    nvcc = find("nvcc", OLDEST_NVCC)
    if nvcc is None:
        least = ".".join(map(str, OLDEST_NVCC))
        raise ToolchainError(
            f"no nvcc {least} or newer in CUDACXX, PATH, CUDA_HOME, /usr/local/cuda or NVIDIA's "
            f"wheels in {sys.prefix}: {sys.executable} tools/cuda_toolchain.py --install"
        )
    return nvcc


def find_all() -> dict[str, Tool | None]:
    """Each tool by name; a disassembler older than the compiler does not count."""
    nvcc = find("nvcc", OLDEST_NVCC)
    oldest = nvcc.version[:2] if nvcc else OLDEST_NVCC
    return {
        "nvcc": nvcc,
        "cuobjdump": find("cuobjdump", oldest),
        "nvdisasm": find("nvdisasm", oldest),
    }


def install(names: list[str]) -> None:
    """Installs the wheels of the named tools into this interpreter's environment."""
    wheels = dict.fromkeys(wheel for name in names for wheel in WHEELS[name])
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    subprocess.run([*pip, *wheels], check=True)


def main() -> int:
    """Prints the tools, after installing what is missing if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--install", action="store_true", help="install what is missing from PyPI")
    arguments = parser.parse_args()
    tools = find_all()
    missing = [name for name, tool in tools.items() if tool is None]
    if missing and arguments.install:
        print(f"installing {', '.join(missing)} into {sys.prefix}", flush=True)
        install(missing)
        tools = find_all()
    for name, tool in tools.items():
        print(f"{name:<9} {tool or 'not found'}")
    return 1 if None in tools.values() else 0


if __name__ == "__main__":
    sys.exit(main())
