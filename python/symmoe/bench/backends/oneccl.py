"""oneCCL, through a C shim that bench/install_peers.sh builds beside it."""

from __future__ import annotations

import ctypes
import os
import time

from ..backend import Place, PrivateMemory
from ..errors import BenchError
from ..peers import SHIM_VARIABLE
from ..problem import Problem

_ADDRESS_BYTES = 4096
_MEETING_SECONDS = 60.0
# As in bench/oneccl_shim.cpp.
_DTYPES = {"fp32": 0, "bf16": 1, "fp16": 2}


class OneCcl(PrivateMemory):
    """`ccl::reduce_scatter`."""

    name = "oneccl"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._shim = ctypes.CDLL(os.environ[SHIM_VARIABLE])
        self._shim.symmoe_ccl_error.restype = ctypes.c_char_p
        self._shim.symmoe_ccl_reduce_scatter.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
        ]

    def _check(self, code: int, what: str) -> int:
        if code < 0:
            raise BenchError(f"oneCCL: {what}: {self._shim.symmoe_ccl_error().decode()}")
        return code

    def setup(self) -> None:
        """Rank 0 makes the meeting point and writes its address into the shared folder."""
        address = ctypes.create_string_buffer(_ADDRESS_BYTES)
        file = self.place.folder / "oneccl_address"
        if self.place.rank == 0:
            size = self._check(
                self._shim.symmoe_ccl_address(address, _ADDRESS_BYTES), "make a meeting point"
            )
            partial = file.with_suffix(".partial")
            partial.write_bytes(address.raw[:size])
            partial.rename(file)
        else:
            deadline = time.monotonic() + _MEETING_SECONDS
            while not file.exists():
                if time.monotonic() > deadline:
                    raise BenchError(f"oneCCL: no address from rank 0 in {_MEETING_SECONDS} s")
                time.sleep(0.01)
            address.raw = file.read_bytes().ljust(_ADDRESS_BYTES, b"\0")
        self._check(
            self._shim.symmoe_ccl_connect(self.place.rank, self.place.world, address),
            f"connect rank {self.place.rank} of {self.place.world}",
        )

    def unsupported(self, problem: Problem) -> str:
        """Element types without a number in the shim."""
        return "" if problem.dtype in _DTYPES else f"no {problem.dtype}"

    def allocate(self, problem: Problem) -> None:
        """Ordinary tensors."""
        super().allocate(problem)
        self._arguments = (
            self._rows.data_ptr(),
            self._out.data_ptr(),
            problem.count,
            _DTYPES[problem.dtype],
        )

    def call(self) -> None:
        """The collective, waited for."""
        self._check(self._shim.symmoe_ccl_reduce_scatter(*self._arguments), "reduce_scatter")
