"""The time that the memory of this machine allows, and how close a measured time comes to it.

A reduce-scatter with N ranks on C processors, k = ceil(N / C) of them sharing one, and S bytes of
output per rank cannot be faster than

    T = t_bar + o * k * ((N - k) * S / B_cross + k * S / B_local + S / B_write)

because each rank must read N - k shards that are dirty in another processor's cache, k that were
written on its own processor, and write one. The rates are measured in the same run, for the very
same footprint, on all processors at once (calibration.py). They are measured one by one; o <= 1
is how much less time the three take together, which some processors overlap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# A measured time under the limit by more than this means that the calibration was disturbed.
BAD_CALIBRATION = 1.05


@dataclass(frozen=True)
class Rates:
    """What the machine can do at one footprint.

    Attributes:
        barrier_us: One barrier of all ranks, microseconds.
        cross: Reading lines dirty in another processor's cache, GB/s for each processor.
        local: Reading lines written by the same processor, GB/s.
        write: Writing the output, GB/s.
        overlap: Time of reading and writing all of it at once, as a share of the sum of the
            three times one by one; at most 1.
        stream: Reading and writing in the mix of the top-k sum, GB/s; 0 where there is none.
    """

    barrier_us: float
    cross: float
    local: float
    write: float
    overlap: float = 1.0
    stream: float = 0.0


def ranks_per_core(ranks: int, cores: int) -> int:
    """Ranks that the busiest processor has."""
    return math.ceil(ranks / cores)


def limit_us(nbytes: int, ranks: int, cores: int, rates: Rates, share: float = 1.0) -> float:
    """The formula above, microseconds, for nbytes of output per rank.

    share: the part of the shards that has to be read, where a routing says which.
    """
    shared = ranks_per_core(ranks, cores)
    cross = (ranks - shared) * share * nbytes / rates.cross if ranks > shared else 0.0
    each = cross + shared * share * nbytes / rates.local + nbytes / rates.write
    return rates.barrier_us + rates.overlap * shared * each / 1e3


def stream_us(moved: int, ranks: int, cores: int, rates: Rates) -> float:
    """Time of a plain stream that moves (reads plus writes) that many bytes per rank."""
    return ranks_per_core(ranks, cores) * moved / rates.stream / 1e3
