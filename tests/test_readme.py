"""Runs the Python code of the README and of docs/, so that they stay true.

The ```python blocks of a file are one program, run by one process and by two.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
PAGES = sorted(
    page for pattern in ("*.md", "docs/*.md", "examples/*.md") for page in ROOT.glob(pattern)
)
PROGRAMS = [page for page in PAGES if BLOCK.search(page.read_text())]
SECONDS = 60


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def program(page: Path) -> str:
    """The blocks of a page, each at the line where it stands there."""
    text = page.read_text()
    code = ""
    for block in BLOCK.finditer(text):
        begin = text.count("\n", 0, block.start(1))
        code += "\n" * (begin - code.count("\n")) + block.group(1)
    return code


def test_the_readme_has_a_program() -> None:
    assert ROOT / "README.md" in PROGRAMS


@pytest.mark.multi
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("page", PROGRAMS, ids=name_of)
def test_program(page: Path, world: int, tmp_path: Path) -> None:
    script = tmp_path / f"{page.stem}.py"
    script.write_text(program(page))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SYMMOE_")}
    done = subprocess.run(
        [sys.executable, *launcher, str(script)],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        env=environment | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert done.returncode == 0, done.stdout


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text()):
        if "://" in path:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name_of(page)} links to {path}"
        if anchor:
            assert anchor in anchors(target), f"{name_of(page)} links to {path}#{anchor}"
