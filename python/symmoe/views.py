"""The tensors over windows that `Group.acquire` hands out, kept so that they are made once.

A cached view is held here, so its id() stands for it; the collectives find it by that. Views of a
buffer that was outgrown are let go: whoever still holds one can use it, a little slower. The same
goes for a view that its holder has turned into another tensor (`set_`, `resize_`, `t_`, `.data`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from . import _core
from .plans import Layout

MAX_VIEWS = 512
MAX_LAYOUTS = 512

Slot: TypeAlias = "tuple[str, int]"  # role, lane
Run: TypeAlias = "Callable[[_core.Plan, _core.Buffer, int, int, int], bool]"
Key: TypeAlias = "tuple[str, int, tuple[int, int], torch.dtype]"


class View:
    """A tensor over a window, with the layouts it has been used with.

    Attributes:
        tensor: [rows, hidden], the window's memory, as long as its holder leaves it at that.
        address: Where it begins.
        shape: (rows, hidden).
        dtype: Of the elements.
        buffer: The window.
        run: The core's collective on it.
        lane: Lane it was acquired for.
        even: Layout for sizes=None; None as long as nobody asked.
        layouts: All layouts so far, by (sizes_key, padded_to).
        version: The tensor's count of writes in place when it was last seen to be intact; -1: look
            every time.
    """

    __slots__ = (
        "address",
        "buffer",
        "dtype",
        "even",
        "lane",
        "layouts",
        "run",
        "shape",
        "tensor",
        "version",
    )

    def __init__(self, tensor: torch.Tensor, buffer: _core.Buffer, run: Run, lane: int) -> None:
        self.tensor = tensor
        self.address = tensor.data_ptr()
        self.shape = tensor.shape
        self.dtype = tensor.dtype
        self.buffer = buffer
        self.run = run
        self.lane = lane
        self.even: Layout | None = None
        self.layouts: dict[Any, Layout] = {}
        self.version = -1

    def is_intact(self) -> bool:
        """Whether the tensor is what acquire made, and wants no gradient."""
        tensor = self.tensor
        return (
            tensor.data_ptr() == self.address
            and tensor.shape == self.shape
            and tensor.is_contiguous()
            and tensor.dtype is self.dtype
            and not tensor.requires_grad
        )


class ViewCache:
    """All cached views of a group.

    Attributes:
        by_key: Views by (role, lane, shape, dtype).
        by_id: For each role, views by id() of their tensor.
    """

    def __init__(self, roles: tuple[str, ...], find_by_id: bool) -> None:
        self.by_key: dict[Key, View] = {}
        self.by_id: dict[str, dict[int, View]] = {role: {} for role in roles}
        self._find_by_id = find_by_id
        self._current: dict[Slot, _core.Buffer] = {}
        self._slots: dict[int, Slot] = {}  # by address of a window that was handed out
        self._lock = threading.Lock()

    def add(self, key: Key, buffer: _core.Buffer, run: Run) -> torch.Tensor:
        """Makes and keeps the view of a buffer; forgets views of what was there before."""
        role, lane, (rows, hidden), dtype = key
        # An inference tensor could not be written outside of inference mode.
        with torch.inference_mode(False):
            if rows == 0:
                tensor = torch.empty((0, hidden), dtype=dtype, device="cpu")
            else:
                flat = torch.frombuffer(buffer, dtype=dtype, count=rows * hidden)
                tensor = flat.view(rows, hidden)
        view = View(tensor, buffer, run, lane)
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
            if self._find_by_id:
                self.by_id[role][id(tensor)] = view
        return tensor

    def _forget(self, key: Key) -> None:
        view = self.by_key.pop(key, None)
        if view is not None:
            self.by_id[key[0]].pop(id(view.tensor), None)

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

    def discard(self, view: View) -> None:
        """Forgets one view."""
        with self._lock:
            for key in [key for key, other in self.by_key.items() if other is view]:
                self._forget(key)

    def clear(self) -> None:
        """Forgets all views."""
        with self._lock:
            self.by_key.clear()
            self._current.clear()
            self._slots.clear()
            for views in self.by_id.values():
                views.clear()
