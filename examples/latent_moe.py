"""An MoE layer whose experts work in a latent width, as in Nemotron-3: one sum over ranks or two.

    tokens -> fc1_latent -> experts -> combine -> fc2_latent -> + shared experts -> tokens
              hidden to latent         over ranks  latent to hidden

Each rank holds a share of the experts and a slice of the shared expert. An engine without a plan
sums the experts' rows over ranks in front of fc2_latent and the shared expert's behind it. If
fc2_latent commutes with sums, which a plan finds out, one sum does; if there is a norm in it, not.

Starts its processes by itself, or takes those of torchrun if it is run by that.
"""

from __future__ import annotations

import argparse
import functools
import sys
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from launch import launch, silent, world_of
from layer_parts import DTYPE, drawn, root_mean_square, run_experts, uneven_sizes
from torch import Tensor, nn

import symmoe

FIRST_EXPERT_SEED = 1000


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=2, help="torchrun's count comes first")
    parser.add_argument("--few", type=int, default=8, help="tokens of all ranks in a decode step")
    parser.add_argument("--many", type=int, default=1024, help="the same of a prefill")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--latent", type=int, default=256)
    parser.add_argument("--intermediate", type=int, default=256, help="inner width of experts")
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--top-k", type=int, default=4)
    parser.add_argument("--no-shared", action="store_true", help="leave the shared expert out")
    return parser.parse_args()


def linear(seed: int, taken: int, made: int) -> nn.Linear:
    """A layer without bias."""
    layer = nn.Linear(taken, made, bias=False, dtype=DTYPE)
    layer.weight.data = drawn(seed, made, taken)
    return layer


def squared_relu(rows: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """One expert, or a slice of one: [rows, width] -> [rows, width]."""
    return F.linear(F.relu(F.linear(rows, up)).square(), down)


@dataclass(frozen=True)
class Tokens:
    """All ranks' tokens, which every rank has after the dispatch.

    Attributes:
        hidden: [rows, hidden].
        ids: [rows, K], the experts chosen.
        weights: [rows, K] fp32.
        sizes: Rows of each rank.
    """

    hidden: Tensor
    ids: Tensor
    weights: Tensor
    sizes: list[int]


class LatentLayer:
    """One rank's part of the layer; of all of it with `rank` 0 and `world` 1.

    Args:
        options: The widths.
        rank: Of the ranks' shares, the one to hold.
        world: Number of shares.
        norm: Whether there is a norm in front of fc2_latent.
    """

    def __init__(self, options: argparse.Namespace, rank: int, world: int, norm: bool) -> None:
        hidden, latent, inner = options.hidden, options.latent, options.intermediate
        share = options.experts // world
        self.experts = range(rank * share, (rank + 1) * share)
        self.fc1_latent = linear(1, hidden, latent)
        self.fc2_latent: nn.Module = linear(2, latent, hidden)
        if norm:
            self.fc2_latent = nn.Sequential(nn.RMSNorm(latent, dtype=DTYPE), self.fc2_latent)
        seeds = [FIRST_EXPERT_SEED + expert for expert in self.experts]
        self.up = [drawn(seed, inner, latent) for seed in seeds]
        self.down = [drawn(seed, latent, inner) for seed in seeds]
        cut = slice(rank * inner // world, (rank + 1) * inner // world)
        self.shared_up = drawn(3, inner, hidden)[cut]
        self.shared_down = drawn(4, hidden, inner)[:, cut]

    def routed(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """What the experts here make: [pairs, latent], and an index [rows, K] into it."""
        return run_experts(
            self.fc1_latent(tokens.hidden),
            tokens.ids,
            self.experts,
            lambda at, latent: squared_relu(latent, self.up[at], self.down[at]),
        )

    def shared(self, tokens: Tokens, out: Tensor) -> Tensor:
        """What the slice of the shared expert here makes, a summand: [rows, hidden], in `out`."""
        inner = F.relu(F.linear(tokens.hidden, self.shared_up)).square()
        return torch.mm(inner, self.shared_down.t(), out=out)

    def exact(self, tokens: Tokens, with_shared: bool) -> Tensor:
        """All rows in fp64, if this is the whole layer."""
        hidden = tokens.hidden.double()
        latent = F.linear(hidden, self.fc1_latent.weight.double())
        total = torch.zeros_like(latent)
        for at, expert in enumerate(self.experts):
            token, slot = (tokens.ids == expert).nonzero(as_tuple=True)
            made = squared_relu(latent[token], self.up[at].double(), self.down[at].double())
            total.index_add_(0, token, made * tokens.weights[token, slot, None].double())
        out: Tensor = self.fc2_latent.double()(total)
        self.fc2_latent.to(DTYPE)
        if with_shared:
            out = out + squared_relu(hidden, self.shared_up.double(), self.shared_down.double())
        return out


def make_tokens(options: argparse.Namespace, rows: int, world: int) -> Tokens:
    """Tokens and a router's choice with an even load, the same in every process."""
    hidden = drawn(5, rows, options.hidden) * options.hidden**0.5
    ids = symmoe.balanced_topk_ids(rows, options.top_k, options.experts)
    weights = torch.rand(ids.shape, generator=torch.Generator().manual_seed(6))
    return Tokens(hidden, ids, weights / weights.sum(1, keepdim=True), uneven_sizes(rows, world))


def without_plan(group: symmoe.Group, layer: LatentLayer, tokens: Tokens, shared: bool) -> Tensor:
    """The end of the layer as engines have it: each part summed over ranks by itself."""
    pairs, index = layer.routed(tokens)
    latent = group.combine(pairs, tokens.weights, index=index, sizes=tokens.sizes)
    out: Tensor = layer.fc2_latent(latent)
    if shared:
        rows = torch.empty(len(tokens.hidden), out.shape[1], dtype=DTYPE)
        out = out + group.reduce_scatter(layer.shared(tokens, rows), sizes=tokens.sizes)
    return out


def with_plan(plan: symmoe.CombinePlan, layer: LatentLayer, tokens: Tokens, shared: bool) -> Tensor:
    """The same by a plan."""
    summands = None
    if shared:
        window = plan.shared_window(len(tokens.hidden))
        if window is None:
            window = torch.empty(len(tokens.hidden), plan.hidden, dtype=DTYPE)
        summands = layer.shared(tokens, window)
    pairs, index = layer.routed(tokens)
    return plan.combine(pairs, tokens.weights, index=index, shared=summands, sizes=tokens.sizes)


def demonstrate(group: symmoe.Group, options: argparse.Namespace) -> None:
    """Runs the layer in its variants, checks each, and reports what it took; rank 0 prints."""
    report = functools.partial(print, flush=True) if group.rank == 0 else silent
    shared = not options.no_shared
    report(
        f"{group.world_size} processes, {options.experts} experts, latent {options.latent}, hidden "
        f"{options.hidden}, {'a' if shared else 'no'} shared expert\n\n"
        f"{'':28}{'':>8}{'':>8}{'sums over ranks':>18}{'bytes of all rows':>22}\n"
        f"{'output transform':28}{'tokens':>8}{'order':>8}{'before':>9}{'after':>9}"
        f"{'before':>11}{'after':>11}"
    )
    reasons = []
    for name, norm, rows in (
        ("fc2_latent", False, options.few),
        ("fc2_latent", False, options.many),
        ("norm, fc2_latent", True, options.few),
    ):
        layer = LatentLayer(options, group.rank, group.world_size, norm)
        plan = symmoe.plan_combine(
            group=group,
            transform=layer.fc2_latent,
            shared=symmoe.Partial() if shared else None,
            dtype=DTYPE,
            rows=rows,
        )
        tokens = make_tokens(options, rows, group.world_size)
        with symmoe.count_collectives() as before:
            by_hand = without_plan(group, layer, tokens, shared)
        with symmoe.count_collectives() as after:
            out = with_plan(plan, layer, tokens, shared)
        assert after.calls == len(plan.at(rows).reductions)
        check(group, options, norm, tokens, by_hand, out)
        report(
            f"{name:28}{rows:8}{plan.when:>8}{before.calls:9}{after.calls:9}"
            f"{before.nbytes:11}{after.nbytes:11}"
        )
        reasons.append(f"  {name}, {rows} tokens: {plan.when}, {plan.reason}")
    report("\nWhy\n" + "\n".join(reasons))
    report("\nChecks\n  with and without a plan at most twice as far from fp64 as one rank alone")


def check(
    group: symmoe.Group,
    options: argparse.Namespace,
    norm: bool,
    tokens: Tokens,
    *split: Tensor,
) -> None:
    """Holds the own rows against the layer on one rank, both against fp64.

    The split layer rounds a few more times than the whole one, each rank's part of a sum once, and
    must not be off by more than twice as much, root mean square.
    """
    shared = not options.no_shared
    whole = LatentLayer(options, 0, 1, norm)
    exact = whole.exact(tokens, shared)
    pairs, index = whole.routed(tokens)
    latent = torch.empty(len(tokens.hidden), options.latent, dtype=DTYPE)
    symmoe.topk_reduce(pairs, tokens.weights, index=index, out=latent)
    rows = whole.fc2_latent(latent)
    if shared:
        rows = rows + whole.shared(tokens, torch.empty_like(rows))
    begin = sum(tokens.sizes[: group.rank])
    own = exact[begin : begin + tokens.sizes[group.rank]]
    allowed = 2 * root_mean_square(rows.double() - exact)
    for out in split:
        assert out.shape == own.shape
        error = root_mean_square(out.double() - own)
        assert error <= allowed, f"off by {error:.2g}, {allowed:.2g} allowed"


def main() -> None:
    """Runs the example in the processes of torchrun, or in new ones."""
    options = parse_arguments()
    if options.experts % (world := world_of(options)):
        sys.exit(f"{options.experts} experts cannot be split evenly over {world} processes")
    launch(demonstrate, options)


if __name__ == "__main__":
    main()
