"""The pool of an emulated group against a simple model, over random histories.

Two ranks, as threads of one process, make the same calls; only the tensors that they hold on to
differ. The model knows what every window must contain, which of them somebody needs, and how many
bytes that may take.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from device_lab import start_afresh
from device_pair import WORLD, Pair
from symmoe import testing

LANES, HIDDEN = 2, 32
GRANULE = 4096
ROW_BYTES = HIDDEN * 4
SLOTS = 2 * LANES  # of each lane: what is acquired, what is staged
ROWS = st.sampled_from([2, 10, 40, 100, 260]).map(lambda rows: rows * WORLD)
LANE = st.integers(0, LANES - 1)


@dataclass
class Window:
    """One window of one rank, as the model sees it."""

    address: int
    nbytes: int
    content: torch.Tensor  # what it must hold, as far as anybody wrote


@dataclass
class Capture:
    """A graph of each rank, the windows that they write, and what they make of them."""

    graphs: list[testing.Graph]
    windows: list[Window]
    outputs: list[torch.Tensor]
    rows: int
    value: float


@dataclass
class Lane:
    """What the model knows of a lane."""

    current: list[Window] = field(default_factory=list)  # by rank; empty: none yet
    armed: bool = False
    high: int = 0  # largest request so far, in bytes


class PoolModel(RuleBasedStateMachine):
    """Random histories of a group's memory."""

    @initialize()
    def start(self) -> None:
        start_afresh()
        self.live_before = testing.nccl().live()
        self.pair = Pair(GRANULE)
        self.lanes = [Lane() for _ in range(LANES)]
        self.held: list[tuple[int, torch.Tensor, Window]] = []  # rank, tensor, its window
        self.captures: list[Capture] = []
        self.pinned: list[list[Window]] = []  # since the last release_graphs
        self.counter = 0
        self.staged_high = [0] * LANES
        self.ever_held = False
        self.acquire_on(0, WORLD)  # the window that every group begins with

    # --- the model's own means ---

    def value(self) -> float:
        self.counter += 1
        return float(self.counter)

    def needed(self, rank: int) -> Iterator[Window]:
        """Windows of a rank that nobody else may get."""
        for lane in self.lanes:
            if len(lane.current) > rank:
                yield lane.current[rank]
        for holder, _, window in self.held:
            if holder == rank:
                yield window
        for windows in self.pinned:
            yield windows[rank]

    def learn(self, lane: Lane, tensors: list[torch.Tensor]) -> None:
        """Notes which windows a lane has now: the ones it had, or new ones of its own."""
        known = lane.current
        lane.current = []
        for rank, tensor in enumerate(tensors):
            address = tensor.data_ptr()
            if known and known[rank].address == address:
                lane.current.append(known[rank])
                continue
            found = self.pair.groups[rank]._core.find(address)
            assert found is not None
            assert found[1] == 0
            window = Window(address, found[0].bytes, torch.empty(0))
            for other in self.needed(rank):
                apart = address >= other.address + other.nbytes
                assert apart or other.address >= address + window.nbytes, (window, other)
            lane.current.append(window)

    def write(self, rank: int, window: Window, rows: int, value: float) -> None:
        """Notes that the first rows now hold a value."""
        count = rows * HIDDEN
        if window.content.numel() < count:
            grown = torch.full((count,), float("nan"))
            grown[: window.content.numel()] = window.content
            window.content = grown
        window.content[:count] = value + rank

    def acquire_on(self, number: int, rows: int) -> list[torch.Tensor]:
        lane = self.lanes[number]
        shape = (rows, HIDDEN)
        tensors = self.pair.each(
            lambda rank: self.pair.groups[rank].acquire(
                "combine", shape, torch.float32, lane=number
            )
        )
        self.learn(lane, tensors)
        lane.high = max(lane.high, rows * ROW_BYTES)
        lane.armed = True
        return tensors

    def rows_of(self, rank: int, rows: int, value: float) -> torch.Tensor:
        return torch.full((rows, HIDDEN), value + rank)

    # --- what may happen ---

    @rule(lane=LANE, rows=ROWS, holders=st.sets(st.integers(0, WORLD - 1)))
    def acquire(self, lane: int, rows: int, holders: set[int]) -> None:
        tensors = self.acquire_on(lane, rows)
        value = self.value()
        self.pair.each(
            lambda rank: self.pair.lab.put(tensors[rank], self.rows_of(rank, rows, value))
        )
        for rank in range(WORLD):
            window = self.lanes[lane].current[rank]
            self.write(rank, window, rows, value)
            if rank in holders:
                self.held.append((rank, tensors[rank], window))
                self.ever_held = True

    @rule(lane=LANE, rows=ROWS)
    def reduce(self, lane: int, rows: int) -> None:
        self.acquire(lane, rows, set())
        value = float(self.counter)

        def call(rank: int) -> Any:
            group = self.pair.groups[rank]
            window = group.acquire("combine", (rows, HIDDEN), torch.float32, lane=lane)
            return group.reduce_scatter(window, lane=lane)

        for out in self.pair.each(call):
            assert bool((out == WORLD * value + 1).all())
        self.lanes[lane].armed = False

    @rule(lane=LANE, rows=ROWS)
    def reduce_private(self, lane: int, rows: int) -> None:
        value = self.value()
        outs = self.pair.each(
            lambda rank: self.pair.groups[rank].reduce_scatter(
                self.rows_of(rank, rows, value), lane=lane
            )
        )
        for out in outs:
            assert bool((out == WORLD * value + 1).all())
        state = self.lanes[lane]
        if state.armed:
            self.staged_high[lane] = max(self.staged_high[lane], rows * ROW_BYTES)
            return  # another window was used, and nothing acquired has changed
        if not state.current or rows * ROW_BYTES > state.current[0].nbytes:
            self.acquire_on(lane, rows)  # what the call has made
        state.high = max(state.high, rows * ROW_BYTES)
        for rank in range(WORLD):
            self.write(rank, state.current[rank], rows, value)

    @rule(lane=LANE, rows=ROWS)
    def capture(self, lane: int, rows: int) -> None:
        state = self.lanes[lane]
        graphs = [testing.Graph() for _ in range(WORLD)]
        value = self.value()
        sources = [self.rows_of(rank, rows, value) for rank in range(WORLD)]
        outputs = [torch.zeros(rows // WORLD, HIDDEN) for _ in range(WORLD)]

        def record(rank: int) -> Any:
            group = self.pair.groups[rank]
            with testing.capture(graphs[rank], self.pair.streams[rank], "relaxed"):
                window = group.acquire("combine", (rows, HIDDEN), torch.float32, lane=lane)
                self.pair.lab.put(window, sources[rank])
                group.reduce_scatter(window, out=outputs[rank], lane=lane)
            return window

        if not state.current or rows * ROW_BYTES > state.current[0].nbytes:
            self.pair.refuse(record, "being captured")
            return
        self.learn(state, self.pair.each(record))
        state.armed = False
        windows = list(state.current)
        self.pinned.append(windows)
        self.captures.append(Capture(graphs, windows, outputs, rows, value))

    @precondition(lambda self: self.captures)
    @rule(data=st.data(), times=st.integers(1, 3))
    def replay(self, data: st.DataObject, times: int) -> None:
        graph = self.captures[data.draw(st.integers(0, len(self.captures) - 1))]
        for _ in range(times):
            for out in graph.outputs:
                out.zero_()
            self.pair.each(lambda rank: graph.graphs[rank].replay(self.pair.streams[rank]))
            for out in graph.outputs:
                assert bool((out == WORLD * graph.value + 1).all())
        for rank in range(WORLD):
            self.write(rank, graph.windows[rank], graph.rows, graph.value)

    @precondition(lambda self: self.captures)
    @rule(data=st.data())
    def drop_graph(self, data: st.DataObject) -> None:
        dropped = self.captures.pop(data.draw(st.integers(0, len(self.captures) - 1)))
        for graph in dropped.graphs:
            graph.reset()

    @precondition(lambda self: self.pinned and not self.captures)
    @rule()
    def release_graphs(self) -> None:
        self.pair.each(lambda rank: self.pair.groups[rank].release_graphs())
        self.pinned.clear()

    @rule(rows=ROWS)
    def reserve(self, rows: int) -> None:
        assert all(
            self.pair.each(lambda rank: self.pair.groups[rank].reserve(rows, HIDDEN, torch.float32))
        )
        state = self.lanes[0]
        if not state.current or rows * ROW_BYTES > state.current[0].nbytes:
            self.acquire_on(0, rows)
        state.high = max(state.high, rows * ROW_BYTES)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def drop_view(self, data: st.DataObject) -> None:
        self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))

    @rule()
    def trim(self) -> None:
        self.pair.each(lambda rank: self.pair.groups[rank].trim())
        for rank in range(WORLD):
            stats = self.pair.groups[rank].stats()
            if not self.pinned and not self.held:  # on any rank: windows go together
                assert stats["retired_bytes"] == 0, stats
            largest = sum(lane.high for lane in self.lanes) + sum(self.staged_high)
            assert stats["live_bytes"] <= 2 * largest + SLOTS * GRANULE, stats

    @rule()
    def suspend(self) -> None:
        if self.pinned or self.held:
            self.pair.refuse(
                lambda rank: self.pair.groups[rank].suspend(), "pinned for graphs|held by tensors"
            )
            return
        self.pair.each(lambda rank: self.pair.groups[rank].suspend())
        for group in self.pair.groups:
            stats = group.stats()
            assert stats["live_bytes"] == stats["retired_bytes"] == 0, stats
        live = testing.nccl().live()
        assert live["allocations"] == self.live_before["allocations"], live
        self.pair.each(lambda rank: self.pair.groups[rank].resume())
        for number, lane in enumerate(self.lanes):
            if lane.current:
                rows, high = lane.current[0].nbytes // ROW_BYTES, lane.high
                lane.current = []
                growths = self.pair.groups[0].stats()["growths"]
                self.acquire_on(number, rows)  # as large as it was, without growing
                assert self.pair.groups[0].stats()["growths"] == growths
                lane.high = high

    # --- what must always hold ---

    @invariant()
    def views_hold_what_was_written(self) -> None:
        for _, tensor, window in getattr(self, "held", []):
            expected = window.content[: tensor.numel()].view(tensor.shape)
            assert torch.equal(tensor, expected), (tensor, expected)

    @invariant()
    def bytes_are_bounded(self) -> None:
        if not hasattr(self, "pair"):
            return
        largest = sum(lane.high for lane in self.lanes) + sum(self.staged_high)
        for rank, group in enumerate(self.pair.groups):
            stats = group.stats()
            assert stats["live_bytes"] <= 2 * largest + SLOTS * GRANULE, (stats, largest)
            now = {lane.current[rank].address for lane in self.lanes if lane.current}
            outgrown = {
                window.address: window.nbytes
                for holder, _, window in self.held
                if holder == rank and window.address not in now
            }
            assert stats["view_bytes"] >= sum(outgrown.values()), (stats, outgrown)
            if not self.ever_held and not self.pinned:
                held = stats["live_bytes"] + stats["retired_bytes"]
                assert held <= 4 * largest + SLOTS * GRANULE, (stats, largest)

    @invariant()
    def nothing_is_misused(self) -> None:
        assert testing.nccl().misuses() == []

    def teardown(self) -> None:
        if not hasattr(self, "pair"):
            return
        for capture in self.captures:
            for graph in capture.graphs:
                graph.reset()
        self.pair.close()
        self.views_hold_what_was_written()
        self.held.clear()
        self.captures.clear()
        assert testing.nccl().live() == self.live_before


TestPoolModel = PoolModel.TestCase
TestPoolModel.settings = settings(
    max_examples=20,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
