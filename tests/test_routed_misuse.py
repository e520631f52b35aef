"""Routing that differs between ranks, does not fit or is wrong; what routing does not change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import symmoe
from ranks import Ranks
from reference import assert_same_bits, noise, rank_sum, topk_sum

pytestmark = pytest.mark.multi
TOKENS, SLOTS, HIDDEN, EXPERTS = 12, 2, 40, 6


def placed(world: int) -> torch.Tensor:
    return (torch.arange(EXPERTS) % world).to(torch.int32)


def choice(seed: int, rows: int = TOKENS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, EXPERTS, (rows, SLOTS), generator=generator)


def routing_of(world: int, seed: int = 1, rows: int = TOKENS) -> symmoe.Routing:
    return symmoe.Routing(choice(seed, rows), expert_to_rank=placed(world))


def filled(group: symmoe.Group, value: float = 1.0, rows: int = TOKENS) -> torch.Tensor:
    window = group.acquire("combine", (rows, HIDDEN), torch.float32)
    rows_of = torch.empty(rows, HIDDEN) if window is None else window
    return rows_of.fill_(value)


def works(group: symmoe.Group, world: int) -> None:
    """A right call still gives the right result."""
    routing = routing_of(world)
    present = torch.stack([routing.on_rank(r).any(1) for r in range(world)]).sum(0)
    share = slice(group.rank * TOKENS // world, (group.rank + 1) * TOKENS // world)
    found = group.reduce_scatter(filled(group), routing=routing)
    assert torch.equal(found, present[share, None].expand(-1, HIDDEN).float())


# --- routing that differs ------------------------------------------------------------------------


def different(rank: int, world: int, config: symmoe.Config) -> None:
    other = choice(1)
    other[3, 0] = (other[3, 0] + 1) % EXPERTS  # on another rank, as experts take turns
    elsewhere = placed(world)
    elsewhere[choice(1)[0, 0]] = (elsewhere[choice(1)[0, 0]] + 1) % world
    wrong = [
        symmoe.Routing(other, expert_to_rank=placed(world)),
        symmoe.Routing(choice(1), expert_to_rank=elsewhere),
    ]
    experts = noise(rank, (TOKENS, SLOTS, HIDDEN), torch.float32)
    with symmoe.init(config=config, device="cpu") as group:
        works(group, world)
        for bad in wrong:
            routing = bad if rank == world - 1 else routing_of(world)
            with pytest.raises(symmoe.MismatchError, match="routing"):
                group.reduce_scatter(filled(group), routing=routing)
            works(group, world)
            with pytest.raises(symmoe.MismatchError, match="routing"):
                group.reduce_scatter(torch.ones(TOKENS, HIDDEN), routing=routing)
            with pytest.raises(symmoe.MismatchError, match="routing"):
                group.combine(experts, routing=routing)
            works(group, world)
        with pytest.raises(symmoe.MismatchError, match="routed"):
            group.reduce_scatter(filled(group), routing=routing_of(world) if rank else None)
        works(group, world)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_different_routing_raises_on_all_ranks(ranks: Ranks, world: int) -> None:
    ranks.run(world, different, symmoe.Config())


@pytest.mark.parametrize(
    "config",
    [
        symmoe.Config(windows=False),
        symmoe.Config(max_buffer_bytes=1024),
        symmoe.Config(check=True),
    ],
)
def test_different_routing_on_other_ways(ranks: Ranks, config: symmoe.Config) -> None:
    ranks.run(2, different, config)


def same_masks(rank: int, world: int) -> None:
    """Other ids that give the same ranks for every row are no difference: only masks matter."""
    with symmoe.init(device="cpu") as group:
        ids = choice(1)
        swapped = ids.flip(1) if rank else ids
        routing = symmoe.Routing(swapped, expert_to_rank=placed(world))
        group.reduce_scatter(filled(group), routing=routing)
        works(group, world)


def test_only_masks_matter(ranks: Ranks) -> None:
    ranks.run(2, same_masks)


# --- wrong routing -------------------------------------------------------------------------------

IDS = torch.zeros(TOKENS, SLOTS, dtype=torch.int32)
MAP = torch.zeros(EXPERTS, dtype=torch.int32)
MAKING: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (TypeError, "topk_ids must be a tensor, got list", {"topk_ids": [[1]]}),
    (TypeError, "expert_to_rank must be a tensor, got NoneType", {"expert_to_rank": None}),
    (TypeError, "topk_weights must be a tensor, got float", {"topk_weights": 1.0}),
    (TypeError, "topk_ids is int16, expected int32 or int64", {"topk_ids": IDS.short()}),
    (TypeError, "topk_ids is float32", {"topk_ids": IDS.float()}),
    (TypeError, "expert_to_rank is int64, expected int32", {"expert_to_rank": MAP.long()}),
    (ValueError, r"topk_ids must be \[rows, K\], got \[24\]", {"topk_ids": IDS.view(-1)}),
    (
        ValueError,
        r"expert_to_rank must be \[experts\], got \[1, 6\]",
        {"expert_to_rank": MAP[None]},
    ),
    (
        ValueError,
        r"topk_weights has shape \[12, 1\], topk_ids \[12, 2\]",
        {"topk_weights": IDS[:, :1]},
    ),
]


@pytest.mark.parametrize(("kind", "words", "wrong"), MAKING)
def test_what_makes_no_routing(kind: type[Exception], words: str, wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"topk_ids": IDS, "expert_to_rank": MAP}
    with pytest.raises(kind, match=words):
        symmoe.Routing(**(right | wrong))


def test_a_routing_cannot_be_changed() -> None:
    routing = symmoe.Routing(IDS, None, MAP)
    with pytest.raises(AttributeError, match="cannot be changed"):
        routing.topk_ids = IDS
    with pytest.raises(AttributeError, match="cannot be changed"):
        del routing.expert_to_rank
    assert "12 rows, top-2 of 6 experts, no weights" in repr(routing)


def refused(kind: type[Exception], words: str, call: Callable[[], object]) -> None:
    with pytest.raises(kind, match=words) as caught:
        call()
    assert not isinstance(caught.value, symmoe.SymmoeError)


def wrong_calls(rank: int, world: int, config: symmoe.Config) -> None:
    experts = noise(rank, (TOKENS, SLOTS, HIDDEN), torch.float32)
    weights = torch.ones(TOKENS, SLOTS)
    rows = torch.ones(TOKENS, HIDDEN)
    ids, good = choice(1), placed(world)
    weighted = symmoe.Routing(ids, weights, good)
    plain = symmoe.Routing(ids, None, good)
    with symmoe.init(config=config, device="cpu") as group:
        where = f"combine on rank {rank}: "
        scatter = f"reduce_scatter on rank {rank}: "

        def combine(routing: Any, *arguments: Any, **more: Any) -> Callable[[], object]:
            given = arguments or (experts,)
            return lambda: group.combine(*given, routing=routing, **more)

        def reduce(routing: Any, tensor: torch.Tensor = rows) -> Callable[[], object]:
            return lambda: group.reduce_scatter(tensor, routing=routing)

        refused(
            TypeError, where + "routing must be a symmoe.Routing, got tuple", combine((ids, good))
        )
        refused(TypeError, scatter + "routing must be a symmoe.Routing, got dict", reduce({}))
        refused(ValueError, where + "topk_weights given twice", combine(weighted, experts, weights))
        refused(ValueError, "such rows are sums already", combine(plain, rows, weights[:, :1]))
        refused(
            ValueError,
            scatter + r"routing.topk_ids has 12 rows .* the call 10",
            reduce(plain, torch.ones(10, HIDDEN)),
        )
        refused(
            ValueError,
            where + "3 slots per token, but routing.topk_ids has 2",
            combine(plain, torch.ones(TOKENS, 3, HIDDEN)),
        )
        for tensor, name in ((ids.t().contiguous().t(), "topk_ids"), (ids.to("meta"), "topk_ids")):
            bad = symmoe.Routing(tensor, None, good)
            refused(ValueError, f"{scatter}routing.{name}", reduce(bad))
        spread = symmoe.Routing(ids, None, good.repeat_interleave(2)[::2])
        refused(ValueError, "routing.expert_to_rank must be contiguous", combine(spread))
        for value in (world, -2, 99):
            beyond = good.clone()
            beyond[4] = value
            bad = symmoe.Routing(ids, None, beyond)
            words = rf"routing: expert_to_rank\[4\] is {value}, must be -1 or a rank"
            refused(ValueError, where + words, combine(bad))
            refused(ValueError, scatter + words, reduce(bad))
            with pytest.raises(ValueError, match=words):
                group.explain("reduce_scatter", rows, routing=bad)
        narrow = symmoe.Routing(ids, torch.ones(TOKENS, SLOTS, dtype=torch.bfloat16), good)
        refused(TypeError, "topk_weights is bfloat16, expected float32", combine(narrow))
        # The index is looked at where the expert is here, nowhere else.
        here = plain.on_rank(rank)
        index = torch.where(here, torch.tensor(77), torch.tensor(-5))
        refused(ValueError, "index", combine(plain, torch.ones(4, HIDDEN), index=index))
        works(group, world)


def test_wrong_calls(ranks: Ranks) -> None:
    ranks.run(2, wrong_calls, symmoe.Config())


def test_wrong_calls_without_windows(ranks: Ranks) -> None:
    ranks.run(2, wrong_calls, symmoe.Config(windows=False))


# --- what routing does not change ----------------------------------------------------------------


def other_types(rank: int, world: int) -> None:
    """What windows do not know goes through the process group, with zeros for absent rows."""
    routing = routing_of(world)
    share = slice(rank * TOKENS // world, (rank + 1) * TOKENS // world)
    with symmoe.init(device="cpu") as group:
        for dtype in (torch.float64, torch.int32, torch.int64):
            for deterministic in (False, True):
                parts = []
                for r in range(world):
                    part = noise(r, (TOKENS, HIDDEN), dtype)
                    parts.append(part * routing.on_rank(r).any(1)[:, None].to(dtype))
                mine = noise(rank, (TOKENS, HIDDEN), dtype)
                before = mine.clone()
                found = group.reduce_scatter(mine, routing=routing, deterministic=deterministic)
                assert torch.equal(mine, before)
                assert torch.allclose(found, rank_sum([part[share] for part in parts]))
                assert (
                    group.explain("reduce_scatter", mine, routing=routing).path == "process_group"
                )
        assert group.stats()["calls_process_group"] == 6
        assert group.stats()["calls_routed_staged"] == 0


@pytest.mark.parametrize("world", [1, 2, 3])
def test_other_types(ranks: Ranks, world: int) -> None:
    ranks.run(world, other_types)


def same_bits(rank: int, world: int) -> None:
    """A token's bits do not depend on its batch, lane, path, instruction set or form of input."""
    from symmoe import _core

    total = 24 * world
    ids = choice(5, total)
    weights = noise(6, (total, SLOTS), torch.float32)
    experts = [noise(20 + r, (total, SLOTS, HIDDEN), torch.bfloat16) for r in range(world)]
    routing = symmoe.Routing(ids, weights, placed(world))
    here = [routing.on_rank(r) for r in range(world)]
    numbers = torch.arange(total * SLOTS).view(total, SLOTS)
    parts = [
        topk_sum(experts[r].view(-1, HIDDEN), weights, torch.where(here[r], numbers, -1))
        for r in range(world)
    ]
    with symmoe.init(device="cpu") as group:

        def run(tokens: torch.Tensor, lane: int, form: str) -> torch.Tensor:
            chosen = symmoe.Routing(ids[tokens], weights[tokens], placed(world))
            if form == "combine":
                return group.combine(experts[rank][tokens], routing=chosen, lane=lane)
            if form == "index":
                index = numbers[tokens].to(torch.int32)
                pairs = experts[rank].view(-1, HIDDEN)
                return group.combine(pairs, index=index, routing=chosen, lane=lane)
            rows = parts[rank][tokens]
            if form == "dense":
                return group.reduce_scatter(rows, lane=lane)
            if form == "window":
                window = group.acquire("combine", rows.shape, rows.dtype, lane=lane)
                assert window is not None
                rows = window.copy_(rows)
            return group.reduce_scatter(rows, routing=chosen, lane=lane)

        everything = torch.arange(total)
        whole = group.all_gather(run(everything, 0, "combine"))
        assert_same_bits(whole + 0, rank_sum(parts) + 0)
        for number, form in enumerate(("combine", "index", "memory", "window", "dense")):
            for isa in _core.available_isas():
                _core.set_isa(isa)
                batch = torch.randperm(total, generator=torch.Generator().manual_seed(number))
                batch = batch[: 12 * world]
                found = group.all_gather(run(batch, number, form), lane=number)
                # Dense adds the +0 of absent ranks, which makes a lone -0 positive; so does + 0.
                assert_same_bits(found + 0, whole[batch] + 0)
                if form != "dense":
                    assert_same_bits(found, whole[batch])
            _core.set_isa(_core.available_isas()[0])


@pytest.mark.parametrize("world", [1, 2, 3])
def test_bits_depend_on_nothing_else(ranks: Ranks, world: int) -> None:
    ranks.run(world, same_bits)


def in_place(rank: int, world: int) -> None:
    """The output may be the own rows of an input in private memory; nobody's rows become +0."""
    routing = symmoe.Routing(
        torch.tensor([[-1], [0], [1], [EXPERTS]]), expert_to_rank=placed(world)
    )
    with symmoe.init(device="cpu") as group:
        for _ in range(2):
            rows = torch.full((4, HIDDEN), torch.nan)
            rows[1 if rank == 0 else 2] = -0.0
            own = rows[2 * rank : 2 * rank + 2]
            group.reduce_scatter(rows, own, routing=routing)
            there, nobody = (own[1], own[0]) if rank == 0 else (own[0], own[1])
            assert bool((there.view(torch.int32) == torch.tensor(-0.0).view(torch.int32)).all())
            assert bool((nobody.view(torch.int32) == 0).all())


def test_in_place(ranks: Ranks) -> None:
    ranks.run(2, in_place)


def copies(rank: int, world: int) -> None:
    """Two tokens of one logical expert, each sent to another copy of it, in uneven shares."""
    # Physical experts 0 and 2 are copies of one logical expert, on ranks 0 and 2.
    expert_to_rank = torch.tensor([0, 1, 2], dtype=torch.int32)
    ids = torch.tensor([[0], [2], [0], [1], [2]])
    sizes = [1, 4, 0]
    with symmoe.init(device="cpu") as group:
        rows = torch.full((5, 1, HIDDEN), torch.nan)
        rows[ids[:, 0] == rank] = rank + 1.0
        routing = symmoe.Routing(ids, expert_to_rank=expert_to_rank)
        found = group.combine(rows, routing=routing, sizes=sizes)
        wanted = (ids.float() + 1)[sum(sizes[:rank]) :][: sizes[rank]]
        assert torch.equal(found, wanted.expand(-1, HIDDEN))


def test_copies_of_an_expert(ranks: Ranks) -> None:
    ranks.run(3, copies)
