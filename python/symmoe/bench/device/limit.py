"""The time that link and memory of a GPU allow.

With S bytes of partial rows on each of N ranks, a link of B and a memory of W bytes per second:

    t_link = (N - 1) * S / (N * B)          each rank pulls its rows of all others
    t_hbm  = S * (1 + 1 / N) / W            partial rows are read, own rows are written
    t_topk = (K + 1) * S / W                the top-k sum before it, where it is timed too
    t_min  = t_sync + max(t_link, t_hbm) + t_topk

The rates are the makers' figures (NVLink 4 and 5 in one direction; HBM of H100, H200, B200), not
what can be attained; t_sync is measured in the same run: a reduce-scatter of one small row. Ranks
that share a GPU have no link between them and share its memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..problem import Problem


@dataclass(frozen=True)
class GpuRates:
    """What a GPU can move, GB/s.

    Attributes:
        link: NVLink in one direction.
        memory: Its own memory.
    """

    link: float
    memory: float


# By what the name of the device contains; the first that fits.
_KNOWN = {
    "B200": GpuRates(900.0, 8000.0),  # GB200 as well
    "H200": GpuRates(450.0, 4800.0),
    "H100": GpuRates(450.0, 3350.0),
}


def rates_of(name: str) -> GpuRates | None:
    """The rates of a device by its name; None if it is none of those known."""
    return next((rates for part, rates in _KNOWN.items() if part in name), None)


def limit_us(problem: Problem, rates: GpuRates, sync_us: float, sharing: int = 1) -> float:
    """The formula above in microseconds; `sharing` ranks use each GPU."""
    ranks, whole = problem.ranks, problem.nbytes * problem.ranks
    pulled = 0.0 if sharing > 1 else (ranks - 1) * whole / ranks / rates.link
    memory = sharing * whole * (1 + 1 / ranks) / rates.memory
    time = sync_us + max(pulled, memory) / 1e3
    if problem.mode == "combine":
        time += sharing * (problem.topk + 1) * whole / rates.memory / 1e3
    return time
