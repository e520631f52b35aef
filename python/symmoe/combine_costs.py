"""What the two orders of a reduction and an output transform take: a model, to choose by.

Per collective: a start-up time, and the bytes of all ranks' rows over a rate. A group of devices
brings its own model for that, the one its selector goes by (docs/paths.md). Per transform, which is
a matrix of P elements: 2 P operations per row over a rate, or the memory's time for its weights and
rows if that is longer.

    early   reduce(latent) + transform(own rows) [+ reduce(hidden) of the shared experts' rows]
    late    transform(all rows) + reduce(hidden)

What both do alike is left out: the top-k sum, and adding the shared experts' rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from .device.group import DeviceGroup
from .plans import REDUCE_SCATTER

if TYPE_CHECKING:
    from .group import Group


@dataclass(frozen=True)
class CombineCosts:
    """Constants of the model; equal on all ranks.

    The defaults are for ranks on a CPU that have a processor each: round numbers of reduce_scatter
    with tags in use and of a 1024 x 4096 layer in bfloat16, on two virtual processors with AVX-512.
    Another machine has others, so where the orders take about the same time either may be chosen.

    Attributes:
        start_us: Of a collective without bytes, in microseconds, what Python does included.
        bytes_per_us: The rate at which a rank gets through the bytes of all ranks' rows of a
            collective: rows of all ranks x width x bytes of an element.
        flops_per_us: Of the transform, additions and multiplications counted one by one.
        memory_bytes_per_us: At which the transform's weights and rows are read and written.
    """

    start_us: float = 40.0
    bytes_per_us: float = 20e3
    flops_per_us: float = 100e3
    memory_bytes_per_us: float = 20e3

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0.0 if name == "start_us" else 1e-9
            if not value >= least:
                raise ValueError(f"CombineCosts: {name} = {value} must be positive")


# Where the selector of a group of devices knows what collectives take, only the transform's rates
# count: bfloat16 as libraries attain it on Hopper, and the memory of csrc's cost model.
ON_DEVICES = CombineCosts(9.0, 300e3, 500e6, 3.3e6)


class Transform(NamedTuple):
    """What the model wants to know of a transform.

    Attributes:
        latent: Elements of an input row.
        hidden: Elements of an output row.
        elements: Of its weights.
        nbytes: Of its weights.
    """

    latent: int
    hidden: int
    elements: int
    nbytes: int


def transform_of(module: nn.Module, latent: int, hidden: int) -> Transform:
    """The model's view of a module; all its parameters count as matrices."""
    weights = list(module.parameters())
    return Transform(
        latent, hidden, sum(w.numel() for w in weights), sum(w.nbytes for w in weights)
    )


@dataclass(frozen=True)
class Times:
    """Predicted microseconds of both orders."""

    early_us: float
    late_us: float


@dataclass(frozen=True)
class CostModel:
    """Predicts what a combine with a transform takes.

    Attributes:
        group: The ranks.
        dtype: Of all rows.
        transform: What is applied.
        shared: Whether shared experts' rows have to be reduced as well.
        costs: Constants; None: those of the group's kind, and a device group's own model for its
            collectives.
    """

    group: Group | DeviceGroup = field(repr=False)
    dtype: torch.dtype
    transform: Transform
    shared: bool
    costs: CombineCosts | None

    def times(self, rows: int, slots: int = 0) -> Times:
        """Of a call over `rows` rows of all ranks; equal on all ranks.

        Args:
            rows: How many.
            slots: Experts per token of a call with a routing; 0 without.
        """
        it, world = self.transform, self.group.world_size
        routed = slots > 0
        early = self._reduce_us(rows, it.latent, slots) + self._transform_us(-(-rows // world))
        if self.shared:
            early += self._reduce_us(rows, it.hidden, 0)
        late = self._transform_us(rows)
        # Shared experts have something for every row, so there is no leaving out of rows.
        late += self._reduce_us(rows, it.hidden, slots if routed and not self.shared else 0)
        return Times(early, late)

    def _transform_us(self, rows: int) -> float:
        it, costs = self.transform, self.costs or self._default()
        moved = it.nbytes + rows * (it.latent + it.hidden) * self.dtype.itemsize
        return max(2.0 * rows * it.elements / costs.flops_per_us, moved / costs.memory_bytes_per_us)

    def _reduce_us(self, rows: int, width: int, slots: int) -> float:
        world = self.group.world_size
        if self.costs is None and isinstance(self.group, DeviceGroup):
            expected = _selected_us(self.group, rows, width, self.dtype, slots)
            if expected is not None:
                return expected
        costs = self.costs or self._default()
        # The part of the rows that a rank has anything for, if experts are chosen evenly.
        share = 1.0 - (1.0 - 1.0 / world) ** slots if slots else 1.0
        return costs.start_us + rows * width * self.dtype.itemsize * share / costs.bytes_per_us

    def _default(self) -> CombineCosts:
        return ON_DEVICES if isinstance(self.group, DeviceGroup) else CombineCosts()


def _selected_us(
    group: DeviceGroup, rows: int, width: int, dtype: torch.dtype, slots: int
) -> float | None:
    """What the selector expects of the path that it would take for even rows; None: of none."""
    world = group.world_size
    even = -(-max(rows, 1) // world) * world
    layout = group._layouts.of(REDUCE_SCATTER, (even, width), dtype, None, None, 0, slots > 0)
    if layout.device_plan is None:
        return None
    best, *_ = group._core.explain(layout.device_plan, False, False, slots > 0, slots)
    _, refusal, expected, _ = best
    return None if refusal else expected
