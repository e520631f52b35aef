"""Scenarios of the GPU path: what is copied, which memory calls take, and how windows grow."""

from __future__ import annotations

import pytest
import torch

from device_lab import Lab, barrier
from device_scenarios import HIDDEN, check_sum, inputs
from reference import assert_same_bits, noise, own_rows
from symmoe import Config, testing

DTYPE = torch.bfloat16
SMALL = Config(granularity=4096)  # so that windows grow after a few rows


def copies(lab: Lab) -> int:
    """Copies into windows so far; not counted on a real GPU."""
    return testing.count("copy_to_window") if lab.emulated else 0


def staging(lab: Lab, rank: int, world: int) -> None:
    """A window is sent from as it is; other rows are copied into one first, once."""
    with lab.init() as group:
        given = inputs(world, 2 * world, DTYPE)
        own = own_rows([2] * world, rank)
        parts = [part[own] for part in given]
        private = lab.tensor(given[rank])
        before = copies(lab)
        window = group.acquire("combine", (2 * world, HIDDEN), DTYPE)
        assert window is not None
        lab.put(window, private)
        check_sum(lab.host(group.reduce_scatter(window)), parts, False)
        decision = group.explain("reduce_scatter", window)
        assert decision.path == "direct"
        assert "nothing is staged" in decision.reason
        assert group.stats()["calls_staged"] == 0
        assert copies(lab) == before
        check_sum(lab.host(group.reduce_scatter(private)), parts, False)
        assert "copied into a window" in group.explain("reduce_scatter", private).reason
        assert group.stats()["calls_staged"] == 1
        assert copies(lab) == before + lab.emulated
        assert group.stats()["stage_bytes"] == 0  # nobody had acquired the lane's window
        if lab.emulated:
            kernels = [
                call.kernel
                for call in testing.nccl().calls()
                if call.operation == "ncclReduceScatter"
            ]
            assert kernels == ["symmetric"] * 2


def launches(lab: Lab, rank: int, world: int) -> None:
    """combine: the top-k sum and one NCCL call; staged rows: a copy more."""
    with lab.init() as group:
        rows = lab.tensor(noise(rank, (2 * world, 3, HIDDEN), DTYPE))
        weights = lab.tensor(noise(rank, (2 * world, 3), torch.float32))
        out = lab.tensor(torch.empty(2, HIDDEN, dtype=DTYPE))
        group.combine(rows, weights, out=out)

        def queued() -> list[int]:
            kernels = [testing.count(name) for name in ("topk_reduce", "copy_to_window")]
            collectives = [c for c in testing.nccl().calls() if c.operation == "ncclReduceScatter"]
            others = [testing.count(name) for name in ("rank_reduce", "copy", "fill")]
            return [*kernels, len(collectives), *others]

        before = queued()
        group.combine(rows, weights, out=out)
        after = queued()
        assert [b - a for a, b in zip(before, after, strict=True)] == [1, 0, 1, 0, 0, 0]
        group.reduce_scatter(rows[:, 0].contiguous(), out=out)
        staged = queued()
        assert [b - a for a, b in zip(after, staged, strict=True)] == [0, 1, 1, 0, 0, 0]
        lab.synchronize()


def one_is_private(lab: Lab, rank: int, world: int, check: bool, growing: bool) -> None:
    """One rank's rows are not in its window, which it has not acquired: the rest is as ever."""
    with lab.init(Config(granularity=4096, check=check)) as group:
        rows = (200 if growing else 2) * world
        for turn in range(3):
            given = inputs(world, rows, DTYPE, turn)
            private = lab.tensor(given[rank])
            source = private
            if rank != turn % world:
                window = group.acquire("combine", (rows, HIDDEN), DTYPE)
                assert window is not None
                lab.put(window, private)
                source = window
            own = own_rows([rows // world] * world, rank)
            found = group.reduce_scatter(source)
            check_sum(lab.host(found), [part[own] for part in given], False)
        stats = group.stats()
        assert stats["calls_direct"] == 3
        assert stats["calls_staged"] == len([turn for turn in range(3) if turn % world == rank])


def between(lab: Lab, rank: int, world: int) -> None:
    """Other rows reduced between an acquire and its reduce leave the acquired ones alone."""
    with lab.init() as group:
        first, second = inputs(world, 2 * world, DTYPE, 1), inputs(world, 2 * world, DTYPE, 2)
        own = own_rows([2] * world, rank)
        window = group.acquire("combine", (2 * world, HIDDEN), DTYPE)
        assert window is not None
        lab.put(window, lab.tensor(first[rank]))
        found = group.reduce_scatter(lab.tensor(second[rank]))
        check_sum(lab.host(found), [part[own] for part in second], False)
        assert group.stats()["stage_bytes"] > 0
        found = group.reduce_scatter(window)
        check_sum(lab.host(found), [part[own] for part in first], False)


def pairing(lab: Lab, rank: int, world: int) -> None:
    """What may be given to a call, and what is refused before anything happens."""
    with lab.init() as group:
        shape = (2 * world, HIDDEN)
        window = group.acquire("combine", shape, DTYPE)
        assert window is not None
        assert group.acquire("combine", shape, DTYPE) is window
        ones = lab.tensor(torch.ones(shape, dtype=DTYPE))
        lab.put(window, ones)
        with pytest.raises(ValueError, match="out overlaps a window for combine, lane 0"):
            group.reduce_scatter(ones, window[:2])
        with pytest.raises(ValueError, match="overlaps"):
            group.reduce_scatter(window, window[:2])
        with pytest.raises(ValueError, match=r"acquired for combine, lane 0, .* lane 1"):
            group.reduce_scatter(window, lane=1)
        with pytest.raises(ValueError, match="acquired for combine"):
            group.all_gather(window[:2])
        dispatch = group.acquire("dispatch", (2 * world, HIDDEN), DTYPE)
        assert dispatch is not None
        with pytest.raises(ValueError, match=r"acquired for dispatch, .* used for combine"):
            group.reduce_scatter(dispatch)
        found = group.reduce_scatter(window)
        assert bool((lab.host(found) == world).all())
        for again in (window, window[: world * 1]):
            with pytest.raises(ValueError, match="reduced already"):
                group.reduce_scatter(again)
        assert group.acquire("combine", shape, DTYPE) is window
        lab.put(window, ones)
        assert bool((lab.host(group.reduce_scatter(window)) == world).all())
        with pytest.raises(ValueError, match="lane 99"):
            group.acquire("combine", shape, DTYPE, lane=99)
    barrier()


def parts_of_a_window(lab: Lab, rank: int, world: int) -> None:
    """A contiguous part of a window at an offset is sent from as it is."""
    with lab.init() as group:
        window = group.acquire("combine", (3 * world, HIDDEN), DTYPE)
        assert window is not None
        given = inputs(world, 3 * world, DTYPE)
        lab.put(window, lab.tensor(given[rank]))
        part = window[world : 2 * world]
        found = group.reduce_scatter(part)
        check_sum(lab.host(found), [it[world + rank : world + rank + 1] for it in given], False)
        assert group.stats()["calls_staged"] == 0
        assert group.stats()["calls_direct"] == 1


def growth(lab: Lab, rank: int, world: int) -> None:
    """A view of an outgrown window keeps its memory and can be reduced, once."""
    with lab.init(SMALL) as group:
        small = group.acquire("combine", (world, HIDDEN), DTYPE)
        assert small is not None
        first = inputs(world, world, DTYPE, 1)
        lab.put(small, lab.tensor(first[rank]))
        large = group.acquire("combine", (400 * world, HIDDEN), DTYPE)
        assert large is not None
        second = inputs(world, 400 * world, DTYPE, 2)
        lab.put(large, lab.tensor(second[rank]))
        found = group.reduce_scatter(small)
        check_sum(lab.host(found), [part[rank : rank + 1] for part in first], False)
        found = group.reduce_scatter(large)
        own = own_rows([400] * world, rank)
        check_sum(lab.host(found), [part[own] for part in second], False)
        with pytest.raises(ValueError, match="reduced already"):
            group.reduce_scatter(small)
        group.trim()
        stats = group.stats()
        assert stats["growths"] == 1, stats
        assert stats["view_bytes"] == stats["retired_bytes"] == 4096, stats
        assert_same_bits(lab.host(small), first[rank])
        del small
        lab.synchronize()
        group.trim()
        stats = group.stats()
        assert stats["retired_bytes"] == 0, stats
        largest = 400 * world * HIDDEN * 2
        assert stats["live_bytes"] <= 2 * largest + 4096, stats
        assert stats["peak_bytes"] <= 4 * largest, stats


def slow_user(lab: Lab, rank: int, world: int) -> None:
    """A window that is outgrown while a kernel writes it is not given back under the kernel."""
    with lab.init(SMALL) as group:
        ones = lab.tensor(torch.ones(world, HIDDEN, dtype=DTYPE))
        stream = lab.stream()
        with lab.use(stream):
            window = group.acquire("combine", (world, HIDDEN), DTYPE)
            assert window is not None
            if rank == 0:
                lab.slow(0.3)
            lab.put(window, ones)
            del window
            for rows in (200, 400, 800):
                window = group.acquire("combine", (rows * world, HIDDEN), DTYPE)
                del window
                group.trim()
            window = group.acquire("combine", (world, HIDDEN), DTYPE)
            assert window is not None
            lab.put(window, ones)
            found = group.reduce_scatter(window)
        assert bool((lab.host(found) == world).all())


def other_streams(lab: Lab, rank: int, world: int) -> None:
    """A window that is used from another stream waits there for the last call."""
    with lab.init() as group:
        streams = [lab.stream(), lab.stream()]
        out = [lab.tensor(torch.zeros(1, HIDDEN, dtype=DTYPE)) for _ in range(6)]
        values = [lab.tensor(torch.full((world, HIDDEN), 1.0 + n, dtype=DTYPE)) for n in range(6)]
        lab.synchronize()
        for number in range(6):
            with lab.use(streams[number % 2]):
                if number == rank:
                    lab.slow(0.2)
                window = group.acquire("combine", (world, HIDDEN), DTYPE)
                assert window is not None
                lab.put(window, values[number])
                group.reduce_scatter(window, out=out[number])
        for number in range(6):
            assert bool((lab.host(out[number]) == world * (1 + number)).all()), number


def lanes(lab: Lab, rank: int, world: int) -> None:
    """Two microbatches in two streams: no memory in common, no result of the other."""
    with lab.init(SMALL) as group:
        assert group.reserve(4 * world, HIDDEN, DTYPE, lanes=2)
        streams = [lab.stream(), lab.stream()]
        out = [[lab.tensor(torch.zeros(4, HIDDEN, dtype=DTYPE)) for _ in "abcde"] for _ in "ab"]
        spans = set()
        for turn in range(5):
            for lane in range(2):
                with lab.use(streams[lane]):
                    if (rank + turn) % 3 == lane:
                        lab.slow(0.02)
                    window = group.acquire("combine", (4 * world, HIDDEN), DTYPE, lane=lane)
                    assert window is not None
                    spans.add((lane, window.data_ptr()))
                    value = torch.full((4 * world, HIDDEN), 1.0 + turn + 10 * lane, dtype=DTYPE)
                    lab.put(window, lab.tensor(value))
                    group.reduce_scatter(window, out=out[lane][turn], lane=lane)
        for turn in range(5):
            for lane in range(2):
                assert bool((lab.host(out[lane][turn]) == world * (1 + turn + 10 * lane)).all())
        assert len(spans) == 2
        (_, first), (_, second) = spans
        assert abs(first - second) >= 4096


def capped(lab: Lab, rank: int, world: int) -> None:
    """Above the cap there is no window, on all ranks, and explain says why."""
    with lab.init(Config(granularity=4096, max_buffer_bytes=8192)) as group:
        given = inputs(world, 100 * world, DTYPE)
        own = own_rows([100] * world, rank)
        assert group.acquire("combine", (100 * world, HIDDEN), DTYPE) is None
        private = lab.tensor(given[rank])
        decision = group.explain("reduce_scatter", private)
        assert decision.path == "plain"
        assert any("max_buffer_bytes" in other.reason for other in decision.alternatives)
        found = group.reduce_scatter(private)
        check_sum(lab.host(found), [part[own] for part in given], False)
        with pytest.warns(RuntimeWarning, match="max_buffer_bytes"):
            assert not group.reserve(100 * world, HIDDEN, DTYPE)
        assert group.stats()["calls_process_group"] == 0
