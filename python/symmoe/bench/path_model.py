"""What a combine on GPUs would take by each path: a model, fitted to what others have published.

With S bytes of partial rows on each of N ranks, a link of B and a memory of W bytes per second:

    direct   t_start + max((N - 1) S / (N B), S (1 + 1/N) / W)
    staged   the same, a copy of S before it and one of S / N behind it: max(t_copy, 2 bytes / W)
    pull     as direct: own kernels have the same barriers and read the same bytes. No own kernel
             was timed on a GPU: that they attain the same link rate is an assumption
    routed   as pull, with the rows that matter only: the share p = 1 - (1 - 1/N)^k of them if a
             token's k experts are spread evenly; and t_launch for the kernel that makes the masks
    fused    the top-k sum and pull in one kernel, at half of the memory's rate, as it has to make
             do with the blocks that may wait for peers; without t_launch for a second kernel

The top-k sum in front of the others takes t_launch + S (k / N + 1) / W: under expert parallelism a
rank holds k / N of a token's rows on average. In front of routed it writes p S only.

B and t_start are fitted, W is the maker's figure (`device.limit`), t_launch is an assumption. A
path that nobody has published stays a guess. Groups of GPUs choose their paths by the same
formulas, and by the constants of H100 and B200 (csrc/collectives/device/cost_model.h).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .. import _core
from .device.limit import GpuRates, rates_of
from .published import PUBLISHED, Published

# Assumptions of the core's own model, by which groups choose paths.
_CORE = _core.device_costs(0)
LAUNCH_US = _CORE["launch_us"]
FUSED_MEMORY_SHARE = _CORE["fused_memory_share"]

PATHS = ("staged", "direct", "pull", "fused", "routed")


@dataclass(frozen=True)
class Link:
    """What was fitted of one machine.

    Attributes:
        start_us: Of a collective without bytes.
        rate: Bytes per microsecond that a rank reads from its peers.
        floor_us: What a call takes at least, where the host is slower than the device.
        copy_us: What a copy takes at least.
    """

    start_us: float
    rate: float
    floor_us: float = 0.0
    copy_us: float = LAUNCH_US


@dataclass(frozen=True)
class Work:
    """One combine.

    Attributes:
        ranks: How many take part.
        nbytes: Of one rank's partial rows, for the tokens of all ranks.
        topk: Experts per token.
        with_sum: Whether the top-k sum is part of it.
    """

    ranks: int
    nbytes: int
    topk: int = 8
    with_sum: bool = False


def pulled_bytes(ranks: int, nbytes: int) -> float:
    """What a rank reads from its peers in a dense reduce-scatter."""
    return nbytes * (ranks - 1) / ranks


def present_share(ranks: int, topk: int) -> float:
    """The share of its rows that a rank holds something of, if experts are spread evenly."""
    return 1.0 - (1.0 - 1.0 / ranks) ** topk


def _memory(rates: GpuRates) -> float:
    return rates.memory * 1e3  # bytes per microsecond


def _transfer_us(work: Work, link: Link, rates: GpuRates, share: float) -> float:
    own = work.nbytes / work.ranks
    pulled = pulled_bytes(work.ranks, work.nbytes) * share / link.rate
    return max(pulled, (work.nbytes * share + own) / _memory(rates))


def _sum_bytes(work: Work, share: float) -> float:
    return work.nbytes * (work.topk / work.ranks + share)


def predict_us(path: str, work: Work, link: Link, rates: GpuRates) -> float | None:
    """The formulas above, in microseconds.

    Args:
        path: One of PATHS.
        work: What is combined.
        link: What was fitted of the machine.
        rates: What its maker says.

    Returns:
        None where there is no such path: fused without a sum to fuse.
    """
    by_mask = path == "routed"
    share = present_share(work.ranks, work.topk) if by_mask else 1.0
    collective = link.start_us + _transfer_us(work, link, rates, share)
    if path == "fused":
        if not work.with_sum:
            return None
        return collective + _sum_bytes(work, share) / (_memory(rates) * FUSED_MEMORY_SHARE)
    time = max(link.floor_us, collective)
    if path == "staged":
        for nbytes in (work.nbytes, work.nbytes / work.ranks):
            time += max(link.copy_us, 2 * nbytes / _memory(rates))
    if by_mask:
        time += LAUNCH_US
    if work.with_sum:
        time += LAUNCH_US + _sum_bytes(work, share) / _memory(rates)
    return time


# ---- the fit ------------------------------------------------------------------------------------


def fit_line(points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """The line time = start + pulled / rate with the least squares of relative errors.

    Args:
        points: (bytes pulled, microseconds), at least two with different bytes.

    Returns:
        start in microseconds, rate in bytes per microsecond.
    """
    weighted = [(1.0 / time, pulled / time) for pulled, time in points]
    ones = sum(a * a for a, _ in weighted)
    mixed = sum(a * b for a, b in weighted)
    squares = sum(b * b for _, b in weighted)
    sums, products = sum(a for a, _ in weighted), sum(b for _, b in weighted)
    determinant = ones * squares - mixed * mixed
    start = (sums * squares - products * mixed) / determinant
    slope = (ones * products - mixed * sums) / determinant
    return start, 1.0 / slope


def _direct(rows: Sequence[Published], machine: str) -> list[Published]:
    return [row for row in rows if (row.machine, row.path) == (machine, "direct")]


def _line_of(rows: Sequence[Published], machine: str) -> Link:
    points = [(pulled_bytes(r.ranks, r.nbytes), r.time_us) for r in _direct(rows, machine)]
    return Link(*fit_line(points))


def _engine_link(rows: Sequence[Published], start_us: float) -> Link:
    """GB200 in an engine: a floor, a line that starts where B200's does, and copies.

    The line is seen in the rows that are well above the floor; what the smallest have in common is
    the floor. Copies are seen where staged and direct differ.
    """
    direct = {row.nbytes: row for row in _direct(rows, "GB200")}
    lowest = min(row.time_us for row in direct.values())
    above = [row for row in direct.values() if row.time_us > 1.1 * lowest]
    slopes = [pulled_bytes(row.ranks, row.nbytes) / (row.time_us - start_us) for row in above]
    floor = statistics.mean(row.time_us for row in direct.values() if row not in above)
    extra = [
        row.time_us - direct[row.nbytes].time_us
        for row in rows
        if (row.machine, row.path) == ("GB200", "staged") and row.nbytes in direct
    ]
    return Link(start_us, statistics.mean(slopes), floor, statistics.median(extra) / 2)


def fit(rows: Sequence[Published] = PUBLISHED) -> dict[str, Link]:
    """Constants for each machine of the published rows."""
    links = {machine: _line_of(rows, machine) for machine in ("H100", "B200")}
    links["GB200"] = _engine_link(rows, links["B200"].start_us)
    # Nobody has published copies of the others.
    for machine in ("H100", "B200"):
        line = links[machine]
        links[machine] = Link(line.start_us, line.rate, 0.0, links["GB200"].copy_us)
    return links


def predict_published(row: Published, links: dict[str, Link]) -> float:
    """What the model says of a published direct or staged row, in microseconds."""
    rates = rates_of(row.machine)
    assert rates is not None
    time = predict_us(row.path, Work(row.ranks, row.nbytes), links[row.machine], rates)
    assert time is not None
    return time


def errors(rows: Sequence[Published] = PUBLISHED, left_out: bool = False) -> list[float]:
    """Relative errors of the model against the published direct and staged rows.

    Args:
        rows: All published rows.
        left_out: Each row by constants that were fitted without it.
    """
    links = fit(rows)
    compared = [row for row in rows if row.path in ("direct", "staged")]
    found = []
    for row in compared:
        used = fit([other for other in rows if other is not row]) if left_out else links
        found.append(predict_published(row, used) / row.time_us - 1.0)
    return found


# What predictions for a machine are made with: H200 has H100's links.
LINK_OF = {"H100": "H100", "H200": "H100", "B200": "B200"}
