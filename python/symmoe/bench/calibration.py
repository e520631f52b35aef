"""Measures, in the workers, the rates that limit.py needs.

As many processes as there are processors (or ranks, if those are fewer) stand for them, each with
the windows of all ranks that share its processor. Before each timed step every window is
rewritten by its owner, as before a real call, so that each line is where a real call finds it.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
from collections.abc import Callable
from typing import Any

import torch

from symmoe._core import measure

from .backend import Place
from .limit import ranks_per_core
from .problem import Problem

# Many short means: a foreign process that takes a time slice spoils one of them, not the median.
_BARRIER_MEANS = 20
_BARRIER_ROUNDS = 20
_HUGE_PAGE = 2 << 20
# A stream over more than this is bound by the same memory, however long.
_STREAM_BYTES = 256 << 20


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


class Arena:
    """The windows of all ranks, in one shared file, those of a processor next to each other."""

    def __init__(self, path: str, core: int, cores: int, ranks: int, shard: int) -> None:
        self.shard = shard
        self._ranks = ranks
        self._window = ranks * shard
        shared = ranks_per_core(ranks, cores)
        self._part = _round_up(shared * self._window, _HUGE_PAGE)
        self._owners = [list(range(c, ranks, cores)) for c in range(cores)]
        self._core = core
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            # Every process sets the same size, so none maps memory that is not there yet.
            os.ftruncate(descriptor, self._part * cores)
            self._map = mmap.mmap(descriptor, self._part * cores)
        finally:
            os.close(descriptor)
        self._map.madvise(mmap.MADV_HUGEPAGE)
        self._view = ctypes.c_char.from_buffer(self._map)
        self._base = ctypes.addressof(self._view)

    @property
    def own(self) -> tuple[int, int]:
        """Address and size of this processor's windows."""
        owned = len(self._owners[self._core])
        return self._base + self._core * self._part, owned * self._window

    def _shards_on(self, core: int) -> list[tuple[int, int]]:
        """What the ranks of this processor read out of that processor's windows."""
        first = self._base + core * self._part
        return [
            (first + place * self._window + reader * self.shard, self.shard)
            for reader in self._owners[self._core]
            for place in range(len(self._owners[core]))
        ]

    def foreign(self) -> list[tuple[int, int]]:
        """What this processor reads from others."""
        cores = range(len(self._owners))
        return [part for core in cores if core != self._core for part in self._shards_on(core)]

    def local(self) -> list[tuple[int, int]]:
        """What this processor reads from itself."""
        return self._shards_on(self._core)

    def gathers(self, outputs: torch.Tensor) -> list[tuple[list[int], int]]:
        """For each rank of this processor: its shards of all windows, and where its sum goes."""
        return [
            (
                [
                    self._base + core * self._part + place * self._window + reader * self.shard
                    for core, owned in enumerate(self._owners)
                    for place in range(len(owned))
                ],
                outputs.data_ptr() + index * self.shard,
            )
            for index, reader in enumerate(self._owners[self._core])
        ]

    def close(self) -> None:
        """Unmaps."""
        del self._view
        self._map.close()


class Calibrator:
    """The worker side: answers a turn with the times, in ns, of each step."""

    def __init__(
        self, place: Place, line: measure.StartLine, core_line: str, arena: str, cores: int
    ) -> None:
        self._place = place
        self._line = line
        self._cores = min(cores, place.world)
        self._arena_path = arena
        self._core_line: measure.StartLine | None = None
        if place.rank < self._cores:
            deadline_ns = 120 * 10**9
            self._core_line = measure.StartLine(core_line, self._cores, place.rank, deadline_ns)

    def turn(self, problem: Problem, iterations: int, seed: int) -> dict[str, Any]:
        """One calibration at the problem's footprint."""
        del seed
        result: dict[str, Any] = {}
        if problem.mode != "topk":
            result["barrier"] = [
                measure.time_barrier(self._line, _BARRIER_ROUNDS) for _ in range(_BARRIER_MEANS)
            ]
        if self._core_line is None:
            return result
        gc.disable()
        begin = measure.now_ns()
        if problem.mode != "topk":
            result |= self._collective(self._core_line, problem, iterations)
        if problem.mode != "collective":
            result |= self._stream(self._core_line, problem, iterations)
        result["loop_ns"] = measure.now_ns() - begin
        gc.enable()
        return result

    def _collective(
        self, line: measure.StartLine, problem: Problem, iterations: int
    ) -> dict[str, list[int]]:
        shard = _round_up(problem.nbytes, measure.LINE_BYTES)
        arena = Arena(self._arena_path, self._place.rank, self._cores, problem.ranks, shard)
        own = arena.own
        shared = ranks_per_core(problem.ranks, self._cores)
        # One for each way of storing: a store past the caches throws the lines out of them.
        out, out_nt = aligned_zeros(shard * shared), aligned_zeros(shard * shared)
        foreign, local = arena.foreign(), arena.local()
        gathers, gathers_nt = arena.gathers(out), arena.gathers(out_nt)
        steps: dict[str, Callable[[], int]] = {
            "cross": lambda: measure.time_read(line, foreign),
            "local": lambda: measure.time_read(line, local),
            "write": lambda: measure.time_write(line, out.data_ptr(), out.numel(), False),
            "write_nt": lambda: measure.time_write(line, out_nt.data_ptr(), out.numel(), True),
            "all": lambda: measure.time_gather(line, gathers, shard, False),
            "all_nt": lambda: measure.time_gather(line, gathers_nt, shard, True),
        }
        times: dict[str, list[int]] = {name: [] for name in steps}
        for iteration in range(iterations + 1):
            for name, step in steps.items():
                measure.rewrite(*own)
                duration = step()
                if iteration:  # the first one maps the peers' pages
                    times[name].append(duration)
        line.start()
        arena.close()
        if self._place.rank == 0:
            os.truncate(self._arena_path, 0)
        return times

    def _stream(
        self, line: measure.StartLine, problem: Problem, iterations: int
    ) -> dict[str, list[int]]:
        # What a rank's sum reads for each row that it writes; where experts are spread, less.
        mix = problem.topk
        if problem.experts:
            mix = max(1, round(problem.topk / problem.ranks))
        wanted = problem.rows * problem.hidden * problem.element_bytes
        target = _round_up(min(wanted, _STREAM_BYTES // mix), measure.LINE_BYTES)
        source = aligned_zeros(target * mix)
        outputs = {"stream": aligned_zeros(target), "stream_nt": aligned_zeros(target)}
        times: dict[str, list[int]] = {name: [] for name in outputs}
        for iteration in range(iterations + 1):
            for name, out in outputs.items():
                measure.rewrite(source.data_ptr(), source.numel())
                duration = measure.time_stream(
                    line, source.data_ptr(), out.data_ptr(), target, mix, name == "stream_nt"
                )
                if iteration:
                    times[name].append(duration)
        return times | {"stream_bytes": [target * (mix + 1)]}

    def close(self) -> None:
        """Nothing is held between turns."""


def aligned_zeros(nbytes: int) -> torch.Tensor:
    """Touched bytes that begin at a cache line."""
    memory = torch.zeros(nbytes + measure.LINE_BYTES, dtype=torch.uint8)
    skip = -memory.data_ptr() % measure.LINE_BYTES
    memory.fill_(1)
    return memory[skip : skip + nbytes]
