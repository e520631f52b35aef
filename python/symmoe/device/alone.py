"""A device without a group: for the top-k sum by itself."""

from __future__ import annotations

import functools
from typing import NamedTuple

from .. import _core
from ..places import DevicePlace
from .cuda import CudaPlace


class Alone(NamedTuple):
    """One device of this process.

    Attributes:
        place: What torch calls it.
        core: What the compiled core does with it.
    """

    place: DevicePlace
    core: _core.Device


@functools.cache
def gpu(ordinal: int) -> Alone:
    """A GPU; opened once, also if that happens inside of a capture.

    Raises:
        UnavailableError: This build has no GPU part, or it does not run here.
    """
    place = CudaPlace(ordinal)
    return Alone(place, _core.Device(place.back_end, ordinal))
