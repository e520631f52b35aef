"""`symmoe tune`: measures reduce_scatter by path, type and size, and writes the table to choose by.

`SYMMOE_TUNING=FILE` (or Config.tuning) has groups of the same number of ranks on the same kind of
device take the path that was faster here. Start it with torchrun, one process per GPU, on the
machine and with the NCCL that will be used; without torchrun it starts its own processes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ._version import __version__
from .bench.arguments import integers, split
from .bench.device import processes
from .bench.device.machine import Machine, make
from .bench.device.measure import Aligner, InGraph, make_inputs
from .bench.device.paths import NCCL_PATHS, FromPrivateMemory, FromWindow, Way
from .bench.device.processes import Seat
from .bench.device.report import NO_MEANING, REMARK
from .bench.errors import BenchError
from .bench.problem import Problem, format_size, of_size, parse_size

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_SIZES = {"cuda": "16K,32K,64K,128K,256K,512K,1M,2M,4M,8M,16M,32M,64M", "emulated": "16K,64K"}
_REPEATS = 10  # calls in a graph
_REPLAYS = 20
_SECONDS = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options. Lists are given with commas."""
    add = parser.add_argument
    add("--out", type=Path, default=Path("symmoe_tuning.json"), metavar="FILE", help="the table")
    add(
        "--sizes",
        default=None,
        help="rows of one rank in bytes (default 16K to 64M, doubling; "
        f"with --emulated {_SIZES['emulated']})",
    )
    add("--dtypes", default="bf16,fp16,fp32", help="default bf16,fp16,fp32")
    add("--replays", type=int, default=_REPLAYS, help=f"of each graph (default {_REPLAYS})")
    add("--ranks", default=None, help="processes (default one per GPU, but at least 2)")
    add("--emulated", action="store_true", help="without a GPU: shows that it works, no more")


def _problems(arguments: argparse.Namespace, device: str) -> list[Problem]:
    sizes = sorted({parse_size(text) for text in split(arguments.sizes or _SIZES[device])})
    dtypes = split(arguments.dtypes)
    for dtype in dtypes:
        if dtype not in _DTYPES:
            raise BenchError(f"--dtypes {dtype}: one of {', '.join(_DTYPES)}")
    if arguments.replays < 1:
        raise BenchError(f"--replays {arguments.replays}: must be positive")
    return [of_size("collective", 0, dtype, size) for dtype in dtypes for size in sizes]


def main(arguments: argparse.Namespace) -> int:
    """Measures, prints and writes; 0, 1 where that failed, 2 for senseless options."""
    device = "emulated" if arguments.emulated else "cuda"
    try:
        problems = _problems(arguments, device)
        ranks = None if arguments.ranks is None else integers("--ranks", arguments.ranks)
        if ranks is not None and (len(ranks) != 1 or ranks[0] < 2):
            raise BenchError(f"--ranks {arguments.ranks}: one number from 2 up")
    except BenchError as error:
        print(f"symmoe tune: {error}", file=sys.stderr)
        return 2
    try:
        table: dict[str, Any] | None = processes.run(
            device,
            None if ranks is None else ranks[0],
            _SECONDS,
            measure_paths,
            device,
            problems,
            arguments.replays,
        )
    except BenchError as error:
        text = str(error).replace("--device cuda: ", "").replace("--device emulated", "--emulated")
        print(f"symmoe tune: {text}", file=sys.stderr)
        return 1
    if table is None:  # another rank under torchrun speaks for all
        return 0
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(
        json.dumps(table | {"command": [Path(sys.argv[0]).name, *sys.argv[1:]]}, indent=1) + "\n"
    )
    print(f"# wrote {arguments.out}; SYMMOE_TUNING={arguments.out} uses it")
    return 0


def measure_paths(seat: Seat, device: str, problems: list[Problem], replays: int) -> dict[str, Any]:
    """The table, measured; rank 0 prints each line as soon as it is there. Collective."""
    machine = make(device, seat)

    def show(line: str) -> None:
        if seat.rank == 0:
            print(line + (REMARK if machine.emulated else ""), flush=True)

    group = machine.init(windows=True, paths=NCCL_PATHS)
    plain = machine.init(windows=False, paths=NCCL_PATHS)
    own = machine.init(windows=True, paths=("pull",))
    try:
        facts = group.describe()
        align = Aligner(machine, group)
        ways: dict[str, Way] = {"plain": FromPrivateMemory(machine, plain, "plain")}
        if not facts["no_windows"] and not facts["no_direct"]:
            ways["direct"] = FromWindow(machine, group)
        if not own.describe()["no_peers"]:
            ways["pull"] = FromWindow(machine, own, "pull")
        if machine.emulated and seat.rank == 0:
            print(NO_MEANING, flush=True)
        for line in _heading(facts, seat.world):
            show(line)
        rows = []
        for problem in problems:
            problem = dataclasses.replace(problem, ranks=seat.world)
            dtype, nbytes = _DTYPES[problem.dtype], problem.nbytes
            times: dict[str, float] = {}
            for path, way in ways.items():
                times[path] = _time(machine, way, problem, align, replays)
                rows.append({"path": path, "dtype": dtype, "bytes": nbytes, "time_us": times[path]})
            group.release_graphs()
            own.release_graphs()
            show(_line(dtype, nbytes, times, means_something=not machine.emulated))
    finally:
        own.close()
        plain.close()
        group.close()
    return {
        "rows": rows,
        "world": seat.world,
        "machine": {
            "kind": facts["kind"],
            "name": facts["name"],
            "capability": list(facts["capability"]),
            "nccl": facts["nccl"],
            "no_windows": facts["no_windows"],
            "torch": torch.__version__,
            "symmoe": __version__,
        },
    }


def _time(machine: Machine, way: Way, problem: Problem, align: Aligner, replays: int) -> float:
    """Microseconds per call in a graph that writes the input anew before each one. Collective."""
    way.allocate(make_inputs(problem, machine.seat.rank, machine.device))
    way.rewrite()
    way.call()
    machine.synchronize()
    dist.barrier()
    inside = InGraph(machine, way.rewrite, way.call, _REPEATS)
    inside.times(align, 2)
    time_us = statistics.median(inside.times(align, replays))
    machine.synchronize()
    del inside
    way.release()
    return round(time_us, 3)


def _heading(facts: dict[str, Any], world: int) -> list[str]:
    text = [f"# {facts['name']}, {world} ranks, NCCL {facts['nccl']}"]
    if facts["no_windows"]:
        text.append(f"# no direct path: {facts['no_windows']}")
    return [
        *text,
        f"{'dtype':>9} {'bytes':>6} {'direct us':>11} {'pull us':>11} {'plain us':>11}  faster",
    ]


def _line(dtype: str, nbytes: int, times: dict[str, float], means_something: bool) -> str:
    cells = "".join(
        f" {times[path]:>11.2f}" if path in times else f" {'-':>11}"
        for path in ("direct", "pull", "plain")
    )
    faster = min(times, key=lambda path: times[path]) if means_something else "-"
    return f"{dtype:>9} {format_size(nbytes):>6}{cells}  {faster}"
