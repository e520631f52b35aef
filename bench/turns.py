"""Times several ways to the same result: in turns, call by call, in the same processes.

One process a rank, one thread and processor each. Before each call every rank rewrites its inputs,
untimed; a call lasts from the first rank's start to the last one's end; a row has the medians.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import symmoe
from symmoe._core import measure
from symmoe.bench.machine import describe_machine, usable_cpus

DEADLINE_NS = 60_000_000_000
WARM_UP = 2  # rounds
SELDOM = 6  # a slow way has its turn in one round of so many

Row = dict[str, Any]


class Case(Protocol):
    """One rank's memory for one shape."""

    @property
    def ways(self) -> Mapping[str, Callable[[], object]]:
        """What is to be timed, by name."""

    @property
    def slow(self) -> Sequence[str]:
        """Names of ways that would take too long to be timed in every round."""

    def prepare(self, name: str) -> None:
        """Makes every line of a way's inputs dirty here, as the kernels before it would."""

    def check(self) -> bool:
        """Whether all ways come to the same. Collective."""


CaseMaker = Callable[[symmoe.Group, int, int], Case]  # group, tokens of each rank, hidden


def make_parser(description: str | None, calls: int) -> argparse.ArgumentParser:
    """The command line that all have."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--ranks", type=integers, default=[2, 4])
    parser.add_argument("--hidden", type=integers, default=[6144, 4096, 1024])
    parser.add_argument("--tokens", type=integers, default=[64, 256, 1024], help="of each rank")
    parser.add_argument("--calls", type=int, default=calls, help="of each way")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the times")
    return parser


def integers(text: str) -> list[int]:
    """Numbers with commas between them."""
    return [int(part) for part in text.split(",")]


def run(make_case: CaseMaker, world: int, options: argparse.Namespace) -> list[Row]:
    """Each shape on so many ranks: shape, whether it was right, medians in microseconds by way.

    Args:
        make_case: At the top level of a module, so that new processes find it.
        world: Number of ranks.
        options: As `make_parser` gives them.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "line").write_bytes(bytes(measure.StartLine.bytes_for(world)))
        arguments = (world, folder, make_case, options)
        mp.spawn(_rank, arguments, nprocs=world)  # type: ignore[attr-defined, no-untyped-call]
        ranks = [json.loads(Path(folder, f"times{r}.json").read_text()) for r in range(world)]
    return [_row(world, shape) for shape in zip(*ranks, strict=True)]


def write_json(path: Path | None, rows: list[Row]) -> None:
    """Writes all rows and what the machine is, if there is a path."""
    if path is not None:
        path.write_text(json.dumps({"machine": describe_machine(), "rows": rows}, indent=1) + "\n")


def _row(world: int, shape: Sequence[Row]) -> Row:
    row = {"ranks": world, "tokens": shape[0]["tokens"], "hidden": shape[0]["hidden"]}
    row["right"] = all(rank["right"] for rank in shape)
    for name in shape[0]["times"]:
        calls = zip(*(rank["times"][name] for rank in shape), strict=True)
        lasted = [max(end for _, end in call) - min(start for start, _ in call) for call in calls]
        row[name] = statistics.median(lasted) / 1e3
    return row


def _rank(
    rank: int, world: int, folder: str, make_case: CaseMaker, options: argparse.Namespace
) -> None:
    torch.set_num_threads(1)
    # Before this thread is pinned: gloo's own threads stay free, which is faster for it.
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
    )
    cpus = usable_cpus()
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    line = measure.StartLine(f"{folder}/line", world, rank, DEADLINE_NS)
    rows = _shapes(make_case, line, options)
    Path(folder, f"times{rank}.json").write_text(json.dumps(rows))
    # Nobody has the group any more, so this ends gloo's threads. One that still held a tensor when
    # the interpreter ends would abort the process.
    gc.collect()
    dist.destroy_process_group()


def _shapes(
    make_case: CaseMaker, line: measure.StartLine, options: argparse.Namespace
) -> list[Row]:
    rows = []
    with symmoe.init(device="cpu") as group, torch.inference_mode():
        for hidden in options.hidden:
            for tokens in options.tokens:
                case = make_case(group, tokens, hidden)
                right = case.check()
                times = _times(case, line, options.calls)
                rows.append({"hidden": hidden, "tokens": tokens, "right": right, "times": times})
    return rows


def _times(case: Case, line: measure.StartLine, calls: int) -> dict[str, list[tuple[int, int]]]:
    """Start and end of each call on this rank, by way."""
    names = list(case.ways)
    times: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
    gc.disable()
    for call in range(-WARM_UP, calls):
        for turn in range(len(names)):
            name = names[(turn + call) % len(names)]  # each comes behind each of the others
            if name in case.slow and call % SELDOM:
                continue
            case.prepare(name)
            start = line.start()
            case.ways[name]()
            end = measure.now_ns()
            if call >= 0:
                times[name].append((start, end))
    gc.enable()
    return times
