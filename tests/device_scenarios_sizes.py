"""Scenarios of sizes on the device: no host looks at them, and no wrong one does any harm."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from device_lab import Lab, barrier
from device_scenarios import HIDDEN
from device_scenarios_peers import NAN, launched, only, since
from device_scenarios_routed import Batch, assert_equal_but_zeros
from reference import assert_same_bits, noise, own_rows, rank_sum, topk_sum
from symmoe import SymmoeError, UnavailableError

DTYPE = torch.bfloat16
ROWS_EACH = 4


def on_device(lab: Lab, sizes: list[int]) -> torch.Tensor:
    """As int32."""
    return lab.tensor(torch.tensor(sizes, dtype=torch.int32))


def various(world: int) -> list[list[int]]:
    """Sizes that fit into what is reserved."""
    return [
        [ROWS_EACH] * world,
        [r % (ROWS_EACH + 1) for r in range(world)],
        [0] * (world - 1) + [ROWS_EACH],
        [0] * world,
    ]


def given_rows(
    world: int, sizes: list[int], padded_to: int | None, seed: int, dtype: torch.dtype
) -> list[torch.Tensor]:
    """All ranks' reserved rows, with NaN wherever nobody's rows are."""
    reserved = ROWS_EACH * world
    parts = []
    for r in range(world):
        rows = torch.full((reserved, HIDDEN), NAN, dtype=dtype)
        values = noise(100 * seed + r, (reserved, HIDDEN), dtype)
        for owner in range(world):
            own = own_rows(sizes, owner, padded_to)
            rows[own] = values[own]
        parts.append(rows)
    return parts


def sums(lab: Lab, rank: int, world: int, dtype: torch.dtype) -> None:
    """reduce_scatter and combine, packed and padded: the own rows, and nothing beyond."""
    reserved = ROWS_EACH * world
    with lab.init(only("pull", "fused")) as group:
        for padded_to in (None, ROWS_EACH):
            for seed, sizes in enumerate(various(world)):
                parts = given_rows(world, sizes, padded_to, seed, dtype)
                own = own_rows(sizes, rank, padded_to)
                right = rank_sum([part[own] for part in parts])
                options: dict[str, Any] = {"sizes": on_device(lab, sizes), "padded_to": padded_to}
                private = lab.tensor(parts[rank])
                window = group.acquire("combine", (reserved, HIDDEN), dtype)
                assert window is not None
                lab.put(window, private)
                before = launched(lab)
                found = group.reduce_scatter(window, **options)
                if lab.emulated:
                    assert since(lab, before) == {"pull_reduce": 1}
                worst = reserved if padded_to is None else padded_to
                assert found.shape == (worst, HIDDEN)
                assert_same_bits(lab.host(found)[: sizes[rank]], right)
                for call in (group.reduce_scatter, group.combine):
                    out = lab.tensor(torch.full((sizes[rank], HIDDEN), 7.0, dtype=dtype))
                    assert call(private, out=out, **options) is out
                    assert_same_bits(lab.host(out), right)
                    out = lab.tensor(torch.full((worst, HIDDEN), 7.0, dtype=dtype))
                    call(private, out=out, **options)
                    assert_same_bits(lab.host(out)[: sizes[rank]], right)
                    assert bool((lab.host(out)[sizes[rank] :] == 7).all())
        group.check()
        assert group.stats()["calls_process_group"] == 0


def routed(lab: Lab, rank: int, world: int) -> None:
    """With a routing as well; rows beyond the sizes are nobody's and have no ids."""
    with lab.init(only("routed", "fused")) as group:
        for seed in (1, 2, 4):
            batch = Batch(world, seed, 2, DTYPE)
            rows, _ = batch.experts(rank, False)
            sizes = on_device(lab, batch.sizes)
            found = group.combine(
                lab.tensor(rows), routing=batch.routing(lab), sizes=sizes, scale=0.5
            )
            assert_equal_but_zeros(lab.host(found)[: batch.sizes[rank]], batch.right(rank))
        group.check()


def changing(lab: Lab, rank: int, world: int, path: str, padded: bool) -> None:
    """A graph whose sizes change between replays."""
    reserved, padded_to = ROWS_EACH * world, ROWS_EACH if padded else None
    with lab.init(only(path)) as group:
        stream = lab.stream()
        sizes = on_device(lab, [0] * world)
        rows = lab.tensor(torch.zeros(reserved, 2, HIDDEN, dtype=DTYPE))
        out = lab.tensor(torch.zeros(reserved, HIDDEN, dtype=DTYPE))
        group.combine(rows, out=out, sizes=sizes, padded_to=padded_to)
        lab.synchronize()
        with lab.capture(stream) as graph:
            group.combine(rows, out=out, sizes=sizes, padded_to=padded_to)
        barrier()
        for turn in range(20):
            now = [(turn * (r + 1) + r) % (ROWS_EACH + 1) for r in range(world)]
            fresh = [noise(100 * turn + r, (reserved, 2, HIDDEN), DTYPE) for r in range(world)]
            lab.synchronize()
            sizes.copy_(on_device(lab, now))
            lab.synchronize()
            with lab.use(stream):
                lab.put(rows.view(-1, HIDDEN), lab.tensor(fresh[rank]).view(-1, HIDDEN))
                lab.put(out, lab.tensor(torch.full((reserved, HIDDEN), 7.0, dtype=DTYPE)))
                graph.replay()
            own = own_rows(now, rank, padded_to)
            right = rank_sum([topk_sum(part)[own] for part in fresh])
            assert_same_bits(lab.host(out)[: now[rank]], right)
            assert bool((lab.host(out)[now[rank] :] == 7).all())
        group.check()
        graph.reset()


def wrong(lab: Lab, rank: int, world: int) -> None:
    """Sizes that do not fit write nothing, and make the next call raise; the group goes on."""
    reserved = ROWS_EACH * world
    with lab.init(only("pull")) as group:
        ones = lab.tensor(torch.ones(reserved, HIDDEN, dtype=DTYPE))
        cases: list[tuple[list[int], int | None, str]] = [
            ([ROWS_EACH + 1] * world, None, "sizes"),
            ([-1] + [0] * (world - 1), None, r"sizes\[0\] is -1"),
            ([ROWS_EACH + 1] + [0] * (world - 1), ROWS_EACH, r"sizes\[0\] is 5, allowed 0\.\.4"),
            ([2**31 - 1] * world, None, "sizes"),
        ]
        for sizes, padded_to, text in cases:
            out = lab.tensor(torch.full((reserved, HIDDEN), 7.0, dtype=DTYPE))
            given = on_device(lab, sizes)
            group.reduce_scatter(ones, out, sizes=given, padded_to=padded_to)
            assert bool((lab.host(out) == 7).all())
            with pytest.raises(ValueError, match=text):
                group.check()
            found = group.reduce_scatter(ones)
            assert bool((lab.host(found) == world).all())
        # Room for fewer rows than there are, on one rank: only that one lacks them.
        right = [ROWS_EACH] * world
        out = lab.tensor(torch.full((1 if rank == 0 else ROWS_EACH, HIDDEN), 7.0, dtype=DTYPE))
        group.reduce_scatter(ones, out, sizes=on_device(lab, right))
        assert bool((lab.host(out) == (7 if rank == 0 else world)).all())
        if rank == 0:
            with pytest.raises(ValueError, match=r"sizes\[0\] is 4, allowed 0\.\.1"):
                group.check()
        group.check()


def no_room(lab: Lab, rank: int, world: int, path: str) -> None:
    """Room for fewer rows than there are, on one rank: its peers get the rows that it has for them.

    Those of this call, not what an earlier one left in its window.
    """
    with lab.init(only(path)) as group:
        sizes = on_device(lab, [ROWS_EACH] * world)
        for value in (1.0, 2.0, 3.0):
            rows = lab.tensor(torch.full((ROWS_EACH * world, HIDDEN), value, dtype=DTYPE))
            room = 1 if rank == 0 else ROWS_EACH
            out = lab.tensor(torch.full((room, HIDDEN), 7.0, dtype=DTYPE))
            group.combine(rows, out=out, sizes=sizes)
            assert bool((lab.host(out) == (7 if rank == 0 else value * world)).all())
            if rank == 0:
                with pytest.raises(ValueError, match=r"sizes\[0\] is 4, allowed 0\.\.1"):
                    group.check()
        group.check()


def different(lab: Lab, rank: int, world: int) -> str:
    """Ranks whose sizes differ are told so, all of them."""
    with lab.init(only("pull", timeout=10)) as group:
        ones = lab.tensor(torch.ones(ROWS_EACH * world, HIDDEN, dtype=DTYPE))
        sizes = [2] * world
        sizes[0] += rank == world - 1
        group.reduce_scatter(ones, sizes=on_device(lab, sizes))
        lab.synchronize()
        barrier()
        with pytest.raises(SymmoeError) as caught:
            group.check()
        return f"{type(caught.value).__name__}: {caught.value}"


def refused(lab: Lab, rank: int, world: int) -> None:
    """Where no path reads sizes on the device, or they cannot be sizes, the call says so."""
    with lab.init(only("direct", "plain", "grouped", "ordered")) as group:
        ones = lab.tensor(torch.ones(ROWS_EACH * world, HIDDEN, dtype=DTYPE))
        sizes = on_device(lab, [1] * world)
        for call in (group.reduce_scatter, group.combine):
            for deterministic in (False, True):
                with pytest.raises(UnavailableError, match="need symmoe's own kernels"):
                    call(ones, sizes=sizes, deterministic=deterministic)
        assert group.explain("reduce_scatter", ones, sizes=sizes).path == "process_group"
        with pytest.raises(ValueError, match="give those of all_gather on the host"):
            group.all_gather(ones[:1], sizes=sizes)
        with pytest.raises(ValueError, match="have shape"):
            group.reduce_scatter(ones, sizes=on_device(lab, [1] * (world + 1)))
        with pytest.raises(ValueError, match="input has"):
            group.reduce_scatter(ones, sizes=sizes, padded_to=ROWS_EACH + 1)
        # The group has lost nothing.
        assert bool((lab.host(group.reduce_scatter(ones)) == world).all())
