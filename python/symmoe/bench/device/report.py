"""Rows, and tables, of what was measured on devices."""

from __future__ import annotations

from typing import Any

from ..problem import Problem, format_size
from ..results import Row, Samples, compare, make_row
from ..routes import routed_traffic
from ..table import heading, lines
from .limit import limit_us, rates_of
from .measure import Measured, Timing

# In front of a report, and at the end of each of its lines.
NO_MEANING = "# *emulated: no GPU was used, times mean nothing"
REMARK = "  *emulated"
_GAIN_FROM = "staged/g"


def label_of(timing: Timing) -> str:
    """The name in tables: "direct", or "direct/g" for a replayed graph."""
    return timing.path if timing.kind == "eager" else f"{timing.path}/g"


def make_rows(measured: Measured) -> list[Row]:
    """One row per way, kind and problem, with the ratios to the others of the same problem.

    Without them for emulated devices, where they mean nothing.
    """
    rates = rates_of(str(measured.facts["name"]))
    rows: list[Row] = []
    problems = list(dict.fromkeys(timing.problem for timing in measured.timings))
    for problem in problems:
        routed = routed_traffic(problem) if problem.experts else None
        own = []
        for timing in measured.timings:
            if timing.problem != problem:
                continue
            traffic = routed if timing.path == "routed" else None
            samples = Samples(timing.spans_us, timing.wrong)
            limit = dense_limit = 0.0
            if rates is not None:
                given = problem, rates, measured.sync_us, measured.sharing
                limit, dense_limit = limit_us(*given, traffic), limit_us(*given)
            if traffic is not None:
                samples.moved = traffic.rows * problem.hidden * problem.element_bytes
            row = make_row(problem, label_of(timing), samples, limit, limit, dense_limit)
            row |= {"way": timing.path, "timing": timing.kind}
            if rates is None:
                row |= dict.fromkeys(
                    ("limit_us", "limit_plain_us", "limit_ratio", "dense_limit_us")
                )
            own.append(row)
        if measured.facts["kind"] != "host":
            compare(own)
        rows += own
    return rows


def problem_of(row: Row) -> Problem:
    """The problem that a row is of."""
    fields = ("mode", "ranks", "dtype", "tokens", "hidden", "topk", "shape", "experts")
    return Problem(**{field: row[field] for field in fields})


def long_table(rows: list[Row]) -> list[str]:
    """All rows, in the columns of the CPU's benchmark."""
    paths = list(dict.fromkeys(row["path"] for row in rows))
    text: list[str] = []
    block = None
    for problem in dict.fromkeys(problem_of(row) for row in rows):
        if block != (block := (problem.mode, problem.hidden)):
            text += heading(problem, paths).splitlines()
            text.append(
                f"# rows of {problem.hidden} elements, top-{problem.topk}; /g: per call within a"
                f" replayed graph"
            )
        text += lines(problem, [r for r in rows if problem_of(r) == problem], paths).splitlines()
    return text


def short_table(rows: list[Row]) -> list[str]:
    """Graph replay: microseconds of each way by size, and what direct saves against staged."""
    ways = list(dict.fromkeys(row["way"] for row in rows))
    head = f"{'mode':>10} {'hidden':>6} {'size':>8}" + "".join(f" {way:>13}" for way in ways)
    text = [
        "graph replay, us per call; gain: how much less direct takes than staged",
        f"{head} {'gain':>6} {'limit':>6}",
    ]
    replayed = [row for row in rows if row["timing"] == "graph"]
    for problem in dict.fromkeys(problem_of(row) for row in replayed):
        here = {row["way"]: row for row in replayed if problem_of(row) == problem}
        cells = "".join(
            f" {here[w]['time_us']:>13.1f}" if w in here else f" {'-':>13}" for w in ways
        )
        gain = limit = "-"
        direct = here.get("direct")
        if direct is not None and _GAIN_FROM in direct["times_faster"]:
            gain = f"{1 - 1 / direct['times_faster'][_GAIN_FROM]:.0%}"
        if direct is not None and direct["limit_ratio"] is not None:
            limit = f"{direct['limit_ratio']:.2f}"
        text.append(
            f"{problem.mode:>10} {problem.hidden:>6} {format_size(problem.nbytes):>8}"
            f"{cells} {gain:>6} {limit:>6}"
        )
    return text


def notes(measured: Measured) -> list[str]:
    """What a reader has to know beside the numbers."""
    facts: dict[str, Any] = measured.facts
    text = [
        f"{facts['name']}, NCCL {facts['nccl']} ({facts['nccl_path']}), "
        f"a small reduce-scatter takes {measured.sync_us:.1f} us"
    ]
    text += [f"{name} was left out: {reason}" for name, reason in measured.refusals.items()]
    if measured.sharing > 1:
        text.append(
            f"{measured.sharing} ranks share a GPU and take turns on it: nothing here is said "
            f"about NVLink"
        )
    return text
