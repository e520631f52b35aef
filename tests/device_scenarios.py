"""Scenarios of the GPU path: every operation's results, for each path."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from device_lab import Lab
from reference import assert_same_bits, noise, own_rows, rank_sum, topk_sum
from symmoe import Config

HIDDEN = 40


def inputs(world: int, rows: int, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    """All ranks' partial rows."""
    return [noise(1000 * seed + rank, (rows, HIDDEN), dtype) for rank in range(world)]


def assert_close(found: torch.Tensor, parts: list[torch.Tensor]) -> None:
    """Within what any order of addition and a rounding per step may do."""
    wide = [part.double() for part in parts]
    exact, size = torch.stack(wide).sum(0), torch.stack(wide).abs().sum(0)
    bound = torch.finfo(found.dtype).eps * len(parts) * size
    assert found.shape == exact.shape
    assert bool(((found.double() - exact).abs() <= bound).all())


def check_sum(found: torch.Tensor, parts: list[torch.Tensor], bits: bool) -> None:
    """The right bits if they are determined, else a sum within rounding."""
    if bits:
        assert_same_bits(found, rank_sum(parts))
    else:
        assert_close(found, parts)


def sums(lab: Lab, rank: int, world: int, dtype: torch.dtype) -> None:
    """reduce_scatter: even, uneven, padded; from private memory and from the window."""
    per_rank = [
        [4] * world,
        [2 * r + 1 for r in range(world)],
        [(5, 0, 3, 1)[r % 4] for r in range(world)],
    ]
    with lab.init() as group:
        for number, sizes in enumerate(per_rank):
            for padded_to in (None, 6) if max(sizes) <= 6 else (None,):
                rows = sum(sizes) if padded_to is None else padded_to * world
                given = inputs(world, rows, dtype, number)
                own = own_rows(sizes, rank, padded_to)
                parts = [part[own] for part in given]
                private = lab.tensor(given[rank])
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
                    assert group.reduce_scatter(window, out=out, **options) is out
                    bits = deterministic or world == 1
                    check_sum(lab.host(found), parts, bits)
                    check_sum(lab.host(out)[: sizes[rank]], parts, bits)
                    assert bool((lab.host(out)[sizes[rank] :] == 7).all())
                assert_same_bits(lab.host(private), given[rank])
        stats = group.stats()
        assert stats["calls_process_group"] == 0, stats
        if world > 1:
            # The first sizes; padded with room they are uneven, and so are the others.
            assert stats["calls_direct"] == 2, stats
            assert stats["calls_staged"] == 1, stats
            assert stats["calls_grouped"] > 0, stats
            assert stats["calls_ordered"] > 0, stats


def in_place(lab: Lab, rank: int, world: int, dtype: torch.dtype) -> None:
    """The output may be exactly the own slice of an input outside of windows, nothing else."""
    with lab.init() as group:
        for sizes in ([3] * world, [r + 1 for r in range(world)]):
            own = own_rows(sizes, rank)
            given = inputs(world, sum(sizes), dtype, 9)
            for deterministic in (False, True):
                rows = lab.tensor(given[rank])
                group.reduce_scatter(rows, rows[own], sizes=sizes, deterministic=deterministic)
                parts = [part[own] for part in given]
                check_sum(lab.host(rows)[own], parts, deterministic or world == 1)
                others = [r for r in range(sum(sizes)) if not own.start <= r < own.stop]
                assert_same_bits(lab.host(rows)[others], given[rank][others])
            gathered = lab.tensor(torch.zeros(sum(sizes), HIDDEN, dtype=dtype))
            lab.put(gathered[own], lab.tensor(given[rank][own]))
            group.all_gather(gathered[own], gathered, sizes=sizes)
            right = torch.cat([given[r][own_rows(sizes, r)] for r in range(world)])
            assert_same_bits(lab.host(gathered), right)
        rows = lab.tensor(inputs(world, 2 * world, dtype)[rank])
        if world > 1:
            wrong = rows[2 * ((rank + 1) % world) :][:2]
            with pytest.raises(ValueError, match="overlaps"):
                group.reduce_scatter(rows, wrong)


def combines(lab: Lab, rank: int, world: int, dtype: torch.dtype) -> None:
    """Both layouts, weights of both types or none, scale; the CPU's bits if asked for."""
    tokens, slots = 3 * world, 4
    sizes = [3] * world
    with lab.init() as group:
        for number, (indexed, weights_type, scale) in enumerate(
            [
                (False, torch.float32, None),
                (False, None, 2.5),
                (False, dtype, None),
                (True, torch.float32, 0.3),
                (True, None, None),
            ]
        ):
            terms = []
            for r in range(world):
                seed = 100 * number + r
                shape = (tokens, slots, HIDDEN) if not indexed else (tokens * slots, HIDDEN)
                rows = noise(seed, shape, dtype)
                kind = weights_type
                weights = None if kind is None else noise(seed + 50, (tokens, slots), kind)
                index = None
                if indexed:
                    generator = torch.Generator().manual_seed(seed)
                    index = torch.randperm(tokens * slots, generator=generator).view(tokens, slots)
                    index[torch.rand(tokens, slots, generator=generator) < 0.3] = -1
                    index[0] = -1  # a token with nothing here
                    index = index.to(torch.int32 if number % 2 else torch.int64)
                terms.append((rows, weights, index))
            partial = [topk_sum(rows, weights, index, scale) for rows, weights, index in terms]
            parts = [part[own_rows(sizes, rank)] for part in partial]
            rows, weights, index = terms[rank]
            rows = lab.tensor(rows)
            weights = None if weights is None else lab.tensor(weights)
            index = None if index is None else lab.tensor(index)
            for deterministic in (False, True):
                found = group.combine(
                    rows, weights, index=index, scale=scale, deterministic=deterministic
                )
                check_sum(lab.host(found), parts, deterministic or world == 1)
        stats = group.stats()
        assert stats["calls_staged"] == 0, stats
        assert stats["calls_process_group"] == 0, stats


def gathers(lab: Lab, rank: int, world: int, dtype: torch.dtype) -> None:
    """all_gather: even, uneven, padded; from private memory and from a window of own size."""
    with lab.init() as group:
        for number, sizes in enumerate([[3] * world, [2 * r + 1 for r in range(world)]]):
            for padded_to in (None, 8):
                parts = [noise(10 * number + r, (n, HIDDEN), dtype) for r, n in enumerate(sizes)]
                private = lab.tensor(parts[rank])
                window = group.acquire("dispatch", (sizes[rank], HIDDEN), dtype)
                assert window is not None
                lab.put(window, private)
                rows = sum(sizes) if padded_to is None else padded_to * world
                for source in (private, window):
                    out = lab.tensor(torch.full((rows, HIDDEN), 9.0, dtype=dtype))
                    group.all_gather(source, out, sizes=sizes, padded_to=padded_to)
                    found = lab.host(out)
                    for r in range(world):
                        assert_same_bits(found[own_rows(sizes, r, padded_to)], parts[r])
                    if padded_to is not None:
                        assert bool((found[sizes[0] : 8] == 9).all())
        assert group.stats()["calls_process_group"] == 0


def large_gathers(lab: Lab, rank: int, world: int) -> None:
    """Windows to gather from have the size that each rank needs: no rank waits for another's."""
    with lab.init(Config(granularity=4096)) as group:
        sizes = [1 + 60 * r for r in range(world)]
        for turn in range(3):
            mine = (turn + 1) * sizes[rank]
            window = group.acquire("dispatch", (mine, HIDDEN), torch.float32)
            assert window is not None
            lab.put(window, lab.tensor(torch.full((mine, HIDDEN), float(rank))))
            found = lab.host(group.all_gather(window, sizes=[(turn + 1) * n for n in sizes]))
            right = torch.cat(
                [torch.full(((turn + 1) * n, HIDDEN), float(r)) for r, n in enumerate(sizes)]
            )
            assert torch.equal(found, right)


def nothing_to_do(lab: Lab, rank: int, world: int) -> None:
    """Zero rows, on all ranks or on some."""
    dtype = torch.bfloat16
    with lab.init() as group:
        none = lab.tensor(torch.empty(0, HIDDEN, dtype=dtype))
        window = group.acquire("combine", (0, HIDDEN), dtype)
        assert window is not None
        assert window.shape == (0, HIDDEN)
        assert group.reduce_scatter(window).shape == (0, HIDDEN)
        assert group.reduce_scatter(none).shape == (0, HIDDEN)
        assert group.all_gather(none).shape == (0, HIDDEN)
        assert group.combine(lab.tensor(torch.empty(0, 3, HIDDEN, dtype=dtype))).shape[0] == 0
        sizes = [0] * world
        sizes[-1] = 4
        given = inputs(world, 4, dtype)
        for deterministic in (False, True):
            found = group.reduce_scatter(
                lab.tensor(given[rank]), sizes=sizes, deterministic=deterministic
            )
            assert found.shape[0] == sizes[rank]
            if rank == world - 1:
                check_sum(lab.host(found), given, deterministic)
        assert group.stats()["calls_process_group"] == 0


def special_values(lab: Lab, rank: int, world: int, dtype: torch.dtype) -> None:
    """Signed zeros, subnormals, infinities and NaN keep the CPU's bits."""
    tiny = torch.finfo(dtype).tiny
    values = [0.0, -0.0, tiny, -tiny / 4, math.inf, -math.inf, math.nan, 1.0]
    with lab.init() as group:
        parts = []
        for r in range(world):
            turned = values[r:] + values[:r]
            parts.append(torch.tensor(turned * 5, dtype=dtype).view(1, HIDDEN).repeat(world, 1))
        found = group.reduce_scatter(lab.tensor(parts[rank]), deterministic=True)
        assert_same_bits(lab.host(found), rank_sum([part[rank : rank + 1] for part in parts]))
        negative = torch.full((world, HIDDEN), -0.0, dtype=dtype)
        found = group.reduce_scatter(lab.tensor(negative), deterministic=True)
        assert_same_bits(lab.host(found), negative[:1])


def wrong_index(lab: Lab, rank: int, world: int) -> None:
    """A row that does not exist is left out of the sum, and the next call says so, once."""
    tokens = 2 * world
    with lab.init() as group:
        rows = noise(rank, (tokens, HIDDEN), torch.float32)
        index = torch.arange(tokens, dtype=torch.int32).view(tokens, 1)
        partial = [noise(r, (tokens, HIDDEN), torch.float32) for r in range(world)]
        guards = lab.tensor(torch.full((4, HIDDEN), 5.0))
        wrong = index.clone()
        wrong[1] = tokens + 7
        found = group.combine(
            lab.tensor(rows), index=lab.tensor(wrong), out=guards[1:3], deterministic=True
        )
        for part in partial:
            part[1] = 0
        assert_same_bits(
            lab.host(found), rank_sum([part[2 * rank : 2 * rank + 2] for part in partial])
        )
        assert bool((lab.host(guards)[[0, 3]] == 5).all())
        message = rf"index\[1, 0\] is {tokens + 7}"
        with pytest.raises(ValueError, match=message):
            group.check()
        group.check()
        group.combine(lab.tensor(rows), index=lab.tensor(wrong))
        lab.synchronize()
        with pytest.raises(ValueError, match=message):
            group.reduce_scatter(lab.tensor(rows))
        group.reduce_scatter(lab.tensor(rows))


def other_types(lab: Lab, rank: int, world: int) -> None:
    """What windows do not know goes through the process group."""
    with lab.init() as group:
        for dtype in (torch.float64, torch.int32):
            given = [noise(r, (world, HIDDEN), dtype) for r in range(world)]
            found = group.reduce_scatter(lab.tensor(given[rank]))
            right = rank_sum([part[rank : rank + 1] for part in given])
            assert torch.allclose(lab.host(found).double(), right.double())
            assert group.acquire("combine", (world, HIDDEN), dtype) is None
            assert group.explain("reduce_scatter", lab.tensor(given[rank])).path == "process_group"
        assert group.stats()["calls_process_group"] == 2


def alone(lab: Lab, rank: int, world: int, dtype: torch.dtype) -> None:
    """The top-k sum without a group: the CPU's bits, in its stream's order, also in a graph."""
    rows, weights = noise(1, (5, 3, HIDDEN), dtype), noise(2, (5, 3), torch.float32)
    flat = rows.view(-1, HIDDEN)
    index = torch.arange(15, dtype=torch.int32).view(5, 3)
    index[1, 0] = index[4, 2] = -1
    on_device = [lab.tensor(each) for each in (rows, weights, flat, index)]
    for out_type in (dtype, torch.float32):
        out = lab.tensor(torch.full((5, HIDDEN), 7.0, dtype=out_type))
        assert lab.topk_reduce(on_device[0], on_device[1], out=out, scale=0.5) is out
        assert_same_bits(lab.host(out), topk_sum(rows, weights, None, 0.5, out_type))
        lab.topk_reduce(on_device[2], out=out, index=on_device[3])
        assert_same_bits(lab.host(out), topk_sum(flat, None, index, None, out_type))
    none = lab.tensor(torch.empty(0, 3, HIDDEN, dtype=dtype))
    assert lab.topk_reduce(none, out=none[:, 0]).shape == (0, HIDDEN)

    stream, source = lab.stream(), lab.tensor(torch.zeros(4, HIDDEN, dtype=dtype))
    out, ones = lab.tensor(source.clone()), lab.tensor(torch.ones(4, HIDDEN, dtype=dtype))
    lab.synchronize()
    with lab.use(stream):
        lab.slow(0.05)
        lab.put(source, ones)
    lab.topk_reduce(source, out=out, stream=stream, scale=3)
    assert bool((lab.host(out) == 3).all())
    with lab.capture(stream) as graph:
        lab.topk_reduce(source, out=out, scale=5)
    for value in (2.0, 4.0):
        values = lab.tensor(torch.full((4, HIDDEN), value, dtype=dtype))
        lab.put(source, values)
        lab.synchronize()
        with lab.use(stream):
            graph.replay()
        assert bool((lab.host(out) == 5 * value).all())
    graph.reset()


def alone_refuses(lab: Lab, rank: int, world: int) -> None:
    """What is wrong is refused before anything is queued; what only the kernel sees, afterwards."""
    rows, out = lab.tensor(torch.ones(6, HIDDEN)), lab.tensor(torch.zeros(3, HIDDEN))
    index = torch.tensor([[0, 1], [2, 3], [4, 5]])
    found = lab.tensor(index)
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"out": torch.empty(3, HIDDEN, device="meta")}, ValueError, "out is on meta, expected"),
        ({"index": torch.empty(3, 2, device="meta")}, ValueError, "index is on meta, expected"),
        ({"index": found.float()}, TypeError, "index is float32"),
        ({"out": out[:2]}, ValueError, r"out has shape \[2, 40\]"),
        ({"out": out.double()}, TypeError, "out is float64"),
        ({"out": rows[1:4]}, ValueError, "overlaps expert_out"),
        ({"scale": "much"}, TypeError, "scale"),
        ({"stream": "mine"}, TypeError, "stream must be"),
    ]
    for options, kind, text in wrong:
        with pytest.raises(kind, match=text):
            lab.topk_reduce(rows, **({"out": out, "index": found} | options))
    assert bool((lab.host(out) == 0).all())
    index[1, 0] = 6
    lab.topk_reduce(rows, out=out, index=lab.tensor(index))
    assert lab.host(out)[:, 0].tolist() == [2, 1, 2]
    with pytest.raises(ValueError, match=r"index\[1, 0\] is 6"):
        lab.topk_reduce(rows, out=out, index=found)
    lab.topk_reduce(rows, out=out, index=found)
    assert bool((lab.host(out) == 2).all())


def alone_into_window(lab: Lab, rank: int, world: int) -> None:
    """The steps of combine one by one give what it gives, and leave nothing behind."""
    rows = lab.tensor(noise(rank, (2 * world, 3, HIDDEN), torch.float32))
    with lab.init() as group:
        whole = lab.host(group.combine(rows, deterministic=True))
        window = group.acquire("combine", (2 * world, HIDDEN), torch.float32)
        assert window is not None
        lab.topk_reduce(rows, out=window)
        assert_same_bits(lab.host(group.reduce_scatter(window, deterministic=True)), whole)
        assert group.stats()["calls_staged"] == 0
        with pytest.raises(ValueError, match="reduced already"):
            group.reduce_scatter(window)
        del window
        group.suspend()
        group.resume()
