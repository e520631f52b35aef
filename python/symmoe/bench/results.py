"""From measured times to the rows of the result."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from .errors import BenchError
from .limit import BAD_CALIBRATION, Rates, limit_us, ranks_per_core, stream_us
from .problem import Problem
from .routes import Traffic, dense_traffic

Row = dict[str, Any]


@dataclass
class Samples:
    """What all turns of one path at one problem gave.

    Attributes:
        spans_us: Per timed call, from the first rank's start to the last rank's end.
        wrong: Elements that were wrong, all ranks and turns.
        moved: Bytes of rows that a call moves, all ranks together; None if it was not counted.
        unsupported: Why the path cannot do the problem, or "".
    """

    spans_us: list[float] = field(default_factory=list)
    wrong: int = 0
    moved: int | None = None
    unsupported: str = ""

    def add(self, answers: list[dict[str, Any]]) -> None:
        """Takes the answers of one turn, by rank.

        Raises:
            BenchError: Only some ranks can do the problem.
        """
        reasons = {str(answer.get("unsupported", "")) for answer in answers}
        if len(reasons) > 1:
            raise BenchError(f"ranks do not agree on what they support: {sorted(reasons)}")
        self.unsupported = reasons.pop()
        if self.unsupported:
            return
        self.wrong += sum(int(answer["wrong"]) for answer in answers)
        if all("moved" in answer for answer in answers):
            self.moved = sum(int(answer["moved"]) for answer in answers)
        for index in range(len(answers[0]["starts"])):
            start = min(answer["starts"][index] for answer in answers)
            end = max(answer["ends"][index] for answer in answers)
            self.spans_us.append((end - start) / 1e3)


@dataclass
class Calibration:
    """What all turns of the limit's workers at one problem gave: times in ns, by step."""

    times: dict[str, list[float]] = field(default_factory=dict)

    def add(self, answers: list[dict[str, Any]]) -> None:
        """Takes the answers of one turn: a step is over when its slowest rank is."""
        for step in sorted({step for answer in answers for step in answer} - {"loop_ns"}):
            lists = [answer[step] for answer in answers if step in answer]
            merged = [max(values) for values in zip(*lists, strict=True)]
            self.times.setdefault(step, []).extend(merged)

    def _median(self, *steps: str) -> float:
        """The fastest of these steps, by median."""
        return min(statistics.median(self.times[step]) for step in steps)

    def rates(self, problem: Problem, cores: int) -> Rates:
        """What the times mean for this problem."""
        cores = min(cores, problem.ranks)
        shared, shard = ranks_per_core(problem.ranks, cores), problem.nbytes
        barrier = cross = local = write = stream = 0.0
        overlap = 1.0
        if problem.mode != "topk":
            barrier = self._median("barrier") / 1e3
            foreign = shared * (problem.ranks - shared) * shard
            cross_ns = self._median("cross") if foreign else 0.0
            local_ns = self._median("local")
            write_ns = self._median("write", "write_nt")
            cross = foreign / cross_ns if foreign else 0.0
            local = shared * shared * shard / local_ns
            write = shared * shard / write_ns
            together = self._median("all", "all_nt")
            overlap = min(1.0, together / (cross_ns + local_ns + write_ns))
        if problem.mode != "collective":
            stream = self.times["stream_bytes"][0] / self._median("stream", "stream_nt")
        return Rates(barrier, cross, local, write, overlap, stream)


def summed_bytes(problem: Problem, traffic: Traffic) -> int:
    """What a rank's top-k sum reads and writes, on average."""
    rows = traffic.expert + traffic.written
    return rows * problem.hidden * problem.element_bytes // problem.ranks


def limit_of(problem: Problem, rates: Rates, cores: int, traffic: Traffic | None = None) -> float:
    """The physical limit, microseconds; `traffic`: of what is moved, if not all rows are."""
    dense = dense_traffic(problem)
    traffic = traffic or dense
    limit = 0.0
    if problem.mode != "topk":
        share = traffic.read / dense.read
        limit += limit_us(problem.nbytes, problem.ranks, cores, rates, share)
    if problem.mode != "collective":
        limit += stream_us(summed_bytes(problem, traffic), problem.ranks, cores, rates)
    return limit


def make_row(
    problem: Problem,
    path: str,
    samples: Samples,
    limit: float,
    plain_limit: float,
    dense_limit: float | None = None,
) -> Row:
    """One row of the result: a path at a problem.

    "bytes_moved": rows that all ranks read and write in a call, copies that a path makes besides
    not counted; "dense_bytes": the same of a path that knows nothing of the routing, whose limit is
    "dense_limit_us".

    Bandwidths are those of nccl-tests: "algbw" is a rank's whole partial buffer over the time,
    "busbw" (N-1)/N of it. In mode topk, where nothing is exchanged, both are what a process reads
    and writes over the time. "limit_plain_us" is the limit without its factor o.
    """
    spans = sorted(samples.spans_us)
    time_us = statistics.median(spans)
    dense = dense_traffic(problem)
    if problem.mode == "topk":
        algbw = busbw = summed_bytes(problem, dense) / time_us / 1e3
    else:
        algbw = problem.nbytes * problem.ranks / time_us / 1e3
        busbw = algbw * (problem.ranks - 1) / problem.ranks
    # The top-k sum alone exchanges nothing, so the exchange's limit says nothing about it.
    comparable = path != "topk" or problem.mode == "topk"
    ratio = limit / time_us if comparable else None
    dense_bytes = dense.rows * problem.hidden * problem.element_bytes
    return {
        "mode": problem.mode,
        "path": path,
        "ranks": problem.ranks,
        "dtype": problem.dtype,
        "bytes": problem.nbytes,
        "time_us": time_us,
        "algbw_GBps": algbw,
        "busbw_GBps": busbw,
        "wrong": samples.wrong,
        "limit_us": limit if comparable else None,
        "limit_ratio": ratio,
        "limit_plain_us": plain_limit if comparable else None,
        "bad_calibration": ratio is not None and ratio > BAD_CALIBRATION,
        "ratio_to_stream": ratio if problem.mode == "topk" else None,
        "count": problem.count,
        "shape": problem.shape,
        "tokens": problem.tokens,
        "hidden": problem.hidden,
        "topk": problem.topk,
        "experts": problem.experts,
        "bytes_moved": dense_bytes if samples.moved is None else samples.moved,
        "dense_bytes": dense_bytes,
        "dense_limit_us": dense_limit,
        "calls": len(spans),
        "min_us": spans[0],
        "p90_us": spans[int(0.9 * (len(spans) - 1))],
        "times_faster": {},
    }


def compare(rows: list[Row]) -> None:
    """Fills "times_faster": for each other path of the same problem, its time over this one's."""
    for row in rows:
        row["times_faster"] = {
            other["path"]: other["time_us"] / row["time_us"] for other in rows if other is not row
        }
