"""reduce_scatter through windows: every layout, from every kind of memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import symmoe
from ranks import Ranks, fresh
from reference import DTYPES, assert_same_bits, noise, own_rows, rank_sum
from symmoe import layouts, views

pytestmark = pytest.mark.multi
HIDDEN = 96


def partial(
    seed: int, rank: int, rows: int, dtype: torch.dtype, hidden: int = HIDDEN
) -> torch.Tensor:
    return noise(1000 * seed + rank, (rows, hidden), dtype)


def expected(
    seed: int, world: int, rows: int, dtype: torch.dtype, where: slice, hidden: int = HIDDEN
) -> torch.Tensor:
    return rank_sum([partial(seed, r, rows, dtype, hidden)[where] for r in range(world)])


def acquired(
    group: symmoe.Group, rows: int, dtype: torch.dtype, lane: int = 0, hidden: int = HIDDEN
) -> torch.Tensor:
    window = group.acquire("combine", (rows, hidden), dtype, lane=lane)
    assert window is not None
    assert window.shape == (rows, hidden)
    return window


def even(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        for seed, dtype in enumerate(DTYPES):
            rows = 5 * world
            window = acquired(group, rows, dtype)
            window.copy_(partial(seed, rank, rows, dtype))
            assert group.explain("reduce_scatter", window).path == "pull"
            right = expected(seed, world, rows, dtype, own_rows([5] * world, rank))
            assert_same_bits(group.reduce_scatter(window), right)

            staged = partial(seed, rank, rows, dtype)
            assert group.explain("reduce_scatter", staged).path == "staged"
            out = torch.full((5, HIDDEN), 7, dtype=dtype)
            assert group.reduce_scatter(staged, out) is out
            assert_same_bits(out, right)
            assert_same_bits(staged, partial(seed, rank, rows, dtype))
        stats = group.stats()
        assert (stats["calls_pull"], stats["calls_staged"]) == (3, 3)
        assert stats["calls_process_group"] == 0


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_even(ranks: Ranks, world: int) -> None:
    ranks.run(world, even)


def uneven(rank: int, world: int) -> None:
    cases: list[list[int]] = [
        [r + 1 for r in range(world)],
        [0] * (world - 1) + [7],
        [9] + [0] * (world - 1),
        [0] * world,
        [(3 * r) % 4 for r in range(world)],
    ]
    with symmoe.init(device="cpu") as group:
        for seed, sizes in enumerate(cases):
            for stride in (None, max(sizes), max(sizes) + 2):
                rows = sum(sizes) if stride is None else stride * world
                where = own_rows(sizes, rank, stride)
                right = expected(seed, world, rows, torch.bfloat16, where)
                for given in (sizes, tuple(sizes), torch.tensor(sizes, dtype=torch.int32)):
                    window = acquired(group, rows, torch.bfloat16)
                    window.copy_(partial(seed, rank, rows, torch.bfloat16))
                    found = group.reduce_scatter(window, sizes=given, padded_to=stride)
                    assert_same_bits(found, right)
                staged = partial(seed, rank, rows, torch.bfloat16)
                out = torch.full((sizes[rank] + 2, HIDDEN), 7, dtype=torch.bfloat16)
                group.reduce_scatter(staged, out, sizes=sizes, padded_to=stride)
                assert_same_bits(out[: sizes[rank]], right)
                assert bool((out[sizes[rank] :] == 7).all())
        assert group.stats()["calls_process_group"] == 0


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_uneven(ranks: Ranks, world: int) -> None:
    ranks.run(world, uneven)


def one_size(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        window = acquired(group, 6 * world, torch.float32)
        window.copy_(partial(1, rank, 6 * world, torch.float32))
        found = group.reduce_scatter(window, sizes=6)
        where = own_rows([6] * world, rank)
        assert_same_bits(found, expected(1, world, 6 * world, torch.float32, where))


def test_one_size_for_all(ranks: Ranks) -> None:
    ranks.run(3, one_size)


def mixed(rank: int, world: int) -> None:
    rows = 4 * world
    where = own_rows([4] * world, rank)
    with symmoe.init(device="cpu") as group:
        for seed in range(6):
            staging = (rank + seed) % world == 0
            source = partial(seed, rank, rows, torch.bfloat16)
            if not staging:
                source = acquired(group, rows, torch.bfloat16).copy_(source)
            found = group.reduce_scatter(source)
            assert_same_bits(found, expected(seed, world, rows, torch.bfloat16, where))


@pytest.mark.parametrize("world", [2, 3])
def test_one_rank_staged_and_the_others_not(ranks: Ranks, world: int) -> None:
    ranks.run(world, mixed)


def unrelated(rank: int, world: int) -> None:
    rows = 4 * world
    where = own_rows([4] * world, rank)
    with symmoe.init(device="cpu") as group:
        window = acquired(group, rows, torch.bfloat16)
        window.copy_(partial(1, rank, rows, torch.bfloat16))
        other = group.reduce_scatter(partial(2, rank, 2 * rows, torch.float32, 33))
        two = own_rows([8] * world, rank)
        assert_same_bits(other, expected(2, world, 2 * rows, torch.float32, two, 33))
        found = group.reduce_scatter(window)
        assert_same_bits(found, expected(1, world, rows, torch.bfloat16, where))


def test_unrelated_tensor_between_acquire_and_reduce(ranks: Ranks) -> None:
    ranks.run(2, unrelated)


def outgrown(rank: int, world: int) -> None:
    rows = 4 * world
    with symmoe.init(device="cpu") as group:
        small = acquired(group, rows, torch.float32)
        small.copy_(partial(1, rank, rows, torch.float32))
        # Only some ranks grow: the others reduce their current window.
        large_rows = 40000
        if rank % 2 == 0:
            acquired(group, large_rows, torch.float32)
            assert group.stats()["growths"] == 1
        found = group.reduce_scatter(small)
        where = own_rows([4] * world, rank)
        assert_same_bits(found, expected(1, world, rows, torch.float32, where))
        del small, found
        large = acquired(group, large_rows, torch.float32)
        large.zero_()
        large[:rows] = partial(2, rank, rows, torch.float32)
        sizes = [rows] + [0] * (world - 2) + [large_rows - rows]
        found = group.reduce_scatter(large, sizes=sizes)
        if rank == 0:
            right = expected(2, world, rows, torch.float32, slice(0, rows))
            assert_same_bits(found, right)
        group.trim()
        stats = group.stats()
        assert stats["retired_bytes"] == 0, stats


def test_view_acquired_before_growth(ranks: Ranks) -> None:
    ranks.run(2, outgrown)


def slices(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        rows = 10 * world
        for begin in (0, 1, 3):
            window = acquired(group, rows, torch.bfloat16)
            window.copy_(partial(begin, rank, rows, torch.bfloat16))
            # Ranks take different parts of their windows: offsets are each rank's own.
            part = window[begin + rank : begin + rank + 2 * world]
            right = rank_sum(
                [
                    partial(begin, r, rows, torch.bfloat16)[begin + r :][2 * rank : 2 * rank + 2]
                    for r in range(world)
                ]
            )
            assert group.explain("reduce_scatter", part).path == "pull"
            assert_same_bits(group.reduce_scatter(part), right)
        window = acquired(group, rows, torch.bfloat16)
        window.copy_(partial(5, rank, rows, torch.bfloat16))
        found = group.reduce_scatter(window.view(2 * rows, HIDDEN // 2))
        where = own_rows([10] * world, rank)
        right = expected(5, world, rows, torch.bfloat16, where).view(20, HIDDEN // 2)
        assert_same_bits(found, right)
        assert group.stats()["calls_staged"] == 0


def test_parts_and_reshapes_of_a_window(ranks: Ranks) -> None:
    ranks.run(3, slices)


def in_place(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        for seed, dtype in enumerate(DTYPES):
            for hidden in (HIDDEN, 1, 4097):
                rows = 5 * world
                source = partial(seed, rank, rows, dtype, hidden)
                where = own_rows([5] * world, rank)
                group.reduce_scatter(source, source[where])
                right = partial(seed, rank, rows, dtype, hidden)
                right[where] = expected(seed, world, rows, dtype, where, hidden)
                assert_same_bits(source, right)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_in_place(ranks: Ranks, world: int) -> None:
    ranks.run(world, in_place)


def lanes(rank: int, world: int) -> None:
    rows = 2 * world
    where = own_rows([2] * world, rank)
    with symmoe.init(device="cpu") as group:
        windows = [acquired(group, rows, torch.bfloat16, lane) for lane in range(16)]
        for lane, window in enumerate(windows):
            window.copy_(partial(lane, rank, rows, torch.bfloat16))
        for lane in reversed(range(16)):
            found = group.reduce_scatter(windows[lane], lane=lane)
            assert_same_bits(found, expected(lane, world, rows, torch.bfloat16, where))
        assert len({window.data_ptr() for window in windows}) == 16


def test_many_lanes(ranks: Ranks) -> None:
    ranks.run(2, lanes)


def repeated(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        first = acquired(group, 2 * world, torch.float32)
        for step in range(200):
            window = acquired(group, 2 * world, torch.float32)
            assert window is first
            window.fill_(step + rank)
            found = group.reduce_scatter(window)
            assert bool((found == world * step + world * (world - 1) // 2).all()), step


@pytest.mark.parametrize("world", [2, 4])
def test_a_writer_never_overtakes_a_reader(ranks: Ranks, world: int) -> None:
    ranks.run(world, repeated)


def inference_mode(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        with torch.inference_mode():
            window = acquired(group, world, torch.float32)
            window.fill_(rank)
            inside = group.reduce_scatter(window)
        assert bool((inside == world * (world - 1) // 2).all())
        window = acquired(group, world, torch.float32)
        window.fill_(rank + 1)  # an inference tensor would refuse this
        assert bool((group.reduce_scatter(window) == world * (world + 1) // 2).all())


def test_inference_mode(ranks: Ranks) -> None:
    ranks.run(2, inference_mode)


def many_shapes(rank: int, world: int) -> None:
    """More shapes than are remembered: the first view is forgotten, and as good as before."""
    with pytest.MonkeyPatch.context() as patch, symmoe.init(device="cpu") as group:
        patch.setattr(views, "MAX_VIEWS", 4)
        patch.setattr(layouts, "MAX_LAYOUTS", 4)
        group.reserve(64 * world, HIDDEN, torch.float32)
        first = acquired(group, world, torch.float32)
        for rows in range(2, 20):
            window = acquired(group, rows * world, torch.float32)
            window.fill_(rank)
            sizes = [(rows + r) % 3 for r in range(world - 1)]
            sizes.append(rows * world - sum(sizes))
            right = world * (world - 1) // 2
            assert bool((group.reduce_scatter(window, sizes=sizes) == right).all())
        assert acquired(group, world, torch.float32) is not first
        first.fill_(rank + 1)
        assert bool((group.reduce_scatter(first) == world * (world + 1) // 2).all())
        assert len(group._by_key) <= 4
        assert len(group._layouts) <= 4


def test_more_shapes_than_are_remembered(ranks: Ranks) -> None:
    ranks.run(2, many_shapes)


def default_device(rank: int, world: int) -> None:
    """What torch makes by default elsewhere does not concern symmoe."""
    source = torch.full((2 * world, 4), float(rank))
    with torch.device("meta"), symmoe.init(device="cpu") as group:
        window = acquired(group, 2 * world, torch.float32, hidden=4)
        window.copy_(source)
        right = world * (world - 1) // 2
        assert bool((group.reduce_scatter(window) == right).all())
        assert bool((group.reduce_scatter(source) == right).all())
        assert group.acquire("combine", (0, 4), torch.float32).device.type == "cpu"  # type: ignore[union-attr]
        assert bool((group.reduce_scatter(source.to(torch.int32), sizes=[1, 3]) == right).all())


def test_default_device(ranks: Ranks) -> None:
    ranks.run(2, default_device)


def thread_count() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def several_threads(rank: int, world: int) -> int:
    """A rank with several processors sums with several threads: the same bits."""
    with symmoe.init(device="cpu") as group:
        group._cores = 3
        torch.set_num_threads(3)
        started = 0
        rows, hidden = 512 * world, 4099  # 4 MB each: less is not worth waking anybody for
        where = own_rows([512] * world, rank)
        for seed, dtype in enumerate(DTYPES):
            source = partial(seed, rank, rows, dtype, hidden)
            window = acquired(group, rows, dtype, hidden=hidden)
            found, again = (torch.empty(512, hidden, dtype=dtype) for _ in range(2))
            before = thread_count()
            group.reduce_scatter(source, found)
            started += thread_count() - before
            group.reduce_scatter(window.copy_(source), again)
            right = expected(seed, world, rows, dtype, where, hidden)
            assert_same_bits(found, right)
            assert_same_bits(again, right)
        return started


def test_several_threads_per_rank() -> None:
    with fresh() as workers:  # in which no thread was started before
        assert workers.run(2, several_threads) == [2, 2]
