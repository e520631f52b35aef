"""Inputs whose sums are known without summing: each is a shifted copy of one periodic pattern.

Values are small integers (and half-integers after weighting), so that every partial sum is exact
in bfloat16 too and a result is either right or wrong, with no tolerance.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .problem import Problem
from .routes import route_of

PERIOD = 65521  # a prime: no shard of a power of two begins at the same place of the pattern
_RANK_STEP = 9973
_SLOT_STEP = 4591
_SEED_STEP = 31337

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def _base(limit: int) -> torch.Tensor:
    """One period of integers from -limit to limit, the same in every process."""
    position = torch.arange(PERIOD, dtype=torch.int64)
    mixed = (position * 2654435761 + 12345) % (1 << 32)
    return ((mixed >> 9) % (2 * limit + 1) - limit).to(torch.float32)


def _limit(problem: Problem) -> int:
    return 8 if problem.topk == 1 else 1


def _shifted(problem: Problem, rank: int, slot: int, seed: int) -> torch.Tensor:
    shift = (rank * _RANK_STEP + slot * _SLOT_STEP + seed * _SEED_STEP) % PERIOD
    return _base(_limit(problem)).roll(-shift)


def _tile(target: torch.Tensor, pattern: torch.Tensor) -> None:
    """Repeats the pattern over a contiguous one-dimensional target."""
    pattern = pattern.to(target.dtype)
    whole = target.numel() // PERIOD
    target[: whole * PERIOD].view(whole, PERIOD).copy_(pattern.expand(whole, PERIOD))
    target[whole * PERIOD :].copy_(pattern[: target.numel() - whole * PERIOD])


def fill_rows(rows: torch.Tensor, problem: Problem, rank: int, seed: int) -> None:
    """Writes this rank's partial rows, [rows, hidden]; zeros for which it has no expert."""
    _tile(rows.view(-1), _shifted(problem, rank, 0, seed))
    if problem.experts:
        rows[~has_rows(problem, rank)] = 0


def has_rows(problem: Problem, rank: int) -> torch.Tensor:
    """For which rows a rank has an expert, in a problem with experts: bool, [rows]."""
    return route_of(problem).slots_on(rank).any(1)


def fill_experts(experts: torch.Tensor, problem: Problem, rank: int, seed: int) -> None:
    """Writes this rank's expert output, [rows, topk, hidden]."""
    plane = torch.empty(problem.rows * problem.hidden, dtype=experts.dtype)
    for slot in range(problem.topk):
        _tile(plane, _shifted(problem, rank, slot, seed))
        experts[:, slot].copy_(plane.view(problem.rows, problem.hidden))


def make_pairs(problem: Problem, rank: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What this rank's experts made, [pairs, hidden], and which slot it is for, [rows, topk]."""
    index = route_of(problem).index_on(rank)
    here = index >= 0
    dtype = DTYPES[problem.dtype]
    pairs = torch.empty(int(here.sum()), problem.hidden, dtype=dtype)
    plane = torch.empty(problem.rows * problem.hidden, dtype=dtype)
    for slot in range(problem.topk):
        _tile(plane, _shifted(problem, rank, slot, seed))
        chosen = here[:, slot]
        pairs[index[chosen, slot].long()] = plane.view(problem.rows, problem.hidden)[chosen]
    return pairs, index


def _slot_weight(rank: int, slot: int) -> float:
    return 0.5 if (rank + slot) % 3 == 0 else 1.0


def _row_weights(first: int, rows: int) -> torch.Tensor:
    """1 or 2 per token, so that a row weighted with another row's weights shows."""
    return 1.0 + (torch.arange(first, first + rows) % 5 % 2).to(torch.float32)


def make_weights(problem: Problem, rank: int) -> torch.Tensor:
    """Top-k weights, [rows, topk] fp32. With experts they are the router's, equal on all ranks."""
    rank = 0 if problem.experts else rank
    slots = torch.tensor([_slot_weight(rank, slot) for slot in range(problem.topk)])
    return (_row_weights(0, problem.rows)[:, None] * slots[None, :]).contiguous()


def expected(problem: Problem, rank: int, seed: int, alone: bool) -> torch.Tensor:
    """What the rank's output must be: [tokens, hidden], the sum over all ranks.

    alone: [rows, hidden] instead, what this rank has before anything is exchanged.
    """
    rows, first = (problem.rows, 0) if alone else (problem.tokens, rank * problem.tokens)
    if problem.experts:
        return _expected_of_experts(
            problem, [rank] if alone else range(problem.ranks), first, rows, seed
        )
    pattern = torch.zeros(PERIOD)
    for source in [rank] if alone else range(problem.ranks):
        if problem.mode == "collective":
            pattern += _shifted(problem, source, 0, seed)
        else:
            for slot in range(problem.topk):
                weight = _slot_weight(source, slot)
                pattern += weight * _shifted(problem, source, slot, seed)
    begin = first * problem.hidden % PERIOD
    result = torch.empty(rows * problem.hidden, dtype=DTYPES[problem.dtype])
    _tile(result, pattern.roll(-begin))
    result = result.view(rows, problem.hidden)
    if problem.mode != "collective":
        result *= _row_weights(first, rows)[:, None].to(result.dtype)
    return result


def _expected_of_experts(
    problem: Problem, ranks: Iterable[int], first: int, rows: int, seed: int
) -> torch.Tensor:
    """The sum over these ranks of the rows for which they have experts: [rows, hidden]."""
    total = torch.zeros(rows, problem.hidden, dtype=DTYPES[problem.dtype])
    plane = torch.empty(rows * problem.hidden, dtype=total.dtype)
    weights = make_weights(problem, 0)[first : first + rows].to(total.dtype)
    begin = first * problem.hidden % PERIOD
    for source in ranks:
        here = route_of(problem).slots_on(source)[first : first + rows]
        if problem.mode == "collective":
            terms = [(0, here.any(1).to(total.dtype))]
        else:
            terms = [(slot, here[:, slot] * weights[:, slot]) for slot in range(problem.topk)]
        for slot, factor in terms:
            _tile(plane, _shifted(problem, source, slot, seed).roll(-begin))
            total += factor[:, None] * plane.view(rows, problem.hidden)
    return total


def count_wrong(result: torch.Tensor, wanted: torch.Tensor) -> int:
    """Elements that differ."""
    return int((result != wanted).sum())
