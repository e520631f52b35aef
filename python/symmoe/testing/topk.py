"""`symmoe.topk_reduce` on the emulated device."""

from __future__ import annotations

import functools

import torch

from .. import topk
from ..device.alone import Alone
from . import runtime
from .group import HostPlace


@functools.cache
def _alone() -> Alone:
    return Alone(HostPlace(), runtime.device())


def topk_reduce(
    expert_out: torch.Tensor,
    topk_weights: torch.Tensor | None = None,
    *,
    out: torch.Tensor,
    index: torch.Tensor | None = None,
    scale: float | None = None,
    stream: object | None = None,
) -> torch.Tensor:
    """What `symmoe.topk_reduce` does with tensors on a GPU; arguments as there.

    Raises:
        UnavailableError: This build leaves the emulation out.
        TypeError, ValueError: As `symmoe.topk_reduce`.
    """
    return topk.reduce_on(_alone(), expert_out, topk_weights, out, index, scale, stream)
