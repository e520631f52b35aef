"""Streams and graphs of the host back end: what torch.cuda has for a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator

import torch

from . import runtime

MAX_KEPT = 64  # calls whose tensors are kept before the stream is waited for


class Stream:
    """A stream: a thread that does what it is given, one after the other.

    Attributes:
        handle: Its number for the core; 0 is the default stream.
    """

    def __init__(self) -> None:
        self._made = runtime.device().make_stream()
        self.handle = self._made.handle

    def synchronize(self) -> None:
        """Waits until all work given so far is done."""
        runtime.device().synchronize(self.handle)
        _kept.pop(self.handle, None)

    def __repr__(self) -> str:
        return f"<symmoe.testing.Stream {self.handle:#x}>"


class _Current(threading.local):
    """The streams that `with stream(...)` has made current in this thread."""

    def __init__(self) -> None:
        self.handles: list[int] = [0]


class Graph:
    """Captured work, to be done again and again.

    Keeps the tensors that its calls were given, and as long as it lives, the windows that they use
    are kept as well (until `release_graphs`).
    """

    def __init__(self) -> None:
        self._handle: ctypes.c_void_p | None = None
        self._kept: list[torch.Tensor] = []

    def replay(self, stream: Stream | None = None) -> None:
        """Queues the work once more, on `stream` or the current one."""
        if self._handle is None:
            raise ValueError("this graph holds no capture")
        handle = current_stream() if stream is None else stream.handle
        runtime.require(runtime.host().symmoe_host_launch_graph(self._handle, handle), "replay")

    def reset(self) -> None:
        """Gives the captured work up. Its last replay must have ended."""
        if self._handle is not None:
            runtime.host().symmoe_host_destroy_graph(self._handle)
            self._handle = None
        self._kept.clear()

    def keep(self, *tensors: torch.Tensor) -> None:
        """Keeps tensors that the captured work uses."""
        self._kept += tensors

    def take(self, handle: ctypes.c_void_p) -> None:
        """Takes what a capture made."""
        if self._handle is not None:
            runtime.host().symmoe_host_destroy_graph(self._handle)
        self._handle = handle

    def __del__(self) -> None:
        self.reset()


_current = _Current()
_kept: dict[int, list[tuple[torch.Tensor, ...]]] = {}  # by stream
_captures: dict[int, Graph] = {}  # by stream


def current_stream() -> int:
    """Handle of this thread's current stream."""
    return _current.handles[-1]


@contextlib.contextmanager
def stream(chosen: Stream) -> Iterator[None]:
    """Makes a stream the current one of this thread."""
    _current.handles.append(chosen.handle)
    try:
        yield
    finally:
        _current.handles.pop()


@contextlib.contextmanager
def capture(graph: Graph, stream: Stream, mode: str = "global") -> Iterator[None]:
    """Captures what `stream`, which becomes the current one, is given inside.

    Args:
        graph: Takes the work.
        stream: Must not be the default one.
        mode: "global": no thread may allocate, free or wait meanwhile; "thread_local": this one may
            not; "relaxed": all may. As cudaStreamCaptureMode.
    """
    handle = stream.handle
    began = runtime.host().symmoe_host_begin_capture(handle, runtime.MODES[mode])
    runtime.require(began, "begin capture")
    _captures[handle] = graph
    _current.handles.append(handle)
    made = ctypes.c_void_p()
    failed = True
    try:
        yield
        failed = False
    finally:
        _current.handles.pop()
        del _captures[handle]
        status = runtime.host().symmoe_host_end_capture(handle, ctypes.byref(made))
        if failed and status == 0:
            runtime.host().symmoe_host_destroy_graph(made)
    runtime.require(status, "end capture")
    graph.take(made)


def keep(handle: int, *tensors: torch.Tensor) -> None:
    """Keeps tensors until `synchronize`, or in the graph that is being captured."""
    graph = _captures.get(handle)
    if graph is not None:
        graph.keep(*tensors)
        return
    kept = _kept.setdefault(handle, [])
    kept.append(tensors)
    if len(kept) > MAX_KEPT:
        runtime.device().synchronize(handle)
        kept.clear()


def delay(seconds: float, stream: Stream | None = None) -> None:
    """Keeps a stream busy for a while, in its order."""
    handle = current_stream() if stream is None else stream.handle
    runtime.require(runtime.host().symmoe_host_delay(handle, int(seconds * 1e6)), "delay")


def synchronize() -> None:
    """Waits for all streams of this process."""
    runtime.require(runtime.host().symmoe_host_synchronize(), "synchronize")
    _kept.clear()
