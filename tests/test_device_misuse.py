"""Calls of a device group that are wrong in odd ways: nothing wrong may come of them later."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from ranks import Ranks
from symmoe import Config, testing

pytestmark = pytest.mark.multi

CONFIG = Config(timeout=10, granularity=4096)


def without_memory(tensor: torch.Tensor) -> torch.Tensor:
    """As FSDP leaves parameters: the shape is there, the storage is not."""
    tensor.untyped_storage().resize_(0)
    return tensor


def refused_combine(rank: int, world: int, what: str) -> None:
    rows, weights = torch.ones(2 * world, 2, 1600), torch.ones(2 * world, 2)
    first, second = testing.Stream(), testing.Stream()
    with testing.init(config=CONFIG) as group:
        group.combine(rows, weights)
        testing.synchronize()
        window = group.acquire("combine", (2 * world, 1600), torch.float32)
        assert window is not None
        dist.barrier()
        if rank == 0:
            testing.delay(0.3, first)
            if what == "out":
                bad = without_memory(torch.zeros(2, 1600))
                with pytest.raises(ValueError, match="out has no memory"):
                    group.combine(rows * 100, weights, out=bad, stream=first)
            else:  # a sum into the window that nobody reduces
                testing.topk_reduce(rows * 100, weights, out=window, stream=first)
        out = group.combine(rows, weights, stream=second)
        testing.synchronize()
        assert (out == 2 * world).all()
        if rank == 0:  # and one that is still on its way at the end
            group.acquire("combine", (2 * world, 1600), torch.float32)
            testing.delay(0.3, first)
            testing.topk_reduce(rows, weights, out=window, stream=first)


@pytest.mark.parametrize("what", ["out", "sum"])
def test_a_sum_that_is_not_reduced_is_waited_for(ranks: Ranks, what: str) -> None:
    ranks.run(2, refused_combine, what)


def tensors_without_memory(rank: int, world: int) -> None:
    rows, weights = torch.ones(4, 2, 64), torch.ones(4, 2)
    pairs, index = torch.ones(8, 64), torch.arange(8).view(4, 2)
    with testing.init(config=CONFIG) as group:
        calls: list[Callable[..., torch.Tensor]] = [group.combine]
        if world == 1:
            calls.append(
                lambda *args, **more: testing.topk_reduce(*args, out=torch.empty(4, 64), **more)
            )
        for call in calls:
            with pytest.raises(ValueError, match="topk_weights has no memory"):
                call(rows, without_memory(weights.clone()))
            with pytest.raises(ValueError, match="expert_out has no memory"):
                call(without_memory(rows.clone()), weights)
            with pytest.raises(ValueError, match="index has no memory"):
                call(pairs, weights, index=without_memory(index.clone()))
        out = group.combine(rows, weights)
        testing.synchronize()
        assert (out == 2 * world).all()


@pytest.mark.parametrize("world", [1, 2])
def test_tensors_without_memory(ranks: Ranks, world: int) -> None:
    ranks.run(world, tensors_without_memory)


def lazy_negatives(rank: int, world: int) -> None:
    rows = torch.ones(2 * world, 64)
    negative = torch._neg_view(torch.empty(2, 64))
    with testing.init(config=CONFIG) as group:
        window = group.acquire("combine", (2 * world, 64), torch.float32)
        assert window is not None
        window.copy_(rows)
        for call in (group.reduce_scatter, group.combine):
            with pytest.raises(ValueError, match="lazy negative"):
                call(window if call == group.reduce_scatter else rows, out=negative)
        out = group.reduce_scatter(window)
        testing.synchronize()
        assert (out == world).all()


def test_lazy_negatives(ranks: Ranks) -> None:
    ranks.run(2, lazy_negatives)
