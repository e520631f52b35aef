"""The host back end's own functions (csrc/backends/host/host_api.h), for ctypes."""

from __future__ import annotations

import ctypes
import functools

from .. import _core
from ..device import libraries
from ..errors import DeviceError, UnavailableError

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2  # modes of a capture
MODES = {"global": GLOBAL, "thread_local": THREAD_LOCAL, "relaxed": RELAXED}


@functools.cache
def host() -> ctypes.CDLL:
    """The library.

    Raises:
        UnavailableError: It was not built.
    """
    path = libraries.back_end("host")
    if path is None:
        raise UnavailableError(
            "symmoe.testing needs libsymmoe_host.so, which this build leaves out "
            "(CMAKE_ARGS=-DSYMMOE_TESTING=ON builds it)"
        )
    library = ctypes.CDLL(str(path))
    pointer, integer, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    library.symmoe_host_begin_capture.argtypes = [pointer, integer]
    library.symmoe_host_end_capture.argtypes = [pointer, ctypes.POINTER(pointer)]
    library.symmoe_host_launch_graph.argtypes = [pointer, pointer]
    library.symmoe_host_destroy_graph.argtypes = [pointer]
    library.symmoe_host_delay.argtypes = [pointer, ctypes.c_int64]
    library.symmoe_host_limit_memory.argtypes = [size]
    library.symmoe_host_limit_memory.restype = None
    library.symmoe_host_live_bytes.restype = size
    library.symmoe_host_fail.argtypes = [ctypes.c_char_p, integer, integer]
    library.symmoe_host_fail.restype = None
    library.symmoe_host_count.argtypes = [ctypes.c_char_p]
    library.symmoe_host_count.restype = ctypes.c_uint64
    return library


@functools.cache
def device() -> _core.Device:
    """The process's device."""
    host()
    return _core.Device(str(libraries.back_end("host")), 0)


def require(status: int, what: str) -> None:
    """Raises DeviceError unless the status is 0."""
    if status != 0:
        raise DeviceError(f"{what}: the host back end gave status {status}")
