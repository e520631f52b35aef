"""What tests may order and look at: failures, memory limits, counts, and NCCL's calls."""

from __future__ import annotations

import ctypes
import functools
from typing import NamedTuple

from ..device import libraries
from ..errors import UnavailableError
from . import runtime


def limit_memory(nbytes: int) -> None:
    """Device allocations beyond this many live bytes fail; 0: no limit."""
    runtime.host().symmoe_host_limit_memory(nbytes)


def live_bytes() -> int:
    """Bytes of device and pinned memory that are allocated now (NCCL's memory is its own)."""
    return int(runtime.host().symmoe_host_live_bytes())


def fail_device(function: str, nth: int = 1, status: int = 1001) -> None:
    """The nth call from now on of a function of the device table fails; "" forgets all orders."""
    runtime.host().symmoe_host_fail(function.encode(), nth, status)


def count(function: str) -> int:
    """How often a function has queued (or captured) work: "topk_reduce", "copy_to_window", ..."""
    return int(runtime.host().symmoe_host_count(function.encode()))


class NcclCall(NamedTuple):
    """One call that NCCL has taken.

    Attributes:
        operation: "ncclReduceScatter", ...
        communicator: Which one, counted from 1 in this process; 0: none.
        elements: How many; for memory and windows bytes.
        kernel: "symmetric" or "ordinary" for collectives, else "".
        captured: Whether it became part of a graph.
    """

    operation: str
    communicator: int
    elements: int
    kernel: str
    captured: bool


class _Call(ctypes.Structure):
    _fields_ = [
        ("operation", ctypes.c_char * 32),
        ("communicator", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("count", ctypes.c_uint64),
        ("type", ctypes.c_int32),
        ("kernel", ctypes.c_int32),
        ("captured", ctypes.c_int32),
        ("peer", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
    ]


class _Live(ctypes.Structure):
    _fields_ = [
        ("communicators", ctypes.c_uint64),
        ("windows", ctypes.c_uint64),
        ("allocations", ctypes.c_uint64),
        ("allocated_bytes", ctypes.c_uint64),
    ]


_KERNELS = {-1: "", 0: "ordinary", 1: "symmetric", 2: "symmetric"}


class FakeNccl:
    """The NCCL of this process, as a test sees it."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        size = ctypes.c_size_t
        self._library.symmoe_fake_nccl_calls.argtypes = [ctypes.POINTER(_Call), size]
        self._library.symmoe_fake_nccl_calls.restype = size
        self._library.symmoe_fake_nccl_misuses.argtypes = [ctypes.c_char_p, size]
        self._library.symmoe_fake_nccl_misuses.restype = size
        self._library.symmoe_fake_nccl_live.argtypes = [ctypes.POINTER(_Live)]
        self._library.symmoe_fake_nccl_live.restype = None
        self._library.symmoe_fake_nccl_fail.argtypes = [ctypes.c_char_p]
        self._library.symmoe_fake_nccl_reset.restype = None

    def calls(self) -> list[NcclCall]:
        """All calls since the last reset."""
        while True:
            room = self._library.symmoe_fake_nccl_calls(None, 0)
            calls = (_Call * max(room, 1))()
            if self._library.symmoe_fake_nccl_calls(calls, room) == room:
                break
        return [
            NcclCall(
                each.operation.decode(),
                each.communicator,
                each.count,
                _KERNELS[each.kernel],
                bool(each.captured),
            )
            for each in calls[:room]
        ]

    def misuses(self) -> list[str]:
        """The last misuse that real NCCL would answer with wrong data; empty if there was none."""
        text = ctypes.create_string_buffer(1024)
        found = self._library.symmoe_fake_nccl_misuses(text, len(text))
        return [text.value.decode()] if found else []

    def live(self) -> dict[str, int]:
        """How many communicators, windows, allocations and bytes there are."""
        live = _Live()
        self._library.symmoe_fake_nccl_live(ctypes.byref(live))
        return {field[0]: getattr(live, field[0]) for field in _Live._fields_}

    def fail(self, rules: str) -> None:
        """Orders failures: "call:nth[:rank]=action", separated by commas; "" forgets them.

        Actions: error, oom, null (no window), delay:MS, die, hang.
        """
        if self._library.symmoe_fake_nccl_fail(rules.encode()):
            raise ValueError(f"no such failure: {rules!r}")

    def reset(self) -> None:
        """Forgets calls, misuses and orders."""
        self._library.symmoe_fake_nccl_reset()


@functools.cache
def nccl() -> FakeNccl:
    """The NCCL of this process.

    Raises:
        UnavailableError: It was not built.
    """
    path = libraries.fake_nccl()
    if path is None:
        raise UnavailableError("symmoe.testing needs libsymmoe_fake_nccl.so, which was not built")
    runtime.host()  # the fake NCCL queues its work on this one's streams, not on a second copy's
    return FakeNccl(str(path))
