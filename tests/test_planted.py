"""ThreadSanitizer must report every bug of tests/cpp/planted, and nothing once the bug is out.

Those of tests/cpp/planted_outputs must fail the test that they are planted in.
"""

from __future__ import annotations

import pytest

from test_cpp import ROOT, run

FOLDER = ROOT / "tests" / "cpp"
BUGS = sorted(source.stem for source in (FOLDER / "planted").glob("*.cpp"))
# And what device_output_test says of each bug in outputs, before it crashes or ends.
OUTPUTS = {
    "not_noted": [
        "FAIL whoever_acquires_the_window_next_comes_behind_the_call",
        "pool_stats().retired_bytes, size_t{4096}): 0 != 4096",  # and then it is written
    ],
    "not_ordered": ["FAIL the_call_comes_behind_the_windows_last_use"],
    "not_pinned": ["FAIL a_window_that_a_graph_writes_stays_until_graphs_are_released"],
    "not_taken": ["FAIL a_call_into_the_window_has_its_lane_to_itself"],
    "not_used_up": ["FAIL gathered_rows_use_the_window_up"],
}

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


def test_each_output_bug_is_looked_for() -> None:
    assert {source.stem for source in (FOLDER / "planted_outputs").glob("*.cpp")} == set(OUTPUTS)


@pytest.mark.parametrize("bug", OUTPUTS)
def test_bug_in_outputs_is_caught(bug: str) -> None:
    code, output = run("plain", f"planted_output_{bug}")
    assert all(said in output for said in OUTPUTS[bug]), output
    assert code != 0, output
