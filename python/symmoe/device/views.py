"""The tensors that a group of devices has handed out over its windows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

import torch

from .. import _core
from ..places import DevicePlace

MAX_VIEWS = 512

Key: TypeAlias = "tuple[str, int, tuple[int, int], torch.dtype]"  # role, lane, shape, dtype


class DeviceView:
    """A tensor over a window.

    Attributes:
        tensor: [rows, hidden].
        address: Where it begins.
        buffer: The window.
        role: What it was acquired for.
        lane: Lane it was acquired for.
        reduces_in: The lane if it is for reduce_scatter, else -1.
        even_call: A reduce_scatter with sizes=None made ready; None as long as nobody asked.
        out_shape: Of its output, once that is ready.
    """

    __slots__ = (
        "address",
        "buffer",
        "dtype",
        "even_call",
        "lane",
        "out_shape",
        "reduces_in",
        "role",
        "shape",
        "tensor",
    )

    def __init__(self, tensor: torch.Tensor, buffer: _core.Buffer, role: str, lane: int) -> None:
        self.tensor = tensor
        self.address = tensor.data_ptr()
        self.shape = tensor.shape
        self.dtype = tensor.dtype
        self.buffer = buffer
        self.role = role
        self.lane = lane
        self.reduces_in = lane if role == "combine" else -1
        self.out_shape = torch.Size()
        self.even_call: Callable[[int, int, bool], bool] | None = None

    def is_intact(self) -> bool:
        """Whether the tensor is what acquire made, and wants no gradient."""
        tensor = self.tensor
        return (
            tensor.data_ptr() == self.address
            and tensor.shape == self.shape
            and tensor.dtype is self.dtype
            and tensor.is_contiguous()
            and not tensor.is_neg()
            and not tensor.requires_grad
        )


class DeviceViews:
    """All cached views of a group. A window that has been outgrown loses its views here.

    Attributes:
        by_key: Views by (role, lane, shape, dtype).
        by_id: Views by id() of their tensor.
    """

    def __init__(self, place: DevicePlace) -> None:
        self._place = place
        self.by_key: dict[Key, DeviceView] = {}
        self.by_id: dict[int, DeviceView] = {}
        self._lock = threading.Lock()

    def add(self, key: Key, buffer: _core.Buffer) -> torch.Tensor:
        """Makes and keeps the view of a window; forgets those of the window before."""
        role, lane, (rows, hidden), dtype = key
        # An inference tensor could not be written outside of inference mode.
        with torch.inference_mode(False):
            if rows == 0:
                tensor = torch.empty((0, hidden), dtype=dtype, device=self._place.device)
            else:
                tensor = self._place.view(buffer, dtype, rows * hidden).view(rows, hidden)
        view = DeviceView(tensor, buffer, role, lane)
        with self._lock:
            for other in [
                other
                for other, it in self.by_key.items()
                if other == key or (other[:2] == key[:2] and it.buffer.address != buffer.address)
            ]:
                self._forget(other)
            while len(self.by_key) >= MAX_VIEWS:
                self._forget(next(iter(self.by_key)))
            self.by_key[key] = view
            self.by_id[id(tensor)] = view
        return tensor

    def _forget(self, key: Key) -> None:
        view = self.by_key.pop(key, None)
        if view is not None:
            self.by_id.pop(id(view.tensor), None)

    def discard(self, view: DeviceView) -> None:
        """Forgets one view."""
        with self._lock:
            for key in [key for key, other in self.by_key.items() if other is view]:
                self._forget(key)

    def clear(self) -> None:
        """Forgets all views."""
        with self._lock:
            self.by_key.clear()
            self.by_id.clear()
