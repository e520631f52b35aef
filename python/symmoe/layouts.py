"""The layouts of a group's calls, each made once and remembered by what the call was given."""

from __future__ import annotations

from typing import Any

import torch

from . import _core
from .device.reserved import ReservedLayout, reserved_layout
from .plans import Layout, Sizes, as_int, check_lane, make_layout, sizes_key

MAX_LAYOUTS = 512


class Layouts:
    """One rank's layouts.

    Args:
        rank: This rank.
        world: Number of ranks.
        where: Words for messages, by operation.
        for_device: Whether the group is one of devices.
    """

    __slots__ = ("_by_call", "_for_device", "_rank", "_where", "_world")

    def __init__(
        self, rank: int, world: int, where: dict[str, str], for_device: bool = False
    ) -> None:
        self._rank = rank
        self._world = world
        self._where = where
        self._for_device = for_device
        self._by_call: dict[Any, Layout] = {}

    def __len__(self) -> int:
        return len(self._by_call)

    def key(self, operation: str, sizes: Sizes) -> int | tuple[int, ...] | None:
        """sizes_key with the operation's name; once per call: some sizes can be read only once."""
        try:
            return sizes_key(sizes)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self._where[operation]}: {error}") from None

    def of(
        self,
        operation: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        sizes: int | tuple[int, ...] | None,
        padded_to: int | None,
        lane: int,
        routed: bool = False,
    ) -> Layout:
        """The layout of a call; `sizes` is what `key` gave.

        Raises:
            TypeError, ValueError: As make_layout and check_lane.
        """
        if type(lane) is not int:  # True would find what 1 has left
            lane = check_lane(self._where[operation], lane)
        if padded_to is not None and type(padded_to) is not int:
            padded_to = as_int(f"{self._where[operation]}: padded_to", padded_to)
        key = (operation, shape, dtype, lane, sizes, padded_to, routed)
        layout = self._by_call.get(key)
        if layout is None:
            lane = check_lane(self._where[operation], lane)
            layout = make_layout(
                operation,
                dtype,
                tuple(shape),
                sizes,
                padded_to,
                lane,
                self._rank,
                self._world,
                routed,
            )
            if self._for_device and layout.plan is not None:
                layout.device_plan = _core.DevicePlan(layout.plan)
            self._remember(key, layout)
        return layout

    def reserved(
        self,
        operation: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        padded_to: int | None,
        lane: int,
        routed: bool,
    ) -> Layout:
        """The layout of a call of a device group whose sizes are on the device.

        Raises:
            TypeError, ValueError: As reserved_layout and check_lane.
        """
        where = self._where[operation]
        lane = check_lane(where, lane)
        key = ("on the device", operation, shape, dtype, lane, padded_to, routed)
        layout = self._by_call.get(key)
        if not isinstance(layout, ReservedLayout):
            layout = reserved_layout(
                where,
                operation,
                tuple(shape),
                dtype,
                padded_to,
                lane,
                self._rank,
                self._world,
                routed,
            )
            assert layout.plan is not None
            layout.device_plan = _core.DevicePlan(layout.plan, True, layout.padded_to)
            self._remember(key, layout)
        return layout

    def _remember(self, key: Any, layout: Layout) -> None:
        if len(self._by_call) >= MAX_LAYOUTS:
            self._by_call.clear()
        self._by_call[key] = layout

    def clear(self) -> None:
        """Forgets all."""
        self._by_call.clear()
