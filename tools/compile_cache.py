"""Runs a compiler unless it has compiled the same before; results lie in build/device."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "build" / "device"
# What a device source may include.
INCLUDED_TREES = ("csrc/base", "csrc/kernels/device")
DEVICE_SOURCES = "csrc/kernels/device"
# Of one compilation; templates make compilers talkative.
MAX_ERROR_LINES = 25


class CompileError(RuntimeError):
    """A compiler has refused a source; the message is the compiler's."""


def device_sources() -> list[Path]:
    """The sources of the device kernels."""
    return sorted((ROOT / DEVICE_SOURCES).glob("*.cu"))


def digest_of_headers() -> str:
    """Stands for the content of everything that a device source may include."""
    digest = hashlib.sha256()
    for tree in INCLUDED_TREES:
        for path in sorted((ROOT / tree).rglob("*.h")):
            digest.update(f"{path}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _short_digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def compiled(command: list[str], source: Path, suffix: str, contents: str) -> Path | CompileError:
    """The result of `command` on `source`, from the cache or made now.

    Args:
        command: The compiler and its arguments, but for the source and the output.
        source: What it compiles.
        suffix: Of the result's name.
        contents: Stands for everything else that the result depends on.
    """
    family = f"{source.stem}-{_short_digest(*command, str(source))}"
    result = CACHE / f"{family}-{_short_digest(contents, source.read_text())}{suffix}"
    if result.is_file():
        return result
    CACHE.mkdir(parents=True, exist_ok=True)
    # Under another name until it is whole: tests and checks may run at the same time.
    partial = result.with_suffix(f".{os.getpid()}")
    full = [*command, str(source), "-o", str(partial)]
    done = subprocess.run(full, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        partial.unlink(missing_ok=True)
        said = (done.stdout + done.stderr).splitlines()
        return CompileError("\n".join([" ".join(full), *said[:MAX_ERROR_LINES]]))
    for outdated in CACHE.glob(f"{family}-*"):
        if outdated != partial:
            outdated.unlink(missing_ok=True)
    partial.replace(result)
    return result
