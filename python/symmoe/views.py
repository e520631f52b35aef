"""The tensors over windows that `Group.acquire` hands out, kept so that they are made once.

A cached view is held here, so its id() stands for it; the collectives find it by that. Views of a
buffer that was outgrown are let go: whoever still holds one can use it, a little slower.
"""

from __future__ import annotations

import threading
from typing import Any, TypeAlias

import torch

from . import _core
from .plans import Layout

MAX_VIEWS = 512
MAX_LAYOUTS = 512

Key: TypeAlias = "tuple[str, int, tuple[int, int], torch.dtype]"


class View:
    """A tensor over a window, with the layouts it has been used with.

    Attributes:
        tensor: [rows, hidden], the window's memory.
        buffer: The window.
        lane: Lane it was acquired for.
        even: Layout for sizes=None; None as long as nobody asked.
        layouts: All layouts so far, by (sizes_key, padded_to).
    """

    __slots__ = ("buffer", "even", "lane", "layouts", "tensor")

    def __init__(self, tensor: torch.Tensor, buffer: _core.Buffer, lane: int) -> None:
        self.tensor = tensor
        self.buffer = buffer
        self.lane = lane
        self.even: Layout | None = None
        self.layouts: dict[Any, Layout] = {}


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
        self._addresses: dict[tuple[str, int], int] = {}  # of current windows
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
        view = View(tensor, buffer, lane)
        with self._lock:
            if self._addresses.get((role, lane)) != buffer.address:
                self._addresses[role, lane] = buffer.address
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

    def drop_outgrown(self) -> None:
        """Forgets views of buffers that will never be handed out again."""
        with self._lock:
            for key in [key for key, view in self.by_key.items() if view.buffer.retired]:
                self._forget(key)

    def discard(self, tensor: torch.Tensor) -> None:
        """Forgets the view that is `tensor`, if it is one."""
        with self._lock:
            for key in [key for key, view in self.by_key.items() if view.tensor is tensor]:
                self._forget(key)

    def clear(self) -> None:
        """Forgets all views."""
        with self._lock:
            self.by_key.clear()
            for views in self.by_id.values():
                views.clear()
