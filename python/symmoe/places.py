"""Where a group's tensors live: this process's memory, or a device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

import torch

from . import _core


class Place(Protocol):
    """One kind of memory, and how torch deals with it.

    Attributes:
        name: In words, for messages: "the CPU", "cuda:1".
        device: torch's device for tensors there.
    """

    name: str
    device: torch.device

    def accepts(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's memory is here."""


class DevicePlace(Place, Protocol):
    """A place whose work runs in streams.

    Attributes:
        kind: "cuda", "hip" or "host".
        ordinal: Number of the device.
        back_end: Path of the library that serves it.
        always_keeps: Whether `keep` is needed for the current stream as well.
        current_stream: Gives the handle of the stream that is current here.
    """

    kind: str
    ordinal: int
    back_end: str
    always_keeps: bool
    current_stream: Callable[[], int]

    def view(self, buffer: _core.Buffer, dtype: torch.dtype, count: int) -> torch.Tensor:
        """The first `count` elements of a window as a flat tensor; it keeps the window."""

    def stream(self, given: object | None) -> int:
        """The handle of a stream; None is the one that is current here.

        Raises:
            TypeError: `given` is no stream.
        """

    def keep(self, stream: int, *tensors: torch.Tensor) -> None:
        """Keeps the tensors' memory until the stream is done with what it has been given so far."""

    def empty(self, shape: tuple[int, int], dtype: torch.dtype, stream: int) -> torch.Tensor:
        """New memory for work of this stream."""

    def in_order(self, stream: int) -> contextlib.AbstractContextManager[None]:
        """Inside, what torch does comes behind the stream's work, and the stream's behind that."""


class _Cpu:
    name = "the CPU"
    device = torch.device("cpu")

    def accepts(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cpu


CPU: Place = _Cpu()
