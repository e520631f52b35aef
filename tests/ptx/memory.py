"""Global memory in regions with a gap around each, at addresses of the interpreter's own."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ptx.errors import MemoryAccessError

# Above 32 bits, so that an address cut to an int is found out.
FIRST_ADDRESS = 0x7_0000_0000
ALIGNMENT = 512
# Where generic addresses mean shared and local memory.
SHARED_WINDOW = 1 << 44
LOCAL_WINDOW = 1 << 45
WINDOW_BYTES = 1 << 24

Number = TypeVar("Number", bound=np.generic)


@dataclass
class Region:
    """Memory of one array.

    Attributes:
        name: For messages.
        address: Of its first byte.
        data: The bytes.
        peers_write: Others may write it while a kernel runs, so that the read-only cache is wrong.
        writable: Whether a kernel may write it.
        written: Whether a kernel has.
        read_cached: Whether a kernel has read it through the read-only cache.
    """

    name: str
    address: int
    data: bytearray
    peers_write: bool = False
    writable: bool = True
    written: bool = field(default=False, init=False)
    read_cached: bool = field(default=False, init=False)

    def array(self, dtype: type[Number]) -> npt.NDArray[Number]:
        """The contents, as a copy."""
        return np.frombuffer(bytes(self.data), dtype)


class GlobalMemory:
    """All regions that a launch may touch; what lies between them is out of bounds."""

    def __init__(self) -> None:
        self._regions: list[Region] = []
        self._starts: list[int] = []
        self._next = FIRST_ADDRESS

    def add(
        self,
        name: str,
        data: npt.NDArray[np.generic] | bytes,
        *,
        offset: int = 0,
        at: int | None = None,
        peers_write: bool = False,
        writable: bool = True,
    ) -> Region:
        """Copies an array in; its address is a multiple of ALIGNMENT plus `offset`, or `at`."""
        content = bytearray(
            data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
        )
        address = self._next + offset if at is None else at
        region = Region(name, address, content, peers_write, writable)
        place = bisect_right(self._starts, address)
        self._starts.insert(place, address)
        self._regions.insert(place, region)
        end = max(self._next, address + len(content))
        self._next = -(-end // ALIGNMENT) * ALIGNMENT + ALIGNMENT
        return region

    def load(self, address: int, size: int, read_only_cache: bool) -> int:
        """Reads `size` bytes as one little-endian number."""
        region = self._find("read", address, size)
        if read_only_cache:
            region.read_cached = True
            if region.written or region.peers_write:
                writer = "this kernel writes" if region.written else "other processors write"
                raise MemoryAccessError(f"read-only cache used on {region.name}, which {writer}")
        begin = address - region.address
        return int.from_bytes(region.data[begin : begin + size], "little")

    def store(self, address: int, size: int, value: int) -> None:
        """Writes `size` bytes."""
        region = self._find("write", address, size)
        if not region.writable or region.read_cached:
            reason = "is read through the read-only cache" if region.read_cached else "is an input"
            raise MemoryAccessError(f"write to {region.name}, which {reason}")
        region.written = True
        begin = address - region.address
        region.data[begin : begin + size] = value.to_bytes(size, "little")

    def _find(self, what: str, address: int, size: int) -> Region:
        if address % size:
            raise MemoryAccessError(f"misaligned {what} of {size} bytes at {address:#x}")
        place = bisect_right(self._starts, address) - 1
        region = self._regions[max(place, 0)] if self._regions else None
        if region is None:
            raise MemoryAccessError(f"{what} of {size} bytes at {address:#x}: there is no memory")
        begin = address - region.address
        if begin < 0 or begin + size > len(region.data):
            raise MemoryAccessError(
                f"out of bounds: {what} of {size} bytes at {region.name}{begin:+} "
                f"({len(region.data)} bytes)"
            )
        return region


class LocalMemory:
    """Bytes that belong to one thread, or a block's parameters; unwritten ones cannot be read."""

    def __init__(self, name: str, size: int, content: bytes | None = None) -> None:
        self._name = name
        self._data = bytearray(size if content is None else content)
        self._set = bytearray(b"\1" * len(self._data) if content is not None else bytes(size))

    def load(self, address: int, size: int) -> int:
        """Reads `size` bytes as one little-endian number."""
        self._check("read", address, size)
        if 0 in self._set[address : address + size]:
            raise MemoryAccessError(f"read of {size} unwritten bytes at {self._name}+{address}")
        return int.from_bytes(self._data[address : address + size], "little")

    def store(self, address: int, size: int, value: int) -> None:
        """Writes `size` bytes."""
        self._check("write", address, size)
        self._data[address : address + size] = value.to_bytes(size, "little")
        self._set[address : address + size] = b"\1" * size

    def forget(self, address: int, size: int) -> None:
        """Makes bytes unwritten again."""
        self._set[address : address + size] = bytes(size)

    def _check(self, what: str, address: int, size: int) -> None:
        if address % size:
            raise MemoryAccessError(f"misaligned {what} of {size} bytes at {self._name}+{address}")
        if address + size > len(self._data):
            raise MemoryAccessError(
                f"out of bounds: {what} of {size} bytes at {self._name}+{address} "
                f"({len(self._data)} bytes)"
            )
