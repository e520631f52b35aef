"""SYMMOE_CHECK=1: ranks that do different things all raise, and name both sides."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

import symmoe
from ranks import Ranks, fresh
from symmoe import _core

pytestmark = pytest.mark.multi
CONFIG = symmoe.Config(check=True, timeout=20)


def ones(rows: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(rows, 8, dtype=dtype)


def still_works(group: symmoe.Group) -> None:
    for _ in range(2):
        window = group.acquire("combine", (2 * group.world_size, 8), torch.float32)
        source = ones(2 * group.world_size) if window is None else window.fill_(1)
        assert bool((group.reduce_scatter(source) == group.world_size).all())
        assert bool((group.combine(ones(group.world_size)) == group.world_size).all())
        assert bool((group.all_gather(ones()) == 1).all())


def differing(rank: int, world: int, windows: bool) -> None:
    first = rank == 0
    cases: list[tuple[Callable[[symmoe.Group], object], tuple[str, str]]] = [
        (
            lambda g: g.reduce_scatter(ones(4), sizes=[1, 3] if first else [3, 1]),
            ("[1, 3]", "[3, 1]"),
        ),
        (lambda g: g.reduce_scatter(ones(4 if first else 8)), ("rows=4", "rows=8")),
        (
            lambda g: g.reduce_scatter(ones(4, torch.float32 if first else torch.bfloat16)),
            ("float32", "bfloat16"),
        ),
        (
            lambda g: g.reduce_scatter(ones(4, torch.int32 if first else torch.float64)),
            ("int32", "float64"),
        ),
        (
            lambda g: g.reduce_scatter(ones(4)) if first else g.all_gather(ones(4)),
            ("reduce_scatter", "all_gather"),
        ),
        (
            lambda g: g.reduce_scatter(torch.ones(4, 8 if first else 9)),
            ("hidden=8", "hidden=9"),
        ),
        (lambda g: g.combine(ones(4 if first else 6)), ("rows=4", "rows=6")),
        (lambda g: g.reduce_scatter(ones(4), deterministic=first), ("deterministic", "rows=4")),
    ]
    config = symmoe.Config(check=True, timeout=20, windows=windows)
    with symmoe.init(config=config, device="cpu") as group:
        still_works(group)
        for call, words in cases:
            with pytest.raises(symmoe.MismatchError) as caught:
                call(group)
            for word in words:
                assert word in str(caught.value), (word, str(caught.value))
            still_works(group)
    assert world == 2


@pytest.mark.parametrize("windows", [True, False])
def test_different_calls(ranks: Ranks, windows: bool) -> None:
    ranks.run(2, differing, windows)


def invalid_on_one(rank: int, world: int, windows: bool) -> None:
    config = symmoe.Config(check=True, timeout=20, windows=windows)
    with symmoe.init(config=config, device="cpu") as group:
        index = torch.zeros(world, 2, dtype=torch.int64)
        cases: list[tuple[Callable[[bool], object], type[Exception], str]] = [
            (
                lambda bad: group.reduce_scatter(ones(world + int(bad))),
                ValueError,
                f"input has {world + 1} rows",
            ),
            (
                lambda bad: group.reduce_scatter(ones(world), lane=16 if bad else 0),
                ValueError,
                "lane 16",
            ),
            (
                lambda bad: group.combine(ones(2), index=index - 2 if bad else index),
                ValueError,
                "index has -2..-2",
            ),
            (
                lambda bad: group.all_gather("text" if bad else ones()),  # type: ignore[arg-type]
                TypeError,
                "got str",
            ),
        ]
        for call, kind, text in cases:
            expected = kind if rank == 1 else symmoe.MismatchError
            with pytest.raises(expected) as caught:
                call(rank == 1)
            assert text in str(caught.value)
            assert rank == 1 or f"raised {kind.__name__}" in str(caught.value)
            still_works(group)


@pytest.mark.parametrize("windows", [True, False])
def test_invalid_input_on_one_rank(ranks: Ranks, windows: bool) -> None:
    ranks.run(3, invalid_on_one, windows)


def late_refusals(rank: int, world: int) -> None:
    """What only the pool knows is compared before the collective as well."""
    with symmoe.init(config=CONFIG, device="cpu") as group:
        window = group.acquire("combine", (2 * world, 8), torch.float32)
        assert window is not None
        window.fill_(1)
        group.reduce_scatter(window)
        if rank == 0:
            again = group.acquire("combine", (2 * world, 8), torch.float32)
            assert again is window
            with pytest.raises(symmoe.MismatchError, match="raised ValueError"):
                group.reduce_scatter(window)
        else:
            with pytest.raises(ValueError, match="reduced already"):
                group.reduce_scatter(window)
        still_works(group)
        out = window[:2] if rank else torch.empty(2, 8)
        with pytest.raises(ValueError if rank else symmoe.MismatchError, match="overlaps a window"):
            group.reduce_scatter(ones(2 * world), out)
        still_works(group)


def test_refused_by_the_pool(ranks: Ranks) -> None:
    ranks.run(2, late_refusals)


def crossed_lanes(rank: int, world: int) -> float:
    def impatient() -> _core.GroupConfig:
        settings = config()
        settings.stall_ns = 1_000_000_000
        return settings

    config = _core.GroupConfig
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_core, "GroupConfig", impatient)
        group = symmoe.init(config=CONFIG, device="cpu")
    still_works(group)
    start = time.monotonic()
    with pytest.raises(symmoe.SymmoeError):
        group.reduce_scatter(ones(2 * world), lane=rank)
    took = time.monotonic() - start
    with pytest.raises(symmoe.PoisonedError):
        group.reduce_scatter(ones(2 * world))
    group.close()
    return took


def test_different_lanes() -> None:
    with fresh() as workers:
        assert max(workers.run(2, crossed_lanes)) < 10


def from_environment(rank: int, world: int) -> None:
    with (
        symmoe.init(device="cpu") as group,
        pytest.raises(symmoe.MismatchError, match=r"rows=4 .*rows=6"),
    ):
        group.reduce_scatter(ones(4 + 2 * rank))
    assert world == 2


def test_environment_variable() -> None:
    with fresh({"SYMMOE_CHECK": "1"}) as workers:
        workers.run(2, from_environment)
