"""A routing on a device: its masks, made once per batch and stream, and their memory."""

from __future__ import annotations

import contextlib

import torch

from .. import _core
from ..places import DevicePlace
from ..routing import Routing


class KnownRouting:
    """What a Routing remembers for one group.

    Attributes:
        core: The core's.
        versions: Of its tensors at that time; writing them through torch changes these. None: that
            cannot be known, so that each call makes the masks anew.
        memory: Of the masks; None: none yet.
    """

    __slots__ = ("core", "memory", "versions")

    def __init__(self, core: _core.DeviceRouting, versions: tuple[int | None, int | None]) -> None:
        self.core = core
        self.versions = versions
        self.memory: torch.Tensor | None = None


def routing_on(
    group: _core.DeviceGroup, name: str, place: DevicePlace, routing: Routing, stream: int
) -> _core.DeviceRouting:
    """What a call of the group on a stream takes for a routing.

    Args:
        group: The core's group.
        name: The group's name, which no other has.
        place: Where the tensors are.
        routing: Checked.
        stream: Handle of the stream.
    """
    ids, ranks = routing.topk_ids, routing.expert_to_rank
    versions = _version(ids), _version(ranks)
    known = routing._masks.get(name)
    if known is None or known.versions != versions or None in versions:
        core = group.make_routing(
            ids.data_ptr(),
            ids.dtype is torch.int64,
            ranks.data_ptr(),
            routing.rows,
            routing.slots,
            ranks.shape[0],
        )
        routing._masks[name] = known = KnownRouting(core, versions)
    if known.memory is None or group.needs_memory(known.core, stream):
        known.memory = place.empty((max(routing.rows, 1), 1), torch.int64, stream)
        group.give(known.core, known.memory.data_ptr(), stream)
    place.keep(stream, ids, ranks, known.memory)
    return known.core


def _version(tensor: torch.Tensor) -> int | None:
    """What changes when torch writes a tensor; None for one of inference mode, without a count."""
    with contextlib.suppress(RuntimeError):
        return tensor._version
    return None
