"""The scripts in bench/ that compare ways to one result: that all ways do come to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"


@pytest.mark.multi
@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "ways"),
    [
        ("epilogue.py", ("fused", "kernel", "torch")),
        (
            "mtp.py",
            (
                "shard",
                "split",
                "split_kernel",
                "gloo_shard",
                "gloo_split",
                "layer",
                "layer_split",
            ),
        ),
    ],
)
def test_all_ways_come_to_the_same(script: str, ways: tuple[str, ...], tmp_path: Path) -> None:
    """Whether a bar was met is not looked at: this machine may be busy."""
    file = tmp_path / "rows.json"
    shapes = ["--ranks=2", "--hidden=96,64", "--tokens=3", "--calls=2"]
    done = subprocess.run(
        [sys.executable, str(BENCH / script), *shapes, f"--json={file}"],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert file.exists(), done.stdout + done.stderr
    rows = json.loads(file.read_text())["rows"]
    assert [row["hidden"] for row in rows] == [96, 64]
    assert all(row["right"] for row in rows), done.stdout
    assert all(row[way] > 0 for row in rows for way in ways)
