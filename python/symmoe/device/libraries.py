"""Finds the shared objects of the GPU path: this package's back ends, and NCCL."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from .. import _core

PACKAGE = Path(_core.__file__).parent
NCCL_WHEELS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")


def back_end(kind: str) -> Path | None:
    """The back end for "cuda", "hip" or "host"; None if it was not built."""
    path = PACKAGE / f"libsymmoe_{kind}.so"
    return path if path.is_file() else None


def fake_nccl() -> Path | None:
    """The NCCL over host memory that `symmoe.testing` uses; None if it was not built."""
    path = PACKAGE / "libsymmoe_fake_nccl.so"
    return path if path.is_file() else None


def nccl_wheels() -> list[str]:
    """Paths of NCCL in pip's packages, the newest CUDA first."""
    found = []
    for name in NCCL_WHEELS:
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found += [str(file.locate()) for file in files if file.name.startswith("libnccl.so")]
    return found
