"""What windows cannot serve goes through the process group, with the same values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist

import symmoe
from ranks import Ranks, fresh
from reference import DTYPES, assert_same_bits, noise, own_rows, rank_sum
from symmoe import _core, fallback, messages
from test_threads import in_threads

pytestmark = pytest.mark.multi
HIDDEN = 24
OTHERS = (
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float64,
)


def other_types(rank: int, world: int) -> None:
    with symmoe.init() as group:
        for dtype in OTHERS:
            for sizes in (None, list(range(world)), [0] * world):
                counts = sizes if sizes is not None else [2] * world
                rows = sum(counts)
                parts = [noise(r, (rows, HIDDEN), dtype) for r in range(world)]
                if dtype is torch.float64:
                    parts = [part.round() for part in parts]  # exact in any order
                decision = group.explain("reduce_scatter", parts[rank], sizes=sizes)
                assert decision.path == ("process_group")
                assert f"windows do not know {str(dtype)[6:]}" in decision.reason
                assert group.acquire("combine", (rows, HIDDEN), dtype) is None
                found = group.reduce_scatter(parts[rank], sizes=sizes)
                where = own_rows(counts, rank)
                assert_same_bits(found, rank_sum([part[where] for part in parts]))


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_integers_and_float64(ranks: Ranks, world: int) -> None:
    ranks.run(world, other_types)


def windows_off(rank: int, world: int) -> None:
    with symmoe.init(config=symmoe.Config(windows=False)) as group:
        assert "turned off" in repr(group)
        for seed, dtype in enumerate(DTYPES):
            for sizes, stride in (
                ([3] * world, None),
                ([r + 1 for r in range(world)], None),
                (list(range(world)), world + 1),
                ([0] * world, 2),
            ):
                rows = sum(sizes) if stride is None else stride * world
                parts = [noise(10 * seed + r, (rows, HIDDEN), dtype) for r in range(world)]
                where = own_rows(sizes, rank, stride)
                right = rank_sum([part[where] for part in parts])
                out = torch.full((sizes[rank] + 1, HIDDEN), 7, dtype=dtype)
                group.reduce_scatter(
                    parts[rank], out, sizes=sizes, padded_to=stride, deterministic=True
                )
                assert_same_bits(out[:-1], right)
                assert bool((out[-1] == 7).all())
                free_order = group.reduce_scatter(parts[rank], sizes=sizes, padded_to=stride)
                torch.testing.assert_close(free_order, right, atol=0.05, rtol=0.02)
        stats = group.stats()
        assert stats["calls_process_group"] == 24
        assert stats["live_bytes"] == 0


@pytest.mark.parametrize("world", [1, 2, 3])
def test_windows_turned_off(ranks: Ranks, world: int) -> None:
    ranks.run(world, windows_off)


def in_place(rank: int, world: int) -> None:
    with symmoe.init(config=symmoe.Config(windows=False)) as group:
        for deterministic in (False, True):
            mine = torch.full((2 * world, HIDDEN), float(rank))
            where = own_rows([2] * world, rank)
            group.reduce_scatter(mine, mine[where], deterministic=deterministic)
            assert bool((mine[where] == world * (world - 1) // 2).all())
            mine[where] = rank
            assert bool((mine == rank).all())


@pytest.mark.parametrize("world", [1, 3])
def test_in_place(ranks: Ranks, world: int) -> None:
    ranks.run(world, in_place)


def capped(rank: int, world: int) -> None:
    with symmoe.init(config=symmoe.Config(max_buffer_bytes=64 << 10)) as group:
        small = torch.ones(world, 16)
        large = torch.ones(world * 1024, 32)
        assert group.explain("reduce_scatter", small).path == "staged"
        decision = group.explain("reduce_scatter", large)
        assert decision.path == "process_group"
        assert f"{large.nbytes} bytes of input exceed a window's 65536" in decision.reason
        assert group.acquire("combine", tuple(large.shape), large.dtype) is None
        for _ in range(2):
            assert bool((group.reduce_scatter(large) == world).all())
            assert bool((group.reduce_scatter(small) == world).all())
        stats = group.stats()
        assert (stats["calls_process_group"], stats["calls_staged"]) == (2, 2)


def test_byte_cap(ranks: Ranks) -> None:
    ranks.run(2, capped)


def window_and_cap(rank: int, world: int) -> None:
    """One rank has the rows in a window, the other cannot stage them: both fall back."""
    rows, hidden = 16 * world, 16
    cap = rows * hidden * 4
    with symmoe.init(config=symmoe.Config(max_buffer_bytes=cap)) as group:
        parts = [noise(r, (rows, hidden), torch.float32) for r in range(world)]
        source = parts[rank]
        if rank == 0:
            window = group.acquire("combine", (rows, hidden), torch.float32)
            assert window is not None
            source = window.copy_(source)
        right = rank_sum([part[own_rows([16] * world, rank)] for part in parts])
        assert_same_bits(group.reduce_scatter(source, deterministic=True), right)


def test_window_on_one_rank_only(ranks: Ranks) -> None:
    ranks.run(2, window_and_cap)


def different_fallbacks(rank: int, world: int) -> None:
    with symmoe.init() as group:
        with pytest.raises(symmoe.MismatchError, match=r"rows=4.*rows=8"):
            group.reduce_scatter(torch.ones(4 + 4 * rank, 4, dtype=torch.int32))
        with pytest.raises(symmoe.MismatchError, match="deterministic"):
            group.reduce_scatter(torch.ones(4, 4, dtype=torch.float64), deterministic=rank == 0)
        dtype = torch.int32 if rank else torch.bfloat16
        with pytest.raises(symmoe.MismatchError, match=r"bfloat16.*int32"):
            group.reduce_scatter(torch.ones(4, 4, dtype=dtype))
        assert bool((group.reduce_scatter(torch.ones(4, 4, dtype=torch.int32)) == world).all())


def test_ranks_that_fall_back_differently_all_raise(ranks: Ranks) -> None:
    ranks.run(2, different_fallbacks)


def process_group_fails(rank: int, world: int, windows: bool) -> None:
    group = symmoe.init(config=symmoe.Config(windows=windows))
    dist.barrier()

    def failing(*_arguments: object, **_more: object) -> None:
        raise RuntimeError("no route, as a test")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fallback, "_reduce_scatter", failing)
        with pytest.raises(symmoe.SymmoeError, match="process group failed: no route"):
            group.reduce_scatter(torch.ones(world, 4, dtype=torch.int32))
    for _ in range(2):
        with pytest.raises(symmoe.PoisonedError, match="no route"):
            group.reduce_scatter(torch.ones(world, 4))
    with pytest.raises(symmoe.PoisonedError):
        group.check()
    group.close()


@pytest.mark.parametrize("windows", [True, False])
def test_failing_process_group_poisons(windows: bool) -> None:
    with fresh() as workers:
        workers.run(2, process_group_fails, windows)


def all_types(rank: int, world: int) -> None:
    """Uneven, padded and empty shares of every dtype, in several lanes, both ways."""
    with symmoe.init(config=symmoe.Config(windows=False)) as group:
        for seed, dtype in enumerate((*DTYPES, *OTHERS)):
            for sizes, stride in (
                ([r + 1 for r in range(world)], None),
                ([0] * (world - 1) + [3], None),
                ([(r + 1) % 3 for r in range(world)], 4),
                ([2] * world, None),
            ):
                rows = sum(sizes) if stride is None else stride * world
                lane = seed % 3
                where = own_rows(sizes, rank, stride)
                whole = [noise(50 * seed + r, (rows, HIDDEN), dtype) for r in range(world)]
                found = group.reduce_scatter(
                    whole[rank], sizes=sizes, padded_to=stride, lane=lane, deterministic=True
                )
                assert_same_bits(found, rank_sum([part[where] for part in whole]))
                right = torch.full((rows, HIDDEN), 7).to(dtype)
                for r in range(world):
                    right[own_rows(sizes, r, stride)] = whole[r][: sizes[r]]
                out = torch.full((rows, HIDDEN), 7).to(dtype)
                mine = whole[rank][: sizes[rank]]
                group.all_gather(mine, out, sizes=sizes, padded_to=stride, lane=lane)
                assert_same_bits(out, right)
                out[where] = mine  # and in place
                group.all_gather(out[where], out, sizes=sizes, padded_to=stride, lane=lane)
                assert_same_bits(out, right)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_dtype_with_uneven_shares(ranks: Ranks, world: int) -> None:
    ranks.run(world, all_types)


def differences_without_windows(rank: int, world: int, check: bool) -> None:
    first = rank == 0
    config = symmoe.Config(windows=False, check=check)
    with symmoe.init(config=config) as group:
        four = torch.ones(4, 4)
        cases: list[tuple[Callable[[int], object], str, str]] = [
            (
                lambda lane: group.reduce_scatter(four, deterministic=first, lane=lane),
                "rows=4 (2 each)",
                "deterministic",
            ),
            (
                lambda lane: group.reduce_scatter(
                    four.to(torch.bfloat16 if first else torch.float16), lane=lane
                ),
                "bfloat16",
                "float16",
            ),
            (
                lambda lane: group.reduce_scatter(
                    four, sizes=[1, 3] if first else [3, 1], lane=lane
                ),
                "[1, 3]",
                "[3, 1]",
            ),
            (
                lambda lane: group.combine(torch.ones(4 if first else 8, 4), lane=lane),
                "rows=4",
                "rows=8",
            ),
            (
                lambda lane: group.all_gather(
                    four.to(torch.int32 if first else torch.float32), lane=lane
                ),
                "int32",
                "float32",
            ),
        ]
        for lane in (0, 2):
            for call, *words in cases:
                with pytest.raises(symmoe.MismatchError, match=r"Rank 0: .*Rank 1: ") as caught:
                    call(lane)
                for word in words:
                    assert word in str(caught.value)
                # Nobody is left behind: the next calls are right.
                assert bool((group.reduce_scatter(four, lane=lane) == world).all())
                assert bool((group.all_gather(four, lane=lane) == 1).all())


@pytest.mark.parametrize("check", [False, True])
def test_different_calls_without_windows_raise_on_all_ranks(ranks: Ranks, check: bool) -> None:
    ranks.run(2, differences_without_windows, check)


def long_texts(rank: int, world: int) -> None:
    """Sizes whose text is longer than what is shown differ all the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "TEXT_BYTES", 40)
        with symmoe.init(config=symmoe.Config(windows=False)) as group:
            sizes = [1000000, 1 + rank, 2 + rank, 3 + rank]
            mine = torch.empty(sizes[rank], 1, dtype=torch.uint8)
            with pytest.raises(symmoe.MismatchError):
                group.all_gather(mine, sizes=sizes)


def test_long_texts(ranks: Ranks) -> None:
    ranks.run(4, long_texts)


def roles_in_threads(rank: int, world: int, windows: bool) -> None:
    """Both roles of a lane at the same time, in another order on every rank."""
    with symmoe.init(config=symmoe.Config(windows=windows)) as group:

        def reduce(lane: int) -> None:
            for step in range(30):
                rows = torch.full((2 * world, HIDDEN), step, dtype=torch.int32)
                found = group.reduce_scatter(rows, lane=lane, deterministic=step % 2 == 0)
                assert bool((found == world * step).all()), step

        def gather(lane: int) -> None:
            for step in range(30):
                mine = torch.full((1 + rank, HIDDEN), 100 * rank + step, dtype=torch.int32)
                found = group.all_gather(mine, sizes=[1 + r for r in range(world)], lane=lane)
                right = [100 * r + step for r in range(world) for _ in range(1 + r)]
                assert found[:, 0].tolist() == right, step

        bodies: list[Callable[[], None]] = []
        for lane in (0, 3):
            bodies += [partial(reduce, lane), partial(gather, lane)]
        in_threads(bodies[:: -1 if rank % 2 else 1])


@pytest.mark.parametrize("windows", [True, False])
def test_roles_of_a_lane_do_not_meet(ranks: Ranks, windows: bool) -> None:
    ranks.run(3, roles_in_threads, windows)


def test_tags_are_apart_and_known_to_mpi() -> None:
    lanes = range(_core.MAX_LANES)
    tags = [messages.check_tag(lane) for lane in lanes]
    for role in (_core.COMBINE, _core.DISPATCH):
        tags += [messages.rows_tag(role, lane) for lane in lanes]
        tags += [messages.agreement_tag(role, lane) for lane in lanes]
    assert len(set(tags)) == len(tags)
    assert min(tags) >= messages.FIRST_TAG
    assert max(tags) <= 32767
