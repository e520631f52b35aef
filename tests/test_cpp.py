"""Builds tests/cpp with CMake and runs each executable: plain, ASan+UBSan and, where marked, TSan.

A line `// tsan` at the head of a C++ test marks it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "tests" / "cpp").glob("*_test.cpp"))
MARK_LINES = 15
RUN_SECONDS = 200
BUILD_OPTIONS = {
    "plain": ["-DSYMMOE_WERROR=ON"],
    "asan": ["-DSYMMOE_SANITIZE=address"],
    "tsan": ["-DSYMMOE_SANITIZE=thread"],
}
SANITIZER_ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_init_order=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}

pytestmark = [pytest.mark.cpp, pytest.mark.timeout(900)]


def is_marked(source: Path) -> bool:
    """Whether a test runs under ThreadSanitizer as well."""
    return "// tsan" in source.read_text().splitlines()[:MARK_LINES]


CASES = [(kind, source.stem) for kind in ("plain", "asan") for source in SOURCES]
CASES += [("tsan", source.stem) for source in SOURCES if is_marked(source)]


def tool(name: str) -> str:
    """Path of a build tool: this environment's, else the system's."""
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    found = shutil.which(name, path=folders)
    if found is None:
        pytest.fail(f"{name} is needed to build the C++ tests: pip install {name}")
    return found


def build_step(*command: str) -> None:
    """Runs a build command; its output is shown if it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}", pytrace=False)


@functools.cache
def build_folder(kind: str) -> Path:
    """Configures one kind of build and builds all it can; a test then builds its own part."""
    folder = ROOT / "build" / f"cpp-{kind}"
    options = ["-DSYMMOE_PYTHON=OFF", "-DSYMMOE_TESTS=ON", *BUILD_OPTIONS[kind]]
    options.append(f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}")
    options.append(f"-DPython_EXECUTABLE={sys.executable}")  # whose packages may have an nvcc
    build_step(tool("cmake"), "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *options)
    # A source that does not compile fails its own test only, so the result does not matter here.
    names = sorted({name for case_kind, name in CASES if case_kind == kind})
    keep_going = [tool("ninja"), "-C", str(folder), "-k", "0", *names]
    subprocess.run(keep_going, check=False, capture_output=True)
    return folder


@functools.cache
def fixed_addresses() -> tuple[str, ...]:
    """Prefix that turns address randomisation off, which some ThreadSanitizers cannot bear."""
    prefix = ("setarch", "--addr-no-randomize")
    usable = shutil.which(prefix[0]) is not None
    usable = usable and subprocess.run([*prefix, "true"], check=False).returncode == 0
    return prefix if usable else ()


def run(kind: str, name: str) -> tuple[int, str]:
    """Builds one test and runs it; returns its exit code and all of its output.

    The output goes to a file and the test has a session of its own, since a test that hangs has
    child processes that would hold a pipe open, and that have to be ended with it.
    """
    folder = build_folder(kind)
    build_step(tool("cmake"), "--build", str(folder), "--target", name)
    command = [str(folder / name)]
    if kind == "tsan":
        command = [*fixed_addresses(), *command]
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | SANITIZER_ENVIRONMENT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = log.read_text(errors="replace")
    if code is None:
        pytest.fail(f"{name} ({kind}) ran for over {RUN_SECONDS} s:\n{text}", pytrace=False)
    return code, text


@pytest.mark.parametrize(("kind", "name"), CASES, ids=["-".join(case) for case in CASES])
def test_cpp(kind: str, name: str) -> None:
    code, output = run(kind, name)
    assert code == 0, f"{name} ({kind}) exited with {code}:\n{output}"
