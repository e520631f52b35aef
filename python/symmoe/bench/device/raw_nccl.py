"""NCCL by ctypes: a communicator with registered memory, without anything of symmoe's around it.

What is timed beside symmoe uses it: the way of older engines, and the wrapper of
bench/host_overhead.py.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch.distributed as dist

COLL_SYMMETRIC = 1  # NCCL_WIN_COLL_SYMMETRIC
SUM = 0
DTYPES = {"fp16": 6, "fp32": 7, "bf16": 9}


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = [("internal", ctypes.c_byte * 128)]


class Library:
    """NCCL's functions with their types, and the check of what they return."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
        types: dict[str, list[Any]] = {
            "ncclGetUniqueId": [ctypes.POINTER(UniqueId)],
            "ncclCommInitRank": [ctypes.POINTER(pointer), number, UniqueId, number],
            "ncclCommDestroy": [pointer],
            "ncclMemAlloc": [ctypes.POINTER(pointer), size],
            "ncclMemFree": [pointer],
            "ncclCommWindowRegister": [pointer, pointer, size, ctypes.POINTER(pointer), number],
            "ncclCommWindowDeregister": [pointer, pointer],
            "ncclReduceScatter": [pointer, pointer, size, number, number, pointer, pointer],
        }
        self.functions: dict[str, Any] = {}
        for name, arguments in types.items():
            function = getattr(library, name)
            function.argtypes = arguments
            function.restype = number
            self.functions[name] = function

    def check(self, result: int) -> None:
        """Raises RuntimeError unless the call succeeded."""
        if result != 0:
            raise RuntimeError(f"NCCL: error {result}")

    def call(self, name: str, *arguments: Any) -> None:
        """Any function, checked."""
        self.check(self.functions[name](*arguments))


class RegisteredMemory:
    """Memory of NCCL's in a symmetric window.

    Attributes:
        address: Where it begins.
        nbytes: How large it is.
    """

    def __init__(self, comm: RawCommunicator, nbytes: int) -> None:
        self._comm = comm
        self._memory, self._window = ctypes.c_void_p(), ctypes.c_void_p()
        comm.library.call("ncclMemAlloc", ctypes.byref(self._memory), nbytes)
        comm.library.call(
            "ncclCommWindowRegister",
            comm.handle,
            self._memory,
            nbytes,
            ctypes.byref(self._window),
            COLL_SYMMETRIC,
        )
        self.address = int(self._memory.value or 0)
        self.nbytes = nbytes

    def free(self) -> None:
        """Deregisters and frees. All ranks, in the same order."""
        if self._window.value:
            self._comm.library.call("ncclCommWindowDeregister", self._comm.handle, self._window)
        self._comm.library.call("ncclMemFree", self._memory)


class RawCommunicator:
    """An ncclComm_t of the default process group's ranks. Collective.

    Attributes:
        library: NCCL.
        handle: The ncclComm_t.
    """

    def __init__(self, path: str) -> None:
        self.library = Library(path)
        rank, world = dist.get_rank(), dist.get_world_size()
        identity = UniqueId()
        if rank == 0:
            self.library.call("ncclGetUniqueId", ctypes.byref(identity))
        given = [bytes(identity)]
        dist.broadcast_object_list(given, 0)
        identity = UniqueId.from_buffer_copy(given[0])
        self.handle = ctypes.c_void_p()
        self.library.call("ncclCommInitRank", ctypes.byref(self.handle), world, identity, rank)

    def reduce_scatter(self, send: int, receive: int, count: int, dtype: int, stream: int) -> None:
        """Queues ncclReduceScatter with sums."""
        self.library.call(
            "ncclReduceScatter",
            ctypes.c_void_p(send),
            ctypes.c_void_p(receive),
            count,
            dtype,
            SUM,
            self.handle,
            ctypes.c_void_p(stream),
        )

    def close(self) -> None:
        """Destroys it; free its memory before."""
        self.library.call("ncclCommDestroy", self.handle)
