"""all_gather through windows and through the process group."""

from __future__ import annotations

import pytest
import torch

import symmoe
from ranks import Ranks
from reference import DTYPES, assert_same_bits, noise, own_rows

pytestmark = pytest.mark.multi
HIDDEN = 40


def rows_of(seed: int, rank: int, rows: int, dtype: torch.dtype) -> torch.Tensor:
    return noise(100 * seed + rank, (rows, HIDDEN), dtype)


def even(rank: int, world: int, windows: bool) -> None:
    types = (*DTYPES, torch.int64, torch.float64, torch.int16)
    with symmoe.init(config=symmoe.Config(windows=windows)) as group:
        for seed, dtype in enumerate(types):
            mine = rows_of(seed, rank, 3, dtype)
            right = torch.cat([rows_of(seed, r, 3, dtype) for r in range(world)])
            assert_same_bits(group.all_gather(mine), right)
            out = torch.zeros(3 * world + 1, HIDDEN, dtype=dtype)
            out[own_rows([3] * world, rank)] = mine
            group.all_gather(out[own_rows([3] * world, rank)], out[: 3 * world])
            assert_same_bits(out[: 3 * world], right)
            assert bool((out[3 * world :] == 0).all())
            window = group.acquire("dispatch", (3, HIDDEN), dtype)
            assert (window is None) == (not windows or dtype not in DTYPES)
            if window is not None:
                window.copy_(mine)
                assert group.explain("all_gather", window).path == "pull"
                assert_same_bits(group.all_gather(window, out[: 3 * world]), right)
        stats = group.stats()
        if windows:
            assert (stats["calls_gather"], stats["calls_gather_staged"]) == (3, 6)
        assert stats["calls_process_group"] == (6 if windows else 12)


@pytest.mark.parametrize("windows", [True, False])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_even(ranks: Ranks, world: int, windows: bool) -> None:
    ranks.run(world, even, windows)


def uneven(rank: int, world: int, windows: bool) -> None:
    with symmoe.init(config=symmoe.Config(windows=windows)) as group:
        for seed, sizes in enumerate(
            [[r + 1 for r in range(world)], [0] * (world - 1) + [5], [0] * world]
        ):
            for stride in (None, max(sizes), max(sizes) + 3):
                rows = sum(sizes) if stride is None else stride * world
                mine = rows_of(seed, rank, sizes[rank], torch.bfloat16)
                right = torch.full((rows, HIDDEN), 7, dtype=torch.bfloat16)
                for r in range(world):
                    right[own_rows(sizes, r, stride)] = rows_of(seed, r, sizes[r], torch.bfloat16)
                out = torch.full((rows + 1, HIDDEN), 7, dtype=torch.bfloat16)
                group.all_gather(mine, out, sizes=sizes, padded_to=stride)
                assert_same_bits(out[:rows], right)
                assert bool((out[rows:] == 7).all())
                window = group.acquire("dispatch", (sizes[rank], HIDDEN), torch.bfloat16)
                if window is not None:
                    window.copy_(mine)
                    out.fill_(7)
                    group.all_gather(window, out, sizes=sizes, padded_to=stride)
                    assert_same_bits(out[:rows], right)


@pytest.mark.parametrize("windows", [True, False])
@pytest.mark.parametrize("world", [2, 3, 8])
def test_uneven(ranks: Ranks, world: int, windows: bool) -> None:
    ranks.run(world, uneven, windows)


def padded_input(rank: int, world: int) -> None:
    """A padded input may be as large as the padding."""
    with symmoe.init() as group:
        mine = rows_of(1, rank, 4, torch.float32)
        out = torch.zeros(4 * world, HIDDEN)
        group.all_gather(mine, out, sizes=[1, 3], padded_to=4)
        for r, size in enumerate([1, 3]):
            assert torch.equal(out[4 * r : 4 * r + size], rows_of(1, r, 4, torch.float32)[:size])
            assert bool((out[4 * r + size : 4 * r + 4] == 0).all())


def test_padded_input(ranks: Ranks) -> None:
    ranks.run(2, padded_input)


def round_trip(rank: int, world: int) -> None:
    """Gather, then reduce, in the same lane: dispatch and combine do not disturb each other."""
    with symmoe.init() as group:
        for step in range(50):
            sent = group.acquire("dispatch", (2, 8), torch.float32)
            summed = group.acquire("combine", (2 * world, 8), torch.float32)
            assert sent is not None
            assert summed is not None
            sent.fill_(step + rank)
            summed.copy_(group.all_gather(sent))
            found = group.reduce_scatter(summed)
            assert bool((found == world * (step + rank)).all()), step


@pytest.mark.parametrize("world", [2, 4])
def test_round_trip(ranks: Ranks, world: int) -> None:
    ranks.run(world, round_trip)
