"""Scenarios of the GPU path: rows gathered and reduced into a "dispatch" window."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch

import symmoe
from device_lab import Lab, barrier
from device_scenarios import HIDDEN, check_sum, inputs
from reference import assert_same_bits, noise, own_rows
from symmoe import Config, testing
from symmoe.device.group import DeviceGroup
from symmoe.observing import watch

DTYPE = torch.bfloat16
SMALL = Config(granularity=4096)  # so that windows grow after a few rows


def window_of(
    group: DeviceGroup, rows: int, dtype: torch.dtype = DTYPE, lane: int = 0
) -> torch.Tensor:
    """A "dispatch" window for all ranks' rows."""
    window = group.acquire("dispatch", (rows, HIDDEN), dtype, lane=lane)
    assert window is not None
    return window


def consume(lab: Lab, window: torch.Tensor) -> torch.Tensor:
    """What a kernel that reads the window in the current stream finds there."""
    found = torch.empty(window.shape, dtype=window.dtype, device=window.device)
    lab.topk_reduce(window.view(window.shape[0], 1, HIDDEN), out=found)
    return found


def gathers(lab: Lab, rank: int, world: int, dtype: torch.dtype) -> None:
    """Even, uneven, padded, nothing of some: in place, and from rows elsewhere; no copy."""
    with lab.init() as group:
        cases = [
            [3] * world,
            [2 * r + 1 for r in range(world)],
            [4 * (r % 2) for r in range(world)],
        ]
        for number, sizes in enumerate(cases):
            for padded_to in (None, 8):
                parts = [noise(10 * number + r, (n, HIDDEN), dtype) for r, n in enumerate(sizes)]
                private = lab.tensor(parts[rank])
                rows = sum(sizes) if padded_to is None else padded_to * world
                own = own_rows(sizes, rank, padded_to)
                for in_place in (False, True):
                    window = window_of(group, rows, dtype)
                    lab.put(window, lab.tensor(torch.full((rows, HIDDEN), 9.0, dtype=dtype)))
                    if in_place:
                        lab.put(window[own], private)
                    source = window[own] if in_place else private
                    copied = testing.count("copy") if lab.emulated else 0
                    out = group.all_gather(source, window, sizes=sizes, padded_to=padded_to)
                    assert out is window
                    if lab.emulated and (world > 1 or in_place):
                        assert testing.count("copy") == copied
                    found = lab.host(consume(lab, window))
                    for r in range(world):
                        assert_same_bits(found[own_rows(sizes, r, padded_to)], parts[r])
                    if padded_to is not None:
                        for r in range(world):
                            padding = found[r * padded_to + sizes[r] : (r + 1) * padded_to]
                            assert bool((padding == 9).all())
        stats = group.stats()
        assert stats["calls_staged"] == stats["calls_process_group"] == 0, stats


def sharded_layers(lab: Lab, rank: int, world: int, deterministic: bool) -> None:
    """Rows are reduced where they are gathered from, by each call that reduces."""
    with lab.init(SMALL) as group:
        for sizes in ([3] * world, [2 * r for r in range(world)], None):
            counts = [3] * world if sizes is None else sizes
            rows, own = sum(counts), own_rows(counts, rank)
            given = inputs(world, rows, DTYPE)
            private = lab.tensor(given[rank])
            for way in ("private", "window", "combine"):
                window = window_of(group, rows)
                part = window[own]
                if way == "combine":
                    terms = private.view(rows, 1, HIDDEN)
                    group.combine(terms, out=part, sizes=sizes, deterministic=deterministic)
                else:
                    source = private
                    if way == "window":
                        partial = group.acquire("combine", (rows, HIDDEN), DTYPE)
                        assert partial is not None
                        source = partial
                        lab.put(source, private)
                    group.reduce_scatter(source, part, sizes=sizes, deterministic=deterministic)
                group.all_gather(part, window, sizes=sizes)
                found = lab.host(consume(lab, window))
                check_sum(found, given, deterministic or world == 1)
        assert group.stats()["calls_process_group"] == 0


def sizes_on_the_device(lab: Lab, rank: int, world: int) -> None:
    """Own kernels write no further into the window than the sizes say."""
    counts = [r + 1 for r in range(world)]
    own = own_rows(counts, rank)
    given = inputs(world, sum(counts), DTYPE)
    with lab.init(SMALL) as group:
        sizes = lab.tensor(torch.tensor(counts, dtype=torch.int32))
        private = lab.tensor(given[rank])
        sevens = lab.tensor(torch.full((sum(counts), HIDDEN), 7.0, dtype=DTYPE))
        for way in (group.reduce_scatter, group.combine):
            window = window_of(group, sum(counts))
            lab.put(window, sevens)
            rows = private if way == group.reduce_scatter else private.unsqueeze(1)
            way(rows, out=window[own.start :], sizes=sizes)
            found = lab.host(window)
            check_sum(found[own], [part[own] for part in given], True)
            assert bool((found[: own.start] == 7).all())
            assert bool((found[own.stop :] == 7).all())
            group.all_gather(window[own], window, sizes=counts)
            check_sum(lab.host(window), given, True)


def compared(lab: Lab, rank: int, world: int) -> None:
    """Where the rows go to is each rank's own affair, also if calls are compared."""
    own = own_rows([2] * world, rank)
    with lab.init(Config(granularity=4096, check=True)) as group:
        ones = lab.tensor(torch.ones(2 * world, HIDDEN, dtype=DTYPE))
        for turn in range(world):
            window = window_of(group, 2 * world)
            if turn == rank:
                mine = group.reduce_scatter(ones)
                gathered = group.all_gather(mine)
            else:
                group.reduce_scatter(ones, window[own])
                assert group.explain("all_gather", window[own], window) == group.explain(
                    "all_gather", window[own]
                )
                gathered = group.all_gather(window[own], window)
            assert bool((lab.host(gathered) == world).all())


def other_streams(lab: Lab, rank: int, world: int, way: str) -> None:
    """Whoever acquires the window next comes behind the call that wrote it, on any stream."""
    rows, own = 2 * world, own_rows([2] * world, rank)
    with lab.init(SMALL) as group:
        first, second = lab.stream(), lab.stream()
        ones = lab.tensor(torch.ones(rows, HIDDEN, dtype=DTYPE))
        sevens = lab.tensor(torch.full((rows, HIDDEN), 7.0, dtype=DTYPE))
        terms = ones.view(rows, 1, HIDDEN)
        for turn in range(2 * world):
            window = window_of(group, rows)
            lab.synchronize()
            with lab.use(first):
                if turn % world == rank:
                    lab.slow(0.1)
                if way == "all_gather":
                    group.all_gather(ones[own], window)
                elif way == "combine":
                    group.combine(terms, out=window[own])
                else:
                    group.reduce_scatter(ones, window[own])
            with lab.use(second):
                assert window_of(group, rows) is window
                lab.put(window, sevens)
            assert bool((lab.host(window) == 7).all()), turn
        # And a call that writes it comes behind the lane's last one.
        for _ in range(world):
            with lab.use(first):
                window = window_of(group, rows)
                lab.slow(0.1 if rank == 0 else 0)
                lab.put(window, sevens)
                group.all_gather(window[own], window)
                window_of(group, rows)
            with lab.use(second):
                if way != "all_gather":
                    group.reduce_scatter(ones, window[own])
                    assert bool((lab.host(window[own]) == world).all())


def outgrown(lab: Lab, rank: int, world: int) -> None:
    """A window that is outgrown while a call writes it stays until that has ended."""
    own = own_rows([2] * world, rank)
    with lab.init(SMALL) as group:
        stream = lab.stream()
        ones = lab.tensor(torch.ones(2 * world, HIDDEN, dtype=DTYPE))
        for step in range(1, 5):
            window = window_of(group, 2 * world)
            with lab.use(stream):
                lab.slow(0.1 if rank == step % world else 0)
                group.reduce_scatter(ones, window[own])
                group.all_gather(window[own], window)
            larger = window_of(group, 25 * 4**step * world)
            with pytest.raises(ValueError, match="was outgrown: acquire it again"):
                group.reduce_scatter(ones, window[own])
            group.trim()
            assert bool((lab.host(window) == world).all())
            del window, larger
            lab.synchronize()
            group.trim()
            assert group.stats()["retired_bytes"] == 0
        assert group.stats()["growths"] > 1


def raw(address: int, nbytes: int) -> torch.Tensor:
    """A tensor over any memory of this process."""
    return torch.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype=DTYPE)


def refused(lab: Lab, rank: int, world: int) -> None:
    """All other memory of the pool is refused before anything is queued."""
    rows, own = 2 * world, own_rows([2] * world, rank)
    with lab.init(SMALL) as group:
        ones = lab.tensor(torch.ones(rows, HIDDEN, dtype=DTYPE))
        combine = group.acquire("combine", (rows, HIDDEN), DTYPE)
        assert combine is not None
        window, other = window_of(group, rows), window_of(group, rows, lane=1)
        group.reduce_scatter(ones, deterministic=True)  # makes scratch where the path needs some
        pool = "out overlaps a window for "
        wrong = [
            (combine, pool + "combine, lane 0;"),
            (other, pool + "dispatch, lane 1;"),
        ]
        if lab.emulated:
            end = window.data_ptr() + 4096
            straddling = raw(end - HIDDEN, 2 * rows * HIDDEN).view(rows, HIDDEN)
            before = raw(window.data_ptr() - HIDDEN, 2 * rows * HIDDEN).view(rows, HIDDEN)
            wrong.append((straddling, "does not lie in a window"))
            wrong.append((before, "out overlaps a "))
        counts = group.stats()
        for out, message in wrong:
            with pytest.raises(ValueError, match="all_gather.*" + message):
                group.all_gather(ones[:2], out)
            with pytest.raises(ValueError, match=message):
                group.reduce_scatter(ones, out[:2])
            with pytest.raises(ValueError, match=message):
                group.combine(ones.view(rows, 1, HIDDEN), out=out[:2])
        with pytest.raises(ValueError, match=pool + "dispatch, lane 0;.* dispatch, lane 1"):
            group.reduce_scatter(ones, window[own], lane=1)
        if world > 1:
            shifted = own_rows([2] * world, (rank + 1) % world)
            with pytest.raises(ValueError, match="may only be exactly the own rows"):
                group.all_gather(window[shifted], window)
        assert group.stats() == counts
        # Gathered rows are the last thing that it was acquired for.
        for source in (ones[:2], window[own]):
            window = window_of(group, rows)
            lab.put(window, ones)
            group.all_gather(source, window)
            again: list[tuple[Callable[..., torch.Tensor], torch.Tensor, torch.Tensor]] = [
                (group.all_gather, ones[:2], window),
                (group.reduce_scatter, ones, window[own]),
                (group.combine, ones.view(rows, 1, HIDDEN), window[own]),
            ]
            for call, given, out in again:
                with pytest.raises(ValueError, match="gathered already: acquire it again"):
                    call(given, out=out)
            with pytest.raises(ValueError, match="reduced already: acquire it again"):
                group.all_gather(window[own])
            assert bool((lab.host(window) == 1).all())
        # But a reduce may be done again: its rows are what is to be gathered.
        window = window_of(group, rows)
        for _ in range(2):
            group.reduce_scatter(ones, window[own])
        group.all_gather(window[own], window)
        assert bool((lab.host(window) == world).all())
    barrier()


def by_the_process_group(lab: Lab, rank: int, world: int) -> None:
    """What torch.distributed serves keeps to the same rules and the same order."""
    rows, own = 2 * world, own_rows([2] * world, rank)
    # No path gathers here.
    with lab.init(Config(granularity=4096, paths=("pull",))) as group:
        first, second = lab.stream(), lab.stream()
        for dtype in (DTYPE, torch.int32):
            width = HIDDEN * 2 // dtype.itemsize
            values = [lab.tensor(torch.full((2, width), 1 + r).to(dtype)) for r in range(world)]
            right = torch.cat([torch.full((2, width), 1 + r) for r in range(world)]).to(dtype)
            combine = group.acquire("combine", (rows, HIDDEN), DTYPE)
            other = window_of(group, rows, lane=1)
            assert combine is not None
            for wrong, why in ((combine, "combine, lane 0"), (other, "dispatch, lane 1")):
                with pytest.raises(ValueError, match=f"overlaps a window for {why};"):
                    group.all_gather(values[rank], wrong.view(dtype))
            served = group.stats()["calls_process_group"]
            for in_place in (False, True):
                with lab.use(first):
                    window = window_of(group, rows)
                    if rank == 0:
                        lab.slow(0.1)
                    lab.put(window[own], values[rank].view(DTYPE))
                    view = window.view(dtype)
                with lab.use(second):  # the window's last use was on the other stream
                    window_of(group, rows)
                    source = view[own] if in_place else values[rank]
                    group.all_gather(source, view)
                    with pytest.raises(ValueError, match="gathered already: acquire it again"):
                        group.all_gather(values[rank], view)
                    found = consume(lab, window)
                assert torch.equal(lab.host(found).view(dtype), right)
            expected = 0 if world == 1 and dtype is DTYPE else 2
            assert group.stats()["calls_process_group"] == served + expected


def lanes(lab: Lab, rank: int, world: int) -> None:
    """Two microbatches in two streams, each with a window of its own."""
    rows, own = 2 * world, own_rows([2] * world, rank)
    with lab.init(SMALL) as group:
        streams = [lab.stream(), lab.stream()]
        found = []
        for turn in range(5):
            for lane in range(2):
                value = 1.0 + turn + 10 * lane
                with lab.use(streams[lane]):
                    if (rank + turn) % 3 == lane:
                        lab.slow(0.02)
                    window = window_of(group, rows, lane=lane)
                    given = lab.tensor(torch.full((rows, HIDDEN), value, dtype=DTYPE))
                    group.reduce_scatter(given, window[own], lane=lane)
                    group.all_gather(window[own], window, lane=lane)
                    found.append((value, consume(lab, window)))
        for value, gathered in found:
            assert bool((lab.host(gathered) == world * value).all())


def tags(lab: Lab, rank: int, world: int) -> None:
    """The window says what is in it: own rows until they are gathered, then everybody's."""
    try:
        with lab.init(Config(granularity=4096, strict_layout=True)) as group:
            tagged(lab, group)
    finally:  # other tests of this process go the way without
        watch.tags = watch.on = False


def tagged(lab: Lab, group: DeviceGroup) -> None:
    world = group.world_size
    own = own_rows([2] * world, group.rank)
    ones = lab.tensor(torch.ones(2 * world, HIDDEN, dtype=DTYPE))
    symmoe.tag(ones, symmoe.Partial())
    for _ in range(2):
        window = window_of(group, 2 * world)
        group.reduce_scatter(ones, window[own])
        assert symmoe.layout_of(window[own]) == symmoe.Sharded([2] * world)
        group.all_gather(window[own], window)
        assert symmoe.layout_of(window) == symmoe.Replicated()
        assert bool((lab.host(window) == world).all())
        with pytest.raises(symmoe.LayoutError, match="Replicated, must be Sharded"):
            group.all_gather(window[own])
