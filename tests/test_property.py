"""Any shape, sizes, dtype and alignment: the reference's bits, and close to exact arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import symmoe
from ranks import Ranks
from reference import DTYPES, assert_same_bits, own_rows, rank_sum, topk_sum
from shares import Shares, paddings, sizes_of

pytestmark = [pytest.mark.multi, pytest.mark.timeout(300)]
BOUNDED = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@dataclass
class Case(Shares):
    """One collective.

    Attributes:
        shift: Elements by which tensors are off the start of their memory.
        staged: Ranks whose rows are not in a window.
        exponent: Scale of the values, a power of two.
        slots: Experts per token in a combine; 0: a plain reduce.
        holes: Whether slots are spread over ranks by an index.
        seed: Of the values.
    """

    shift: int
    staged: list[bool]
    exponent: int
    slots: int
    holes: bool
    seed: int


@st.composite
def cases(draw: st.DrawFn, world: int) -> Case:
    return Case(
        dtype=draw(st.sampled_from(DTYPES)),
        sizes=draw(sizes_of(world)),
        padding=draw(paddings()),
        hidden=draw(st.one_of(st.integers(1, 70), st.sampled_from([128, 1000, 2048]))),
        shift=draw(st.integers(0, 20)),
        staged=draw(st.lists(st.booleans(), min_size=world, max_size=world)),
        exponent=draw(st.integers(-20, 10)),
        slots=draw(st.sampled_from([0, 0, 1, 2, 5])),
        holes=draw(st.booleans()),
        seed=draw(st.integers(0, 1 << 20)),
    )


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, list[Case]]:
    world = draw(st.sampled_from([1, 2, 3, 4]))
    return world, draw(st.lists(cases(world), min_size=1, max_size=8))


def shifted(tensor: torch.Tensor, shift: int) -> torch.Tensor:
    """The same values, contiguous, `shift` elements off the start of their memory."""
    memory = torch.empty(tensor.numel() + shift, dtype=tensor.dtype)
    return memory[shift:].view(tensor.shape).copy_(tensor)


def values(case: Case, rank: int, shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(case.seed * 8 + rank)
    return (torch.randn(shape, generator=generator) * 2.0**case.exponent).to(case.dtype)


def terms(case: Case, rank: int) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Expert output, weights and index of a rank's combine."""
    generator = torch.Generator().manual_seed(case.seed * 8 + rank + 4)
    shape = (case.rows, case.slots)
    weights = torch.rand(shape, generator=generator) if case.seed % 3 else None
    if not case.holes:
        return values(case, rank, (*shape, case.hidden)), weights, None
    here = torch.rand(shape, generator=generator) < 0.5
    pairs = int(here.sum())
    index = torch.full(shape, -1, dtype=torch.int32)
    index[here] = torch.randperm(pairs, generator=generator).to(torch.int32)
    return values(case, rank, (pairs, case.hidden)), weights, index


def exact_terms(case: Case, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's combine before any rank is added, in float64: sum and sum of magnitudes."""
    expert_out, weights, index = terms(case, rank)
    wide = expert_out.double()
    if index is not None:
        wide = torch.cat([wide, torch.zeros(1, case.hidden, dtype=torch.float64)])[index.long()]
    if weights is not None:
        wide = wide * weights.double()[:, :, None]
    return wide.sum(1), wide.abs().sum(1)


def assert_close_to_exact(
    case: Case, found: torch.Tensor, parts: list[tuple[torch.Tensor, torch.Tensor]]
) -> None:
    """Each addition and each rounding errs by at most half a unit in the last place.

    `parts`: exact sum and sum of magnitudes of each rank.
    """
    limits = torch.finfo(case.dtype)
    tiny = limits.smallest_normal * limits.eps
    exact, magnitude = (torch.stack(each).sum(0) for each in zip(*parts, strict=True))
    wide = len(parts) + 2 * case.slots  # roundings to float32 on the way
    error = wide * torch.finfo(torch.float32).eps * magnitude + wide * 1e-38 * 2**-20
    if case.slots:  # each rank's sum is rounded to the window's type
        error = error + limits.eps / 2 * (magnitude + error) + len(parts) * tiny
    error = error + limits.eps / 2 * (exact.abs() + error) + tiny
    assert bool(((found.double() - exact).abs() <= error).all())


def run_cases(rank: int, world: int, chosen: list[Case], config: symmoe.Config) -> None:
    with symmoe.init(config=config) as group:
        for number, case in enumerate(chosen):
            lane = number % 3
            where = own_rows(case.sizes, rank, case.stride)
            out = torch.full((case.sizes[rank] + 1, case.hidden), 7, dtype=case.dtype)
            out = shifted(out, case.shift)
            more: dict[str, Any] = {"sizes": case.sizes, "padded_to": case.stride, "lane": lane}
            more["deterministic"] = True
            if case.slots:
                parts = [topk_sum(*terms(case, r))[where] for r in range(world)]
                expert_out, weights, index = terms(case, rank)
                expert_out = shifted(expert_out, case.shift)
                group.combine(expert_out, weights, index=index, out=out, **more)
                exact = [exact_terms(case, r) for r in range(world)]
            else:
                shape = (case.rows, case.hidden)
                parts = [values(case, r, shape)[where] for r in range(world)]
                source = shifted(values(case, rank, shape), case.shift)
                if not case.staged[rank]:
                    window = group.acquire("combine", shape, case.dtype, lane=lane)
                    source = source if window is None else window.copy_(source)
                group.reduce_scatter(source, out, **more)
                whole = [values(case, r, shape).double() for r in range(world)]
                exact = [(part, part.abs()) for part in whole]
            assert_same_bits(out[:-1], rank_sum(parts))
            mine = [(part[where], size[where]) for part, size in exact]
            assert_close_to_exact(case, out[:-1], mine)
            assert bool((out[-1] == 7).all())


@BOUNDED
@given(run=runs())
def test_windows(ranks: Ranks, run: tuple[int, list[Case]]) -> None:
    ranks.run(run[0], run_cases, run[1], symmoe.Config())


@settings(BOUNDED, max_examples=10)
@given(run=runs())
def test_process_group(ranks: Ranks, run: tuple[int, list[Case]]) -> None:
    ranks.run(run[0], run_cases, run[1], symmoe.Config(windows=False))


@settings(BOUNDED, max_examples=10)
@given(run=runs())
def test_small_cap(ranks: Ranks, run: tuple[int, list[Case]]) -> None:
    ranks.run(run[0], run_cases, run[1], symmoe.Config(max_buffer_bytes=5000))
