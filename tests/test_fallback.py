"""What windows cannot serve goes through the process group, with the same values."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import symmoe
from ranks import Ranks, fresh
from reference import DTYPES, assert_same_bits, noise, own_rows, rank_sum
from symmoe import fallback

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
