"""ThreadSanitizer must report every bug of tests/cpp/planted, and nothing once the bug is out."""

from __future__ import annotations

import pytest

from test_cpp import ROOT, run

BUGS = sorted(source.stem for source in (ROOT / "tests" / "cpp" / "planted").glob("*.cpp"))

pytestmark = [pytest.mark.cpp, pytest.mark.timeout(900)]


def test_there_are_planted_bugs() -> None:
    assert {"missing_guard", "relaxed_flag"} <= set(BUGS)


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_caught(bug: str) -> None:
    code, output = run("tsan", f"planted_{bug}")
    assert "ThreadSanitizer: data race" in output, f"{bug} was not noticed:\n{output}"
    assert code != 0, output


@pytest.mark.parametrize("bug", BUGS)
def test_without_the_bug_nothing_is_reported(bug: str) -> None:
    code, output = run("tsan", f"clean_{bug}")
    assert code == 0, f"clean_{bug} exited with {code}:\n{output}"
    assert "ThreadSanitizer" not in output, output
