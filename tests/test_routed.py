"""Routed calls: any routing, sizes, dtype and placement of experts, and the dense result.

Whatever must not be read is NaN: window rows before each call, slots of other ranks' experts, rows
that this rank's expert kernel does not write.
"""

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
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
FORMS = ("slots", "index", "summed", "window", "memory")


@dataclass
class Case(Shares):
    """One routed call.

    Attributes:
        slots: Experts per token.
        experts: Rank of each physical expert, -1 for nobody.
        copies: Physical experts per logical one; tokens take turns at them.
        integer: Type of the ids.
        form: "slots", "index" or "summed" expert output for combine; "window" or "memory" for
            reduce_scatter.
        weights: Whether there are weights, and who gives them: "", "argument" or "routing".
        scale: Factor, or None.
        seed: Of ids and values.
    """

    slots: int
    experts: list[int]
    copies: int
    integer: torch.dtype
    form: str
    weights: str
    scale: float | None
    seed: int


@st.composite
def cases(draw: st.DrawFn, world: int) -> Case:
    ranks = st.integers(-1, world - 1)
    return Case(
        dtype=draw(st.sampled_from(DTYPES)),
        sizes=draw(sizes_of(world)),
        padding=draw(paddings()),
        hidden=draw(st.one_of(st.integers(1, 70), st.sampled_from([128, 1000, 2048]))),
        slots=draw(st.sampled_from([1, 1, 2, 3, 8])),
        experts=draw(st.lists(ranks, min_size=1, max_size=3 * world)),
        copies=draw(st.integers(1, 3)),
        integer=draw(st.sampled_from([torch.int32, torch.int64])),
        form=draw(st.sampled_from(FORMS)),
        weights=draw(st.sampled_from(["", "argument", "routing"])),
        scale=draw(st.sampled_from([None, None, 2.5])),
        seed=draw(st.integers(0, 1 << 20)),
    )


@st.composite
def runs(draw: st.DrawFn, worlds: list[int]) -> tuple[int, list[Case]]:
    world = draw(st.sampled_from(worlds))
    return world, draw(st.lists(cases(world), min_size=1, max_size=8))


def make_ids(case: Case) -> torch.Tensor:
    """[rows, slots]: physical experts, and now and then none (below, beyond, far beyond)."""
    generator = torch.Generator().manual_seed(case.seed)
    experts = len(case.experts)
    logical = max(1, experts // case.copies)
    chosen = torch.randint(0, logical, (case.rows, case.slots), generator=generator)
    # Row r takes copy r of an expert: two tokens of one logical expert go to different places.
    copy = torch.arange(case.rows)[:, None] % case.copies
    ids = torch.minimum(chosen + copy * logical, torch.tensor(experts - 1))
    nothing = torch.tensor([-1, experts, 1 << 30, -(1 << 30)])
    pick = nothing[torch.randint(0, 4, ids.shape, generator=generator)]
    return torch.where(torch.rand(ids.shape, generator=generator) < 0.15, pick, ids).to(
        case.integer
    )


def slots_on(case: Case, ids: torch.Tensor, rank: int) -> torch.Tensor:
    """Which slots a rank has, the slow way."""
    there = [
        [0 <= e < len(case.experts) and case.experts[e] == rank for e in row]
        for row in ids.tolist()
    ]
    return torch.tensor(there, dtype=torch.bool).view(case.rows, case.slots)


def slot_values(case: Case, rank: int) -> torch.Tensor:
    """What a rank's experts make of every slot, present or not."""
    generator = torch.Generator().manual_seed(case.seed * 16 + rank)
    shape = (case.rows, case.slots, case.hidden)
    return torch.randn(shape, generator=generator).to(case.dtype)


def make_weights(case: Case) -> torch.Tensor | None:
    generator = torch.Generator().manual_seed(case.seed + 1)
    shape = (case.rows, case.slots)
    if case.form == "summed" or not case.weights:
        return None
    weights = torch.randn(shape, generator=generator)
    return weights.to(case.dtype) if case.seed % 2 else weights


def dense_part(case: Case, rank: int) -> torch.Tensor:
    """A rank's partial rows, with +0 where it has nothing."""
    ids = make_ids(case)
    here = slots_on(case, ids, rank)
    index = torch.arange(case.rows * case.slots).view(case.rows, case.slots)
    index = torch.where(here, index, -1)
    scale = case.scale if case.form in ("slots", "index", "summed") else None
    pairs = slot_values(case, rank).view(-1, case.hidden)
    if case.form == "summed":
        rows = topk_sum(pairs, None, index)
        own = here.any(1)
        return topk_sum(rows, None, torch.where(own, torch.arange(case.rows), -1)[:, None], scale)
    return topk_sum(pairs, make_weights(case), index, scale)


def inputs(case: Case, rank: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Expert output of a combine, and its index; what no expert here has made is NaN."""
    here = slots_on(case, make_ids(case), rank)
    values = slot_values(case, rank)
    values[~here] = torch.nan
    if case.form == "slots":
        return values, None
    if case.form == "summed":
        index = torch.where(here.view(-1), torch.arange(here.numel()), -1).view(here.shape)
        rows = topk_sum(values.view(-1, case.hidden), None, index)
        rows[~here.any(1)] = torch.nan
        return rows, None
    pairs = int(here.sum())
    order = torch.randperm(pairs, generator=torch.Generator().manual_seed(case.seed))
    # Where the expert is elsewhere the index holds what another rank's would: any number.
    index = torch.full(here.shape, 1 << 20, dtype=torch.int32 if case.seed % 3 else torch.int64)
    index[here] = order.to(index.dtype)
    compact = torch.empty(pairs, case.hidden, dtype=case.dtype)
    compact[order] = values[here]
    return compact, index


def poison(group: symmoe.Group, case: Case, lane: int) -> torch.Tensor | None:
    """NaN in every row of the window that the call will use."""
    window = group.acquire("combine", (case.rows, case.hidden), case.dtype, lane=lane)
    return None if window is None else window.fill_(torch.nan)


def run_case(group: symmoe.Group, case: Case, lane: int) -> torch.Tensor:
    """The call; checks that nothing is written that must not be."""
    rank = group.rank
    ids, weights = make_ids(case), make_weights(case)
    routing = symmoe.Routing(
        ids,
        weights if case.weights == "routing" else None,
        expert_to_rank=torch.tensor(case.experts, dtype=torch.int32),
    )
    out = torch.full((case.sizes[rank] + 1, case.hidden), 7, dtype=case.dtype)
    more: dict[str, Any] = {"sizes": case.sizes, "padded_to": case.stride, "lane": lane}
    more |= {"routing": routing, "out": out, "deterministic": True}
    window = poison(group, case, lane)
    here = slots_on(case, ids, rank).any(1)
    written = torch.zeros(case.rows, dtype=torch.bool)
    for r in range(group.world_size):
        written[own_rows(case.sizes, r, case.stride)] = True
    written &= here
    if case.form in ("slots", "index", "summed"):
        expert_out, index = inputs(case, rank)
        given_weights = weights if case.weights == "argument" else None
        group.combine(expert_out, given_weights, index=index, scale=case.scale, **more)
    else:
        rows = dense_part(case, rank)
        rows[~written] = torch.nan
        source = rows if window is None or case.form == "memory" else window.copy_(rows)
        group.reduce_scatter(source, **more)
    if window is not None and case.form != "memory":
        assert bool(window[~written].isnan().all()), "a row was written that this rank has not"
    assert bool((out[-1] == 7).all())
    return out[:-1]


def assert_equal_but_for_zeros(found: torch.Tensor, dense: torch.Tensor) -> None:
    """Equal bits; a zero may have the other sign, since dense adds the +0 of absent ranks."""
    assert_same_bits(torch.where(found == 0, 0, found), torch.where(dense == 0, 0, dense))


def run_cases(rank: int, world: int, chosen: list[Case], config: symmoe.Config) -> None:
    with symmoe.init(config=config, device="cpu") as group:
        for number, case in enumerate(chosen):
            found = run_case(group, case, number % 3)
            where = own_rows(case.sizes, rank, case.stride)
            parts = [dense_part(case, r)[where] for r in range(world)]
            assert_equal_but_for_zeros(found, rank_sum(parts))
            if not config.windows:
                continue
            # To the bit: the sum over the ranks that have something, +0 where none has.
            ids = make_ids(case)
            masks = [slots_on(case, ids, r)[where].any(1) for r in range(world)]
            for row in range(case.sizes[rank]):
                present = [parts[r][row] for r in range(world) if masks[r][row]]
                none = torch.zeros(case.hidden, dtype=case.dtype)
                assert_same_bits(found[row], rank_sum(present) if present else none)
        stats = group.stats()
        if config.windows:
            assert stats["calls_routed"] + stats["calls_routed_staged"] == len(chosen)
            assert stats["calls_pull"] == stats["calls_staged"] == 0


@BOUNDED
@given(run=runs([1, 2, 3, 4]))
def test_windows(ranks: Ranks, run: tuple[int, list[Case]]) -> None:
    ranks.run(run[0], run_cases, run[1], symmoe.Config())


@settings(BOUNDED, max_examples=4)
@given(run=runs([8]))
def test_eight_ranks(ranks: Ranks, run: tuple[int, list[Case]]) -> None:
    ranks.run(run[0], run_cases, run[1], symmoe.Config())


@settings(BOUNDED, max_examples=8)
@given(run=runs([1, 2, 3, 4]))
def test_process_group(ranks: Ranks, run: tuple[int, list[Case]]) -> None:
    ranks.run(run[0], run_cases, run[1], symmoe.Config(windows=False))


@settings(BOUNDED, max_examples=8)
@given(run=runs([2, 3]))
def test_checked(ranks: Ranks, run: tuple[int, list[Case]]) -> None:
    ranks.run(run[0], run_cases, run[1], symmoe.Config(check=True))
