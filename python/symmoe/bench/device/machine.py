"""What measuring needs of a device: groups, stream-ordered copies, time marks, graphs."""

from __future__ import annotations

import ctypes
import dataclasses
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

import symmoe
from symmoe.config import Config
from symmoe.device.group import DeviceGroup

from .processes import Seat

Work = Callable[[], Any]


class Machine(Protocol):
    """A device and the one stream that a measurement uses.

    Attributes:
        device: torch's.
        emulated: Whether times mean nothing.
        seat: This process's.
    """

    device: torch.device
    emulated: bool
    seat: Seat

    def init(self, windows: bool, paths: tuple[str, ...] | None = None) -> DeviceGroup:
        """A group of all ranks, with the settings of the environment but for windows and paths."""

    def stream(self) -> int:
        """The stream that is current: its handle."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queues a copy between contiguous tensors of one size."""

    def at(self, address: int, nbytes: int) -> torch.Tensor:
        """Device memory that somebody else keeps, as bytes."""

    def mark(self) -> Any:
        """A point of time, in the stream's order."""

    def us(self, begin: Any, end: Any) -> float:
        """Between two marks, after synchronize."""

    def capture(self, work: Work) -> Work:
        """What replays the work as a graph."""

    def synchronize(self) -> None:
        """Waits for the device."""


def settings(windows: bool, paths: tuple[str, ...] | None) -> Config:
    """Those of the environment; a table of earlier times has no say."""
    return dataclasses.replace(Config.from_env(), windows=windows, tuning=None, paths=paths)


def make(device: str, seat: Seat) -> Machine:
    """The machine by its name on the command line."""
    return CudaMachine(seat) if device == "cuda" else EmulatedMachine(seat)


class CudaMachine:
    """A GPU, in torch's current stream."""

    emulated = False

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.device = torch.device("cuda", seat.ordinal)

    def init(self, windows: bool, paths: tuple[str, ...] | None = None) -> DeviceGroup:
        """See Machine."""
        group = symmoe.init(config=settings(windows, paths), device=self.device)
        assert isinstance(group, DeviceGroup)
        return group

    def stream(self) -> int:
        """See Machine."""
        return int(torch.cuda.current_stream().cuda_stream)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See Machine."""
        target.copy_(source)

    def at(self, address: int, nbytes: int) -> torch.Tensor:
        """See Machine."""
        interface = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }
        owner = type("Memory", (), {"__cuda_array_interface__": interface})()
        return torch.as_tensor(owner, device=self.device)

    def mark(self) -> Any:
        """See Machine."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def us(self, begin: Any, end: Any) -> float:
        """See Machine."""
        return float(begin.elapsed_time(end)) * 1e3

    def capture(self, work: Work) -> Work:
        """See Machine."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    def synchronize(self) -> None:
        """See Machine."""
        torch.cuda.synchronize()


_HostWork = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _keep(context: int | None) -> None:
    """The host back end gives a piece of work up: it is kept anyway."""


_drop = _HostWork(_keep)


class EmulatedMachine:
    """No GPU: symmoe.testing. Marks wait for the stream first, and say nothing about speed."""

    emulated = True

    def __init__(self, seat: Seat) -> None:
        from symmoe import testing
        from symmoe.testing import runtime

        self.seat = seat
        self.device = torch.device("cpu")
        self._testing = testing
        self._enqueue = runtime.host().symmoe_host_enqueue
        self._enqueue.argtypes = [ctypes.c_void_p, _HostWork, _HostWork, ctypes.c_void_p]
        self._require = runtime.require
        self._copies: dict[tuple[int, int, int], Any] = {}  # called by streams, so never freed

    def init(self, windows: bool, paths: tuple[str, ...] | None = None) -> DeviceGroup:
        """See Machine."""
        return self._testing.init(config=settings(windows, paths))

    def stream(self) -> int:
        """See Machine."""
        return self._testing.current_stream()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See Machine."""
        key = (target.data_ptr(), source.data_ptr(), source.nbytes)
        work = self._copies.get(key)
        if work is None:
            work = _HostWork(lambda _: ctypes.memmove(*key) and None)
            self._copies[key] = work
        self._require(self._enqueue(self.stream(), work, _drop, None), "copy")

    def at(self, address: int, nbytes: int) -> torch.Tensor:
        """See Machine."""
        memory = (ctypes.c_byte * nbytes).from_address(address)
        return torch.frombuffer(memory, dtype=torch.uint8)

    def mark(self) -> Any:
        """See Machine."""
        self.synchronize()
        return time.perf_counter_ns()

    def us(self, begin: Any, end: Any) -> float:
        """See Machine."""
        return float(end - begin) / 1e3

    def capture(self, work: Work) -> Work:
        """See Machine."""
        graph = self._testing.Graph()
        self.synchronize()
        with self._testing.capture(graph, self._testing.Stream()):
            work()
        return graph.replay

    def synchronize(self) -> None:
        """See Machine."""
        self._testing.synchronize()
