"""Scenarios of own kernels: any sizes, in rank order, from whatever window a rank has."""

from __future__ import annotations

from typing import Any

import torch

from device_lab import Lab, barrier
from device_scenarios import HIDDEN, inputs
from reference import assert_same_bits, noise, own_rows, rank_sum, topk_sum
from symmoe import Config, testing

SMALL = Config(granularity=4096)
NAN = float("nan")
LAUNCHES = (
    "topk_reduce",
    "copy_to_window",
    "route_mask",
    "pull_reduce",
    "combine",
    "rank_reduce",
    "apply_epilogue",
    "pull_epilogue",
)


def only(*paths: str, **more: Any) -> Config:
    """Settings that leave a call no other way; ranks do not wait long for one that has failed."""
    return Config(paths=paths, **({"timeout": 30.0} | more))


def launched(lab: Lab) -> dict[str, int]:
    """Kernels queued so far, by name; none are counted on a real GPU."""
    return {name: testing.count(name) for name in LAUNCHES} if lab.emulated else {}


def since(lab: Lab, before: dict[str, int]) -> dict[str, int]:
    """What was queued since, but for what was not."""
    now = launched(lab)
    return {name: now[name] - count for name, count in before.items() if now[name] != count}


def sizes_of(world: int) -> list[list[int]]:
    """Even, uneven, with nothing for some, and all for the last."""
    return [
        [4] * world,
        [2 * r + 1 for r in range(world)],
        [(5, 0, 3, 0, 1, 2, 0, 4)[r] for r in range(world)],
        [0] * (world - 1) + [6],
    ]


def poisoned(
    lab: Lab, rows: int, sizes: list[int], padded_to: int | None, given: torch.Tensor
) -> torch.Tensor:
    """The rows, with NaN wherever no rank's are."""
    spoiled = torch.full_like(given, NAN)
    for r in range(len(sizes)):
        own = own_rows(sizes, r, padded_to)
        spoiled[own] = given[own]
    assert spoiled.shape[0] == rows
    return lab.tensor(spoiled)


def sums(lab: Lab, rank: int, world: int, dtype: torch.dtype, source: str) -> None:
    """reduce_scatter by pull: the right bits for all sizes, from a window and from other memory."""
    with lab.init(only("pull", window_source=source)) as group:
        assert group.describe()["windows"] == ("" if world == 1 else source.upper())
        for number, sizes in enumerate(sizes_of(world)):
            for padded_to in (None, max(sizes) + 2):
                rows = sum(sizes) if padded_to is None else padded_to * world
                given = inputs(world, rows, dtype, number)
                own = own_rows(sizes, rank, padded_to)
                right = rank_sum([part[own] for part in given])
                private = poisoned(lab, rows, sizes, padded_to, given[rank])
                for deterministic in (False, True):
                    options: dict[str, Any] = {
                        "sizes": sizes,
                        "padded_to": padded_to,
                        "deterministic": deterministic,
                    }
                    found = group.reduce_scatter(private, **options)
                    window = group.acquire("combine", (rows, HIDDEN), dtype)
                    assert window is not None
                    lab.put(window, private)
                    out = lab.tensor(torch.full((sizes[rank] + 2, HIDDEN), 7.0, dtype=dtype))
                    before = launched(lab)
                    assert group.reduce_scatter(window, out=out, **options) is out
                    if world > 1:
                        assert since(lab, before) == ({"pull_reduce": 1} if lab.emulated else {})
                    assert_same_bits(lab.host(found), right)
                    assert_same_bits(lab.host(out)[: sizes[rank]], right)
                    assert bool((lab.host(out)[sizes[rank] :] == 7).all())
        stats = group.stats()
        calls = len(sizes_of(world)) * 2 * 2
        assert stats["calls_process_group"] == 0, stats
        if world > 1:
            assert stats["calls_pull"] == 2 * calls, stats
            assert stats["calls_staged"] == calls, stats


def mixed_sources(lab: Lab, rank: int, world: int) -> None:
    """In one call: a window, a part of one, a view of an outgrown one, private memory."""
    dtype, rows = torch.bfloat16, world
    with lab.init(only("pull", granularity=4096)) as group:
        given = inputs(world, rows, dtype, 5)
        right = rank_sum([part[rank : rank + 1] for part in given])
        private = lab.tensor(given[rank])
        small = group.acquire("combine", (rows, HIDDEN), dtype)
        assert small is not None
        if rank == 0:
            lab.put(small, private)  # before it is outgrown
        large = group.acquire("combine", (400 * world, HIDDEN), dtype)
        assert large is not None
        if rank == 0:
            found = group.reduce_scatter(small)
        elif rank == 1:
            lab.put(large[3 : 3 + rows], private)  # 3 rows of 80 bytes: a boundary of 16
            found = group.reduce_scatter(large[3 : 3 + rows])
        else:
            lab.put(large[:rows], private)
            found = group.reduce_scatter(large[:rows])
        assert_same_bits(lab.host(found), right)
        # One rank has nothing in its window, and stages; the others do not.
        shape = (rows, HIDDEN)
        del small, large
        window = None
        if rank != world - 1:
            window = group.acquire("combine", shape, dtype)
            assert window is not None
            lab.put(window, private)
        found = group.reduce_scatter(private if window is None else window)
        assert_same_bits(lab.host(found), right)
        assert group.stats()["calls_staged"] == (1 if rank == world - 1 else 0)
        assert group.stats()["calls_pull"] == 2


def odd_offsets(lab: Lab, rank: int, world: int) -> None:
    """Rows that begin where wide loads cannot are staged; narrow rows are added all the same."""
    dtype, hidden = torch.bfloat16, 3
    with lab.init(only("pull")) as group:
        given = [noise(r, (2 * world + 1, hidden), dtype) for r in range(world)]
        window = group.acquire("combine", (2 * world + 1, hidden), dtype)
        assert window is not None
        lab.put(window, lab.tensor(given[rank]))
        found = group.reduce_scatter(window[1:])
        own = slice(1 + 2 * rank, 3 + 2 * rank)
        assert_same_bits(lab.host(found), rank_sum([part[own] for part in given]))
        assert group.stats()["calls_staged"] == (1 if world > 1 else 0)


def combines(lab: Lab, rank: int, world: int, dtype: torch.dtype) -> None:
    """Every path of combine that adds in rank order gives the same bits; launches are counted."""
    tokens, slots = 3 * world, 4
    sizes = [(4, 2, 3, 3)[r % 4] for r in range(world)]
    sizes[-1] += tokens - sum(sizes)
    terms = []
    for r in range(world):
        index = torch.randperm(tokens * slots, generator=torch.Generator().manual_seed(r))
        index = index.view(tokens, slots)
        index[:, r % slots] = -1
        index[0] = -1
        terms.append(
            (
                noise(r, (tokens * slots, HIDDEN), dtype),
                noise(50 + r, (tokens, slots), torch.float32),
                index,
            )
        )
    partial = [topk_sum(rows, weights, index, 0.5) for rows, weights, index in terms]
    right = rank_sum([part[own_rows(sizes, rank)] for part in partial])
    rows, weights, index = (lab.tensor(each) for each in terms[rank])
    launches = {
        "pull": {"topk_reduce": 1, "pull_reduce": 1},
        "fused": {"combine": 1},
        "ordered": {"topk_reduce": 1, "rank_reduce": 1},
    }
    for path, expected in launches.items():
        with lab.init(only(path)) as group:
            for lane in (0, 3):
                options: dict[str, Any] = {"index": index, "scale": 0.5, "sizes": sizes}
                decision = group.explain(
                    "combine", rows, weights, lane=lane, deterministic=True, **options
                )
                assert decision.path == path, str(decision)
                before = launched(lab)
                found = group.combine(rows, weights, lane=lane, deterministic=True, **options)
                if lab.emulated:
                    assert since(lab, before) == expected
                assert_same_bits(lab.host(found), right)
            assert group.stats()[f"calls_{path}"] == 2


def batches(lab: Lab, rank: int, world: int) -> None:
    """A token's bits do not depend on what else is in the batch, on its lane or on its path."""
    dtype, slots = torch.bfloat16, 2
    everything = [noise(r, (8 * world, slots, HIDDEN), dtype) for r in range(world)]
    seen: dict[int, torch.Tensor] = {}
    for path in ("pull", "fused", "ordered"):
        with lab.init(only(path)) as group:
            for lane, count in enumerate((1, 3, 8)):
                chosen = [8 * r + i for r in range(world) for i in range(count)]
                rows = lab.tensor(everything[rank][chosen])
                found = lab.host(group.combine(rows, lane=lane, deterministic=True))
                for i in range(count):
                    if i in seen:
                        assert_same_bits(found[i], seen[i])
                    seen.setdefault(i, found[i])


def threads_and_lanes(lab: Lab, rank: int, world: int) -> None:
    """Lanes in streams of their own, some ranks slow: each lane's kernels meet their own peers."""
    dtype, turns, lanes = torch.float32, 6, 3
    with lab.init(only("pull")) as group:
        assert group.reserve(2 * world, HIDDEN, dtype, lanes=lanes)
        streams = [lab.stream() for _ in range(lanes)]
        out = [[lab.tensor(torch.zeros(2, HIDDEN)) for _ in range(turns)] for _ in range(lanes)]
        for turn in range(turns):
            # Lanes interleave differently on different ranks: own kernels know no other order.
            for lane in [(each + rank) % lanes for each in range(lanes)]:
                with lab.use(streams[lane]):
                    if (rank + turn) % 3 == lane:
                        lab.slow(0.01)
                    value = torch.full((2 * world, HIDDEN), 1.0 + turn + 10 * lane)
                    window = group.acquire("combine", (2 * world, HIDDEN), dtype, lane=lane)
                    assert window is not None
                    lab.put(window, lab.tensor(value))
                    group.reduce_scatter(window, out=out[lane][turn], lane=lane)
        for lane in range(lanes):
            for turn in range(turns):
                right = world * (1.0 + turn + 10 * lane)
                assert bool((lab.host(out[lane][turn]) == right).all()), (lane, turn)
    barrier()


def graphs(lab: Lab, rank: int, world: int, path: str) -> None:
    """Replays with new numbers: epochs are counted on the device, stages are kept for the graph."""
    dtype, rows = torch.bfloat16, 3 * world
    with lab.init(only(path, granularity=4096)) as group:
        stream = lab.stream()
        source = [lab.tensor(torch.zeros(rows, HIDDEN, dtype=dtype)) for _ in range(2)]
        out = [lab.tensor(torch.zeros(3, HIDDEN, dtype=dtype)) for _ in range(2)]

        def both() -> None:
            group.combine(source[0], out=out[0])
            if path == "pull":  # fused makes sums alone
                group.reduce_scatter(source[1], out[1])
            else:
                group.combine(source[1], out=out[1])

        both()
        lab.synchronize()
        with lab.capture(stream) as graph:
            both()
        barrier()
        for turn in range(30):
            fresh = [
                [noise(100 * turn + 10 * n + r, (rows, HIDDEN), dtype) for n in range(2)]
                for r in range(world)
            ]
            with lab.use(stream):
                for n in range(2):
                    lab.put(source[n], lab.tensor(fresh[rank][n]))
                if turn % 7 == rank:
                    lab.slow(0.005)
                graph.replay()
            own = own_rows([3] * world, rank)
            for n in range(2):
                assert_same_bits(
                    lab.host(out[n]), rank_sum([fresh[r][n][own] for r in range(world)])
                )
            if turn == 10:  # a call outside takes its turn in the same lane, then replays go on
                found = group.combine(source[0])
                assert_same_bits(
                    lab.host(found), rank_sum([fresh[r][0][own] for r in range(world)])
                )
        assert group.stats()["pinned_bytes"] > 0
        graph.reset()
        group.release_graphs()
        assert group.stats()["pinned_bytes"] == 0


def growth(lab: Lab, rank: int, world: int) -> None:
    """Rows beyond what is reserved make larger windows; kernels find the new ones."""
    dtype = torch.float32
    with lab.init(only("pull", "fused", granularity=4096)) as group:
        assert group.reserve(world, HIDDEN, dtype)
        for step in range(1, 6):
            sizes = [step * step * 3 + r for r in range(world)]
            given = inputs(world, sum(sizes), dtype, step)
            own = own_rows(sizes, rank)
            right = rank_sum([part[own] for part in given])
            for call in (group.reduce_scatter, group.combine):
                found = call(lab.tensor(given[rank]), sizes=sizes)
                assert_same_bits(lab.host(found), right)
            group.trim()
        assert group.stats()["growths"] > 1
