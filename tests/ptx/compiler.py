"""PTX of a source, as nvcc emits it, through the project's own compiler driver."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CASES = Path(__file__).resolve().parent / "cases"
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")


def emit(
    sources: Sequence[Path],
    defines: Sequence[str] = (),
    architectures: Sequence[str] = ARCHITECTURES,
) -> dict[tuple[str, str], str]:
    """PTX texts by (stem of the source, architecture); kept under build/ by content."""
    command = [sys.executable, str(ROOT / "tools" / "device_compiler.py"), "ptx"]
    command += [*map(str, sources), "--arch", *architectures]
    if defines:
        command += ["--define", *defines]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"no PTX: {done.stderr}")
    pairs = [(source.stem, name) for source in sources for name in architectures]
    paths = done.stdout.split()
    return {pair: Path(path).read_text() for pair, path in zip(pairs, paths, strict=True)}
