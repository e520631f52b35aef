"""What a sequence-parallel layer and a draft head take of collectives: how many, of which bytes.

The layer is the one of examples/sequence_flow.py, with fused epilogues and step by step. Latent
experts, with one sum over ranks or two, are in test_combine_plan.py, each row of a plan's table
with its calls and bytes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest
import torch

import symmoe
from ranks import Ranks

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))

from glm_layer import GlmLayer, Made, Tokens, unsplit
from layer_parts import drawn
from sequence_flow import FusedFlow, StepwiseFlow
from sequence_parallel_layer import Counts, run

HIDDEN, TOP_K = 64, 3
WIDTHS = {
    "hidden": HIDDEN,
    "heads": 4,
    "head_width": 16,
    "experts": 10,
    "top_k": TOP_K,
    "intermediate": 32,
    "draft_intermediate": 48,
    "routed_scale": 2.5,
}
SIZES = {1: [6], 2: [5, 8], 3: [7, 0, 4], 4: [3, 3, 3, 3]}


def counted(rank: int, world: int) -> None:
    sizes = SIZES[world]
    rows = sum(sizes)
    embedded = drawn(1, rows + 1, HIDDEN) * HIDDEN**0.5
    tokens = Tokens(embedded[:-1], embedded[1:], sizes)
    options = argparse.Namespace(**WIDTHS)
    h = rows * HIDDEN * 2  # all rows once, bfloat16
    choice = rows * 2 * TOP_K * 4
    with torch.no_grad(), symmoe.init(device="cpu") as group:
        layer = GlmLayer(options, rank, world)
        stepwise, before = run(StepwiseFlow(group, layer, sizes), tokens)
        staged = staged_calls(group)
        fused, after = run(FusedFlow(group, layer, sizes), tokens)
        # No rows lie nowhere, in a window neither.
        assert staged_calls(group) == staged or not sizes[rank]

    one, none = (1, h), (0, 0)
    assert taken(after) == {
        "norm": (one, none),
        "attention": (one, one),
        "MoE": (one, one),
        "MTP head": (one, none),
    }
    assert taken(before) == {
        "norm": (one, none),
        "attention": (one, one),
        "MoE": ((2, h + choice), one),
        "MTP head": ((2, 2 * h + h), one),
    }

    exact = unsplit(GlmLayer(options, 0, 1, torch.float64), tokens, fused.ids)
    for made in (stepwise, fused):
        check(made, exact, slice(sum(sizes[:rank]), sum(sizes[: rank + 1])))
    assert torch.equal(fused.residual, stepwise.residual)
    assert torch.equal(fused.hidden, stepwise.hidden)


def taken(counts: Counts) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
    """Calls and bytes of each part's gathers, and those of its reduce-scatters."""
    kinds = {name: (each.all_gather, each.reduce_scatter) for name, each in counts.items()}
    return {
        name: ((gathers.calls, gathers.nbytes), (reduces.calls, reduces.nbytes))
        for name, (gathers, reduces) in kinds.items()
    }


def staged_calls(group: symmoe.Group) -> int:
    """Calls of either kind that copied their input first."""
    stats = group.stats()
    return int(stats["calls_staged"]) + int(stats["calls_gather_staged"])


def check(made: Made, exact: Made, own: slice) -> None:
    """The flow does compute the layer: some roundings of bfloat16 from it."""
    pairs = [(made.attended, exact.attended[own]), (made.residual, exact.residual[own])]
    pairs += [(made.hidden, exact.hidden), (made.draft, exact.draft)]
    for found, right in pairs:
        torch.testing.assert_close(found.double(), right, rtol=2**-5, atol=2**-4)


@pytest.mark.multi
@pytest.mark.parametrize("world", sorted(SIZES))
def test_layer_and_draft_head(ranks: Ranks, world: int) -> None:
    ranks.run(world, counted)
