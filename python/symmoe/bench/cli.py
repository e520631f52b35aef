"""From the command line to table, JSON and picture."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import table
from .arguments import (
    add_arguments,
    make_effort,
    make_paths,
    make_problems,
    make_setting,
)
from .errors import BenchError
from .machine import describe_machine
from .plot import check_plot_possible, draw
from .problem import Problem
from .results import Row
from .sweep import Outcome
from .sweep import run as run_sweep

__all__ = ["add_arguments", "main", "run"]


def main(arguments: argparse.Namespace) -> int:
    """Runs the benchmark that the parsed options of add_arguments describe.

    Returns:
        The exit code: 0; 1 where a result was wrong or the run failed; 2 for senseless options.
    """
    if arguments.device != "cpu":
        from .device import cli as devices

        return devices.main(arguments)
    try:
        problems = make_problems(arguments)
        paths, optional = make_paths(arguments)
        setting, effort = make_setting(arguments), make_effort(arguments)
        if arguments.plot:
            check_plot_possible()
    except BenchError as error:
        print(f"symmoe bench: {error}", file=sys.stderr)
        return 2
    machine = describe_machine()
    print(
        f"# symmoe {machine['symmoe']}, torch {machine['torch']}, {machine['cpus']} x"
        f" {machine['processor']}\n# median of the calls' times, first rank's start to last"
        " rank's end; limit: what the memory allows over time"
    )
    shown: list[tuple[str, int, str]] = []

    def show(problem: Problem, rows: list[Row]) -> None:
        block = (problem.mode, problem.ranks, problem.dtype)
        if block not in shown:
            shown.append(block)
            print(table.heading(problem, paths))
        print(table.lines(problem, rows, paths), flush=True)

    try:
        with _ends_in_order():
            outcome = run_sweep(problems, paths, optional, setting, effort, show)
    except BenchError as error:
        print(f"symmoe bench: {error}", file=sys.stderr)
        return 1
    return _finish(arguments, machine, outcome)


@contextlib.contextmanager
def _ends_in_order() -> Iterator[None]:
    """Lets SIGTERM unwind, like an interrupt, so that no worker or folder is left behind."""

    def leave(number: int, frame: object) -> None:
        del frame
        sys.exit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _finish(arguments: argparse.Namespace, machine: dict[str, object], outcome: Outcome) -> int:
    for note in outcome.notes:
        print(f"# note: {note}")
    if arguments.json:
        result = {
            "machine": machine,
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "rows": outcome.rows,
            "calibration": outcome.calibration,
            "notes": outcome.notes,
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
        print(f"# wrote {arguments.json}")
    if arguments.plot:
        draw(outcome.rows, arguments.plot, machine)
        print(f"# wrote {arguments.plot}")
    return 1 if any(row["wrong"] for row in outcome.rows) else 0


def run(arguments: Sequence[str]) -> int:
    """The same, from a list of options."""
    parser = argparse.ArgumentParser(prog="symmoe bench", description="Times symmoe and others.")
    add_arguments(parser)
    return main(parser.parse_args(arguments))
