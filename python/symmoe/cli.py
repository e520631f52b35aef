"""The `symmoe` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ._version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code.

    Args:
        arguments: Those of the command line, without the program's name; None: sys.argv's.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="symmoe", description="Combines Mixture-of-Experts output with no staging copy."
    )
    parser.add_argument("--version", action="version", version=f"symmoe {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    doctor = commands.add_parser(
        "doctor",
        help="what this machine offers and which path calls would take; exit code 1 if windows "
        "do not work here",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON")
    bench = commands.add_parser("bench", help="measure the paths beside each other")
    if words[:1] == ["bench"]:
        from . import bench as benchmark

        benchmark.add_arguments(bench)
        return _exit_code(benchmark.main(parser.parse_args(words)))
    tune = commands.add_parser(
        "tune", help="measure reduce_scatter on this machine's GPUs; the table to choose paths by"
    )
    if words[:1] == ["tune"]:
        from . import tune as tuner

        tuner.add_arguments(tune)
        return tuner.main(parser.parse_args(words))
    given = parser.parse_args(words)
    from . import doctor as examination

    return examination.main(given.json)


def _exit_code(result: int | None) -> int:
    return result or 0
