"""The run: which paths meet which problems, in which order, and what is done with the answers."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .backend import ROUTED_PATHS
from .channel import Listener
from .errors import BenchError
from .problem import LIMIT, Problem, format_size
from .results import Calibration, Row, Samples, compare, limit_of, make_row
from .routes import routed_traffic
from .workers import Setting, Workers

_PILOT_CALLS = 3
_MIN_CALLS = 4
_MAX_CALLS = 200


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: Turns of each path at each problem.
        seconds: What a turn should take, untimed parts of the loop included.
    """

    rounds: int
    seconds: float

    def calls(self, pilot: list[dict[str, Any]]) -> int:
        """Calls per turn, from how long a few calls took."""
        each = max(float(answer.get("loop_ns", 0)) for answer in pilot) / 1e9 / _PILOT_CALLS
        if each <= 0:
            return _MIN_CALLS
        return max(_MIN_CALLS, min(_MAX_CALLS, int(self.seconds / each)))


@dataclass
class Outcome:
    """What a run gave.

    Attributes:
        rows: A row for each path at each problem, paths of a problem next to each other.
        calibration: The rates behind each limit.
        notes: What a reader of the rows has to know.
    """

    rows: list[Row] = field(default_factory=list)
    calibration: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Keeps a note once."""
        if text not in self.notes:
            self.notes.append(text)


class Progress:
    """One line on stderr that says what is being measured; plain lines where it is no terminal."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._live = sys.stderr.isatty()

    def say(self, text: str) -> None:
        """Shows a step without counting it."""
        if self._live:
            sys.stderr.write(f"\r\033[K[{self._done}/{self._total}] {text}")
            sys.stderr.flush()

    def step(self, text: str) -> None:
        """Counts a step and shows it."""
        self._done += 1
        if self._live:
            self.say(text)
        else:
            sys.stderr.write(f"[{self._done}/{self._total}] {text}\n")

    def clear(self) -> None:
        """Makes room for other output."""
        if self._live:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def describe(problem: Problem) -> str:
    """A problem in a few words."""
    shape = f" {problem.shape} {problem.tokens} tokens" if problem.shape else ""
    size = format_size(problem.nbytes)
    return f"{problem.mode} {problem.ranks} ranks {problem.dtype} {size}{shape}"


@contextlib.contextmanager
def started(
    paths: list[str],
    optional: set[str],
    ranks: int,
    setting: Setting,
    outcome: Outcome,
    progress: Progress,
) -> Iterator[dict[str, Workers]]:
    """The workers of all paths, and of the limit. An optional path that fails is left out."""
    with contextlib.ExitStack() as stack:
        listener = Listener()
        stack.callback(listener.close)
        sets: dict[str, Workers] = {}
        for path in [*paths, LIMIT]:
            progress.say(f"{ranks} ranks: starting {path}")
            try:
                sets[path] = stack.enter_context(Workers(path, ranks, setting, listener))
            except BenchError as error:
                if path not in optional:
                    raise
                outcome.note(f"left out: {error}")
        yield sets


def measure_problem(
    problem: Problem,
    sets: dict[str, Workers],
    cores: int,
    effort: Effort,
    outcome: Outcome,
    progress: Progress,
) -> list[Row]:
    """All paths at one problem, side by side: they take turns for several rounds.

    The limit's workers have a turn in every round too, so that noise on the machine hits what is
    measured and what it is compared with alike.
    """
    samples = {path: Samples() for path in sets if path != LIMIT}
    calibration = Calibration()
    calls: dict[str, int] = {}
    for round_number in range(effort.rounds + 1):
        for path, workers in sets.items():
            if path != LIMIT and samples[path].unsupported:
                continue
            progress.say(f"{describe(problem)}  round {round_number}/{effort.rounds}  {path}")
            pilot = round_number == 0
            answers = workers.turn(problem, _PILOT_CALLS if pilot else calls[path], round_number)
            if pilot:
                calls[path] = effort.calls(answers)
                if "unsupported" not in answers[0]:
                    continue
            if path == LIMIT:
                calibration.add(answers)
            else:
                samples[path].add(answers)
    rates = calibration.rates(problem, cores)
    plain = dataclasses.replace(rates, overlap=1.0)
    dense_limit = limit_of(problem, rates, cores)
    rows = []
    for path, sample in samples.items():
        if sample.unsupported:
            outcome.note(f"{path} has no {problem.mode} of {problem.dtype}: {sample.unsupported}")
        else:
            traffic = routed_traffic(problem) if path in ROUTED_PATHS else None
            limit = limit_of(problem, rates, cores, traffic)
            plain_limit = limit_of(problem, plain, cores, traffic)
            rows.append(make_row(problem, path, sample, limit, plain_limit, dense_limit))
    compare(rows)
    outcome.rows += rows
    outcome.calibration.append({"problem": problem.to_json(), "rates": vars(rates)})
    for row in rows:
        if row["bad_calibration"]:
            outcome.note(
                f"bad calibration: {row['path']} at {describe(problem)} is "
                f"{row['limit_ratio']:.2f} of the limit"
            )
        if row["wrong"]:
            outcome.note(f"WRONG: {row['path']} at {describe(problem)}: {row['wrong']} elements")
    return rows


def run(
    problems: list[Problem],
    paths: list[str],
    optional: set[str],
    setting: Setting,
    effort: Effort,
    on_rows: Callable[[Problem, list[Row]], None],
) -> Outcome:
    """The whole run, rank count by rank count; on_rows is called after each problem.

    Raises:
        BenchError: A path that was asked for cannot be started, or any worker fails.
    """
    outcome = Outcome()
    progress = Progress(len(problems))
    cores = len(setting.cpus)
    try:
        for ranks in dict.fromkeys(problem.ranks for problem in problems):
            with started(paths, optional, ranks, setting, outcome, progress) as sets:
                for problem in problems:
                    if problem.ranks == ranks:
                        progress.step(describe(problem))
                        rows = measure_problem(problem, sets, cores, effort, outcome, progress)
                        progress.clear()
                        on_rows(problem, rows)
    finally:
        progress.clear()
    return outcome
