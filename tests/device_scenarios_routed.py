"""Scenarios of routed calls on devices: rows that nobody wrote are read by nobody."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from device_lab import Lab, barrier
from device_scenarios import HIDDEN
from device_scenarios_peers import NAN, launched, only, since
from reference import assert_same_bits, noise, own_rows, rank_sum, topk_sum
from symmoe import Config, Routing, SymmoeError

EXPERTS_PER_RANK = 3


class Batch:
    """One batch: what every rank knows of it, and each rank's experts' output.

    Attributes:
        ids: [rows, K], some of them nobody's; the first row has none at all.
        owners: [experts]: the rank of each, -1 for one that nobody has.
        weights: [rows, K].
        sizes: Rows of each rank, uneven.
    """

    def __init__(self, world: int, seed: int, slots: int, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.world, self.dtype, self.slots = world, dtype, slots
        self.sizes = [(3, 0, 5, 2, 1, 4, 2, 3)[(r + seed) % 8] for r in range(world)]
        self.rows = sum(self.sizes)
        experts = EXPERTS_PER_RANK * world + 1
        # Copies of one logical expert are experts of their own here, on whatever rank.
        self.owners = torch.arange(experts, dtype=torch.int32) % world
        self.owners[-1] = -1
        self.ids = torch.randint(-2, experts + 2, (self.rows, slots), generator=generator)
        self.ids = self.ids.to(torch.int32 if seed % 2 else torch.int64)
        self.ids[:1] = -1
        self.weights = noise(seed + 7, (self.rows, slots), torch.float32)
        self.seed = seed

    def present(self, rank: int) -> torch.Tensor:
        """[rows, K]: whether the slot's expert is on the rank."""
        known = (self.ids >= 0) & (self.ids < len(self.owners))
        chosen = self.owners[self.ids.long().clamp(0, len(self.owners) - 1)]
        return known & (chosen == rank)

    def routing(self, lab: Lab, weights: bool = True) -> Routing:
        """On the device."""
        return Routing(
            lab.tensor(self.ids),
            lab.tensor(self.weights) if weights else None,
            expert_to_rank=lab.tensor(self.owners),
        )

    def experts(self, rank: int, indexed: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Expert output with NaN in all that is not this rank's, and the index if there is one."""
        slots = noise(100 * self.seed + rank, (self.rows, self.slots, HIDDEN), self.dtype)
        slots[~self.present(rank)] = NAN
        if not indexed:
            return slots, None
        index = torch.arange(self.rows * self.slots, dtype=torch.int32)
        index = index.view(self.rows, self.slots)
        index[~self.present(rank)] = 1 << 20  # no row at all: nobody may look
        return slots.view(-1, HIDDEN), index

    def part(self, rank: int) -> torch.Tensor:
        """This rank's partial rows, zeros where it has none."""
        slots, _ = self.experts(rank, False)
        index = torch.arange(self.rows * self.slots).view(self.rows, self.slots)
        index[~self.present(rank)] = -1
        return topk_sum(slots.view(-1, HIDDEN).nan_to_num(0.0), self.weights, index, 0.5)

    def right(self, rank: int) -> torch.Tensor:
        """The own rows of the dense fixed order."""
        own = own_rows(self.sizes, rank)
        return rank_sum([self.part(r)[own] for r in range(self.world)])


def assert_equal_but_zeros(found: torch.Tensor, right: torch.Tensor) -> None:
    """The same bits; a zero may have the other sign."""
    assert_same_bits(found + 0.0, right + 0.0)


def poison(lab: Lab, group: Any, rows: int, dtype: torch.dtype, lane: int = 0) -> torch.Tensor:
    """A window full of NaN, acquired."""
    window: torch.Tensor | None = group.acquire("combine", (rows, HIDDEN), dtype, lane=lane)
    assert window is not None
    if rows:
        lab.put(window, lab.tensor(torch.full((rows, HIDDEN), NAN, dtype=dtype)))
    return window


def combines(lab: Lab, rank: int, world: int, dtype: torch.dtype, path: str) -> None:
    """The dense sum from rows that were written only where there is something; launches."""
    launches = {
        "routed": {"route_mask": 1, "topk_reduce": 1, "pull_reduce": 1},
        "fused": {"route_mask": 1, "combine": 1},
        "pull": {"topk_reduce": 1, "pull_reduce": 1},
        "ordered": {"topk_reduce": 1, "rank_reduce": 1},
        "": {},
    }
    with lab.init(only(path) if path else Config(windows=False, paths=("grouped",))) as group:
        for seed, slots in ((1, 1), (2, 2), (3, 8), (4, 2)):
            batch = Batch(world, seed, slots, dtype)
            lane = seed % 3
            routing = batch.routing(lab)
            for indexed in (False, True):
                rows, index = batch.experts(rank, indexed)
                if path:
                    poison(lab, group, batch.rows, dtype, lane)
                before = launched(lab)
                options: dict[str, Any] = {
                    "index": None if index is None else lab.tensor(index),
                    "scale": 0.5,
                    "sizes": batch.sizes,
                    "lane": lane,
                    "routing": routing,
                    "deterministic": bool(path),
                }
                on_device = lab.tensor(rows)
                found = group.combine(on_device, **options)
                if path and lab.emulated and batch.rows and (world > 1 or path != "ordered"):
                    expected = dict(launches[path])
                    if indexed:  # the batch's masks are there
                        expected.pop("route_mask", None)
                    if path == "ordered" and not batch.sizes[rank]:
                        expected.pop("rank_reduce")  # nothing to add here
                    if world > 1:
                        assert since(lab, before) == expected
                if path:
                    assert_equal_but_zeros(lab.host(found), batch.right(rank))
                else:
                    assert torch.allclose(
                        lab.host(found).float(), batch.right(rank).float(), atol=0.1, rtol=0.1
                    )
        group.check()
        if path and world > 1:
            assert group.stats()[f"calls_{path}"] > 0
            assert group.stats()["calls_process_group"] == 0


def by_experts(lab: Lab, rank: int, world: int, path: str) -> None:
    """An expert kernel wrote the rows; in a window, in memory of its own, already summed."""
    dtype = torch.bfloat16
    with lab.init(only(path)) as group:
        for seed in (1, 2, 5):
            batch = Batch(world, seed, 2, dtype)
            routing = batch.routing(lab, weights=False)
            written = batch.present(rank).any(1)
            rows = torch.full((batch.rows, HIDDEN), NAN, dtype=dtype)
            rows[written] = batch.part(rank)[written]
            on_device = lab.tensor(rows)
            right = batch.right(rank)
            options: dict[str, Any] = {"sizes": batch.sizes, "routing": routing}

            window = poison(lab, group, batch.rows, dtype)
            if batch.rows:
                lab.put(window, on_device)
            options["deterministic"] = True
            found = group.reduce_scatter(window, **options)
            assert_equal_but_zeros(lab.host(found), right)
            found = group.reduce_scatter(on_device, **options)
            assert_equal_but_zeros(lab.host(found), right)
            poison(lab, group, batch.rows, dtype)
            found = group.combine(on_device, **options)
            assert_equal_but_zeros(lab.host(found), right)
            assert_same_bits(lab.host(on_device), rows)
        group.check()


def in_graphs(lab: Lab, rank: int, world: int, path: str) -> None:
    """Masks are made anew in each replay, from the ids that are there then."""
    dtype, slots = torch.bfloat16, 2
    first = Batch(world, 3, slots, dtype)
    with lab.init(only(path)) as group:
        stream = lab.stream()
        routing = first.routing(lab, weights=False)
        weights = lab.tensor(first.weights)
        rows = lab.tensor(torch.zeros(first.rows, slots, HIDDEN, dtype=dtype))
        out = lab.tensor(torch.zeros(first.sizes[rank], HIDDEN, dtype=dtype))

        def call() -> None:
            group.combine(rows, weights, out=out, routing=routing, scale=0.5, sizes=first.sizes)

        call()  # its mask is not what the graph may use
        lab.synchronize()
        with lab.capture(stream) as graph:
            call()
        barrier()
        for turn in range(12):
            batch = Batch(world, 3, slots, dtype)
            generator = torch.Generator().manual_seed(turn)
            ids = torch.randint(-1, len(batch.owners), batch.ids.shape, generator=generator)
            batch.ids, batch.seed = ids.to(first.ids.dtype), 3 + turn
            lab.synchronize()
            write(lab, routing.topk_ids, batch.ids)
            with lab.use(stream):
                values = lab.tensor(batch.experts(rank, False)[0])
                lab.put(rows.view(-1, HIDDEN), values.view(-1, HIDDEN))
                graph.replay()
            assert_equal_but_zeros(lab.host(out), batch.right(rank))
            call()  # outside, with the same Routing: a mask of its own, of what is there now
            assert_equal_but_zeros(lab.host(out), batch.right(rank))
        graph.reset()


def rewritten(lab: Lab, rank: int, world: int, path: str) -> None:
    """One Routing whose ids get new values, where torch counts no versions: no mask is stale."""
    with lab.init(only(path)) as group, torch.inference_mode():
        batches = [Batch(world, seed, 2, torch.bfloat16) for seed in (1, 9, 17)]  # of equal sizes
        routing = batches[0].routing(lab)
        for batch in batches:
            write(lab, routing.topk_ids, batch.ids)
            assert routing.topk_weights is not None
            write(lab, routing.topk_weights, batch.weights)
            rows = lab.tensor(batch.experts(rank, False)[0])
            poison(lab, group, batch.rows, batch.dtype)
            found = group.combine(rows, routing=routing, scale=0.5, sizes=batch.sizes)
            assert_equal_but_zeros(lab.host(found), batch.right(rank))


def write(lab: Lab, target: torch.Tensor, values: torch.Tensor) -> None:
    """Static memory of a graph gets new values, while nothing runs."""
    lab.synchronize()
    target.copy_(lab.tensor(values))
    lab.synchronize()


def different(lab: Lab, rank: int, world: int) -> str:
    """One rank has other ids: nobody trusts them."""
    with lab.init(only("routed", timeout=10)) as group:
        batch = Batch(world, 2, 2, torch.bfloat16)
        if rank == world - 1:
            batch.ids[-1, 0] = 0 if batch.ids[-1, 0] == 1 else 1
            batch.owners[batch.ids[-1, 0]] = (batch.owners[batch.ids[-1, 0]] + 1) % world
        rows = lab.tensor(torch.zeros(batch.rows, 2, HIDDEN, dtype=torch.bfloat16))
        group.combine(rows, routing=batch.routing(lab), sizes=batch.sizes)
        lab.synchronize()
        barrier()
        with pytest.raises(SymmoeError) as caught:
            group.check()
        return f"{type(caught.value).__name__}: {caught.value}"


def wrong_owner(lab: Lab, rank: int, world: int) -> None:
    """An expert of a rank that does not exist is nobody's; the next call says so."""
    with lab.init(only("routed")) as group:
        batch = Batch(world, 2, 2, torch.float32)
        batch.owners[0] = world + 3
        rows = lab.tensor(batch.experts(rank, False)[0].nan_to_num(0.0))
        found = group.combine(rows, routing=batch.routing(lab), sizes=batch.sizes, scale=0.5)
        right = batch.right(rank)
        assert_equal_but_zeros(lab.host(found), right)
        with pytest.raises(ValueError, match=rf"expert_to_rank\[0\] is {world + 3}"):
            group.check()
        group.check()


def refused(lab: Lab, rank: int, world: int) -> None:
    """What does not fit is refused before anything is queued."""
    with lab.init(only("routed", "pull")) as group:
        batch = Batch(world, 2, 2, torch.float32)
        rows = lab.tensor(torch.zeros(batch.rows, 2, HIDDEN))
        routing = batch.routing(lab)
        before = launched(lab)
        wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
            ({"routing": "mine"}, TypeError, "must be a symmoe.Routing"),
            ({"topk_weights": lab.tensor(batch.weights)}, ValueError, "given twice"),
        ]
        for options, kind, text in wrong:
            given: dict[str, Any] = {"routing": routing, "sizes": batch.sizes} | options
            with pytest.raises(kind, match=text):
                group.combine(rows, **given)
        with pytest.raises(ValueError, match="rows"):
            group.combine(rows[:-1], routing=routing, sizes=[batch.rows - 1] + [0] * (world - 1))
        plain = batch.routing(lab, weights=False)
        with pytest.raises(ValueError, match="slots"):
            group.combine(rows[:, :1].contiguous(), routing=plain, sizes=batch.sizes)
        integers = lab.tensor(torch.zeros(batch.rows, HIDDEN, dtype=torch.int32))
        with pytest.raises(TypeError, match="a routing goes with"):
            group.reduce_scatter(integers, routing=routing, sizes=batch.sizes)
        assert launched(lab) == before
