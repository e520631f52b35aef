"""Shared memory that knows who touched each byte since the last barrier."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ptx.errors import RaceError
from ptx.memory import LocalMemory


@dataclass(frozen=True)
class Moment:
    """Who touched a byte, and how many barriers of the block and of the warp had passed then."""

    thread: int
    warp: int
    block_phase: int
    warp_phase: int

    def ordered_before(self, other: Moment) -> bool:
        """Whether a barrier lies in between, or both are the same thread."""
        if self.thread == other.thread or self.block_phase != other.block_phase:
            return True
        return self.warp == other.warp and self.warp_phase != other.warp_phase


@dataclass
class _Byte:
    writer: Moment | None = None
    writer_is_atomic: bool = False
    readers: dict[int, Moment] = field(default_factory=dict)


class SharedMemory:
    """One block's shared memory: bounds, unwritten bytes and races are faults."""

    def __init__(self, size: int) -> None:
        self._memory = LocalMemory("shared", size)
        self._bytes: defaultdict[int, _Byte] = defaultdict(_Byte)

    def load(self, address: int, size: int, moment: Moment, atomic: bool = False) -> int:
        """Reads `size` bytes as one little-endian number."""
        value = self._memory.load(address, size)
        for place, byte in self._touched(address, size):
            both_atomic = atomic and byte.writer_is_atomic
            self._order("read", place, () if both_atomic else (byte.writer,), moment)
            byte.readers[moment.thread] = moment
        return value

    def store(
        self, address: int, size: int, value: int, moment: Moment, atomic: bool = False
    ) -> None:
        """Writes `size` bytes."""
        self._memory.store(address, size, value)
        for place, byte in self._touched(address, size):
            if not (atomic and byte.writer_is_atomic):
                self._order("write", place, (byte.writer, *byte.readers.values()), moment)
            byte.writer, byte.writer_is_atomic = moment, atomic
            byte.readers.clear()

    def forget(self, address: int, size: int) -> None:
        """Makes bytes unwritten that were stored a moment ago."""
        self._memory.forget(address, size)

    def _touched(self, address: int, size: int) -> Iterable[tuple[int, _Byte]]:
        return ((place, self._bytes[place]) for place in range(address, address + size))

    def _order(
        self, what: str, place: int, earlier: Iterable[Moment | None], moment: Moment
    ) -> None:
        for other in earlier:
            if other is not None and not other.ordered_before(moment):
                raise RaceError(
                    f"{what} of shared+{place} by thread {moment.thread}: thread {other.thread} "
                    "touched it since the last barrier"
                )
