"""Calls of a plan: windows, routing, tags, what is refused, and what it goes by."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import symmoe
from planned import HIDDEN, LATENT, ROWS, SIZES, close, linear, make_plan, summands, whole
from ranks import Ranks
from reference import own_rows
from symmoe import tags, testing
from symmoe.tags import Partial, Sharded

pytestmark = pytest.mark.multi

# --- what a call takes ----------------------------------------------------------------------------


def windows(rank: int, world: int) -> None:
    """Nothing is staged where the shared experts write the window; nor is a kernel's sum lost."""
    with symmoe.init(device="cpu") as group:
        for prefer in ("early", "late"):
            plan = make_plan(group, linear(), prefer=prefer)
            expected = whole(linear(), world)[own_rows(SIZES, rank)]
            for lane in (0, 3):
                before = group.stats()
                window = plan.shared_window(ROWS, lane=lane)
                assert window is not None
                window.copy_(summands(rank, HIDDEN))
                experts = summands(rank, LATENT)[:, None].contiguous()
                found = plan.combine(experts, shared=window, sizes=SIZES, lane=lane)
                close(found, expected)
                after = group.stats()
                assert after["calls_staged"] == before["calls_staged"]
                assert after["calls_pull"] - before["calls_pull"] == (1 if prefer == "late" else 2)
            # What was reduced is not there any more.
            with pytest.raises(ValueError, match="reduced already: ask for it again"):
                plan.combine(experts, shared=window, sizes=SIZES, lane=3)
            # The experts' rows in the window, the shared ones elsewhere.
            latent = group.acquire("combine", (ROWS, LATENT), torch.float32)
            assert latent is not None
            latent.copy_(summands(rank, LATENT))
            found = plan.combine(latent, shared=summands(rank, HIDDEN), sizes=SIZES)
            close(found, expected)
            with pytest.raises(ValueError, match="expert_out is in a window that was reduced"):
                plan.combine(latent, shared=summands(rank, HIDDEN), sizes=SIZES)
        plain = make_plan(group)
        for where in ("shared", "experts", "neither"):
            rows, shared = summands(rank, HIDDEN), summands(rank + 9, HIDDEN)
            window = plain.shared_window(ROWS)
            assert window is not None
            if where == "shared":
                shared = window.copy_(shared)
            elif where == "experts":
                rows = window.copy_(rows)
            parts = [summands(r, HIDDEN) + summands(r + 9, HIDDEN) for r in range(world)]
            total = torch.stack(parts).sum(0)
            close(plain.combine(rows, shared=shared, sizes=SIZES), total[own_rows(SIZES, rank)])


def transformed_in_its_own_window(rank: int, world: int) -> None:
    """Many rows that the transform reads where it writes: no multiplication would stand that."""
    rows = 3000
    with symmoe.init(device="cpu") as group:
        plan = make_plan(group, linear(), shared=None, prefer="late")
        latent = torch.randn(rows, LATENT, generator=torch.Generator().manual_seed(rank))
        # The result in the same memory is larger, and must find it large enough.
        group.reserve(rows, HIDDEN, torch.float32)
        window = group.acquire("combine", (rows, LATENT), torch.float32)
        assert window is not None
        window.copy_(latent)
        apart = plan.combine(latent, lane=1)
        assert torch.equal(plan.combine(window), apart)


def without_windows(rank: int, world: int) -> None:
    with symmoe.init(device="cpu", config=symmoe.Config(windows=False)) as group:
        for prefer in ("early", "late"):
            plan = make_plan(group, linear(), prefer=prefer)
            assert plan.shared_window(ROWS) is None
            found = plan.combine(summands(rank, LATENT), shared=summands(rank, HIDDEN), sizes=SIZES)
            close(found, whole(linear(), world)[own_rows(SIZES, rank)])


def padded(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        places = torch.cat([torch.arange(size) + 5 * r for r, size in enumerate(SIZES)])
        for prefer in ("early", "late"):
            plan = make_plan(group, linear(), prefer=prefer)
            rows, shared = torch.zeros(5 * world, LATENT), torch.zeros(5 * world, HIDDEN)
            rows[places], shared[places] = summands(rank, LATENT), summands(rank, HIDDEN)
            found = plan.combine(rows, shared=shared, sizes=SIZES, padded_to=5)
            close(found, whole(linear(), world)[own_rows(SIZES, rank)])
            once_only = iter(SIZES)
            close(plan.combine(rows, shared=shared, sizes=once_only, padded_to=5), found)


def routed(rank: int, world: int) -> None:
    """With a routing, slots and rows that this rank has no expert for are read by nobody."""
    torch.manual_seed(8)
    ids = torch.stack([torch.randperm(6)[:2] for _ in range(ROWS)]).int()
    ids[0] = torch.tensor([0, 2])  # both on rank 0: rank 1 has nothing for row 0
    owners = torch.arange(6, dtype=torch.int32) % world
    weights, experts = torch.rand(ROWS, 2), torch.randn(ROWS, 2, LATENT)
    routing = symmoe.Routing(ids, weights, expert_to_rank=owners)
    own = owners[ids.long()] == rank
    mine = torch.where(own[..., None], experts, torch.nan)
    index = torch.where(own, torch.arange(ROWS * 2).view(ROWS, 2), -7)  # -7 is not looked at
    sums = (torch.where(own[..., None], experts, 0.0) * weights[..., None]).sum(1)
    sums[~own.any(1)] = torch.nan
    with symmoe.init(device="cpu") as group:
        for prefer in ("early", "late"):
            for shared in (None, Partial()):
                plan = make_plan(group, linear(), shared=shared, prefer=prefer)
                total = linear()((experts * weights[..., None]).sum(1)).detach()
                if shared is not None:
                    total += sum(summands(r, HIDDEN) for r in range(world))
                for rows, at in ((mine, None), (mine.view(-1, LATENT), index), (sums, None)):
                    found = plan.combine(
                        rows,
                        index=at,
                        shared=None if shared is None else summands(rank, HIDDEN),
                        routing=routing,
                        sizes=SIZES,
                    )
                    close(found, total[own_rows(SIZES, rank)])
        assert group.stats()["calls_routed"] + group.stats()["calls_routed_staged"] > 0


def refused(rank: int, world: int) -> None:
    """Wrong input raises before anything is sent, and everybody goes on."""
    with symmoe.init(device="cpu") as group:
        plan = make_plan(group, linear(), prefer="late")
        rows, shared = summands(rank, LATENT), summands(rank, HIDDEN)
        done = make_plan(group, linear(), routed=Sharded(), shared=None)
        mine = rows[own_rows(SIZES, rank)]
        cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
            (ValueError, "shared is missing", lambda: plan.combine(rows, sizes=SIZES)),
            (
                ValueError,
                "shared is given, and the plan was made for no",
                lambda: done.combine(mine, shared=shared, sizes=SIZES),
            ),
            (
                ValueError,
                "expected rows of 32",
                lambda: plan.combine(shared, shared=shared, sizes=SIZES),
            ),
            (
                TypeError,
                "expert_out is bfloat16, the plan was made for float32",
                lambda: plan.combine(rows.bfloat16(), shared=shared, sizes=SIZES),
            ),
            (
                ValueError,
                "shared has 6 rows, expected 7",
                lambda: plan.combine(rows, shared=shared[:6], sizes=SIZES),
            ),
            (
                ValueError,
                "sum.sizes. = 6",
                lambda: plan.combine(rows, shared=shared, sizes=[3, 3]),
            ),
            (
                ValueError,
                "out overlaps shared",
                lambda: plan.combine(rows, shared=shared, sizes=SIZES, out=shared),
            ),
            (
                ValueError,
                "out overlaps a window",
                lambda: plan.combine(
                    rows, shared=shared, sizes=SIZES, out=plan.shared_window(ROWS)
                ),
            ),
            (
                ValueError,
                "requires a gradient",
                lambda: plan.combine(rows.clone().requires_grad_(), shared=shared, sizes=SIZES),
            ),
            (
                ValueError,
                "reduced already.*take no topk_weights",
                lambda: done.combine(mine, torch.ones(len(mine), 1), sizes=SIZES),
            ),
            (ValueError, "expert_out has 7 rows", lambda: done.combine(rows, sizes=SIZES)),
            (
                ValueError,
                "lane 16",
                lambda: plan.combine(rows, shared=shared, sizes=SIZES, lane=16),
            ),
        ]
        for kind, why, call in cases:
            with symmoe.count_collectives() as count, pytest.raises(kind, match=why):
                call()
            assert count.calls == 0
        found = plan.combine(rows, shared=shared, sizes=SIZES)
        close(found, whole(linear(), world)[own_rows(SIZES, rank)])


# --- reduced twice, or never ----------------------------------------------------------------------


def by_hand(rank: int, world: int) -> None:
    """Both known faults, made by hand: wrong numbers. With tags, each of them is an error."""
    transform, own = linear(bias=True), own_rows(SIZES, rank)
    expected = whole(transform, world)[own]
    rows, shared = summands(rank, LATENT), summands(rank, HIDDEN)

    def twice(group: symmoe.Group, state: Callable[[Tensor], Tensor]) -> Tensor:
        """Reduced before the transform, and again with the shared experts' rows."""
        latent = group.all_gather(group.reduce_scatter(rows, sizes=SIZES), sizes=SIZES)
        return group.reduce_scatter(state(transform(latent) + shared), sizes=SIZES)

    def never(group: symmoe.Group, check: Callable[[Tensor], Tensor]) -> Tensor:
        """Transformed with the bias on each rank, so that the bias comes in as often."""
        return group.reduce_scatter(transform(check(rows)) + shared, sizes=SIZES)

    def unchanged(rows: Tensor) -> Tensor:
        return rows

    with torch.no_grad(), symmoe.init(device="cpu") as group:
        for fault in (twice, never):
            assert (fault(group, unchanged) - expected).abs().max() > 0.1
        with pytest.raises(symmoe.LayoutError, match="input is Replicated, must be Partial"):
            twice(group, lambda made: symmoe.tag(made, symmoe.Replicated()))

        def require_reduced(rows: Tensor) -> Tensor:
            tags.require_reduced("the output transform", rows)
            return rows

        symmoe.tag(rows, Partial())
        with pytest.raises(symmoe.LayoutError, match="output transform: the tensor is Partial"):
            never(group, require_reduced)

    with (
        torch.no_grad(),
        symmoe.init(device="cpu", config=symmoe.Config(strict_layout=True)) as group,
    ):
        # Nobody has to think of tags for it: what an operation makes has none, and is refused.
        for fault in (twice, never):
            with pytest.raises(symmoe.LayoutError, match=r"no tag, must be Partial"):
                fault(group, unchanged)
        symmoe.tag(shared, Partial())
        plan = make_plan(group, transform)
        with symmoe.count_collectives() as count:
            found = plan.combine(rows, shared=shared, sizes=SIZES)
        close(found, expected)
        assert count.calls == 2


def by_a_plan(rank: int, world: int) -> None:
    """A plan neither takes what was reduced nor gives what was not."""
    with symmoe.init(device="cpu") as group:
        for prefer in ("early", "late"):
            plan = make_plan(group, linear(), prefer=prefer)
            rows, shared = summands(rank, LATENT), summands(rank, HIDDEN)
            found = plan.combine(rows, shared=shared, sizes=SIZES)
            assert symmoe.layout_of(found) == Sharded(SIZES)
            with pytest.raises(symmoe.LayoutError, match=r"input is Sharded.*must be Partial"):
                group.reduce_scatter(found, sizes=[len(found), 0])
            everything = group.all_gather(found, sizes=SIZES)
            with pytest.raises(symmoe.LayoutError, match="shared is Replicated, the plan was made"):
                plan.combine(rows, shared=everything, sizes=SIZES)
            with pytest.raises(symmoe.LayoutError, match=r"expert_out is Sharded.*again"):
                plan.combine(symmoe.tag(rows, Sharded(SIZES)), shared=shared, sizes=SIZES)
        done = make_plan(group, linear(), routed=Sharded(), shared=None)
        latent = symmoe.tag(summands(rank, LATENT)[own_rows(SIZES, rank)].clone(), Partial())
        with pytest.raises(symmoe.LayoutError, match="is a summand, and would never be reduced"):
            done.combine(latent, sizes=SIZES)
        left = make_plan(group, linear(), skip_final=True)
        made = left.combine(summands(rank, LATENT), shared=summands(rank, HIDDEN), sizes=SIZES)
        with pytest.raises(symmoe.LayoutError, match="is Partial"):
            group.all_gather(made[: SIZES[rank]], sizes=SIZES)
        close(
            group.reduce_scatter(made, sizes=SIZES), whole(linear(), world)[own_rows(SIZES, rank)]
        )


# --- the cost model -------------------------------------------------------------------------------


def by_token_count(rank: int, world: int) -> None:
    """Nemotron-3 Super's widths: a step of few tokens saves a collective, a long one work."""
    with symmoe.init(device="cpu") as group:
        torch.manual_seed(0)
        transform = nn.Linear(1024, 4096, bias=False, dtype=torch.bfloat16)
        plan = symmoe.plan_combine(group=group, transform=transform, shared=Partial(), rows=2)
        orders = [plan.at(rows).when for rows in (1, 2, 4, 8, 16, 64, 512, 8192)]
        turn = orders.index("early")
        assert 0 < turn < 8
        assert set(orders[:turn]) == {"late"}
        assert set(orders[turn:]) == {"early"}
        assert plan.at(2).by_cost
        assert "us expected instead of" in plan.reason
        assert plan.at(2) is plan.at(2)
        with pytest.raises(ValueError, match="bytes_per_us = 0"):
            symmoe.CombineCosts(bytes_per_us=0)


def by_the_selector(rank: int, world: int) -> None:
    """Plans of devices go by the model that their selector goes by."""
    with testing.init() as group:
        torch.manual_seed(0)
        transform = nn.Linear(1024, 4096, bias=False, dtype=torch.bfloat16)
        plan = symmoe.plan_combine(group=group, transform=transform, shared=Partial())
        model = plan._judged.model
        assert model is not None
        for width in (1024, 4096):
            window = group.acquire("combine", (64, width), torch.bfloat16)
            decision = group.explain("reduce_scatter", window)
            assert decision.expected_us is not None
            # The selector's own, as long as it has the path that the model is of.
            assert model._reduce_us(64, width, 0) == decision.expected_us
        assert plan.at(2).when == "late"
        given = symmoe.plan_combine(
            group=group,
            transform=transform,
            shared=Partial(),
            costs=symmoe.CombineCosts(start_us=0.0, flops_per_us=1.0),
        )
        assert given.at(2).when == "early"
        testing.synchronize()


def on_devices(rank: int, world: int) -> None:
    """Plans of a group of devices, whose calls are queued; sizes may be there, too."""
    with testing.init() as group:
        expected = whole(linear(), world)[own_rows(SIZES, rank)]
        on_device = torch.tensor(SIZES, dtype=torch.int32)
        experts, shared = summands(rank, LATENT)[:, None].contiguous(), summands(rank, HIDDEN)
        for prefer in ("early", "late"):
            plan = make_plan(group, linear(), prefer=prefer)
            for sizes in (SIZES, on_device):
                for in_window in (False, True):
                    given = shared
                    if in_window:
                        window = plan.shared_window(ROWS)
                        assert window is not None
                        testing.synchronize()
                        given = window.copy_(shared)
                    found = plan.combine(experts, shared=given, sizes=sizes)
                    testing.synchronize()
                    assert symmoe.layout_of(found) == Sharded(SIZES if sizes is SIZES else None)
                    close(found[: SIZES[rank]], expected)
        left = make_plan(group, linear(), skip_final=True)
        made = left.combine(experts, shared=shared, sizes=SIZES)
        found = group.reduce_scatter(made, sizes=SIZES)
        testing.synchronize()
        close(found, expected)
        done = make_plan(group, linear(), routed=symmoe.Replicated())
        with pytest.raises(ValueError, match="these are on the device"):
            done.combine(experts[:, 0].contiguous(), shared=shared, sizes=on_device)


# Tags stay in use once they are.
@pytest.mark.parametrize(
    "scenario",
    [
        windows,
        transformed_in_its_own_window,
        without_windows,
        padded,
        routed,
        refused,
        by_hand,
        by_a_plan,
        by_token_count,
        by_the_selector,
        on_devices,
    ],
    ids=lambda each: each.__name__,
)
def test_in_a_group(own_ranks: Ranks, scenario: Callable[[int, int], None]) -> None:
    own_ranks.run(2, scenario)
