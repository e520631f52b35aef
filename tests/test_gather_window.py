"""Rows gathered in a window, where they are read: nothing is staged, the own rows never move."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import symmoe
from long_way import counted, long_way
from ranks import Ranks
from reference import DTYPES, assert_same_bits, noise, own_rows, rank_sum

pytestmark = pytest.mark.multi
HIDDEN = 40
BF16 = torch.bfloat16


def rows_of(seed: int, rank: int, rows: int, dtype: torch.dtype) -> torch.Tensor:
    return noise(100 * seed + rank, (rows, HIDDEN), dtype)


def acquired(
    group: symmoe.Group, role: str, rows: int, dtype: torch.dtype = BF16, lane: int = 0
) -> torch.Tensor:
    window = group.acquire(role, (rows, HIDDEN), dtype, lane=lane)
    assert window is not None
    return window


FORMS: list[tuple[Any, int | None, str]] = [
    ("even", None, "None"),
    ("uneven", None, "list"),
    ("last", None, "tuple"),
    ("uneven", 7, "list"),
    ("none", None, "list"),
]


def sizes_of(form: str, world: int) -> list[int]:
    return {
        "even": [3] * world,
        "uneven": [(2 * r + 1) % 6 for r in range(world)],
        "last": [0] * (world - 1) + [5],
        "none": [0] * world,
    }[form]


def in_place(rank: int, world: int) -> None:
    """Round for round with other numbers, so that rows of the round before would be seen."""
    with symmoe.init(device="cpu") as group:
        for turn in range(3):
            with counted(group) as taken:
                for number, (form, stride, kind) in enumerate(FORMS):
                    sizes = sizes_of(form, world)
                    rows = sum(sizes) if stride is None else stride * world
                    given = {"None": None, "list": sizes, "tuple": tuple(sizes)}[kind]
                    for lane in (0, 1):
                        for dtype in DTYPES:
                            seed = 20 * turn + number + 10 * lane
                            window = acquired(group, "dispatch", rows, dtype, lane)
                            window.fill_(7)
                            own = window[own_rows(sizes, rank, stride)]
                            own.copy_(rows_of(seed, rank, sizes[rank], dtype))
                            out = group.all_gather(
                                own, window, sizes=given, padded_to=stride, lane=lane
                            )
                            assert out is window
                            right = torch.full((rows, HIDDEN), 7, dtype=dtype)
                            for r in range(world):
                                part = rows_of(seed, r, sizes[r], dtype)
                                right[own_rows(sizes, r, stride)] = part
                            assert_same_bits(window, right)
            # A call without rows, or whose own rows are none, has no address to be known by.
            own_always = all(sizes_of(form, world)[rank] for form, _, _ in FORMS[:-1])
            if turn and own_always:
                assert len(taken) == 2 * len(DTYPES), taken
        stats = group.stats()
        assert stats["calls_process_group"] == 0
        assert stats["calls_gather"] + stats["calls_gather_staged"] == 6 * len(FORMS) * len(DTYPES)
        if world == 2:  # only calls without rows of one's own
            assert stats["calls_gather_staged"] <= 6 * 2 * len(DTYPES)
        assert stats["stage_bytes"] == 0


@pytest.mark.parametrize("world", [1, 2, 4])
def test_in_place(ranks: Ranks, world: int) -> None:
    ranks.run(world, in_place)


def layers(rank: int, world: int) -> None:
    """Sum, window, gather, round after round: each round's sums are made of what was gathered."""
    tokens = [2, 0, 3, 1][:world]
    total = sum(tokens)
    mine = own_rows(tokens, rank)
    with symmoe.init(device="cpu") as group:
        full = torch.ones(total, HIDDEN)
        for turn in range(40):
            partial = acquired(group, "combine", total, torch.float32)
            gathered = acquired(group, "dispatch", total, torch.float32)
            partial.copy_(full).mul_(rank + 1).add_(turn)
            if turn % 2:
                group.reduce_scatter(partial, gathered[mine], sizes=tokens)
            else:
                group.combine(partial.clone(), out=gathered[mine], sizes=tokens)
            group.all_gather(gathered[mine], gathered, sizes=tokens)
            parts = [full * (r + 1) + turn for r in range(world)]
            right = rank_sum(parts)
            assert_same_bits(gathered, right)
            full = (gathered / world**2).clone()
        assert group.stats()["calls_staged"] == 0


@pytest.mark.parametrize("world", [1, 2, 4])
def test_layers(ranks: Ranks, world: int) -> None:
    ranks.run(world, layers)


def from_elsewhere(rank: int, world: int) -> None:
    """The output in a window, the input in memory of the caller's."""
    with symmoe.init(device="cpu") as group:
        for turn in range(3):
            window = acquired(group, "dispatch", 3 * world)
            window.fill_(7)
            group.all_gather(rows_of(turn, rank, 3, BF16), window)
            right = torch.cat([rows_of(turn, r, 3, BF16) for r in range(world)])
            assert_same_bits(window, right)
            # It is used up, as if the own rows had been read there.
            with pytest.raises(ValueError, match="gathered already: acquire it again"):
                group.all_gather(rows_of(turn + 50, rank, 2, BF16), window[: 2 * world])
            assert acquired(group, "dispatch", 3 * world) is window
            group.all_gather(rows_of(turn + 50, rank, 2, BF16), window[: 2 * world])
            right[: 2 * world] = torch.cat([rows_of(turn + 50, r, 2, BF16) for r in range(world)])
            assert_same_bits(window, right)


@pytest.mark.parametrize("world", [1, 3])
def test_from_elsewhere(ranks: Ranks, world: int) -> None:
    ranks.run(world, from_elsewhere)


def refusals(rank: int, world: int, short: bool) -> None:
    rows = 3 * world
    own = own_rows([3] * world, rank)
    with symmoe.init(device="cpu") as group:
        source = torch.ones(rows, HIDDEN, dtype=BF16)

        def refused(words: str, call: Any) -> None:
            for again in (False, True):
                if again and not short:
                    with long_way(group), pytest.raises(ValueError, match=words):
                        call()
                else:
                    with pytest.raises(ValueError, match=words):
                        call()
            assert bool((group.reduce_scatter(source) == world).all())

        if short:
            group.reduce_scatter(source, torch.empty(3, HIDDEN, dtype=BF16))
            group.all_gather(source[:3], torch.empty(rows, HIDDEN, dtype=BF16))
        window = acquired(group, "dispatch", rows)
        window.fill_(1)
        combining = acquired(group, "combine", rows)
        combining.fill_(1)
        refused(
            "out overlaps a window for combine, lane 0; .* acquired for dispatch, lane 0",
            lambda: group.reduce_scatter(source, combining[:3]),
        )
        refused(
            "out overlaps a window for combine, lane 0",
            lambda: group.all_gather(window[own], combining),
        )
        refused(
            "out overlaps a window for dispatch, lane 0; .* dispatch, lane 1",
            lambda: group.reduce_scatter(source, window[:3], lane=1),
        )
        refused(
            "out overlaps input .* exactly the own rows",
            lambda: group.all_gather(window[1:4] if rank == 0 else window[:3], window),
        )
        # Nor with the padding behind them, which is the output's.
        padded: dict[str, Any] = {"sizes": [2] * world, "padded_to": 3}
        if short:
            group.all_gather(source[:3], torch.empty(rows, HIDDEN, dtype=BF16), **padded)
        refused(
            "out overlaps input .* exactly the own rows",
            lambda: group.all_gather(window[own], window, **padded),
        )
        assert bool((window == 1).all())
        group.all_gather(window[own], window)
        for call in (
            lambda: group.reduce_scatter(source, window[own]),
            lambda: group.combine(source, out=window[own]),
            lambda: group.all_gather(source[:3], window),
        ):
            refused("gathered already: acquire it again before it is written", call)
        outgrown = acquired(group, "dispatch", rows)
        larger = acquired(group, "dispatch", 100_000)
        outgrown.fill_(2)
        refused(
            "out overlaps a window that was outgrown: acquire it again",
            lambda: group.reduce_scatter(source, outgrown[own]),
        )
        assert bool((outgrown == 2).all())
        group.reduce_scatter(source, larger[own])
        assert bool((larger[own] == world).all())
        with pytest.raises(ValueError, match="overlaps a window for combine"):
            group.explain("reduce_scatter", source, acquired(group, "combine", rows)[own])
        assert group.explain("reduce_scatter", source, larger[own]).path == "staged"


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("world", [1, 2])
def test_refusals(ranks: Ranks, world: int, short: bool) -> None:
    ranks.run(world, refusals, short)


def without_windows(rank: int, world: int) -> None:
    """Where rows do not fit into windows the process group writes where it is told to."""
    config = symmoe.Config(max_buffer_bytes=4 * HIDDEN * 2)
    with symmoe.init(config=config, device="cpu") as group:
        window = acquired(group, "dispatch", 4)
        source = torch.full((4 * world, HIDDEN), rank + 1.0, dtype=BF16)
        group.reduce_scatter(source, window)
        assert bool((window == sum(range(1, world + 1))).all())
        assert group.stats()["calls_process_group"] == (0 if world == 1 else 1)
        with pytest.raises(ValueError, match="overlaps a window for dispatch, lane 0"):
            group.reduce_scatter(source, window, lane=1)


@pytest.mark.parametrize("world", [1, 2])
def test_without_windows(ranks: Ranks, world: int) -> None:
    ranks.run(world, without_windows)
