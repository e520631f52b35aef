"""Inputs whose sums are known without summing: each is a shifted copy of one periodic pattern.

Values are small integers (and half-integers after weighting), so that every partial sum is exact
in bfloat16 too and a result is either right or wrong, with no tolerance.
"""

from __future__ import annotations

import torch

from .problem import Problem

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
    """Writes this rank's partial rows, [rows, hidden]."""
    _tile(rows.view(-1), _shifted(problem, rank, 0, seed))


def fill_experts(experts: torch.Tensor, problem: Problem, rank: int, seed: int) -> None:
    """Writes this rank's expert output, [rows, topk, hidden]."""
    plane = torch.empty(problem.rows * problem.hidden, dtype=experts.dtype)
    for slot in range(problem.topk):
        _tile(plane, _shifted(problem, rank, slot, seed))
        experts[:, slot].copy_(plane.view(problem.rows, problem.hidden))


def _slot_weight(rank: int, slot: int) -> float:
    return 0.5 if (rank + slot) % 3 == 0 else 1.0


def _row_weights(first: int, rows: int) -> torch.Tensor:
    """1 or 2 per token, so that a row weighted with another row's weights shows."""
    return 1.0 + (torch.arange(first, first + rows) % 5 % 2).to(torch.float32)


def make_weights(problem: Problem, rank: int) -> torch.Tensor:
    """Top-k weights, [rows, topk] fp32."""
    slots = torch.tensor([_slot_weight(rank, slot) for slot in range(problem.topk)])
    return (_row_weights(0, problem.rows)[:, None] * slots[None, :]).contiguous()


def expected(problem: Problem, rank: int, seed: int, alone: bool) -> torch.Tensor:
    """What the rank's output must be: [tokens, hidden], the sum over all ranks.

    alone: [rows, hidden] instead, what this rank has before anything is exchanged.
    """
    pattern = torch.zeros(PERIOD)
    for source in [rank] if alone else range(problem.ranks):
        if problem.mode == "collective":
            pattern += _shifted(problem, source, 0, seed)
        else:
            for slot in range(problem.topk):
                weight = _slot_weight(source, slot)
                pattern += weight * _shifted(problem, source, slot, seed)
    rows, first = (problem.rows, 0) if alone else (problem.tokens, rank * problem.tokens)
    begin = first * problem.hidden % PERIOD
    result = torch.empty(rows * problem.hidden, dtype=DTYPES[problem.dtype])
    _tile(result, pattern.roll(-begin))
    result = result.view(rows, problem.hidden)
    if problem.mode != "collective":
        result *= _row_weights(first, rows)[:, None].to(result.dtype)
    return result


def count_wrong(result: torch.Tensor, wanted: torch.Tensor) -> int:
    """Elements that differ."""
    return int((result != wanted).sum())
