"""What the example holds its results against: fp64, the unsplit layer, and themselves."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.distributed as dist
from moe_layer import whole_layer
from split_layer import Dispatched, SplitLayer
from torch import Tensor
from tqdm import tqdm

BF16_ROUNDING = 2.0**-8  # largest relative error of rounding to bfloat16 once
FP32_ROUNDING = 2.0**-24
RUNS = 5


def check_combine(
    layer: SplitLayer, dispatched: Dispatched, pairs: Tensor, index: Tensor, out: Tensor
) -> float:
    """Holds every element of a combine against the same sum in fp64. Collective.

    A rank's partial sum is rounded to bfloat16 once, and so is the sum over ranks; the additions in
    fp32 add much smaller roundings of their own. No element may be off by more than that.

    Returns:
        The largest part of this bound that any element of any rank takes up.
    """
    present = index >= 0
    token, _ = present.nonzero(as_tuple=True)
    terms = pairs[index[present].long()].double() * dispatched.weights[present, None].double()
    zeros = torch.zeros(dispatched.hidden.shape, dtype=torch.float64)
    exact = zeros.index_add(0, token, terms)
    magnitude = zeros.index_add(0, token, terms.abs())
    partials = exact.abs()
    for sum_over_ranks in (exact, magnitude, partials):
        dist.all_reduce(sum_over_ranks)
    bound = BF16_ROUNDING * (1 + BF16_ROUNDING) * (exact.abs() + partials)
    bound += FP32_ROUNDING * (index.shape[1] + layer.group.world_size) * magnitude
    error = (out.double() - exact[layer.own_rows]).abs()
    taken = torch.zeros(1, dtype=torch.float64)
    if len(out):
        taken[0] = (error / bound[layer.own_rows].clamp_min(1e-300)).max()
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    assert taken <= 1, f"combine is off by {float(taken):.3g} times what its roundings allow"
    return float(taken)


def check_bits(layer: SplitLayer, own: Tensor, out: Tensor) -> int:
    """Runs the layer several times more, in two lanes in turn: the same bits every time.

    Returns:
        How many times.
    """
    for run in range(RUNS):
        again = layer.forward(own, lane=run % 2)
        assert torch.equal(again.view(torch.int16), out.view(torch.int16)), (
            f"run {run} (lane {run % 2}) gave other bits than the first"
        )
    return RUNS


def compare_with_whole(
    layer: SplitLayer,
    dispatched: Dispatched,
    out: Tensor,
    report: Callable[[str], None],
    progress: Callable[[str], None],
) -> None:
    """Holds the split layer against the unsplit one of transformers, and both against fp64.

    Both do the same arithmetic within an expert. Then the unsplit layer rounds to bfloat16 at each
    of K products and K additions, the combine once per rank and once at the end. So no element of
    the two may be further apart than these roundings at the size of the largest element, half a
    step each, and the split layer must not be further from fp64 than the unsplit one. Collective.
    """
    progress("the layer in fp64")
    exact = layer.share.exact(dispatched.hidden, dispatched.weights, dispatched.ids)
    dist.reduce(exact, 0)
    split = layer.group.all_gather(out, sizes=layer.sizes)
    if layer.group.rank != 0:
        return
    progress("the unsplit layer")
    experts = range(layer.config.num_experts)
    whole_block = whole_layer(layer.config, tqdm(experts, "weights", leave=False, disable=None))
    whole = whole_block(dispatched.hidden[None])[0]

    # A router sees other batches there; a tie that its rounding breaks another way is no error.
    _, weights, ids = whole_block.gate(dispatched.hidden)
    alike = (ids == dispatched.ids).all(1) & (weights == dispatched.weights).all(1)
    assert alike.double().mean() > 0.99, f"{int((~alike).sum())} tokens are routed differently"
    split, whole, exact = split[alike].double(), whole[alike].double(), exact[alike]

    largest = float(exact.abs().max())
    step = 2 * BF16_ROUNDING * 2.0 ** math.floor(math.log2(largest))
    report(
        f"\nDifferences, {len(exact)} tokens x {exact.shape[1]}, largest element {largest:.2f}\n"
        f"  {'':38}{'largest':>9}  in bf16 steps{'rms':>10}"
    )
    rms = {}
    for what, error in (
        ("split layer (symmoe) to fp64", split - exact),
        ("unsplit layer (transformers) to fp64", whole - exact),
        ("split to unsplit", split - whole),
    ):
        worst, rms[what] = float(error.abs().max()), float(error.square().mean().sqrt())
        report(f"  {what:38}{worst:9.1e}{worst / step:15.2f}{rms[what]:10.1e}")
    allowed = (2 * dispatched.ids.shape[1] + layer.group.world_size + 1) / 2
    assert worst <= allowed * step, f"{worst / step:.1f} steps, {allowed} allowed"
    of_split, of_whole, _ = rms.values()
    chance = 1 + 4 / math.sqrt(exact.numel())  # that much an rms of few elements varies
    assert of_split <= chance * of_whole, "the split layer is further from fp64 than the unsplit"
