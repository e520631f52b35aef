"""Addresses that a GPU's kernels cannot take are refused before anything is queued."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from device_lab import Lab, emulated
from ranks import Ranks
from symmoe import testing

pytestmark = pytest.mark.multi
ROWS, SLOTS, HIDDEN = 4, 2, 8


def misaligned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Zeros that begin a byte beyond where such elements may begin."""
    memory = bytearray(math.prod(shape) * dtype.itemsize + 1)
    tensor = torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=1).view(shape)
    assert tensor.data_ptr() % dtype.itemsize == 1
    return tensor


def refused(lab: Lab, rank: int, world: int) -> None:
    """Each wrong address is named, and the group goes on."""
    group = lab.init()
    rows = torch.ones(ROWS * world, HIDDEN)
    experts = torch.ones(ROWS * world, SLOTS, HIDDEN)
    pairs = torch.ones(ROWS * world * SLOTS, HIDDEN)
    weights = torch.ones(ROWS * world, SLOTS)
    out = torch.empty(ROWS, HIDDEN)

    def index(dtype: torch.dtype) -> torch.Tensor:
        return misaligned(ROWS * world, SLOTS, dtype=dtype)

    calls: dict[str, Callable[[], object]] = {
        "input is 1 bytes beyond a multiple of 4": (
            lambda: group.reduce_scatter(misaligned(ROWS * world, HIDDEN))
        ),
        "input is 1 bytes beyond a multiple of 2": (
            lambda: group.all_gather(misaligned(ROWS, HIDDEN, dtype=torch.bfloat16))
        ),
        "out is 1 bytes": lambda: group.reduce_scatter(rows, misaligned(ROWS, HIDDEN)),
        "expert_out is 1 bytes": lambda: group.combine(misaligned(*experts.shape), weights),
        "topk_weights is 1 bytes": lambda: group.combine(experts, misaligned(*weights.shape)),
        "index is 1 bytes beyond a multiple of 4": (
            lambda: group.combine(pairs, weights, index=index(torch.int32))
        ),
        "index is 1 bytes beyond a multiple of 8": (
            lambda: group.combine(pairs, weights, index=index(torch.int64))
        ),
    }
    for message, call in calls.items():
        with pytest.raises(ValueError, match=f"rank {rank}: the address of {message}"):
            call()
    window = group.acquire("combine", (ROWS * world, HIDDEN), torch.float32)
    assert window is not None
    lab.put(window, rows)
    with pytest.raises(ValueError, match="the address of out is 1 bytes"):
        group.reduce_scatter(window, misaligned(ROWS, HIDDEN))
    assert group.reduce_scatter(window, out) is out
    assert bool((lab.host(out) == world).all())
    group.close()


@pytest.mark.parametrize("world", [1, 2])
def test_misaligned_memory_is_refused(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, refused)


def test_misaligned_memory_is_refused_without_a_group() -> None:
    with pytest.raises(ValueError, match="topk_reduce: the address of topk_weights is 1 bytes"):
        testing.topk_reduce(
            torch.ones(ROWS, SLOTS, HIDDEN),
            misaligned(ROWS, SLOTS),
            out=torch.empty(ROWS, HIDDEN),
        )
