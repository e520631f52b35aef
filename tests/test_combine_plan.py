"""Plans of combines: the decision for every combination of conditions, and what a call then does.

The expected decisions are written by hand, from what inference engines do. Every row of the table
is run: the result must be that of one rank that has all experts, and the collectives those that the
row lists.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import symmoe
from ranks import Ranks
from reference import own_rows
from symmoe.combine_costs import CombineCosts
from symmoe.tags import Layout, Partial, Replicated, Sharded

pytestmark = pytest.mark.multi

LATENT, HIDDEN, SLOTS, EXPERTS = 32, 64, 3, 8
SIZES = {1: [7], 2: [3, 4], 3: [4, 0, 3]}
ROWS = 7

P, S, R = Partial(), Sharded(), Replicated()
START_COUNTS = CombineCosts(start_us=1e6, bytes_per_us=1e9, flops_per_us=1e9)
BYTES_COUNT = CombineCosts(start_us=0.0, bytes_per_us=1.0, flops_per_us=1e9)
WORK_COUNTS = CombineCosts(start_us=1.0, bytes_per_us=1e9, flops_per_us=1.0)


class Declared(nn.Module):
    """A linear module of a class that nobody knows."""

    reduce_commutative = True

    def __init__(self, bend: bool = False) -> None:
        super().__init__()
        self.inner = nn.Linear(LATENT, HIDDEN, bias=False)
        self.bend = bend

    def forward(self, rows: Tensor) -> Tensor:
        made: Tensor = self.inner(rows)
        return made.abs() if self.bend else made


class Undeclared(Declared):
    reduce_commutative = None  # type: ignore[assignment]


def transform_named(name: str) -> nn.Module | None:
    """The transform of a row of the table; on all ranks the same."""
    torch.manual_seed(11)
    plain = nn.Linear(LATENT, HIDDEN, bias=False)
    if name == "quantised":
        torch.backends.quantized.engine = torch.backends.quantized.supported_engines[-1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made: nn.Module = torch.ao.quantization.quantize_dynamic(  # type: ignore[no-untyped-call]
                nn.Sequential(plain), {nn.Linear}, dtype=torch.qint8
            )
        return made
    return {
        "": None,
        "linear": plain,
        "bias": nn.Linear(LATENT, HIDDEN),
        "norm": nn.Sequential(nn.RMSNorm(LATENT), plain),
        "declared": Declared().eval(),
        "false": Declared(bend=True).eval(),  # it declares what is not so
        "undeclared": Undeclared().eval(),
    }[name]


@dataclass(frozen=True)
class Row:
    """A combination of conditions, and what has to come of it.

    Attributes:
        transform: Which.
        shared: What the shared experts' rows are.
        routed: What the kernel's rows are.
        when: "early", "late" or "none"; "refused": ValueError.
        reduces: Widths of the collectives, in order.
        ranks: tp or ep; 1: neither.
    """

    transform: str
    shared: Layout | None
    routed: Layout | None
    when: str
    reduces: tuple[int, ...] = ()
    ranks: int = 2
    sequence_parallel: bool = False
    skip_final: bool = False
    prefer: Literal["early", "late"] | None = None
    costs: CombineCosts | None = None


H, L = HIDDEN, LATENT
TABLE = [
    # No transform: nothing to reduce before; shared experts' summands join the one reduction.
    Row("", None, P, "late", (H,)),
    Row("", P, P, "late", (H,)),
    Row("", S, P, "late", (H,)),
    # A transform that does not commute: early, and shared summands by themselves.
    Row("bias", None, P, "early", (L,)),
    Row("bias", P, P, "early", (H, L)),
    Row("bias", S, P, "early", (L,)),
    Row("norm", None, P, "early", (L,)),
    Row("norm", P, P, "early", (H, L)),
    Row("quantised", P, P, "early", (H, L)),
    Row("undeclared", P, P, "early", (H, L)),
    Row("false", P, P, "early", (H, L)),
    Row("norm", P, P, "early", (H, L), prefer="late"),  # not for it to say
    Row("bias", P, P, "early", (H, L), costs=START_COUNTS),
    # One that commutes: both are right. Late saves a collective where shared rows are summands ...
    Row("linear", P, P, "late", (H,), costs=START_COUNTS),
    Row("declared", P, P, "late", (H,), costs=START_COUNTS),
    Row("linear", P, P, "late", (H,), costs=BYTES_COUNT),  # hidden, against latent + hidden
    Row("linear", P, P, "late", (H,), ranks=3, costs=START_COUNTS),
    # ... but transforms all ranks' rows instead of the own ones ...
    Row("linear", P, P, "early", (H, L), costs=WORK_COUNTS),
    Row("declared", P, P, "early", (H, L), costs=WORK_COUNTS),
    # ... and where there is nothing to save, the latent width has fewer bytes.
    Row("linear", None, P, "early", (L,), costs=BYTES_COUNT),
    Row("linear", S, P, "early", (L,), costs=BYTES_COUNT),
    Row("linear", None, P, "early", (L,), costs=WORK_COUNTS),
    # Asked for.
    Row("linear", None, P, "late", (H,), prefer="late"),
    Row("linear", S, P, "late", (H,), prefer="late"),
    Row("linear", P, P, "early", (H, L), prefer="early"),
    Row("declared", None, P, "late", (H,), ranks=3, prefer="late"),
    # A kernel that reduces by itself: the routed rows are done, shared summands are not.
    Row("", None, S, "none"),
    Row("linear", None, S, "none"),
    Row("norm", None, R, "none"),
    Row("linear", P, S, "none", (H,)),
    Row("norm", P, R, "none", (H,)),
    Row("", P, R, "none", (H,), ranks=3),
    Row("bias", S, S, "none"),
    Row("linear", P, R, "none", (H,), prefer="late"),
    # Sequence parallel: each rank has its tokens' rows whole, shared ones too.
    Row("", None, None, "none", sequence_parallel=True),
    Row("norm", S, None, "none", sequence_parallel=True),
    Row("linear", S, S, "none", sequence_parallel=True, prefer="late"),
    Row("linear", P, None, "refused", sequence_parallel=True),
    Row("linear", S, P, "refused", sequence_parallel=True),
    # tp = 1 and ep = 1.
    Row("", None, P, "none", ranks=1),
    Row("linear", P, P, "none", ranks=1),
    Row("bias", P, P, "none", ranks=1),
    Row("norm", S, P, "none", ranks=1),
    Row("norm", P, R, "none", ranks=1),
    Row("norm", S, None, "none", ranks=1, sequence_parallel=True),
    # The caller reduces: only of rows that nobody has reduced.
    Row("", None, P, "none", skip_final=True),
    Row("", P, P, "none", skip_final=True),
    Row("linear", P, P, "none", skip_final=True),
    Row("declared", None, P, "none", ranks=3, skip_final=True),
    Row("norm", P, P, "none", ranks=1, skip_final=True),
    Row("norm", None, P, "refused", skip_final=True),
    Row("bias", P, P, "refused", skip_final=True),
    Row("linear", None, S, "refused", skip_final=True),
    Row("linear", P, R, "refused", skip_final=True),
    Row("linear", S, P, "refused", skip_final=True),
    Row("", None, None, "refused", sequence_parallel=True, skip_final=True),
]


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape)


@dataclass
class Batch:
    """All ranks' tokens, equal on all ranks, and what each rank makes of them."""

    weights: Tensor
    ids: Tensor
    experts: Tensor  # [rows, slots, width]
    shared: list[Tensor]  # summands by rank
    owners: Tensor  # of experts


def batch(world: int, width: int) -> Batch:
    torch.manual_seed(5)
    ids = torch.stack([torch.randperm(EXPERTS)[:SLOTS] for _ in range(ROWS)]).int()
    return Batch(
        torch.rand(ROWS, SLOTS),
        ids,
        numbers(ROWS, SLOTS, width),
        [numbers(ROWS, HIDDEN) for _ in range(world)],
        torch.arange(EXPERTS, dtype=torch.int32) % world,
    )


def expected(row: Row, it: Batch) -> Tensor:
    """All rows, by one rank that has all experts."""
    module = transform_named(row.transform)
    latent = (it.experts * it.weights[..., None]).sum(1)
    made = latent if module is None else module(latent)
    return made if row.shared is None else made + sum(it.shared)


def plan_for(row: Row, group: symmoe.Group) -> symmoe.CombinePlan:
    return symmoe.plan_combine(
        group=group,
        transform=transform_named(row.transform),
        shared=row.shared,
        routed=row.routed,
        hidden=HIDDEN,
        dtype=torch.float32,
        rows=ROWS,
        sequence_parallel=row.sequence_parallel,
        skip_final=row.skip_final,
        prefer=row.prefer,
        costs=row.costs,
    )


def arguments_for(row: Row, it: Batch, rank: int, world: int) -> dict[str, Any]:
    """What this rank gives to combine, but for where its tokens are."""
    mine = own_rows(SIZES[world], rank)
    given: dict[str, Any] = {"sizes": SIZES[world]}
    if isinstance(row.shared, Partial):
        given["shared"] = it.shared[rank]
    elif row.shared is not None:
        given["shared"] = torch.stack(it.shared).sum(0)[mine].clone()
    if row.sequence_parallel or not isinstance(row.routed, Partial):
        rows = (it.experts * it.weights[..., None]).sum(1)
        given["expert_out"] = rows if isinstance(row.routed, Replicated) else rows[mine].clone()
        return given
    here = it.owners[it.ids.long()] == rank
    index = torch.where(here, torch.arange(here.numel()).view(here.shape), -1)
    given["expert_out"] = it.experts.view(-1, it.experts.shape[-1])
    return given | {"topk_weights": it.weights, "index": index}


def run_rows(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        for row in [each for each in TABLE if each.ranks == world]:
            try:
                run_row(row, group, world)
            except BaseException as error:
                raise AssertionError(f"{row}: {error}") from error


def run_row(row: Row, group: symmoe.Group, world: int) -> None:
    if row.when == "refused":
        with pytest.raises(ValueError, match=r"sequence_parallel|skip_final"):
            plan_for(row, group)
        return
    plan = plan_for(row, group)
    order = plan.at(ROWS)
    assert plan.when == order.when == row.when, order
    assert order.reason == plan.reason != ""
    assert len(order.reductions) == len(row.reduces)
    assert repr(plan).count(f"{row.when}: {plan.reason}") == 1

    it = batch(world, LATENT if row.transform else HIDDEN)
    given = arguments_for(row, it, group.rank, world)
    whole = expected(row, it)
    for out in (None, torch.full((ROWS + 2, HIDDEN), 9.0)):
        with symmoe.count_collectives() as count:
            found = plan.combine(**given, out=out)
        assert count.calls == count.reduce_scatter.calls == len(row.reduces)
        assert count.nbytes == sum(ROWS * width * 4 for width in row.reduces)
        assert out is None or found is out
        if row.skip_final:
            assert symmoe.layout_of(found[:ROWS]) == Partial()
            found = group.reduce_scatter(found[:ROWS], sizes=SIZES[world])
        mine = whole[own_rows(SIZES[world], group.rank)]
        if out is not None:
            assert (out[ROWS if row.skip_final else len(mine) :] == 9.0).all()
            found = found[: len(mine)]
        assert symmoe.layout_of(found) == Sharded(SIZES[world])
        # Its steps follow the largest element of all rows that it is given; else roundings differ.
        most = 0.05 if row.transform == "quantised" else 1e-4
        torch.testing.assert_close(found, mine, rtol=1e-4, atol=most)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_row_of_the_table(own_ranks: Ranks, world: int) -> None:
    assert any(row.ranks == world for row in TABLE)
    own_ranks.run(world, run_rows)
