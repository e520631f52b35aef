"""What the tests of plans have in common: a transform, rows, and what has to come of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import symmoe
from symmoe.tags import Partial

LATENT, HIDDEN = 32, 64
SIZES = [3, 4]
ROWS = sum(SIZES)


def linear(bias: bool = False) -> nn.Linear:
    torch.manual_seed(2)
    return nn.Linear(LATENT, HIDDEN, bias=bias)


def make_plan(
    group: symmoe.Group | symmoe.DeviceGroup, transform: nn.Module | None = None, **more: object
) -> symmoe.CombinePlan:
    given: dict[str, object] = {"shared": Partial(), "dtype": torch.float32, "hidden": HIDDEN}
    return symmoe.plan_combine(group=group, transform=transform, **(given | more))  # type: ignore[arg-type]


def summands(rank: int, width: int) -> Tensor:
    torch.manual_seed(100 + rank)
    return torch.randn(ROWS, width)


def whole(transform: nn.Module, world: int) -> Tensor:
    latent = sum(summands(rank, LATENT) for rank in range(world))
    made: Tensor = transform(latent) + sum(summands(rank, HIDDEN) for rank in range(world))
    return made.detach()


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
