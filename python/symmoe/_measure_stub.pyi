"""Types of symmoe._core.measure (csrc/bindings/measure.cpp).

Addresses are ints, sizes bytes, times ns.

The time_* functions wait at the start line first, so that all ranks do the same at once.
"""

from collections.abc import Sequence
from typing import Final, final

LINE_BYTES: Final[int]

@final
class StartLine:
    """A barrier between processes that releases all of them together."""

    def __init__(self, path: str, ranks: int, rank: int, deadline_ns: int) -> None:
        """The file must be zero-filled and have bytes_for(ranks) bytes."""
    @staticmethod
    def bytes_for(ranks: int) -> int: ...
    def start(self) -> int:
        """Waits for all ranks; the time at which this one was let go."""

def now_ns() -> int: ...
def rewrite(address: int, nbytes: int) -> None:
    """Makes every cache line dirty here, values kept."""

def time_read(line: StartLine, segments: Sequence[tuple[int, int]]) -> int:
    """Reads (address, size) segments in order. Whole cache lines only, as below."""

def time_write(line: StartLine, address: int, nbytes: int, nontemporal: bool) -> int: ...
def time_stream(
    line: StartLine, source: int, target: int, target_bytes: int, mix: int, nontemporal: bool
) -> int:
    """Writes one line for each `mix` lines read."""

def time_gather(
    line: StartLine,
    targets: Sequence[tuple[Sequence[int], int]],
    nbytes: int,
    nontemporal: bool,
) -> int:
    """For each (sources, target): target = xor of the sources, nbytes each."""

def time_barrier(line: StartLine, rounds: int) -> float:
    """Mean of one round of the barrier itself."""
