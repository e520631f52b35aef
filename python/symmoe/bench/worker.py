"""A worker process: one rank of one backend, asleep until the coordinator gives it a turn."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Protocol

import torch

from symmoe._core import measure

from .backend import Place, load
from .calibration import Calibrator
from .channel import TOKEN_VARIABLE, Channel, report_to
from .problem import LIMIT, Problem
from .turn import TimedRunner

_RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
_START_DEADLINE_NS = 280 * 10**9


class Runner(Protocol):
    """What a worker does in its turn."""

    def turn(self, problem: Problem, iterations: int, seed: int) -> dict[str, object]:
        """Does it, and answers with the times."""

    def close(self) -> None:
        """Ends."""


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="symmoe.bench.worker")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--backend-file", type=Path, action="append", default=[])
    parser.add_argument("--rank", type=int, default=-1, help="default: what mpiexec says")
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--control", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--line", required=True)
    parser.add_argument("--core-line", required=True)
    parser.add_argument("--arena", required=True)
    parser.add_argument("--cpus", required=True, help="processors of this run, by comma")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pin", action="store_true")
    return parser.parse_args()


def _die_with_parent() -> None:
    """A worker whose coordinator was killed must not stay, even if it is stopped just then."""
    pr_set_pdeathsig = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)


def _rank_of(arguments: argparse.Namespace) -> int:
    if arguments.rank >= 0:
        return int(arguments.rank)
    for name in _RANK_VARIABLES:
        if name in os.environ:
            return int(os.environ[name])
    raise RuntimeError(f"none of {', '.join(_RANK_VARIABLES)} is set: not started by mpiexec?")


def _runner(
    arguments: argparse.Namespace, place: Place, cpus: list[int]
) -> tuple[Runner, bool, bool]:
    """The runner, whether it uses the processor between turns, and whether it is to be bound."""
    line = measure.StartLine(arguments.line, place.world, place.rank, _START_DEADLINE_NS)
    if arguments.backend == LIMIT:
        calibrator = Calibrator(place, line, arguments.core_line, arguments.arena, len(cpus))
        return calibrator, False, True
    backend = load(arguments.backend, arguments.backend_file)(place)
    backend.setup()
    return TimedRunner(backend, line), backend.spins_idle, backend.pinned


def _serve(channel: Channel, runner: Runner) -> None:
    while (message := channel.receive()) is not None and message["command"] == "turn":
        problem = Problem.from_json(message["problem"])
        channel.send(runner.turn(problem, message["iterations"], message["seed"]))
    runner.close()


def main() -> int:
    """Sets up, then answers turns until the coordinator says so or is gone."""
    arguments = _parse()
    _die_with_parent()
    # An interrupt at the terminal reaches all; the coordinator then ends its workers in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    rank = _rank_of(arguments)
    cpus = [int(cpu) for cpu in arguments.cpus.split(",")]
    torch.set_num_threads(arguments.threads)
    place = Place(rank, arguments.world, arguments.folder, arguments.run_id)
    hello = {
        "token": os.environ.get(TOKEN_VARIABLE, ""),
        "backend": arguments.backend,
        "rank": rank,
        "pid": os.getpid(),
    }
    channel = report_to(arguments.control, hello)
    try:
        runner, spins_idle, pinned = _runner(arguments, place, cpus)
        if arguments.pin and pinned:
            # After setup: a library's own threads were made before, and stay free.
            first = rank * arguments.threads
            os.sched_setaffinity(
                0, {cpus[(first + offset) % len(cpus)] for offset in range(arguments.threads)}
            )
        channel.send({"ready": True, "spins_idle": spins_idle})
        _serve(channel, runner)
    except Exception as error:
        traceback.print_exc()
        with contextlib.suppress(OSError):
            channel.send({"error": f"{type(error).__name__}: {error}"})
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
