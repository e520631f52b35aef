"""What the groups' calls tag, refuse and count: to reduce twice, or never, is an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import symmoe
from ranks import fresh
from symmoe import observing, tags, testing
from symmoe.tags import Partial, Replicated, Sharded

pytestmark = pytest.mark.multi
HIDDEN = 32
SIZES = [3, 5]
ROWS = sum(SIZES)
BYTES = ROWS * HIDDEN * 4


def tagged(rank: int, world: int) -> None:
    """Partial rows become Sharded ones, and those Replicated ones; no way leads back."""
    with symmoe.init(device="cpu") as group:
        assert symmoe.layout_of(torch.zeros(1)) is None  # from here on tags are in use
        window = group.acquire("combine", (ROWS, HIDDEN), torch.float32)
        assert window is not None
        assert symmoe.layout_of(window) == Partial()
        experts = torch.ones(ROWS, 2, HIDDEN)
        symmoe.topk_reduce(experts, out=window)
        out = group.reduce_scatter(window, sizes=SIZES)
        assert symmoe.layout_of(out) == Sharded(SIZES)
        for _ in range(3):  # a known form as well
            mine = group.combine(experts, sizes=SIZES)
            assert symmoe.layout_of(mine) == Sharded(SIZES)
            assert torch.equal(mine, torch.full((SIZES[rank], HIDDEN), 4.0))
        whole = group.all_gather(mine, sizes=SIZES)
        assert symmoe.layout_of(whole) == Replicated()
        assert symmoe.layout_of(whole.view(-1)) == Replicated()
        assert symmoe.layout_of(whole + 1) is None

        with pytest.raises(symmoe.LayoutError, match="input is Replicated, must be Partial"):
            group.reduce_scatter(whole, sizes=SIZES)
        with pytest.raises(symmoe.LayoutError, match=r"input is Sharded\(\[3, 5\]\), must be Par"):
            group.reduce_scatter(mine, sizes=[mine.shape[0], 0])
        summand = symmoe.tag(torch.ones(SIZES[rank], HIDDEN), Partial())
        with pytest.raises(symmoe.LayoutError, match=r"is Partial, must be Sharded: .* reduce it"):
            group.all_gather(summand, sizes=SIZES)
        group.check()
        assert torch.equal(group.combine(experts, sizes=SIZES), mine)  # nobody is the worse for it


def tagged_by_the_fallback(rank: int, world: int) -> None:
    with symmoe.init(device="cpu", config=symmoe.Config(windows=False)) as group:
        rows = symmoe.tag(torch.ones(2 * world, HIDDEN), Partial())
        assert symmoe.layout_of(group.reduce_scatter(rows)) == Sharded([2] * world)


def strict(rank: int, world: int) -> None:
    with symmoe.init(device="cpu", config=symmoe.Config(strict_layout=True)) as group:
        rows = torch.ones(2 * world, HIDDEN)
        with pytest.raises(symmoe.LayoutError, match=r"no tag, must be Partial \(strict_layout\)"):
            group.reduce_scatter(rows)
        out = group.reduce_scatter(symmoe.tag(rows, Partial()))
        assert torch.equal(group.all_gather(out), torch.full((2 * world, HIDDEN), float(world)))
        with pytest.raises(symmoe.LayoutError, match="no tag, must be Sharded"):
            group.all_gather(out * 2)


def reduced_never(rank: int, world: int) -> None:
    """A norm of a summand: the fault of a reduction that was left out."""
    with symmoe.init(device="cpu") as group:
        latent = symmoe.tag(torch.ones(2 * world, HIDDEN), Partial())
        with pytest.raises(symmoe.LayoutError, match="is Partial, must be Sharded or Replicated"):
            tags.require_reduced("the output norm", latent)
        tags.require_reduced("the output norm", group.reduce_scatter(latent))


def counted(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        experts = torch.ones(ROWS, 2, HIDDEN)
        mine = group.combine(experts, sizes=SIZES)
        with symmoe.count_collectives() as outer:
            group.combine(experts, sizes=SIZES)
            with symmoe.count_collectives() as inner:
                group.all_gather(mine, sizes=SIZES)
            with pytest.raises(ValueError, match="sum"):
                group.combine(experts, sizes=[1, 1])
            group.reduce_scatter(torch.ones(ROWS, HIDDEN, dtype=torch.float64))
        group.combine(experts, sizes=SIZES)
        assert (inner.reduce_scatter.calls, inner.all_gather.calls) == (0, 1)
        assert inner.nbytes == BYTES
        assert (outer.reduce_scatter.calls, outer.all_gather.calls, outer.calls) == (2, 1, 3)
        assert outer.reduce_scatter.nbytes == BYTES + 2 * BYTES
        assert "2 reduce_scatter" in repr(outer)
        assert not observing.watch.on


def on_a_device(rank: int, world: int) -> None:
    with testing.init() as group:
        rows = torch.ones(2 * world, HIDDEN)
        with symmoe.count_collectives() as count:
            window = group.acquire("combine", rows.shape, rows.dtype)
            assert window is not None
            window.copy_(rows)
            out = group.reduce_scatter(window)
            group.combine(rows)
        assert count.reduce_scatter.calls == 2
        assert symmoe.layout_of(out) is None  # it was made before tags were in use
        out = group.combine(rows)
        assert symmoe.layout_of(out) == Sharded([2] * world)
        assert symmoe.layout_of(group.all_gather(out)) == Replicated()
        window = group.acquire("combine", rows.shape, rows.dtype)
        assert window is not None
        assert symmoe.layout_of(window) == Partial()
        assert symmoe.layout_of(group.reduce_scatter(window)) == Sharded([2] * world)
        with pytest.raises(symmoe.LayoutError, match="must be Partial"):
            group.reduce_scatter(out)
        testing.synchronize()
        assert torch.equal(out, torch.full((2, HIDDEN), float(world)))


# Tags stay in use once they are, so each has processes of its own.
@pytest.mark.parametrize(
    "scenario",
    [tagged, tagged_by_the_fallback, strict, reduced_never, counted, on_a_device],
    ids=lambda each: each.__name__,
)
def test_in_a_group(scenario: Callable[[int, int], None]) -> None:
    with fresh() as ranks:
        ranks.run(2, scenario)
