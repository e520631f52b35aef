"""Checks the rules of the house that no linter knows; prints each breach and exits with 1 on any.

- A source file has at most 400 lines.
- Every folder with source says what lives there: a README.md or a package docstring.
- An include in csrc names only layers at or below its own, from csrc/ on, and nothing of torch.
- No note of unfinished work is left in the source.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 400
SOURCE_SUFFIXES = {".cpp", ".h", ".cu", ".cuh", ".py", ".sh", ".txt", ".cmake"}
EXPLAINED_TREES = ("csrc", "python/symmoe", "tests", "bench", "examples", "tools")

LAYERS = ("base", "kernels", "runtime", "windows", "sync", "pool", "collectives", "bindings")
ALLOWED = {layer: set(LAYERS[: index + 1]) for index, layer in enumerate(LAYERS)}
# Shared objects of their own, which the core only opens.
ALLOWED["backends"] = {"base", "kernels", "runtime", "backends"}
ALLOWED["fake_nccl"] = {"base", "runtime", "backends", "fake_nccl"}
# Beside the stack: the benchmark's instruments, which only the bindings show to Python.
ALLOWED["measure"] = {"base", "measure"}
ALLOWED["bindings"].add("measure")

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")


def project_files() -> list[Path]:
    """Files of the work tree that git knows or would add, relative to the root."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    names = sorted(set(filter(None, listing.stdout.split("\0"))))
    return [Path(name) for name in names if (ROOT / name).is_file()]


def long_files(files: list[Path]) -> Iterator[str]:
    """Source files over MAX_LINES."""
    for path in files:
        if path.suffix in SOURCE_SUFFIXES:
            lines = len((ROOT / path).read_text().splitlines())
            if lines > MAX_LINES:
                yield f"{path}: {lines} lines, at most {MAX_LINES}"


def unexplained_folders(files: list[Path]) -> Iterator[str]:
    """Folders of the explained trees with neither a README.md nor a package docstring."""
    folders: set[Path] = set()
    for tree in map(Path, EXPLAINED_TREES):
        for path in files:
            if path.is_relative_to(tree):
                inside = [path.parent, *path.parent.parents]
                folders.update(folder for folder in inside if folder.is_relative_to(tree))
    for folder in sorted(folders):
        package = ROOT / folder / "__init__.py"
        documented = package.is_file() and ast.get_docstring(ast.parse(package.read_text()))
        if not documented and not (ROOT / folder / "README.md").is_file():
            yield f"{folder}/: no README.md and no package docstring"


def forbidden_includes(files: list[Path]) -> Iterator[str]:
    """Includes in csrc that point up the layers, out of csrc, or at torch."""
    for path in files:
        if path.parts[0] != "csrc" or path.suffix not in {".cpp", ".h", ".cu", ".cuh"}:
            continue
        layer = path.parts[1]
        if layer not in ALLOWED:
            yield f"{path}: {layer} is not a known layer ({', '.join(ALLOWED)})"
            continue
        for number, line in enumerate((ROOT / path).read_text().splitlines(), start=1):
            match = INCLUDE.match(line)
            if match is None:
                continue
            quote, name = match.groups()
            place = f"{path}:{number}: includes {name}"
            if re.match(r"(torch|ATen|c10)/", name):
                yield f"{place}: csrc does not know torch"
            elif quote == '"' and not (ROOT / "csrc" / name).is_file():
                yield f"{place}: write the path from csrc/ on"
            elif quote == '"' and name.split("/")[0] not in ALLOWED[layer]:
                allowed = ", ".join(sorted(ALLOWED[layer]))
                yield f"{place}: {layer} may use only {allowed}"


def unfinished_work(files: list[Path]) -> Iterator[str]:
    """Marks of unfinished work in source."""
    for path in files:
        if path.suffix in SOURCE_SUFFIXES:
            for number, line in enumerate((ROOT / path).read_text().splitlines(), start=1):
                match = UNFINISHED.search(line)
                if match is not None:
                    yield f"{path}:{number}: {match.group()}"


def main() -> int:
    """Runs every rule over the work tree and returns the exit code."""
    files = project_files()
    rules = (long_files, unexplained_folders, forbidden_includes, unfinished_work)
    breaches = [breach for rule in rules for breach in rule(files)]
    for breach in breaches:
        print(breach)
    print(f"{len(files)} files, {len(breaches)} breaches of the house rules")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
