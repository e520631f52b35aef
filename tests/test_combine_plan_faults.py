"""Plans where something is wrong or different on one rank: all raise, and go on together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import symmoe
from planned import HIDDEN, LATENT, ROWS, SIZES, close, linear, make_plan, summands, whole
from ranks import Ranks
from reference import own_rows
from symmoe import testing
from symmoe.tags import Partial

pytestmark = pytest.mark.multi


def all_of(value: object, world: int) -> list[Any]:
    found: list[Any] = [None] * world
    dist.all_gather_object(found, value)
    return found


def asked_before_a_failure(rank: int, world: int) -> None:
    """The order does not follow from when a rank asks, nor from what became of windows since."""
    counts = [2**power for power in range(1, 13)]
    with testing.init() as group:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(2048, 1139, bias=False), nn.Linear(1139, 1024, bias=False))
        plan = symmoe.plan_combine(group=group, transform=module, dtype=torch.float32)
        if rank == 0:
            for count in counts:
                plan.at(count)
        testing.nccl().fail("ncclMemAlloc:1:1=oom")
        group.acquire("combine", (4096, 2048), torch.float32)
        orders = [plan.at(count).when for count in counts]
        assert all_of(orders, world) == [orders] * world
        assert len(set(orders)) == 2, orders
        testing.nccl().reset()


def one_rank_errs(rank: int, world: int) -> None:
    """A fault that is one rank's takes part in the agreement; the next one is in step."""
    rows = torch.ones(ROWS, LATENT)
    with testing.init() as group:
        plan = make_plan(group, linear(), shared=None)
        index = torch.arange(ROWS, dtype=torch.int32)[:, None].contiguous()
        index[0] = 99 if rank == 0 else 0
        group.combine(rows, index=index, sizes=SIZES)
        testing.synchronize()
        with pytest.raises(ValueError if rank == 0 else symmoe.MismatchError, match="99"):
            plan.refresh()
        plan.refresh()
        for wrong, kind in (("x", TypeError), (-3, ValueError)):
            given = wrong if rank == 0 else ROWS
            with pytest.raises(kind if rank == 0 else symmoe.MismatchError, match="rows"):
                make_plan(group, linear(), rows=given)
        with pytest.raises(symmoe.MismatchError, match="ranks have different plans"):
            make_plan(group, linear(), rows=ROWS + rank)
        assert make_plan(group, linear(), rows=ROWS).rows == ROWS


def wrong_routing(rank: int, world: int) -> None:
    """A plan looks at a routing as the group's combine does, whoever makes the sum."""
    ids = torch.zeros(ROWS, 2, dtype=torch.int32)
    owners = torch.tensor([0], dtype=torch.int32)
    experts, shared = torch.ones(ROWS, 2, LATENT), torch.ones(ROWS, HIDDEN)
    with symmoe.init(device="cpu") as group:
        for kind in (None, Partial()):
            for prefer in ("early", "late"):
                plan = make_plan(group, linear(), shared=kind, prefer=prefer)
                given: dict[str, Any] = {"sizes": SIZES, "shared": None if kind is None else shared}
                wrong: list[tuple[Any, type[Exception], str]] = [
                    ("nonsense", TypeError, "must be a symmoe.Routing"),
                    (symmoe.Routing(ids[1:], None, owners), ValueError, "has 6 rows"),
                    (symmoe.Routing(ids[:, :1].contiguous(), None, owners), ValueError, "slots"),
                    (symmoe.Routing(ids, None, owners + world), ValueError, "expert_to_rank"),
                ]
                for routing, error, words in wrong:
                    with pytest.raises(error, match=words):
                        plan.combine(experts, routing=routing, **given)
                # Each rank thinks that it has the expert.
                own = symmoe.Routing(ids, None, owners + rank)
                with pytest.raises(symmoe.MismatchError, match="routing"):
                    plan.combine(experts, routing=own, **given)
                plan.combine(experts, routing=symmoe.Routing(ids, None, owners), **given)
        done = make_plan(group, linear(), shared=None, routed=symmoe.Replicated())
        with pytest.raises(ValueError, match="reduced already: they take no routing"):
            done.combine(experts[:, 0].contiguous(), sizes=SIZES, routing=own)


def strict_without_windows(rank: int, world: int) -> None:
    """What the plan makes itself needs no tag of the caller's."""
    config = symmoe.Config(windows=False, strict_layout=True)
    with symmoe.init(device="cpu", config=config) as group:
        for prefer in ("early", "late"):
            plan = make_plan(group, linear(), prefer=prefer)
            experts = symmoe.tag(summands(rank, LATENT), Partial())
            shared = symmoe.tag(summands(rank, HIDDEN), Partial())
            found = plan.combine(experts, shared=shared, sizes=SIZES)
            close(found, whole(linear(), world)[own_rows(SIZES, rank)])


def padding(rank: int, world: int) -> None:
    """What an index says of a padding row, nobody looks at, with and without a routing."""
    stride = max(SIZES) + 1
    places = torch.cat([torch.arange(size) + stride * r for r, size in enumerate(SIZES)])
    index = torch.full((stride * world, 1), 99, dtype=torch.int32)
    index[places, 0] = torch.arange(ROWS, dtype=torch.int32)
    ids = torch.full((stride * world, 1), 0, dtype=torch.int32)
    routing = symmoe.Routing(ids, None, torch.tensor([1], dtype=torch.int32))
    with symmoe.init(device="cpu") as group:
        shared = torch.zeros(stride * world, HIDDEN)
        given: dict[str, Any] = {"index": index, "sizes": SIZES, "padded_to": stride}
        plan = make_plan(group, linear(), prefer="late")
        found = plan.combine(summands(rank, LATENT), shared=shared, **given)
        total = linear()(sum(summands(r, LATENT) for r in range(world))).detach()
        close(found, total[own_rows(SIZES, rank)])
        found = plan.combine(summands(rank, LATENT), shared=shared, routing=routing, **given)
        close(found, linear()(summands(1, LATENT)).detach()[own_rows(SIZES, rank)])


# Tags stay in use once they are.
@pytest.mark.parametrize(
    "scenario",
    [asked_before_a_failure, one_rank_errs, wrong_routing, strict_without_windows, padding],
    ids=lambda each: each.__name__,
)
def test_in_a_group(own_ranks: Ranks, scenario: Callable[[int, int], None]) -> None:
    own_ranks.run(2, scenario)
