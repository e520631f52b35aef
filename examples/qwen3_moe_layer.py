"""Splits one MoE layer of Qwen3-30B-A3B over several processes and holds it against the whole.

Starts its processes by itself, or takes those of torchrun if it is run by that.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import transformers
from checks import check_bits, check_combine, compare_with_whole
from launch import launch, silent, world_of
from moe_layer import embeddings, layer_config
from split_layer import Dispatched, SplitLayer
from torch import Tensor

import symmoe

START_AHEAD_NS = 3_000_000  # long enough for all ranks to hear of a start
MIB = 2.0**20

# torch 2.13 renames it.
gloo_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def parse_arguments() -> argparse.Namespace:
    """The command line; the defaults are the model's real widths."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=4, help="torchrun's count comes first")
    parser.add_argument("--tokens", type=int, default=1024, help="of all processes together")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--intermediate", type=int, default=768, help="inner width of an expert")
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=25, help="timed calls")
    return parser.parse_args()


def main() -> None:
    """Runs the example in the processes of torchrun, or in new ones."""
    arguments = parse_arguments()
    if arguments.experts % (world := world_of(arguments)):
        sys.exit(f"{arguments.experts} experts cannot be split evenly over {world} processes")
    launch(demonstrate, arguments)


def demonstrate(group: symmoe.Group, arguments: argparse.Namespace) -> None:
    """The split layer, its checks, its times and its memory; rank 0 reports."""
    report = functools.partial(print, flush=True) if group.rank == 0 else silent
    progress = tell if group.rank == 0 else silent
    config = layer_config(
        arguments.hidden, arguments.intermediate, arguments.experts, arguments.top_k
    )
    sizes = uneven_sizes(arguments.tokens, group.world_size)
    report(
        f"One MoE layer of Qwen3-30B-A3B (transformers {transformers.__version__}), bfloat16:"
        f" hidden {config.hidden_size}, {config.num_experts} experts,"
        f" top-{config.num_experts_per_tok}\n"
        f"  processes                   {group.world_size}, with "
        f"{config.num_experts // group.world_size} experts each\n"
        f"  tokens of each process      {sizes}"
    )

    progress("making each process's experts")
    layer = SplitLayer(config, group, sizes)
    own = embeddings(config, arguments.tokens)[layer.own_rows]
    progress("running the split layer")
    dispatched = layer.dispatch(own)
    pairs, index = layer.share.forward(dispatched.hidden, dispatched.ids)
    out = layer.combine(dispatched, pairs, index)

    chosen = dispatched.ids.flatten().bincount(minlength=config.num_experts)
    rows = gathered(torch.tensor([len(pairs)])).flatten().tolist()
    report(
        f"  tokens of an expert         {int(chosen.min())} to {int(chosen.max())}\n"
        f"  expert rows of each process {rows}\n\nPath of combine"
    )
    decision = group.explain("combine", pairs, dispatched.weights, index=index, sizes=sizes)
    report("  " + str(decision).replace("\n", "\n  "))

    taken = check_combine(layer, dispatched, pairs, index, out)
    runs = check_bits(layer, own, out)
    report(
        f"\nChecks\n  every element within its {group.world_size} + 1 roundings of fp64 (at most "
        f"{taken:.0%} of that bound)\n  the same bits in {runs} more runs of the layer, in 2 lanes"
    )
    report_bytes(layer, report)
    report_times(layer, dispatched, pairs, index, arguments.repeats, report)
    compare_with_whole(layer, dispatched, out, report, progress)


def tell(text: str) -> None:
    """Says on stderr what is going on, as it may take some seconds."""
    print(f"... {text}", file=sys.stderr, flush=True)


def uneven_sizes(tokens: int, world: int) -> list[int]:
    """Tokens by rank: the second half of the ranks has about twice as many each."""
    weights = [2 if rank >= world / 2 else 1 for rank in range(world)]
    sizes = [tokens * weight // sum(weights) for weight in weights]
    sizes[0] += tokens - sum(sizes)
    return sizes


def gathered(own: Tensor) -> Tensor:
    """Every rank's tensor, all of one shape, stacked. Collective."""
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    return torch.stack(parts)


def report_bytes(layer: SplitLayer, report: Callable[[str], None]) -> None:
    """What a combine moves, and what the group holds for it."""
    stats, world = layer.group.stats(), layer.group.world_size
    if not stats["live_bytes"]:
        report("\nBytes\n  there are no windows: torch.distributed did it all")
        return
    row = layer.config.hidden_size * 2 / MIB
    own = layer.sizes[layer.group.rank] * row
    report(
        f"\nBytes, rank {layer.group.rank}\n"
        f"  a combine writes {sum(layer.sizes) * row:.2f} MiB to the window (the top-k sum), "
        f"reads {own * (world - 1):.2f} MiB from peers'\n"
        f"  staging: {stats['stage_bytes']} bytes, {stats['calls_staged']} of "
        f"{stats['calls_pull'] + stats['calls_staged']} reduces, {stats['calls_gather_staged']} of "
        f"{stats['calls_gather'] + stats['calls_gather_staged']} gathers\n"
        f"  windows: {stats['live_bytes'] / MIB:.0f} MiB for 2 roles in 2 lanes"
    )


def report_times(
    layer: SplitLayer,
    dispatched: Dispatched,
    pairs: Tensor,
    index: Tensor,
    repeats: int,
    report: Callable[[str], None],
) -> None:
    """Times combine, and the reduce-scatter in it, beside the same through gloo; all in turn."""
    group, sizes, weights = layer.group, layer.sizes, dispatched.weights
    (rows, slots), hidden, most = index.shape, pairs.shape[1], max(sizes)
    out = torch.empty(sizes[group.rank], hidden, dtype=pairs.dtype)
    window = pairs.new_empty(0)

    # For gloo, rank r's rows begin at r * most, and empty ones follow.
    places = torch.cat([torch.arange(size) + r * most for r, size in enumerate(sizes)])
    padded_index = index.new_full((group.world_size * most, slots), -1)
    padded_index[places] = index
    padded_weights = weights.new_zeros(padded_index.shape)
    padded_weights[places] = weights
    padded = pairs.new_empty(len(padded_index), hidden)
    padded_out = pairs.new_empty(most, hidden)

    def combine() -> None:
        group.combine(pairs, weights, index=index, sizes=sizes, out=out)

    def sum_into_window() -> None:
        nonlocal window
        acquired = group.acquire("combine", (rows, hidden), pairs.dtype)
        window = pairs.new_empty(rows, hidden) if acquired is None else acquired
        symmoe.topk_reduce(pairs, weights, index=index, out=window)

    def reduce_window() -> None:
        group.reduce_scatter(window, out, sizes=sizes)

    def sum_padded() -> None:
        symmoe.topk_reduce(pairs, padded_weights, index=padded_index, out=padded)

    def reduce_by_gloo() -> None:
        gloo_reduce_scatter(padded_out, padded)

    def combine_by_gloo() -> None:
        sum_padded()
        reduce_by_gloo()

    trials: list[tuple[Callable[[], None] | None, Callable[[], None]]] = [
        (None, combine),
        (None, combine_by_gloo),
        (sum_into_window, reduce_window),
        (sum_padded, reduce_by_gloo),
    ]
    times: list[list[float]] = [[] for _ in trials]
    for _ in range(repeats):
        for (prepare, call), milliseconds in zip(trials, times, strict=True):
            if prepare is not None:
                prepare()
            milliseconds.append(time_together(call))
    ours, gloo, our_part, gloo_part = map(statistics.median, times)
    report(
        f"\nTime in ms, first rank's start to last rank's end, median of {repeats}, in turn\n"
        f"  {'':24}{'symmoe':>8}{'gloo':>9}"
    )
    for what, mine, theirs in (
        ("top-k sum and reduce", ours, gloo),
        ("the reduce alone", our_part, gloo_part),
    ):
        report(f"  {what:24}{mine:8.2f}{theirs:9.2f}   {theirs / mine:6.1f} x")
    report(f"  (gloo wants equally many rows of every rank: padded to {most} each)")


def time_together(call: Callable[[], None]) -> float:
    """Milliseconds from the first rank's start of `call` to the last one's end. Collective."""
    start = torch.tensor([time.monotonic_ns() + START_AHEAD_NS])
    dist.broadcast(start, 0)
    time.sleep(max(0, int(start) - time.monotonic_ns()) / 1e9)
    begin = time.monotonic_ns()
    call()
    spans = gathered(torch.tensor([begin, time.monotonic_ns()]))
    return float(spans[:, 1].max() - spans[:, 0].min()) / 1e6


if __name__ == "__main__":
    main()
