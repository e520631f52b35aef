"""The device kernels without a device: run by the emulator, plain and under sanitizers.

Programs of tests/cpp/device compare them with the CPU kernels; those of tests/cpp/device/planted
have a known bug each, which the emulator or a sanitizer has to find, and nothing once it is out.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from test_cpp import (
    BUILD_OPTIONS,
    ROOT,
    SANITIZER_ENVIRONMENT,
    build_step,
    fixed_addresses,
    tool,
)

FOLDER = ROOT / "tests" / "cpp" / "device"
KERNELS = ROOT / "csrc" / "kernels" / "device"
TESTS = sorted(source.stem for source in FOLDER.glob("*_test.cpp"))
RUN_SECONDS = 100

# Bug, the kind of build that shows it, what is said then, arguments.
PLANTED: list[tuple[str, str, str, list[str]]] = [
    ("divergent_barrier", "plain", r"EMULATOR: .*divergent barrier: __syncthreads at ", []),
    ("early_return", "plain", r"EMULATOR: .*returned while other threads wait at the barrier", []),
    ("epilogue_of_padding", "plain", r"^[1-9]\d* wrong rows", []),
    ("epilogue_residual_twice", "plain", r"^[1-9]\d* wrong rows", []),
    ("epilogue_square_order", "plain", r"^[1-9]\d* wrong rows", []),
    ("lost_signal", "plain", r"EMULATOR: .*waited for \d+ ms", []),
    ("misaligned_access", "plain", r"EMULATOR: .*misaligned 16-byte load", []),
    ("missing_sync", "plain", r"EMULATOR: .*misaligned 16-byte read-only load", []),
    ("missing_thread", "plain", r"EMULATOR: divergent barrier: .*not all others come", []),
    ("out_of_bounds_read", "plain", r"EMULATOR: .*4-byte load at .*out of bounds", ["declared"]),
    ("pull_epoch_not_counted", "plain", r"^[1-9]\d* wrong sums", []),
    ("pull_mask_ignored", "plain", r"^[1-9]\d* wrong sums", []),
    ("pull_rank_order", "plain", r"^[1-9]\d* wrong sums", []),
    ("stale_read", "plain", r"EMULATOR: .*read-only load at .*does not permit", []),
    ("out_of_bounds_read", "asan", "AddressSanitizer: heap-buffer-overflow", []),
    (
        "pull_sizes_not_checked",
        "asan",
        r"(?s)AddressSanitizer: (heap-buffer-overflow|SEGV).*pull_share",
        [],
    ),
    ("shared_out_of_bounds_write", "asan", "AddressSanitizer: use-after-poison", []),
    ("combine_without_sync", "tsan", "ThreadSanitizer: data race", []),
    ("early_overwrite", "tsan", "ThreadSanitizer: data race", []),
    ("epilogue_largest_not_there", "tsan", "ThreadSanitizer: data race", []),
    ("epilogue_row_not_there", "tsan", "ThreadSanitizer: data race", []),
    ("epilogue_squares_not_there", "tsan", "ThreadSanitizer: data race", []),
    ("global_race", "tsan", "ThreadSanitizer: data race", []),
    ("missing_exit_barrier", "tsan", "ThreadSanitizer: data race", []),
    ("pull_leaves_early", "tsan", "ThreadSanitizer: data race", []),
    ("pull_relaxed_stamp", "tsan", "ThreadSanitizer: data race", []),
    ("pull_without_exit", "tsan", "ThreadSanitizer: data race", []),
    ("relaxed_flag", "tsan", "ThreadSanitizer: data race", []),
]

pytestmark = [pytest.mark.cpp, pytest.mark.timeout(900)]


def planted_programs(kind: str) -> list[str]:
    """Targets of the planted bugs that this kind of build shows."""
    bugs = sorted({bug for bug, bug_kind, _, _ in PLANTED if bug_kind == kind})
    return [f"device_{state}_{bug}" for bug in bugs for state in ("planted", "clean")]


@functools.cache
def build_folder(kind: str) -> Path:
    """Builds what these tests need in the folder of test_cpp.py; each test then its own part."""
    folder = ROOT / "build" / f"cpp-{kind}"
    options = ["-DSYMMOE_PYTHON=OFF", "-DSYMMOE_TESTS=ON", *BUILD_OPTIONS[kind]]
    options.append(f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}")
    options.append(f"-DPython_EXECUTABLE={sys.executable}")
    build_step(tool("cmake"), "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *options)
    keep_going = [tool("ninja"), "-C", str(folder), "-k", "0", *TESTS, *planted_programs(kind)]
    # A source that does not compile fails its own test only.
    subprocess.run(keep_going, check=False, capture_output=True)
    return folder


def run(kind: str, name: str, *arguments: str) -> tuple[int, str]:
    """Builds one program and runs it; returns its exit code and all of its output."""
    folder = build_folder(kind)
    build_step(tool("cmake"), "--build", str(folder), "--target", name)
    prefix = fixed_addresses() if kind == "tsan" else ()
    done = subprocess.run(
        [*prefix, str(folder / name), *arguments],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=RUN_SECONDS,
        env=os.environ | SANITIZER_ENVIRONMENT,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("name", TESTS)
@pytest.mark.parametrize("kind", ["plain", "asan", "tsan"])
def test_device_kernels(kind: str, name: str) -> None:
    code, output = run(kind, name)
    assert code == 0, f"{name} ({kind}) exited with {code}:\n{output}"
    assert "EMULATOR" not in output


@pytest.mark.parametrize("seed", [1, 20261129])
def test_any_schedule(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMMOE_EMULATOR_SEED", str(seed))
    for name in TESTS:
        code, output = run("plain", name)
        assert code == 0, f"{name}, seed {seed}, exited with {code}:\n{output}"


def test_each_planted_bug_is_looked_for() -> None:
    sources = {source.stem for source in (FOLDER / "planted").glob("*.cpp")}
    assert sources == {bug for bug, _, _, _ in PLANTED}


@pytest.mark.parametrize(
    ("bug", "kind", "said", "arguments"), PLANTED, ids=[f"{row[1]}-{row[0]}" for row in PLANTED]
)
def test_planted_bug_is_caught(bug: str, kind: str, said: str, arguments: list[str]) -> None:
    # ThreadSanitizer remembers the last few accesses only: on a busy machine it may miss a race.
    for _ in range(3 if kind == "tsan" else 1):
        code, output = run(kind, f"device_planted_{bug}", *arguments)
        if re.search(said, output):
            break
    assert re.search(said, output), f"{bug} was not noticed:\n{output}"
    assert code != 0, output


@pytest.mark.parametrize(
    ("bug", "kind", "said", "arguments"), PLANTED, ids=[f"{row[1]}-{row[0]}" for row in PLANTED]
)
def test_without_the_bug_nothing_is_said(
    bug: str, kind: str, said: str, arguments: list[str]
) -> None:
    code, output = run(kind, f"device_clean_{bug}", *arguments)
    assert code == 0, f"clean_{bug} exited with {code}:\n{output}"
    assert "Sanitizer" not in output, output
    assert "EMULATOR" not in output, output


def lines_run(objects: Path) -> dict[Path, dict[int, int]]:
    """How often each line of the kernels ran, by file, from what the program left in `objects`."""
    counts: dict[Path, dict[int, int]] = {}
    for data in objects.rglob("*.gcda"):
        done = subprocess.run(
            ["gcov", "--json-format", "--stdout", str(data)],
            check=True,
            capture_output=True,
            cwd=objects,
        )
        raw = done.stdout
        text = gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
        reports = json.loads(text)
        for report in reports["files"]:
            # Compilers that were called by a cache say where files are from there.
            file = Path(reports["current_working_directory"], report["file"]).resolve()
            if file.parent != KERNELS:
                continue
            of_file = counts.setdefault(file, {})
            for line in report["lines"]:
                number = line["line_number"]
                of_file[number] = of_file.get(number, 0) + line["count"]
    return counts


def test_every_line_of_the_kernels_runs() -> None:
    folder = build_folder("plain")
    objects = folder / "tests" / "cpp" / "device" / "CMakeFiles" / "symmoe_kernels_covered.dir"
    for old in objects.rglob("*.gcda"):
        old.unlink()
    code, output = run("plain", "device_coverage")
    assert code == 0, output
    counts = lines_run(objects)
    assert {path.name for path in KERNELS.glob("*.cu")} <= {path.name for path in counts}
    missed = [
        f"{path.relative_to(ROOT)}:{number}: {path.read_text().splitlines()[number - 1]}"
        for path, lines in sorted(counts.items())
        for number, count in sorted(lines.items())
        if count == 0
    ]
    assert not missed, "never run:\n" + "\n".join(missed)
    assert sum(map(len, counts.values())) > 150
