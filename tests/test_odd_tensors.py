"""Tensors that are legal in torch and not what they seem: refused with a reason, never misread."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

import symmoe
from ranks import Ranks

pytestmark = pytest.mark.multi


def works(group: symmoe.Group) -> None:
    ones = torch.ones(2 * group.world_size, 8)
    assert bool((group.reduce_scatter(ones) == group.world_size).all())


def lazy_negative(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        negative = torch._neg_view(torch.ones(2 * world, 8))
        calls: list[Callable[[], object]] = [
            lambda: group.reduce_scatter(negative),
            lambda: group.all_gather(negative),
            lambda: group.reduce_scatter(torch.ones(2 * world, 8), negative[:2]),
            lambda: symmoe.topk_reduce(negative[:, None], out=torch.empty(2 * world, 8)),
        ]
        for call in calls:
            with pytest.raises(ValueError, match="lazy negative"):
                call()
        works(group)
    assert 0 <= rank < world


def without_memory(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        with FakeTensorMode():
            fake = torch.ones(2 * world, 8)
        with pytest.raises(ValueError, match=f"rank {rank}"):
            group.reduce_scatter(fake)
        with pytest.raises(ValueError, match=f"rank {rank}"):
            group.all_gather(fake)
        works(group)


def inference_out(rank: int, world: int) -> None:
    """An inference tensor is memory like any other, also where torch.distributed writes it."""
    with symmoe.init(device="cpu") as group:
        for dtype in (torch.float32, torch.float64):
            with torch.inference_mode():
                out = torch.empty(2, 8, dtype=dtype)
            group.reduce_scatter(torch.full((2 * world, 8), rank + 1, dtype=dtype), out)
            assert out.tolist() == [[world * (world + 1) / 2] * 8] * 2
        works(group)


def reserve_apart(rank: int, world: int) -> None:
    """One rank asks for more than the cap: all of them hear that they ask for different things."""
    with symmoe.init(
        config=symmoe.Config(max_buffer_bytes=1 << 20, timeout=20), device="cpu"
    ) as group:
        rows = 1 << 20 if rank == 0 else 16
        with pytest.raises(symmoe.MismatchError, match="reserve"):
            group.reserve(rows, 8, torch.float32)
        works(group)
        dist.barrier()
    assert world == 2


@pytest.mark.parametrize("case", [lazy_negative, without_memory, inference_out, reserve_apart])
def test_case(ranks: Ranks, case: object) -> None:
    ranks.run(2, case)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "setting",
    [
        {"timeout": 1e12},
        {"spin_us": 1e300},
        {"max_buffer_bytes": 1 << 63},
        {"granularity": 1 << 63},
    ],
)
def test_settings_beyond_reason(setting: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        symmoe.Config(**setting)  # type: ignore[arg-type]
