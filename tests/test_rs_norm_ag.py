"""rs_norm_ag: the bits of its parts, in place and elsewhere, and what it refuses beforehand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import symmoe
from long_way import counted
from ranks import Ranks, fresh
from reference import DTYPES, assert_same_bits, noise, own_rows

pytestmark = pytest.mark.multi
HIDDEN = 72
FORMS: list[tuple[Any, int | None]] = [
    (None, None),
    (3, None),
    ([1, 4, 0, 2], None),
    ([1, 4, 2, 3], 5),
]


def sizes_of(sizes: Any, world: int) -> tuple[Any, list[int]]:
    if sizes is None:
        return None, [2] * world
    if isinstance(sizes, int):
        return sizes, [sizes] * world
    return sizes[:world], sizes[:world]


def epilogue_of(seed: int, rows: int, dtype: torch.dtype) -> symmoe.Epilogue:
    return symmoe.Epilogue(
        scale=0.5,
        shared=noise(seed, (rows, HIDDEN), dtype),
        residual=noise(seed + 1, (rows, HIDDEN), dtype),
        norm_weight=noise(seed + 2, (HIDDEN,), torch.float32),
    )


def parts_of(
    group: symmoe.Group, rows: torch.Tensor, epilogue: symmoe.Epilogue, **more: Any
) -> torch.Tensor:
    """The same as two calls, through memory of the caller's."""
    own = group.reduce_scatter(rows, epilogue=epilogue, **more)
    more.pop("routing", None)
    more.pop("deterministic", None)
    return group.all_gather(own, **more)


def right_bits(rank: int, world: int, windows: bool) -> None:
    with symmoe.init(config=symmoe.Config(windows=windows), device="cpu") as group:
        for turn in range(3):
            taken: list[str] = []
            for number, (form, stride) in enumerate(FORMS):
                given, counts = sizes_of(form, world)
                total = sum(counts) if stride is None else stride * world
                for dtype in DTYPES:
                    for lane, place in ((0, "window"), (0, "memory"), (1, "new")):
                        seed = 1000 * turn + 100 * number + lane
                        more = {"sizes": given, "padded_to": stride, "lane": lane}
                        more["deterministic"] = True
                        rows = noise(seed + rank, (total, HIDDEN), dtype)
                        first = epilogue_of(seed + rank, counts[rank], dtype)
                        second = epilogue_of(seed + rank, counts[rank], dtype)
                        right = parts_of(group, rows, second, **more)
                        out: torch.Tensor | None = None
                        if place == "memory":
                            out = torch.empty(total + 1, HIDDEN, dtype=dtype)
                        elif place == "window":
                            out = group.acquire("dispatch", (total, HIDDEN), dtype, lane=lane)
                            assert (out is None) == (not windows)
                        with counted(group) as now:
                            found = group.rs_norm_ag(rows, out, epilogue=first, **more)
                        taken += now
                        assert out is None or found is out
                        for r in range(world):
                            at = own_rows(counts, r, stride)
                            assert_same_bits(found[at], right[at])
                        if place == "new" and stride is not None:
                            used = [own_rows(counts, r, stride) for r in range(world)]
                            rest = torch.ones(total, dtype=torch.bool)
                            for at in used:
                                rest[at] = False
                            assert bool((found[rest] == 0).all())
                        assert first.residual is not None
                        assert second.residual is not None
                        assert_same_bits(first.residual, second.residual)
            if turn and windows and world < 3:  # no rank without rows
                assert taken == []


@pytest.mark.parametrize("windows", [True, False])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_right_bits(ranks: Ranks, world: int, windows: bool) -> None:
    ranks.run(world, right_bits, windows)


def no_staging(rank: int, world: int) -> None:
    """From the window of the partial rows to that of the gathered ones, with nothing between."""
    with symmoe.init(device="cpu") as group:
        weight = torch.ones(HIDDEN)
        for turn in range(20):
            rows = group.acquire("combine", (2 * world, HIDDEN), torch.float32)
            out = group.acquire("dispatch", (2 * world, HIDDEN), torch.float32)
            assert rows is not None
            assert out is not None
            rows.fill_(turn + 1)
            group.rs_norm_ag(rows, out, epilogue=symmoe.Epilogue(norm_weight=weight, eps=0.0))
            torch.testing.assert_close(out, torch.ones_like(out))
        stats = group.stats()
        assert (stats["calls_pull"], stats["calls_gather"]) == (20, 20)
        assert (stats["calls_staged"], stats["calls_gather_staged"]) == (0, 0)
        assert stats["stage_bytes"] == 0
        with symmoe.count_collectives() as count:
            group.rs_norm_ag(torch.ones(2 * world, HIDDEN), epilogue=symmoe.Epilogue(scale=2))
        nbytes = 2 * world * HIDDEN * 4
        assert (count.reduce_scatter.calls, count.reduce_scatter.nbytes) == (1, nbytes)
        assert (count.all_gather.calls, count.all_gather.nbytes) == (1, nbytes)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_no_staging(ranks: Ranks, world: int) -> None:
    ranks.run(world, no_staging)


def routed(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        for turn in range(3):
            ids = torch.randint(0, 8, (4 * world, 1), generator=torch.Generator().manual_seed(turn))
            placed = torch.arange(8, dtype=torch.int32) % world
            routing = symmoe.Routing(ids, expert_to_rank=placed)
            rows = noise(turn + rank, (4 * world, HIDDEN), torch.bfloat16)
            rows[~routing.on_rank(rank).any(1)] = torch.nan
            first, second = (epilogue_of(turn + rank, 4, torch.bfloat16) for _ in range(2))
            found = group.rs_norm_ag(rows, epilogue=first, routing=routing)
            right = parts_of(group, rows, second, routing=routing)
            assert_same_bits(found, right)
            assert not bool(found.isnan().any())


@pytest.mark.parametrize("world", [1, 3])
def test_routed(ranks: Ranks, world: int) -> None:
    ranks.run(world, routed)


def free_window(group: symmoe.Group, rows: int) -> torch.Tensor:
    window = group.acquire("dispatch", (rows, HIDDEN), torch.float32)
    assert window is not None
    return window


def refusals(rank: int, world: int, check: bool) -> None:
    """One rank's mistake is its own; where calls are compared, all ranks hear of it."""
    total = 2 * world
    own = own_rows([2] * world, rank)
    with symmoe.init(config=symmoe.Config(check=check), device="cpu") as group:
        rows = torch.ones(total, HIDDEN)
        good = symmoe.Epilogue(scale=2)
        residual = torch.ones(2, HIDDEN)
        window = free_window(group, total)
        combining = group.acquire("combine", (total, HIDDEN), torch.float32)
        assert combining is not None
        quantised = symmoe.Epilogue(quantize="int8", scales=torch.zeros(2))
        wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
            (TypeError, "epilogue must be a symmoe.Epilogue, got NoneType", {"epilogue": None}),
            (ValueError, "quantised to int8 are not gathered", {"epilogue": quantised}),
            (ValueError, r"input has 2 rows, but", {"input": rows[:2], "sizes": [3] * world}),
            (ValueError, r"out has shape \[1, 72\]", {"out": rows[:1].clone()}),
            (TypeError, "out is float64", {"out": rows.double()}),
            (ValueError, "out overlaps input", {"out": rows}),
            (
                ValueError,
                "out overlaps epilogue.residual",
                {
                    "out": (large := torch.zeros(total, HIDDEN)),
                    "epilogue": symmoe.Epilogue(residual=large[own]),
                },
            ),
            (ValueError, "out overlaps a window for combine", {"out": combining}),
            (ValueError, "dispatch, lane 0; .* dispatch, lane 1", {"out": window, "lane": 1}),
            (
                ValueError,
                "residual has shape",
                {"epilogue": symmoe.Epilogue(residual=residual[:1])},
            ),
            (ValueError, "stream", {"stream": 1}),
            (TypeError, "input must be a tensor", {"input": [1.0]}),
        ]
        for kind, words, change in wrong:
            assert free_window(group, total) is window
            window.fill_(3)
            given: dict[str, Any] = {"input": rows, "epilogue": good, "out": window} | change
            if rank == 0 or not check:
                with pytest.raises(kind, match=words):
                    group.rs_norm_ag(**given)
            else:
                with pytest.raises(symmoe.MismatchError, match="raised"):
                    group.rs_norm_ag(rows, epilogue=good, lane=change.get("lane", 0))
            assert bool((window == 3).all())
            assert bool((rows == 1).all())
            assert bool((group.rs_norm_ag(rows, epilogue=good) == 2 * world).all())
        assert free_window(group, total) is window
        group.rs_norm_ag(rows, window, epilogue=good)
        if not check:
            with pytest.raises(ValueError, match="gathered already: acquire it again"):
                group.rs_norm_ag(rows, window, epilogue=good)
        assert bool((window == 2 * world).all())
    with pytest.raises(symmoe.ClosedError, match=f"rs_norm_ag on rank {rank}: the group is closed"):
        group.rs_norm_ag(rows, epilogue=good)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("world", [1, 2])
def test_refusals(ranks: Ranks, world: int, check: bool) -> None:
    ranks.run(world, refusals, check)


def tagged(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        rows = symmoe.tag(torch.ones(2 * world, HIDDEN), symmoe.Partial())
        epilogue = symmoe.Epilogue(scale=2)
        for in_window in (False, True):
            out = free_window(group, 2 * world) if in_window else None
            found = group.rs_norm_ag(rows, out, epilogue=epilogue)
            assert symmoe.layout_of(found) == symmoe.Replicated()
            with pytest.raises(symmoe.LayoutError, match=r"input is Replicated.*must be Partial"):
                group.rs_norm_ag(found, epilogue=epilogue)


def test_tags() -> None:
    with fresh() as ranks:  # tags stay in use in a process
        ranks.run(2, tagged)
