"""One turn of a backend at one problem, in a worker: allocate, fill, time, check, release."""

from __future__ import annotations

import gc
import math
from typing import Any

import torch

from symmoe._core import measure

from .backend import Backend, rewrite
from .pattern import (
    DTYPES,
    count_wrong,
    expected,
    fill_experts,
    fill_rows,
    has_rows,
    make_pairs,
    make_weights,
)
from .problem import Problem

_WARMUPS = 2


class TimedRunner:
    """Times a backend."""

    def __init__(self, backend: Backend, line: measure.StartLine) -> None:
        self._backend = backend
        self._line = line

    def turn(self, problem: Problem, iterations: int, seed: int) -> dict[str, Any]:
        """Runs the calls and answers with their times.

        Returns:
            "starts" and "ends" (ns, CLOCK_MONOTONIC), "moved" (bytes in a call), "wrong" (elements
            of the last output that are not what they must be) and "loop_ns" (all of the loop,
            untimed parts included); or "unsupported" with the reason.
        """
        backend = self._backend
        if reason := backend.unsupported(problem):
            return {"unsupported": reason}
        backend.allocate(problem)
        try:
            if problem.mode == "collective":
                rows = backend.partial()
                fill_rows(rows, problem, backend.place.rank, seed)
                if backend.routes:  # must not be read
                    rows[~has_rows(problem, backend.place.rank)] = math.nan
                result = self._loop(iterations, backend.prepare, backend.call)
            else:
                result = self._combine(problem, iterations, seed)
            wanted = expected(problem, backend.place.rank, seed, not backend.exchanges)
            result["moved"] = backend.moved(problem)
            result["wrong"] = count_wrong(backend.output(), wanted)
        finally:
            backend.release()
        return result

    def _combine(self, problem: Problem, iterations: int, seed: int) -> dict[str, Any]:
        backend = self._backend
        if problem.experts:
            pairs, index = make_pairs(problem, backend.place.rank, seed)
            if backend.routes:  # what a call before has left there must not be read
                backend.partial().fill_(math.nan)
            weights = make_weights(problem, backend.place.rank)
            return self._loop(
                iterations,
                lambda: rewrite(pairs),
                lambda: backend.combine(pairs, weights, index),
            )
        experts = torch.zeros(
            problem.rows, problem.topk, problem.hidden, dtype=DTYPES[problem.dtype]
        )
        fill_experts(experts, problem, backend.place.rank, seed)
        weights = make_weights(problem, backend.place.rank)
        return self._loop(
            iterations,
            lambda: rewrite(experts),
            lambda: backend.combine(experts, weights),
        )

    def _loop(self, iterations: int, prepare: Any, call: Any) -> dict[str, Any]:
        for _ in range(_WARMUPS):
            prepare()
            self._line.start()
            call()
        start, now = self._line.start, measure.now_ns
        starts, ends = [0] * iterations, [0] * iterations
        gc.disable()
        begin = now()
        for iteration in range(iterations):
            if iteration == iterations - 1:
                # Whatever an earlier call left here must not count as this call's result.
                self._backend.output().fill_(math.nan)
            prepare()
            starts[iteration] = start()
            call()
            ends[iteration] = now()
        loop_ns = now() - begin
        gc.enable()
        # No rank checks and releases while another one still reads its memory.
        self._line.start()
        return {"starts": starts, "ends": ends, "loop_ns": loop_ns}

    def close(self) -> None:
        """Ends the backend."""
        self._backend.close()
