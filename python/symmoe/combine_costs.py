"""What the two orders of a reduction and an output transform take: a model, to choose by.

Per collective: a start-up time, and the bytes of all ranks' rows over a rate. For groups of devices
it is what the core's model says of a path that reads windows (docs/paths.md), whatever became of
windows here, so that all ranks see the same. Per transform, which is a matrix of P elements: 2 P
operations per row over a rate, or the memory's time for its weights and rows if that is longer.

    early   reduce(latent) + transform(own rows) [+ reduce(hidden) of the shared experts' rows]
    late    transform(all rows) + reduce(hidden)

What both do alike is left out: the top-k sum, and adding the shared experts' rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from . import _core
from .device.group import DeviceGroup

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


FLOPS_PER_US = 500e6  # of devices: bfloat16 as libraries attain it on Hopper


def costs_of(major: int | None) -> CombineCosts:
    """The constants for a compute capability, but for collectives; None: for a CPU."""
    if major is None:
        return CombineCosts()
    known = _core.device_costs(major)
    return CombineCosts(flops_per_us=FLOPS_PER_US, memory_bytes_per_us=known["memory_bytes_per_us"])


def capability_of(group: Group | DeviceGroup) -> int | None:
    """The first number of the compute capability of a group's devices; None: of a CPU."""
    if not isinstance(group, DeviceGroup):
        return None
    major: int = group.describe()["capability"][0]
    return major


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
        world: Number of ranks.
        major: As `capability_of` gives it.
        dtype: Of all rows.
        transform: What is applied.
        shared: Whether shared experts' rows have to be reduced as well.
        costs: Constants; None: those of the group's kind.
    """

    world: int
    major: int | None
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
        it, world = self.transform, self.world
        routed = slots > 0
        early = self._reduce_us(rows, it.latent, slots) + self._transform_us(-(-rows // world))
        if self.shared:
            early += self._reduce_us(rows, it.hidden, 0)
        late = self._transform_us(rows)
        # Shared experts have something for every row, so there is no leaving out of rows.
        late += self._reduce_us(rows, it.hidden, slots if routed and not self.shared else 0)
        return Times(early, late)

    def _transform_us(self, rows: int) -> float:
        it, costs = self.transform, self.costs or costs_of(self.major)
        moved = it.nbytes + rows * (it.latent + it.hidden) * self.dtype.itemsize
        return max(2.0 * rows * it.elements / costs.flops_per_us, moved / costs.memory_bytes_per_us)

    def _reduce_us(self, rows: int, width: int, slots: int) -> float:
        world, nbytes = self.world, rows * width * self.dtype.itemsize
        if self.costs is None and self.major is not None:
            path = "local" if world == 1 else "routed" if slots else "pull"
            own = -(-max(rows, 1) // world) * width * self.dtype.itemsize
            return _core.predicted_us(path, self.major, world, own, slots, False, slots > 0)
        costs = self.costs or costs_of(self.major)
        # The part of the rows that a rank has anything for, if experts are chosen evenly.
        share = 1.0 - (1.0 - 1.0 / world) ** slots if slots else 1.0
        return costs.start_us + nbytes * share / costs.bytes_per_us
