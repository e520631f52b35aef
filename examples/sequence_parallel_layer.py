"""A sequence-parallel layer in the manner of GLM-5.2, with a draft head, and its collectives.

Runs the layer twice, with fused epilogues and step by step (`sequence_flow.py`), counts the
collectives of both, and holds both against each other and against the layer on one rank
(`glm_layer.py`). Starts its processes by itself, or takes those of torchrun if it is run by that.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable

import torch
import torch.distributed as dist
from glm_layer import GlmLayer, Made, Tokens, unsplit
from launch import launch, silent
from layer_parts import drawn, root_mean_square, uneven_sizes
from sequence_flow import FusedFlow, StepwiseFlow
from torch import Tensor

import symmoe

Counts = dict[str, symmoe.Collectives]


def parse_arguments() -> argparse.Namespace:
    """The command line; the defaults are an eighth of GLM-5.2's widths."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=2, help="torchrun's count comes first")
    parser.add_argument("--tokens", type=int, default=192, help="of all ranks")
    parser.add_argument("--hidden", type=int, default=768, help="GLM-5.2: 6144")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-width", type=int, default=64)
    parser.add_argument("--experts", type=int, default=32, help="GLM-5.2: 256")
    parser.add_argument("--top-k", type=int, default=8, help="GLM-5.2: 8")
    parser.add_argument("--intermediate", type=int, default=256, help="inner width of experts")
    parser.add_argument("--draft-intermediate", type=int, default=512, help="of the draft head")
    parser.add_argument("--routed-scale", type=float, default=2.5, help="the experts' factor")
    options = parser.parse_args()
    if options.tokens < 1:
        parser.error(f"--tokens {options.tokens}: at least 1")
    return options


def make_tokens(options: argparse.Namespace, world: int) -> Tokens:
    """Embeddings; of each token the one behind it is what the draft head is given."""
    embedded = drawn(40, options.tokens + 1, options.hidden) * options.hidden**0.5
    return Tokens(embedded[:-1], embedded[1:], uneven_sizes(options.tokens, world))


def run(flow: FusedFlow | StepwiseFlow, tokens: Tokens) -> tuple[Made, Counts]:
    """Layer and draft head, with the collectives of each part. Collective."""
    counts: Counts = {}
    own = slice(flow.own.start, flow.own.stop)
    residual = tokens.embedded[own].clone()
    with symmoe.count_collectives() as counts["norm"]:
        rows = flow.enter(residual)
    with symmoe.count_collectives() as counts["attention"]:
        rows = flow.attention(rows, residual)
    attended = residual.clone()
    with symmoe.count_collectives() as counts["MoE"]:
        hidden, ids = flow.experts(rows, residual)
    with symmoe.count_collectives() as counts["MTP head"]:
        draft = flow.draft(hidden[own], tokens.following[own])
    return Made(attended, residual, hidden, draft, ids), counts


def demonstrate(group: symmoe.Group, options: argparse.Namespace) -> None:
    """Runs both flows, checks them, and reports what they took; rank 0 prints."""
    report = functools.partial(print, flush=True) if group.rank == 0 else silent
    tokens = make_tokens(options, group.world_size)
    layer = GlmLayer(options, group.rank, group.world_size)
    stepwise, before = run(StepwiseFlow(group, layer, tokens.sizes), tokens)
    fused, after = run(FusedFlow(group, layer, tokens.sizes), tokens)
    report(
        f"{group.world_size} processes with {tokens.sizes} tokens, hidden {options.hidden}, "
        f"{options.heads} heads, {options.experts} experts, top-{options.top_k}\n"
    )
    report_counts(before, after, report)
    for taken in (after["attention"], after["MoE"]):
        assert (taken.all_gather.calls, taken.reduce_scatter.calls) == (1, 1)
    assert (after["MTP head"].all_gather.calls, after["MTP head"].calls) == (1, 1)
    report("\nChecks")
    check_alike(stepwise, fused, tokens, report)
    if group.rank == 0:
        check_against_whole(options, tokens, stepwise, fused, report)


def report_counts(before: Counts, after: Counts, report: Callable[[str], None]) -> None:
    """A line for each part of the layer, to the gather of all rows behind it."""
    report(
        f"{'':12}{'gathers':>17}{'reduce-scatters':>19}{'bytes of all rows':>23}\n"
        f"{'':12}" + f"{'before':>9}{'after':>8}" * 2 + f"{'before':>12}{'after':>11}"
    )
    for name, first in before.items():
        then = after[name]
        report(
            f"{name:12}{first.all_gather.calls:9}{then.all_gather.calls:8}"
            f"{first.reduce_scatter.calls:9}{then.reduce_scatter.calls:8}"
            f"{first.nbytes:12}{then.nbytes:11}"
        )


def check_alike(stepwise: Made, fused: Made, tokens: Tokens, report: Callable[[str], None]) -> None:
    """Same bits in both flows as far as both add up alike, and on all ranks. Collective."""
    for name in ("attended", "residual", "hidden", "ids"):
        one, other = getattr(stepwise, name), getattr(fused, name)
        assert torch.equal(one, other), f"{name}: other values step by step than fused"
    for made in (stepwise.draft, fused.hidden, fused.draft):
        assert len(made) == len(tokens.embedded)
        first = made.view(torch.uint8).clone()  # gloo has no int16
        dist.broadcast(first, 0)
        assert torch.equal(first, made.view(torch.uint8)), "other bits than rank 0 has"
    report(
        "  residual and normed rows of the layer: the same bits fused and step by step\n"
        f"  gathered: {len(fused.draft)} rows, no padding; the same bits on all ranks"
    )


def check_against_whole(
    options: argparse.Namespace,
    tokens: Tokens,
    stepwise: Made,
    fused: Made,
    report: Callable[[str], None],
) -> None:
    """Holds both flows against the layer on one rank, all against fp64.

    A split layer rounds each rank's summands once more than the whole one, and must not be off by
    more than twice as much, root mean square.
    """
    exact = unsplit(GlmLayer(options, 0, 1, torch.float64), tokens, fused.ids)
    whole = unsplit(GlmLayer(options, 0, 1), tokens, fused.ids)

    def error(made: Tensor, right: Tensor) -> float:
        return root_mean_square(made.double() - right)

    for name in ("hidden", "draft"):
        right = getattr(exact, name)
        alone = error(getattr(whole, name), right)
        errors = [error(getattr(each, name), right) / alone for each in (fused, stepwise)]
        assert max(errors) <= 2, f"{name}: {max(errors):.2f} times as far from fp64"
        report(
            f"  {name}: {errors[0]:.2f} (fused) and {errors[1]:.2f} times (step by step) as far "
            f"from fp64 as one rank alone"
        )


def main() -> None:
    """Runs the example."""
    launch(demonstrate, parse_arguments())


if __name__ == "__main__":
    main()
