"""Scenarios of the GPU path: capture and replay, and what graphs keep."""

from __future__ import annotations

import pytest
import torch

from device_lab import Lab, barrier
from device_scenarios import HIDDEN, check_sum
from reference import assert_same_bits, noise, own_rows, rank_sum, topk_sum
from symmoe import Config, testing

DTYPE = torch.bfloat16
SMALL = Config(granularity=4096)
ROWS = 3


def refused_growth(lab: Lab, rank: int, world: int, capturing: list[int]) -> None:
    """Growth while any rank captures is refused on all of them, and names reserve."""
    with lab.init(SMALL) as group:
        stream = lab.stream()
        rows = 400 * world
        ones = lab.tensor(torch.ones(rows, HIDDEN, dtype=DTYPE))
        for operation in ("acquire", "reduce_scatter", "combine"):

            def call(operation: str = operation) -> None:
                arguments = (
                    ("combine", (rows, HIDDEN), DTYPE) if operation == "acquire" else (ones,)
                )
                with pytest.raises(ValueError, match=r"rank 0: .*captured.* call reserve\(\)"):
                    getattr(group, operation)(*arguments)

            if rank in capturing:
                with lab.capture(stream) as graph:
                    call()
                graph.reset()
            else:
                call()
        assert group.stats()["growths"] == 0
        assert group.reserve(rows, HIDDEN, DTYPE)
        with lab.capture(stream) as graph:
            found = group.combine(ones)
        barrier()
        with lab.use(stream):
            graph.replay()
        assert bool((lab.host(found) == world).all())
        graph.reset()


def refused_scratch(lab: Lab, rank: int, world: int) -> None:
    """The same for memory that a path needs for itself."""
    with lab.init(SMALL) as group:
        stream = lab.stream()
        ones = lab.tensor(torch.ones(2 * world, HIDDEN, dtype=DTYPE))
        message = "captured.*or make such a call once"
        if rank == 0:
            with lab.capture(stream) as graph, pytest.raises(ValueError, match=message):
                group.reduce_scatter(ones, deterministic=True)
            graph.reset()
        else:
            with pytest.raises(ValueError, match=message):
                group.reduce_scatter(ones, deterministic=True)
        found = group.reduce_scatter(ones, deterministic=True)
        assert bool((lab.host(found) == world).all())
        with lab.capture(stream) as graph:
            found = group.reduce_scatter(ones, deterministic=True)
        barrier()
        with lab.use(stream):
            graph.replay()
        assert bool((lab.host(found) == world).all())
        graph.reset()


def replays(lab: Lab, rank: int, world: int, deterministic: bool) -> None:
    """A hundred replays with new numbers, one rank slowed, the same lane twice per graph."""
    tokens, slots = ROWS * world, 2
    own = own_rows([ROWS] * world, rank)
    with lab.init(SMALL) as group:
        stream = lab.stream()
        rows = [lab.tensor(noise(n, (tokens, slots, HIDDEN), DTYPE)) for n in range(2)]
        out = [lab.tensor(torch.zeros(ROWS, HIDDEN, dtype=DTYPE)) for _ in range(2)]
        assert group.reserve(tokens, HIDDEN, DTYPE, graph=True)
        group.combine(rows[0], out=out[0], deterministic=deterministic)  # for its scratch
        lab.synchronize()
        with lab.capture(stream) as graph:
            for n in range(2):
                group.combine(rows[n], out=out[n], deterministic=deterministic)
        for turn in range(100):
            fresh = [
                [noise(1000 * turn + 10 * n + r, (tokens, slots, HIDDEN), DTYPE) for n in range(2)]
                for r in range(world)
            ]
            with lab.use(stream):
                for n in range(2):
                    lab.put(rows[n].view(-1, HIDDEN), lab.tensor(fresh[rank][n]).view(-1, HIDDEN))
                if turn % 20 == rank:
                    lab.slow(0.01)
                graph.replay()
            for n in range(2):
                parts = [topk_sum(fresh[r][n])[own] for r in range(world)]
                check_sum(lab.host(out[n]), parts, deterministic or world == 1)
        assert group.stats()["pinned_bytes"] > 0
        graph.reset()


def outgrown(lab: Lab, rank: int, world: int) -> None:
    """A graph gives right numbers after its window was outgrown and memory was given out anew."""
    own = own_rows([ROWS] * world, rank)
    with lab.init(SMALL) as group:
        stream = lab.stream()
        rows = lab.tensor(noise(rank, (ROWS * world, 2, HIDDEN), DTYPE))
        parts = [topk_sum(noise(r, (ROWS * world, 2, HIDDEN), DTYPE))[own] for r in range(world)]
        out = lab.tensor(torch.zeros(ROWS, HIDDEN, dtype=DTYPE))
        assert group.reserve(ROWS * world, HIDDEN, DTYPE)
        with lab.capture(stream) as graph:
            group.combine(rows, out=out)
        assert group.stats()["pinned_bytes"] == 4096
        pinned = group.acquire("combine", (1, HIDDEN), DTYPE)
        assert pinned is not None
        span = pinned.data_ptr()
        del pinned
        for step in range(1, 101):
            lane = step % 4
            count = (step // 4 + 1) * 60
            window = group.acquire("combine", (count, HIDDEN), DTYPE, lane=lane)
            assert window is not None
            assert not span <= window.data_ptr() < span + 4096
            lab.put(window, lab.tensor(torch.full((count, HIDDEN), -7.0, dtype=DTYPE)))
            if step % 10 == 0:
                lab.synchronize()
                group.trim()
        del window
        lab.synchronize()
        group.trim()
        stats = group.stats()
        assert stats["pinned_bytes"] == 4096, stats
        assert stats["growths"] > 4, stats
        for _ in range(3):
            with lab.use(stream):
                lab.put(out, lab.tensor(torch.zeros(ROWS, HIDDEN, dtype=DTYPE)))
                graph.replay()
            check_sum(lab.host(out), parts, False)
        graph.reset()
        group.release_graphs()
        stats = group.stats()
        assert stats["pinned_bytes"] == stats["retired_bytes"] == 0, stats


def foreign_writes(lab: Lab, rank: int, world: int, reserved: bool) -> None:
    """Somebody else's kernel is captured alone, with a window that was acquired before."""
    with lab.init(SMALL) as group:
        stream = lab.stream()
        shape = (ROWS * world, HIDDEN)
        if reserved:
            assert group.reserve(*shape, DTYPE, graph=True)
        window = group.acquire("combine", shape, DTYPE)
        assert window is not None
        values = lab.tensor(torch.full(shape, 3.0, dtype=DTYPE))
        with lab.capture(stream) as graph:
            lab.put(window, values)
        if not reserved:
            assert group.stats()["pinned_bytes"] == 0  # nobody has told the pool
            group.retain(window)
        assert group.stats()["pinned_bytes"] == 4096
        out = lab.tensor(torch.zeros(ROWS, HIDDEN, dtype=DTYPE))
        for turn in range(20):
            if turn % 5 == rank:
                with lab.use(stream):
                    lab.slow(0.01)
            with lab.use(stream):
                lab.put(values, lab.tensor(torch.full(shape, 1.0 + turn, dtype=DTYPE)))
                assert group.acquire("combine", shape, DTYPE) is window
                graph.replay()
                group.reduce_scatter(window, out=out)
            assert bool((lab.host(out) == world * (1.0 + turn)).all())
        # Outgrown, it is still the graph's alone.
        address = window.data_ptr()
        del window
        for lane in range(3):
            large = group.acquire("combine", (500 * world, HIDDEN), DTYPE, lane=lane)
            assert large is not None
            assert not large.data_ptr() <= address < large.data_ptr() + large.nbytes
        del large
        lab.synchronize()
        group.trim()
        assert group.stats()["pinned_bytes"] == 4096
        with lab.use(stream):
            graph.replay()
        lab.synchronize()
        graph.reset()


def freed(lab: Lab, rank: int, world: int) -> None:
    """release_graphs gives back what only graphs had kept, for real."""
    with lab.init(SMALL) as group:
        stream = lab.stream()
        shape = (ROWS * world, HIDDEN)
        ones = lab.tensor(torch.ones(shape, dtype=DTYPE))
        out = lab.tensor(torch.zeros(ROWS, HIDDEN, dtype=DTYPE))
        group.reserve(ROWS * world, HIDDEN, DTYPE)
        with lab.capture(stream) as graph:
            group.combine(ones, out=out)
        group.reserve(500 * world, HIDDEN, DTYPE)
        group.trim()
        kept = group.stats()
        assert kept["retired_bytes"] == kept["pinned_bytes"] == 4096, kept
        if lab.emulated:
            before, bytes_before = testing.nccl().live(), testing.live_bytes()
        graph.reset()
        del graph
        lab.synchronize()
        group.release_graphs()
        assert group.stats()["retired_bytes"] == 0
        if lab.emulated:
            after = testing.nccl().live()
            assert after["windows"] == before["windows"] - 1
            assert after["allocated_bytes"] == before["allocated_bytes"] - 4096
            assert testing.live_bytes() == bytes_before - 4096


def two_lanes(lab: Lab, rank: int, world: int) -> None:
    """A graph per lane, replayed in two streams at once; the windows have nothing in common."""
    with lab.init(SMALL) as group:
        assert group.reserve(ROWS * world, HIDDEN, DTYPE, lanes=2, graph=True)
        streams = [lab.stream(), lab.stream()]
        rows = [lab.tensor(torch.zeros(ROWS * world, HIDDEN, dtype=DTYPE)) for _ in "ab"]
        out = [lab.tensor(torch.zeros(ROWS, HIDDEN, dtype=DTYPE)) for _ in "ab"]
        graphs = []
        for lane in range(2):
            with lab.capture(streams[lane]) as graph:
                group.combine(rows[lane], out=out[lane], lane=lane)
            graphs.append(graph)
        for turn in range(30):
            for lane in range(2):
                with lab.use(streams[lane]):
                    value = torch.full((ROWS * world, HIDDEN), 1.0 + turn * 2 + lane, dtype=DTYPE)
                    lab.put(rows[lane], lab.tensor(value))
                    if turn % 7 == rank:
                        lab.slow(0.005)
                    graphs[lane].replay()
                    # NCCL's kernels of one communicator come in the same order on all ranks.
                    lab.synchronize()
            for lane in range(2):
                right = world * (1.0 + turn * 2 + lane)
                assert bool((lab.host(out[lane]).float() == right).all()), (turn, lane)
        for graph in graphs:
            graph.reset()


def work_outside(lab: Lab, rank: int, world: int) -> None:
    """A capture that would have to wait for work outside of it is refused; nothing breaks."""
    with lab.init(SMALL) as group:
        first, second = lab.stream(), lab.stream()
        ones = lab.tensor(torch.ones(ROWS * world, HIDDEN, dtype=DTYPE))
        group.reserve(ROWS * world, HIDDEN, DTYPE)
        lab.synchronize()
        barrier()
        with lab.use(first):
            lab.slow(0.5)
            group.combine(ones)
        with lab.capture(second) as graph, pytest.raises(ValueError, match="synchronize before"):
            group.combine(ones)
        graph.reset()
        lab.synchronize()
        with lab.capture(second) as graph:
            found = group.combine(ones)
        barrier()
        with lab.use(second):
            graph.replay()
        assert bool((lab.host(found) == world).all())
        graph.reset()


def without_windows(lab: Lab, rank: int, world: int) -> None:
    """Graphs of the paths that need no window: even, uneven, in rank order."""
    with lab.init(Config(windows=False)) as group:
        stream = lab.stream()
        sizes = [r + 1 for r in range(world)]
        rows = sum(sizes)
        given = [noise(r, (rows * world, HIDDEN), DTYPE) for r in range(world)]
        mine = lab.tensor(given[rank])
        group.reduce_scatter(mine, deterministic=True)
        lab.synchronize()
        with lab.capture(stream) as graph:
            even = group.combine(mine)
            uneven = group.reduce_scatter(mine[:rows], sizes=sizes)
            exact = group.reduce_scatter(mine, deterministic=True)
        barrier()
        own, few = own_rows([rows] * world, rank), own_rows(sizes, rank)
        for _ in range(3):
            with lab.use(stream):
                graph.replay()
            check_sum(lab.host(even), [part[own] for part in given], False)
            check_sum(lab.host(uneven), [part[few] for part in given], False)
            assert_same_bits(lab.host(exact), rank_sum([part[own] for part in given]))
        graph.reset()


def abandoned(lab: Lab, rank: int, world: int) -> None:
    """An error of the user's inside a capture leaves the group as it was."""
    with lab.init(SMALL) as group:
        stream = lab.stream()
        ones = lab.tensor(torch.ones(ROWS * world, HIDDEN, dtype=DTYPE))
        group.combine(ones)
        lab.synchronize()

        def fail() -> None:
            with lab.capture(stream):
                group.combine(ones)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        found = group.combine(ones)
        assert bool((lab.host(found) == world).all())
