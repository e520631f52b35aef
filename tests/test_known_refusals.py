"""A call that differs in one thing from a known one is refused as if none were known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import symmoe
from long_way import acquired, counted, long_way
from ranks import Ranks
from symmoe import Routing

pytestmark = pytest.mark.multi
TOKENS, SLOTS, HIDDEN = 12, 3, 72
BF16 = torch.bfloat16

Call = Callable[[], torch.Tensor]


def outcome(call: Call) -> tuple[str, str]:
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def wrong_calls(group: symmoe.Group) -> dict[str, Call]:
    """Each differs in one thing from a call that is known."""
    world = group.world_size
    good = torch.ones(TOKENS, SLOTS, HIDDEN, dtype=BF16)
    weights = torch.ones(TOKENS, SLOTS)
    index = torch.zeros(TOKENS, SLOTS, dtype=torch.int32)
    pairs = torch.ones(4, HIDDEN, dtype=BF16)
    far, below = index.clone(), index.clone()
    far[1, 2], below[0, 1] = 4, -2
    source = torch.ones(TOKENS, HIDDEN, dtype=BF16)
    window = acquired(group, "combine", TOKENS, HIDDEN)
    elsewhere = group.acquire("dispatch", (TOKENS, HIDDEN), BF16)
    in_lane_1 = group.acquire("dispatch", (TOKENS, HIDDEN), BF16, lane=1)
    assert elsewhere is not None
    assert in_lane_1 is not None
    even = [TOKENS // world] * world
    own = TOKENS // world
    ids, experts = torch.zeros(TOKENS, SLOTS, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)

    def combine(*arguments: Any, **more: Any) -> Call:
        return lambda: group.combine(*arguments, **more)

    def reduce(*arguments: Any, **more: Any) -> Call:
        return lambda: group.reduce_scatter(*arguments, **more)

    return {
        "lane True": combine(good, weights, lane=True),
        "lane 0.0": combine(good, weights, lane=0.0),
        "lane too large": combine(good, weights, lane=1 << 80),
        "sizes True": combine(good, weights, sizes=[True] * world),
        "sizes of floats": combine(good, weights, sizes=[float(size) for size in even]),
        "sizes too many": combine(good, weights, sizes=[*even, 0]),
        "padded_to True": combine(good, weights, sizes=even, padded_to=True),
        "scale True": combine(good, weights, scale=True),
        "stream": combine(good, weights, stream=1),
        "weights of another shape": combine(good, weights[:, :2].contiguous()),
        "weights float64": combine(good, weights.double()),
        "no tensor": combine([good], weights),
        "rows with strides": combine(good.transpose(0, 1), weights),
        "weights with strides": combine(good, weights.t().contiguous().t()),
        "negative rows": combine(torch._neg_view(good), weights),
        "negative weights": combine(good, torch._neg_view(weights)),
        "negative index": combine(pairs, weights, index=torch._neg_view(index)),
        "negative out": combine(good, weights, out=torch._neg_view(source)),
        "gradient": combine(good.clone().requires_grad_(), weights),
        "gradient of weights": combine(good, weights.clone().requires_grad_()),
        "meta rows": combine(good.to("meta"), weights),
        "sparse rows": combine(source.to_sparse()),
        "index too large": combine(pairs, weights, index=far),
        "index too small": combine(pairs, weights, index=below),
        "out too small": combine(good, weights, out=source[: own - 1]),
        "out too narrow": combine(good, weights, out=torch.empty(own, HIDDEN - 1, dtype=BF16)),
        "out of another type": combine(good, weights, out=source.float()),
        "out no tensor": combine(good, weights, out="text"),
        "out is the input": combine(good, weights, out=good.view(-1, HIDDEN)),
        "out in a window": combine(good, weights, out=window),
        "out in another window": combine(good, weights, out=in_lane_1),
        "experts in the window": combine(window[:4], weights, index=index),
        "routing of no type": combine(good, weights, routing=ids),
        "routing of other rows": combine(good, routing=Routing(ids[1:], None, experts)),
        "routing of other slots": combine(good, routing=Routing(ids[:, :2], None, experts)),
        "routing with strides": combine(good, routing=Routing(ids[:, [0, 0, 1]].mT, None, experts)),
        "expert on no rank": combine(good, weights, routing=Routing(ids, None, experts + world)),
        "weights given twice": combine(good, weights, routing=Routing(ids, weights, experts)),
        "weights of sums": combine(source, weights, routing=Routing(ids, None, experts)),
        "negative ids": combine(
            good, weights, routing=Routing(torch._neg_view(ids), None, experts)
        ),
        "routed index too large": combine(
            pairs, weights, index=far, routing=Routing(ids, None, experts + group.rank)
        ),
        "reduce: expert on no rank": reduce(source, routing=Routing(ids, None, experts + world)),
        "reduce: lane True": reduce(source, lane=True),
        "reduce: out in a window": reduce(source, window),
        "reduce: out in another window": reduce(source, in_lane_1),
        "reduce: other rows of the input": reduce(source, source[1 : 1 + own]),
        "reduce: negative": reduce(torch._neg_view(source)),
        "reduce: negative out": reduce(window, torch._neg_view(source)),
        "reduce: gradient": reduce(source.clone().requires_grad_()),
        "reduce: window of another role": reduce(elsewhere),
        "gather: window of another role": lambda: group.all_gather(window),
    }


def refusals(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        calls = wrong_calls(group)
        good = torch.ones(TOKENS, SLOTS, HIDDEN, dtype=BF16)
        weights = torch.ones(TOKENS, SLOTS)
        index = torch.zeros(TOKENS, SLOTS, dtype=torch.int32)
        even = [TOKENS // world] * world
        routing = Routing(index, None, torch.zeros(1, dtype=torch.int32))

        def known_forms() -> None:
            for form in ({}, {"sizes": even}, {"sizes": even, "padded_to": TOKENS // world}):
                group.combine(good, weights, **form)
            group.combine(good, weights, scale=2.0)
            group.combine(good, weights, lane=1)
            group.combine(torch.ones(4, HIDDEN, dtype=BF16), weights, index=index)
            group.combine(torch.ones(TOKENS, HIDDEN, dtype=BF16))
            group.combine(good, weights, routing=routing)
            group.combine(good, routing=Routing(routing.topk_ids, weights, routing.expert_to_rank))
            group.combine(torch.ones(TOKENS, HIDDEN, dtype=BF16), routing=routing)
            group.combine(torch.ones(4, HIDDEN, dtype=BF16), weights, index=index, routing=routing)
            group.reduce_scatter(torch.ones(TOKENS, HIDDEN, dtype=BF16), routing=routing)
            group.reduce_scatter(torch.ones(TOKENS, HIDDEN, dtype=BF16))
            group.all_gather(torch.ones(TOKENS, HIDDEN, dtype=BF16))
            acquired(group, "combine", TOKENS, HIDDEN)
            acquired(group, "dispatch", TOKENS, HIDDEN)

        known_forms()
        for name, call in calls.items():
            with counted(group) as taken:
                known_forms()
            assert taken == [], name
            short = outcome(call)
            acquired(group, "combine", TOKENS, HIDDEN)
            with long_way(group):
                assert short == outcome(call), name
            assert short != ("", ""), name
            assert bool((group.combine(good, weights) == SLOTS * world).all())


@pytest.mark.parametrize("world", [1, 2])
def test_the_same_refusals(ranks: Ranks, world: int) -> None:
    ranks.run(world, refusals)
