"""What each process of the benchmark does: set up, check, time, bring the ranks' times together."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from symmoe import _core
from symmoe.device.group import DeviceGroup

from ..pattern import (
    DTYPES,
    count_wrong,
    expected,
    fill_experts,
    fill_rows,
    make_pairs,
    make_weights,
)
from ..problem import Problem
from .machine import Machine, Work, make
from .paths import NCCL_PATHS, OWN_PATHS, Inputs, Way, all_ways
from .processes import Seat

ALIGN_LANE = _core.MAX_LANES - 1
ALIGN_ELEMENTS = 8  # 16 bytes of bf16: what NCCL moves at once
SEED = 3
LEAST_US = 0.01  # what a difference of two times comes to where it drowns in their noise


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        rounds: Turns of each way.
        calls: Calls by themselves in a turn.
        replays: Replays of a graph in a turn.
        repeats: Calls in a graph.
    """

    rounds: int
    calls: int
    replays: int
    repeats: int


@dataclass
class Timing:
    """What came of one way at one problem.

    Attributes:
        problem: The problem.
        path: The way's name.
        kind: "eager", or "graph": per call within a replay.
        spans_us: By call or replay, of the slowest rank.
        wrong: Wrong elements on all ranks.
    """

    problem: Problem
    path: str
    kind: str
    spans_us: list[float]
    wrong: int


@dataclass
class Measured:
    """What rank 0 brings home.

    Attributes:
        timings: All of them.
        facts: The device, NCCL, and why there are no windows, if so.
        sync_us: A reduce-scatter of one small row, in a graph.
        refusals: Why a way was left out, by name.
        sharing: Ranks per GPU.
    """

    timings: list[Timing] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    sync_us: float = 0.0
    refusals: dict[str, str] = field(default_factory=dict)
    sharing: int = 1


class Aligner:
    """Lets the ranks' devices go on together: a tiny reduce-scatter in a lane of its own."""

    def __init__(self, machine: Machine, group: DeviceGroup) -> None:
        self._group = group
        self._shape = (group.world_size, ALIGN_ELEMENTS)
        self._rows = torch.zeros(self._shape, dtype=torch.bfloat16, device=machine.device)
        self._out = torch.zeros(1, ALIGN_ELEMENTS, dtype=torch.bfloat16, device=machine.device)
        self()

    def __call__(self) -> None:
        """Queues it."""
        window = self._group.acquire("combine", self._shape, torch.bfloat16, lane=ALIGN_LANE)
        rows = self._rows if window is None else window
        self._group.reduce_scatter(rows, self._out, lane=ALIGN_LANE)


def slowest(times: list[float]) -> list[float]:
    """Of each call the longest time of any rank. Collective."""
    gathered: list[list[float]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, times)
    return [max(each) for each in zip(*gathered, strict=True)]


def time_calls(machine: Machine, before: Work, call: Work, calls: int) -> list[float]:
    """Microseconds of each call, of the slowest rank; `before` is queued untimed. Collective."""
    marks = []
    for _ in range(calls):
        before()
        begin = machine.mark()
        call()
        marks.append((begin, machine.mark()))
    machine.synchronize()
    return slowest([machine.us(begin, end) for begin, end in marks])


class InGraph:
    """A call as part of a graph: repeated with `before` in front of each, against `before` alone.

    Attributes:
        replay: Queues all of it once.
    """

    def __init__(self, machine: Machine, before: Work, call: Work, repeats: int) -> None:
        def both() -> None:
            for _ in range(repeats):
                before()
                call()

        def alone() -> None:
            for _ in range(repeats):
                before()

        self._machine = machine
        self._repeats = repeats
        self.replay = machine.capture(both)
        self._alone = machine.capture(alone)

    def times(self, align: Work, replays: int) -> list[float]:
        """Microseconds per call, replay by replay, of the slowest rank. Collective."""
        both = time_calls(self._machine, align, self.replay, replays)
        alone = statistics.median(time_calls(self._machine, align, self._alone, replays))
        return [max(LEAST_US, (each - alone) / self._repeats) for each in both]


def make_inputs(problem: Problem, rank: int, device: torch.device) -> Inputs:
    """Inputs whose sums are known, on the device."""
    dtype = DTYPES[problem.dtype]
    if problem.mode == "collective":
        rows = torch.empty(problem.rows, problem.hidden, dtype=dtype)
        fill_rows(rows, problem, rank, SEED)
        return Inputs(problem, rows.to(device), None, None)
    weights = make_weights(problem, rank).to(device)
    if problem.experts:
        pairs, index = make_pairs(problem, rank, SEED)
        return Inputs(problem, None, pairs.to(device), weights, index.to(device))
    experts = torch.empty(problem.rows, problem.topk, problem.hidden, dtype=dtype)
    fill_experts(experts, problem, rank, SEED)
    return Inputs(problem, None, experts.to(device), weights)


class _Contest:
    """All ways at one problem."""

    def __init__(
        self, machine: Machine, ways: Sequence[Way], align: Work, problem: Problem
    ) -> None:
        self._machine, self._align, self._problem = machine, align, problem
        self._ways = ways
        self._right = expected(problem, machine.seat.rank, SEED, alone=False)
        inputs = make_inputs(problem, machine.seat.rank, machine.device)
        for way in ways:
            way.allocate(inputs)

    def _rewrites(self, way: Way) -> Work:
        """What comes before each call: in mode combine, the call itself writes its rows anew."""
        return way.rewrite if self._problem.mode == "collective" else _nothing

    def check(self, way: Way, work: Work) -> int:
        """Wrong elements after one more round, on all ranks. Collective."""
        self._machine.synchronize()
        way.out.fill_(float("nan"))
        self._machine.synchronize()
        work()
        self._machine.synchronize()
        wrong = [0] * dist.get_world_size()
        dist.all_gather_object(wrong, count_wrong(way.out.cpu(), self._right))
        return sum(wrong)

    def run(self, effort: Effort) -> list[Timing]:
        """Times all ways by turns."""
        timings: dict[tuple[str, str], Timing] = {}
        graphs = {}
        for way in self._ways:
            rewrite = self._rewrites(way)
            rewrite()
            way.call()
            self._machine.synchronize()
            dist.barrier()
            graphs[way.name] = InGraph(self._machine, rewrite, way.call, effort.repeats)
            for kind in ("eager", "graph"):
                timings[way.name, kind] = Timing(self._problem, way.name, kind, [], 0)
        for _ in range(effort.rounds):
            for way in self._ways:
                before = self._before(way)
                eager, graph = timings[way.name, "eager"], timings[way.name, "graph"]
                eager.spans_us += time_calls(self._machine, before, way.call, effort.calls)
                eager.wrong += self.check(way, _both(before, way.call))
                graph.spans_us += graphs[way.name].times(self._align, effort.replays)
                graph.wrong += self.check(way, graphs[way.name].replay)
        graphs.clear()
        for way in self._ways:
            way.release()
        return list(timings.values())

    def _before(self, way: Way) -> Work:
        return _both(self._rewrites(way), self._align)


def _nothing() -> None:
    pass


def _both(first: Work, second: Work) -> Work:
    def work() -> None:
        first()
        second()

    return work


def run(
    seat: Seat,
    device: str,
    problems: list[dict[str, Any]],
    effort: Effort,
    chosen: Sequence[str],
) -> Measured:
    """The whole of one process. Collective; rank 0's result counts.

    Args:
        seat: This process.
        device: "cuda" or "emulated".
        problems: As Problem.to_json gives them; their ranks are those that there are.
        effort: How much is measured.
        chosen: Names of the ways to measure.
    """
    machine = make(device, seat)
    found = Measured(sharing=seat.sharing)
    group = machine.init(windows=True, paths=NCCL_PATHS)
    plain = machine.init(windows=False, paths=NCCL_PATHS)
    own = {path: machine.init(windows=True, paths=(path,)) for path in OWN_PATHS if path in chosen}
    ways = [way for way in all_ways(machine, group, plain, own) if way.name in chosen]
    try:
        found.facts = group.describe()
        found.refusals = {way.name: reason for way in ways if (reason := way.unsupported())}
        found.facts["no_peers"] = next((it.describe()["no_peers"] for it in own.values()), "")
        able = [way for way in ways if way.name not in found.refusals]
        align = Aligner(machine, group)
        tiny = InGraph(machine, _nothing, align, effort.repeats)
        found.sync_us = statistics.median(tiny.times(align, effort.replays))
        for fields in problems:
            problem = dataclasses.replace(Problem.from_json(fields), ranks=seat.world)
            serving = [way for way in able if way.serves(problem)]
            found.timings += _Contest(machine, serving, align, problem).run(effort)
            for each in (group, *own.values()):
                each.release_graphs()
    finally:
        for way in ways:
            way.close()
        for each in (*own.values(), plain, group):
            each.close()
    return found
