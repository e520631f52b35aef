"""`symmoe bench --device cuda|emulated`: options, run, output."""

from __future__ import annotations

import argparse
import json
import sys

from ..arguments import DEVICE_HIDDEN, DEVICE_SIZES, DEVICE_TOPK, integers, split
from ..errors import BenchError
from ..machine import describe_machine
from ..problem import ELEMENT_BYTES, PLAIN_EXPERTS, Problem, parse_size
from . import processes, report
from .measure import Effort, Measured
from .measure import run as run_rank
from .paths import WAYS

_FULL, _QUICK, _EMULATED = Effort(5, 40, 10, 10), Effort(2, 10, 5, 10), Effort(1, 2, 2, 2)
_ONLY_ON_CPU: dict[str, object] = {
    "shape": None,
    "tokens": None,
    "plot": None,
    "peers": None,
    "seconds": None,
    "backend_file": [],
    "threads": 1,
    "no_pin": False,
}


def make_problems(arguments: argparse.Namespace) -> list[Problem]:
    """What is to be timed; ranks are filled in by those who take part.

    Raises:
        BenchError: An option makes no sense.
    """
    for name, default in _ONLY_ON_CPU.items():
        if getattr(arguments, name) != default:
            option = "--" + name.replace("_", "-")
            raise BenchError(f"{option} goes with --device cpu only")
    device, modes = arguments.device, [arguments.mode] if arguments.mode else []
    if "topk" in modes:
        raise BenchError("--mode topk goes with --device cpu only")
    if arguments.topk is not None and arguments.topk < 1:
        raise BenchError(f"--topk {arguments.topk}: must be positive")
    dtypes = split(arguments.dtype or "bf16")
    for dtype in dtypes:
        if dtype not in ELEMENT_BYTES:
            raise BenchError(f"--dtype {dtype}: one of {', '.join(ELEMENT_BYTES)}")
    # As on the CPU: where routed takes part, all ways start from experts spread over the ranks.
    experts = PLAIN_EXPERTS if "routed" in make_ways(arguments) else 0
    if experts and (arguments.topk or 1) > experts:
        raise BenchError(f"--topk {arguments.topk}: at most {experts} where routed takes part")
    sizes = [parse_size(size) for size in split(arguments.sizes or DEVICE_SIZES[device])]
    topk = arguments.topk or DEVICE_TOPK[device]
    problems = []
    for mode in modes or ("combine", "collective"):
        for dtype in dtypes:
            for hidden in integers("--hidden", arguments.hidden or DEVICE_HIDDEN[device]):
                for size in sizes:
                    tokens = max(1, round(size / hidden / ELEMENT_BYTES[dtype]))
                    slots = topk if mode == "combine" else 1
                    problems.append(Problem(mode, 0, dtype, tokens, hidden, slots, experts=experts))
    return problems


def make_ways(arguments: argparse.Namespace) -> list[str]:
    """Names of the ways to be timed. Routed is among them where it is asked for, or all are.

    Raises:
        BenchError: There is no such way.
    """
    if arguments.paths is None:
        return [way for way in WAYS if way != "routed"]
    names = split(arguments.paths)
    if names == ["all"]:
        return list(WAYS)
    for name in names:
        if name not in WAYS:
            raise BenchError(f"--paths {name}: all, or some of {', '.join(WAYS)}")
    return names


def make_effort(arguments: argparse.Namespace) -> Effort:
    """How much is measured."""
    if arguments.device == "emulated":
        return _EMULATED
    effort = _QUICK if arguments.quick else _FULL
    rounds = arguments.rounds or effort.rounds
    return Effort(rounds, effort.calls, effort.replays, effort.repeats)


def main(arguments: argparse.Namespace) -> int:
    """Runs it; 0, 1 where a result was wrong or the run failed, 2 for senseless options."""
    try:
        problems, effort = make_problems(arguments), make_effort(arguments)
        ways = make_ways(arguments)
        ranks = None if arguments.ranks is None else integers("--ranks", arguments.ranks)
        if ranks is not None and (len(ranks) != 1 or ranks[0] < 2):
            raise BenchError(f"--ranks {arguments.ranks}: one number from 2 up with --device")
    except BenchError as error:
        print(f"symmoe bench: {error}", file=sys.stderr)
        return 2
    try:
        measured: Measured | None = processes.run(
            arguments.device,
            None if ranks is None else ranks[0],
            arguments.timeout * max(1, len(problems)),
            run_rank,
            arguments.device,
            [problem.to_json() for problem in problems],
            effort,
            ways,
        )
    except BenchError as error:
        print(f"symmoe bench: {error}", file=sys.stderr)
        return 1
    if measured is None:  # another rank under torchrun speaks for all
        return 0
    return show(arguments, measured)


def show(arguments: argparse.Namespace, measured: Measured) -> int:
    """Prints, writes; 1 where a result was wrong."""
    rows = report.make_rows(measured)
    remark = report.REMARK if arguments.device == "emulated" else ""
    if remark:
        print(report.NO_MEANING)
    text = [f"# {note}" for note in report.notes(measured)]
    text += [*report.long_table(rows), "", *report.short_table(rows)]
    for line in text:
        print(line + remark if line else line)
    if arguments.json:
        result = {
            "machine": describe_machine(),
            "device": measured.facts,
            "command": sys.argv,
            "sync_us": measured.sync_us,
            "ranks_per_gpu": measured.sharing,
            "left_out": measured.refusals,
            "times_mean_nothing": bool(remark),
            "rows": rows,
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
        print(f"# wrote {arguments.json}")
    return 1 if any(row["wrong"] for row in rows) else 0
