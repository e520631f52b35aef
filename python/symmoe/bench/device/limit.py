"""The time that link and memory of a GPU allow.

With S bytes of partial rows on each of N ranks, a link of B and a memory of W bytes per second:

    t_link = p (N - 1) * S / (N * B)        each rank pulls its rows of all others
    t_hbm  = S * (p + 1 / N) / W            partial rows are read, own rows are written
    t_topk = (K + p) * S / W                the top-k sum before it, where it is timed too
    t_min  = t_sync + max(t_link, t_hbm) + t_topk

p is 1, or with a routing the share of the rows that ranks have an expert for. Where experts are
spread over the ranks, the sum reads K / N rows per token instead of K.

The rates are the makers' figures (NVLink 4 and 5 in one direction; HBM of H100, H200, B200), not
what can be attained; t_sync is measured in the same run: a reduce-scatter of one small row. Ranks
that share a GPU have no link between them and share its memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..problem import Problem
from ..results import summed_bytes
from ..routes import Traffic, dense_traffic


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


def limit_us(
    problem: Problem,
    rates: GpuRates,
    sync_us: float,
    sharing: int = 1,
    traffic: Traffic | None = None,
) -> float:
    """The formula above in microseconds.

    Args:
        problem: What is timed.
        rates: Of each GPU.
        sync_us: Of a small reduce-scatter.
        sharing: Ranks that use each GPU.
        traffic: What is moved, if not all rows are.
    """
    dense = dense_traffic(problem)
    traffic = traffic or dense
    ranks, whole, share = problem.ranks, problem.nbytes * problem.ranks, traffic.read / dense.read
    pulled = 0.0 if sharing > 1 else share * (ranks - 1) * whole / ranks / rates.link
    memory = sharing * whole * (share + 1 / ranks) / rates.memory
    time = sync_us + max(pulled, memory) / 1e3
    if problem.mode == "combine":
        time += sharing * summed_bytes(problem, traffic) / rates.memory / 1e3
    return time
