"""Calls whose sizes are on the device: the host knows only how many rows there may be."""

from __future__ import annotations

from typing import ClassVar

import torch

from ..plans import REDUCE_SCATTER, Layout, as_int, make_layout, name_of


class ReservedLayout(Layout):
    """The geometry of a call with sizes on the device.

    `counts` are what each rank may have at most: all rows where they are packed, else `padded_to`.

    Attributes:
        padded_to: Rows between two ranks' first ones; 0: one rank's after the other's.
    """

    __slots__ = ("padded_to",)
    device_sizes: ClassVar[bool] = True

    def __init__(
        self,
        dtype: torch.dtype,
        hidden: int,
        rows: int,
        padded_to: int,
        lane: int,
        rank: int,
        world: int,
        routed: bool,
    ) -> None:
        self.padded_to = padded_to
        begins = [r * padded_to for r in range(world)]
        counts = [padded_to or rows] * world
        super().__init__(REDUCE_SCATTER, dtype, hidden, begins, counts, rows, lane, rank, routed)
        self.even = False

    def _sizes_text(self) -> str:
        padding = f" padded to {self.padded_to}" if self.padded_to else ""
        return f"rows={self.rows} sizes on the device{padding}"


def reserved_layout(
    where: str,
    operation: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    padded_to: int | None,
    lane: int,
    rank: int,
    world: int,
    routed: bool,
) -> ReservedLayout:
    """The layout of a call whose input has `shape` [rows, hidden].

    Args:
        where: Begins messages.
        operation: Has to be "reduce_scatter".
        shape: Of the input: as many rows as there may be.
        dtype: Of the input.
        padded_to: Rows between two ranks' first ones; None: one rank's after the other's.
        lane: Lane, checked already.
        rank: This rank.
        world: Number of ranks.
        routed: Whether each call brings a routing.

    Raises:
        TypeError: Another dtype than bfloat16, float16, float32.
        ValueError: Another operation, or numbers that do not fit together.
    """
    if operation != REDUCE_SCATTER:
        raise ValueError(
            f"{where}: sizes on the device are for reduce_scatter and combine; give those of "
            f"{operation} on the host"
        )
    if len(shape) == 2 and padded_to is None:
        whole = make_layout(operation, dtype, shape, (shape[0], *[0] * (world - 1)), None, lane,
                            rank, world, routed)  # fmt: skip
        stride = 0
    else:
        stride = as_int(f"{where}: padded_to", padded_to)
        if stride < 1:
            raise ValueError(f"{where}: padded_to = {stride} leaves no room for rows")
        whole = make_layout(operation, dtype, shape, stride, None, lane, rank, world, routed)
    if whole.plan is None:
        raise TypeError(
            f"{where}: sizes on the device go with bfloat16, float16 and float32, not "
            f"{name_of(dtype)}"
        )
    return ReservedLayout(dtype, whole.hidden, whole.rows, stride, lane, rank, world, routed)


def check_device_sizes(where: str, sizes: torch.Tensor, world: int) -> None:
    """Raises unless a tensor on the device can be the sizes of a call; its values are not seen.

    Raises:
        TypeError: Another dtype than int32.
        ValueError: Another shape than [world], or not contiguous.
    """
    if sizes.dtype is not torch.int32:
        raise TypeError(f"{where}: sizes on the device are {name_of(sizes.dtype)}, expected int32")
    if sizes.shape != (world,) or not sizes.is_contiguous():
        raise ValueError(
            f"{where}: sizes on the device have shape {list(sizes.shape)} (strides "
            f"{list(sizes.stride())}), expected [{world}], contiguous"
        )
    if sizes.data_ptr() % sizes.element_size():
        raise ValueError(f"{where}: sizes on the device are at {sizes.data_ptr():#x}, no boundary")
