"""Calls whose form is known take the core's short way: the same bits, and nothing held on to."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

import symmoe
from long_way import acquired, counted
from ranks import Ranks
from reference import DTYPES, assert_same_bits, noise, own_rows, rank_sum, topk_sum

pytestmark = pytest.mark.multi
TOKENS, SLOTS, HIDDEN = 12, 3, 72
BF16 = torch.bfloat16


def terms(seed: int, rank: int, dtype: torch.dtype) -> dict[str, Any]:
    """Expert output by token and slot, or as after a grouped GEMM with an index."""
    shape = (TOKENS, SLOTS, HIDDEN) if seed % 2 else (TOKENS * SLOTS, HIDDEN)
    made = {"expert_out": noise(100 * seed + rank, shape, dtype)}
    if seed % 3:
        made["topk_weights"] = noise(200 * seed + rank, (TOKENS, SLOTS), torch.float32)
    if not seed % 2:
        integer = torch.int64 if seed % 4 else torch.int32
        order = torch.randperm(TOKENS * SLOTS, generator=torch.Generator().manual_seed(seed))
        index = order.reshape(TOKENS, SLOTS).to(integer)
        index[seed % TOKENS] = -1
        made["index"] = index
    return made


def right_sum(seed: int, rank: int, dtype: torch.dtype, scale: float | None) -> torch.Tensor:
    made = terms(seed, rank, dtype)
    return topk_sum(made["expert_out"], made.get("topk_weights"), made.get("index"), scale)


def combines(rank: int, world: int) -> None:
    even = [TOKENS // world] * world
    uneven = [0] * (world - 1) + [TOKENS]
    forms: list[tuple[dict[str, Any], list[int]]] = [
        ({}, even),
        ({"sizes": uneven}, uneven),
        ({"sizes": tuple(uneven), "lane": 1}, uneven),
        ({"sizes": TOKENS // world}, even),
        ({"sizes": even, "padded_to": TOKENS // world, "scale": -0.75}, even),
    ]
    with symmoe.init(device="cpu") as group:
        # Every form comes back in each round, with other numbers in it.
        for turn in range(3):
            with counted(group) as taken:
                for number, (form, sizes) in enumerate(forms):
                    for kind, dtype in enumerate(DTYPES):
                        given = terms(6 * turn + number, rank, dtype)
                        if turn % 2:
                            given["out"] = torch.empty(sizes[rank] + 1, HIDDEN, dtype=dtype)
                        found = group.combine(**given, **form)
                        scale = form.get("scale")
                        parts = [
                            right_sum(6 * turn + number, r, dtype, scale) for r in range(world)
                        ]
                        right = rank_sum([part[own_rows(sizes, rank)] for part in parts])
                        assert_same_bits(found[: sizes[rank]], right)
                        assert "out" not in given or found is given["out"], (number, kind)
            # Seeds that are 6 apart have the same kinds of tensors, but for the index's type.
            if turn == 2:
                assert taken == [], taken
        assert group.stats()["calls_pull"] == 3 * len(forms) * len(DTYPES)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_combine(ranks: Ranks, world: int) -> None:
    ranks.run(world, combines)


def rows(rank: int, world: int) -> None:
    """In windows and in other memory, reduced and gathered, with sizes of every kind."""
    counts = [1 + r for r in range(world)]
    total = sum(counts)
    with symmoe.init(device="cpu") as group:
        for turn in range(3):
            with counted(group) as taken:
                for in_window in (True, False):
                    source = noise(10 * turn + rank, (total, HIDDEN), BF16)
                    mine = source[: counts[rank]].contiguous()
                    if in_window:
                        source = acquired(group, "combine", total, HIDDEN).copy_(source)
                        mine = acquired(group, "dispatch", counts[rank], HIDDEN).copy_(mine)
                    whole = [noise(10 * turn + r, (total, HIDDEN), BF16) for r in range(world)]
                    found = group.reduce_scatter(source, sizes=counts)
                    parts = [part[own_rows(counts, rank)] for part in whole]
                    assert_same_bits(found, rank_sum(parts))
                    gathered = group.all_gather(mine, sizes=tuple(counts))
                    right = torch.cat([whole[r][: counts[r]] for r in range(world)])
                    assert_same_bits(gathered, right)
            assert turn == 0 or taken == [], taken
        stats = group.stats()
        kinds = ("calls_pull", "calls_staged", "calls_gather", "calls_gather_staged")
        assert [stats[kind] for kind in kinds] == [3, 3, 3, 3]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_rows(ranks: Ranks, world: int) -> None:
    ranks.run(world, rows)


def choice(seed: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of two experts per rank, some of padding, and where the experts are."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(-1, 2 * world + 1, (TOKENS, SLOTS), generator=generator)
    return ids, torch.arange(2 * world, dtype=torch.int32) // 2


def masked(values: torch.Tensor, ids: torch.Tensor, rank: int) -> torch.Tensor:
    """What a rank has to give: nothing for slots of experts that are elsewhere."""
    return torch.where((ids // 2 == rank)[..., None], values, torch.zeros_like(values))


def routed(rank: int, world: int) -> None:
    """Every kind of routed call, each time with other ids and other values."""
    sizes = [TOKENS // world] * world
    with symmoe.init(device="cpu") as group:
        for turn in range(3):
            ids, experts = choice(turn, world)
            weights = noise(300 + turn, (TOKENS, SLOTS), torch.float32)
            whole = [noise(100 * turn + r, (TOKENS, SLOTS, HIDDEN), BF16) for r in range(world)]
            sums = [topk_sum(masked(whole[r], ids, r), None, None, None) for r in range(world)]
            weighted = [
                topk_sum(masked(whole[r], ids, r), weights, None, None) for r in range(world)
            ]
            right, right_weighted = (
                rank_sum([part[own_rows(sizes, rank)] for part in parts])
                for parts in (sums, weighted)
            )
            index = torch.arange(TOKENS * SLOTS, dtype=torch.int32).reshape(TOKENS, SLOTS)
            with_weights = symmoe.Routing(ids, weights, experts)
            without = symmoe.Routing(ids.int(), None, experts)
            mine = whole[rank]
            with counted(group) as taken:
                found = [
                    group.combine(mine, routing=with_weights),
                    group.combine(mine, weights, routing=without, sizes=sizes),
                    group.combine(mine.view(-1, HIDDEN), routing=with_weights, index=index),
                ]
                plain = [
                    group.combine(mine, routing=without),
                    group.combine(sums[rank], routing=without),
                    group.reduce_scatter(sums[rank], routing=with_weights),
                ]
                window = acquired(group, "combine", TOKENS, HIDDEN).copy_(sums[rank])
                plain.append(group.reduce_scatter(window, routing=with_weights))
            for tensor in found:
                assert bool((tensor == right_weighted).all())
            for tensor in plain:
                assert bool((tensor == right).all())
            assert turn == 0 or taken == [], taken
        stats = group.stats()
        assert stats["calls_routed"] + stats["calls_routed_staged"] == 3 * 7
        assert stats["calls_pull"] == 0


@pytest.mark.parametrize("world", [1, 2, 3])
def test_routed(ranks: Ranks, world: int) -> None:
    ranks.run(world, routed)


def no_grad(rank: int, world: int) -> None:
    """Where no gradients are recorded, a tensor that would want one is as good as any."""
    rows = torch.ones(TOKENS, SLOTS, HIDDEN).requires_grad_()
    parameter = torch.nn.Parameter(torch.ones(TOKENS, SLOTS))
    with symmoe.init(device="cpu") as group, torch.no_grad():
        for _ in range(3):
            assert bool((group.combine(rows, parameter) == SLOTS * world).all())
        with torch.inference_mode():
            assert bool((group.combine(rows.detach() * 2, parameter) == 2 * SLOTS * world).all())
    assert rank < world


def test_gradients_that_nobody_records(ranks: Ranks) -> None:
    ranks.run(2, no_grad)


def no_window(rank: int, world: int) -> None:
    """Some rank had no window for a call that all of them know: they fall back together."""
    dtype = torch.float32
    whole = [noise(r, (TOKENS, SLOTS, HIDDEN), dtype) for r in range(world)]
    right = rank_sum([topk_sum(rows)[own_rows([TOKENS // world] * world, rank)] for rows in whole])
    with symmoe.init(device="cpu") as group:
        known = group._known_combine
        for call in range(6):
            out = torch.empty(right.shape, dtype=dtype) if call % 2 else None
            if call in (2, 3):
                group._known_combine = lambda *_: False
            found = group.combine(whole[rank], out=out, deterministic=True)
            group._known_combine = known
            assert out is None or found is out
            assert_same_bits(found, right)
            if call in (2, 3):
                assert "in an earlier call" in group.explain("combine", whole[rank]).reason
                # One more the long way shows that the shortage is over.
                assert_same_bits(group.combine(whole[rank]), right)
                assert group.explain("combine", whole[rank]).path == "pull"
        assert group.stats()["calls_process_group"] == 2


def test_no_window_on_some_rank(ranks: Ranks) -> None:
    ranks.run(2, no_window)


def grown(rank: int, world: int) -> None:
    """What is remembered of calls does not hold on to memory that they used."""
    with symmoe.init(config=symmoe.Config(granularity=4096), device="cpu") as group:
        for size in (1, 4, 32):
            rows = torch.ones(size * TOKENS, SLOTS, HIDDEN, dtype=BF16)
            for _ in range(2):
                assert bool((group.combine(rows) == SLOTS * world).all())
        assert group.stats()["growths"] == 2
        group.trim()
        assert group.stats()["retired_bytes"] == 0
        with counted(group) as taken:
            for size in (1, 4, 32):  # in the large window now
                rows = torch.ones(size * TOKENS, SLOTS, HIDDEN, dtype=BF16)
                assert bool((group.combine(rows) == SLOTS * world).all())
        assert taken == []
    assert rank < world


def test_windows_that_grew(ranks: Ranks) -> None:
    ranks.run(2, grown)


def many(rank: int, world: int) -> None:
    """More forms than are remembered: the one not used for longest is forgotten."""
    with symmoe.init(device="cpu") as group:
        first = torch.ones(world, 1, HIDDEN)
        for count in range(1, 140):
            rows = torch.ones(count * world, 1, HIDDEN)
            assert bool((group.combine(rows) == world).all())
            with counted(group) as taken:
                assert bool((group.combine(first) == world).all())
            assert taken == [], count  # it is used all the time
        with counted(group) as taken:
            for count in (2, 139):
                assert bool((group.combine(torch.ones(count * world, 1, HIDDEN)) == world).all())
        assert taken == ["_prepare_combine"]
    assert rank < world


def test_more_forms_than_are_remembered(ranks: Ranks) -> None:
    ranks.run(2, many)


def one_lane(rank: int, world: int) -> None:
    """A second thread on a lane is refused before it writes the window."""
    rows = torch.ones(world, 1, HIDDEN)
    with symmoe.init(device="cpu") as group:
        for _ in range(2):
            group.combine(rows)
        if rank == 0:
            found: list[torch.Tensor] = []
            first = threading.Thread(target=lambda: found.append(group.combine(rows)))
            first.start()
            time.sleep(0.2)  # it waits for the other rank, which is late
            with pytest.raises(ValueError, match="another thread"):
                group.combine(rows * 5)
            first.join()
            assert bool((found[0] == world).all())
        else:
            time.sleep(0.6)
            assert bool((group.combine(rows) == world).all())


def test_two_threads_on_one_lane(ranks: Ranks) -> None:
    ranks.run(2, one_lane)


def ended(rank: int, world: int) -> None:
    rows = torch.ones(world, 1, HIDDEN)
    group = symmoe.init(device="cpu")
    for _ in range(2):
        group.combine(rows)
    group.close()
    with pytest.raises(symmoe.ClosedError, match=f"combine on rank {rank}: the group is closed"):
        group.combine(rows)


def test_after_close(ranks: Ranks) -> None:
    ranks.run(2, ended)


def unreadable(rank: int, world: int) -> None:
    """A torch without DLPack's table of functions: always the long way, with the same results."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", None, raising=False)
        with symmoe.init(device="cpu") as group, counted(group) as taken:
            for _ in range(3):
                window = acquired(group, "combine", TOKENS, HIDDEN)
                assert acquired(group, "combine", TOKENS, HIDDEN) is window
                window.fill_(2)
                assert bool((group.reduce_scatter(window) == 2 * world).all())
                assert bool((group.combine(torch.ones(TOKENS, 2, HIDDEN)) == 2 * world).all())
            window = acquired(group, "combine", TOKENS, HIDDEN)
            window.data = window[:3]
            assert acquired(group, "combine", TOKENS, HIDDEN).shape == (TOKENS, HIDDEN)
            assert len(taken) == 6
    assert rank < world


def test_a_torch_that_cannot_be_read(ranks: Ranks) -> None:
    ranks.run(2, unreadable)
