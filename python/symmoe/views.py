"""The tensors over windows that `Group.acquire` hands out, kept so that they are made once.

A cached view is held here, so its id() stands for it. Views of a buffer that was outgrown are let
go: whoever still holds one can use it. The same goes for a view that its holder has turned into
another tensor (`set_`, `resize_`, `t_`, `.data`).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TypeAlias

import torch

from . import _core

MAX_VIEWS = 512

Slot: TypeAlias = "tuple[str, int]"  # role, lane
Again: TypeAlias = "Callable[[], torch.Tensor | None]"
Key: TypeAlias = "tuple[str, int, tuple[int, int], torch.dtype]"


class View:
    """A tensor over a window.

    Attributes:
        tensor: [rows, hidden], the window's memory, as long as its holder leaves it at that.
        address: Where it begins.
        shape: (rows, hidden).
        dtype: Of the elements.
        buffer: The window.
        slot: What it was acquired for.
        again: Acquires the window once more: the tensor, or None if the window was outgrown or the
            tensor is no longer what it was.
    """

    __slots__ = ("address", "again", "buffer", "dtype", "shape", "slot", "tensor")

    def __init__(
        self, tensor: torch.Tensor, buffer: _core.Buffer, slot: Slot, again: Again
    ) -> None:
        self.tensor = tensor
        self.address = tensor.data_ptr()
        self.shape = tensor.shape
        self.dtype = tensor.dtype
        self.buffer = buffer
        self.slot = slot
        self.again = again

    def is_intact(self) -> bool:
        """Whether the tensor is what acquire made, and wants no gradient."""
        return _is_intact(self.tensor, self.address, self.shape, self.dtype)


def _is_intact(tensor: torch.Tensor, address: int, shape: torch.Size, dtype: torch.dtype) -> bool:
    return (
        tensor.data_ptr() == address
        and tensor.shape == shape
        and tensor.is_contiguous()
        and tensor.dtype is dtype
        and not tensor.requires_grad
    )


def _acquire_again(
    core: _core.Group,
    buffer: _core.Buffer,
    tensor: torch.Tensor,
    address: int,
    shape: torch.Size,
    dtype: torch.dtype,
) -> torch.Tensor | None:
    """What the core's function does, for a torch whose tensors it cannot read."""
    return tensor if core.rearm(buffer) and _is_intact(tensor, address, shape, dtype) else None


class ViewCache:
    """All cached views of a group.

    Attributes:
        by_key: Views by (role, lane, shape, dtype).
        by_id: Views by id() of their tensor.
    """

    def __init__(self, core: _core.Group | None, known: _core.KnownCalls | None) -> None:
        self._core = core
        self._known = known
        self.by_key: dict[Key, View] = {}
        self.by_id: dict[int, View] = {}
        self._current: dict[Slot, _core.Buffer] = {}
        self._slots: dict[int, Slot] = {}  # by address of a window that was handed out
        self._lock = threading.Lock()

    def add(self, key: Key, buffer: _core.Buffer) -> torch.Tensor:
        """Makes and keeps the view of a buffer; forgets views of what was there before."""
        role, lane, (rows, hidden), dtype = key
        # An inference tensor could not be written outside of inference mode.
        with torch.inference_mode(False):
            if rows == 0:
                tensor = torch.empty((0, hidden), dtype=dtype, device="cpu")
            else:
                flat = torch.frombuffer(buffer, dtype=dtype, count=rows * hidden)
                tensor = flat.view(rows, hidden)
        view = View(tensor, buffer, (role, lane), self._again(buffer, tensor))
        with self._lock:
            current = self._current.get((role, lane))
            if current is None or current.address != buffer.address:
                self._current[role, lane] = buffer
                self._slots[buffer.address] = role, lane
                for other in [other for other in self.by_key if other[:2] == (role, lane)]:
                    self._forget(other)
            while len(self.by_key) >= MAX_VIEWS:
                self._forget(next(iter(self.by_key)))
            self._forget(key)
            self.by_key[key] = view
            self.by_id[id(tensor)] = view
        return tensor

    def _again(self, buffer: _core.Buffer, tensor: torch.Tensor) -> Again:
        assert self._core is not None  # where would the buffer come from?
        assert self._known is not None
        return self._known.remember_window(buffer, tensor) or functools.partial(
            _acquire_again,
            self._core,
            buffer,
            tensor,
            tensor.data_ptr(),
            tensor.shape,
            tensor.dtype,
        )

    def _forget(self, key: Key) -> None:
        view = self.by_key.pop(key, None)
        if view is not None:
            self.by_id.pop(id(view.tensor), None)

    def slot_of(self, buffer: _core.Buffer) -> Slot | None:
        """What a window was handed out for; None if it never was."""
        return self._slots.get(buffer.address)

    def current(self, role: str, lane: int) -> _core.Buffer | None:
        """The window that was last handed out for a role and lane."""
        return self._current.get((role, lane))

    def drop_outgrown(self) -> None:
        """Forgets views of buffers that will never be handed out again."""
        with self._lock:
            for key in [key for key, view in self.by_key.items() if view.buffer.retired]:
                self._forget(key)
            for slot in [slot for slot, buffer in self._current.items() if buffer.retired]:
                del self._current[slot]

    def clear(self) -> None:
        """Forgets all views."""
        with self._lock:
            self.by_key.clear()
            self._current.clear()
            self._slots.clear()
            self.by_id.clear()
