"""Scenarios of rs_norm_ag on the GPU path. Epilogues by themselves have tests of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import symmoe
from device_lab import Lab, barrier
from device_scenarios import HIDDEN, inputs
from device_scenarios_epilogue import Own
from device_scenarios_gather import DTYPE, SMALL, window_of
from reference import assert_same_bits, noise, own_rows, rank_sum

HALF = symmoe.Epilogue(scale=0.5)


def in_place(lab: Lab, rank: int, world: int) -> None:
    """Into a window, a tensor, a new one: the own rows are made where they are gathered."""
    with lab.init(SMALL) as group:
        stream = lab.stream()
        for counts in ([3] * world, [2 * r for r in range(world)]):
            for padded_to in (None, 7):
                total = sum(counts) if padded_to is None else padded_to * world
                given = inputs(world, total, DTYPE)
                sums = rank_sum(given)
                rows = lab.tensor(given[rank])
                more: dict[str, Any] = {"sizes": counts, "padded_to": padded_to}
                for place in ("window", "memory", "new"):
                    for where in (None, stream):
                        out = None
                        if place == "window":
                            out = group.acquire("dispatch", (total, HIDDEN), DTYPE, stream=where)
                        elif place == "memory":
                            out = lab.tensor(torch.zeros(total, HIDDEN, dtype=DTYPE))
                        ranks = [Own(lab, counts[r], DTYPE, 10 * r) for r in range(world)]
                        found = group.rs_norm_ag(
                            rows,
                            out,
                            epilogue=ranks[rank].epilogue(),
                            deterministic=True,
                            stream=where,
                            **more,
                        )
                        assert out is None or found is out
                        result = lab.host(found)
                        for r in range(world):
                            at = own_rows(counts, r, padded_to)
                            assert_same_bits(result[at], ranks[r].finished(sums[at]))
                            if place == "new" and padded_to is not None:
                                padding = result[at.stop : (r + 1) * padded_to]
                                assert bool((padding == 0).all())
                        ranks[rank].check_written()
        assert group.stats()["calls_process_group"] == 0


def replays(lab: Lab, rank: int, world: int) -> None:
    """In a graph, with the residual going on from replay to replay."""
    with lab.init(SMALL) as group:
        stream = lab.stream()
        rows = lab.tensor(torch.zeros(2 * world, HIDDEN, dtype=DTYPE))
        assert group.reserve(2 * world, HIDDEN, DTYPE, roles=("combine", "dispatch"), graph=True)
        ranks = [Own(lab, 2, DTYPE, 10 * r) for r in range(world)]
        epilogue = ranks[rank].epilogue()
        # Once before, for what such a call needs besides.
        group.rs_norm_ag(rows, epilogue=HALF, deterministic=True)
        window = window_of(group, 2 * world)
        lab.synchronize()
        with lab.capture(stream) as graph:
            group.rs_norm_ag(rows, window, epilogue=epilogue, deterministic=True)
        for turn in range(5):
            given = [noise(10 * turn + r, (2 * world, HIDDEN), DTYPE) for r in range(world)]
            with lab.use(stream):
                lab.put(rows, lab.tensor(given[rank]))
                graph.replay()
            result, sums = lab.host(window), rank_sum(given)
            for r in range(world):
                at = own_rows([2] * world, r)
                assert_same_bits(result[at], ranks[r].finished(sums[at]))
        graph.reset()
        del graph
        lab.synchronize()
        group.release_graphs()


def refused(lab: Lab, rank: int, world: int) -> None:
    """What the second half would refuse is refused before the first one begins."""
    own = own_rows([2] * world, rank)
    with lab.init(SMALL) as group:
        rows = lab.tensor(torch.ones(2 * world, HIDDEN, dtype=DTYPE))
        window = window_of(group, 2 * world)
        combine = group.acquire("combine", (2 * world, HIDDEN), DTYPE)
        assert combine is not None
        large = lab.tensor(torch.zeros(2 * world, HIDDEN, dtype=DTYPE))
        int8 = symmoe.Epilogue(quantize="int8", scales=lab.tensor(torch.zeros(2)))
        wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
            (TypeError, "must be a symmoe.Epilogue, got NoneType", {"epilogue": None}),
            (ValueError, "quantised to int8 are not gathered", {"epilogue": int8}),
            (ValueError, r"out has shape \[1, ", {"out": large[:1]}),
            (ValueError, "out overlaps input", {"out": rows}),
            (
                ValueError,
                "out overlaps epilogue.residual",
                {"out": large, "epilogue": symmoe.Epilogue(residual=large[own])},
            ),
            (ValueError, "out overlaps a window for combine", {"out": combine}),
            (ValueError, "dispatch, lane 0; .* dispatch, lane 1", {"lane": 1}),
            (ValueError, "known on the host", {"sizes": lab.tensor(torch.tensor([2] * world))}),
        ]
        before = group.stats()
        for kind, words, change in wrong:
            given: dict[str, Any] = {"input": rows, "epilogue": HALF, "out": window} | change
            with pytest.raises(kind, match=f"rs_norm_ag on rank {rank}: .*{words}"):
                group.rs_norm_ag(**given)
        assert group.stats() == before
        group.rs_norm_ag(rows, window, epilogue=HALF)
        with pytest.raises(ValueError, match="gathered already: acquire it again"):
            group.rs_norm_ag(rows, window, epilogue=HALF)
        assert bool((lab.host(window) == world / 2).all())
        group.close()
        with pytest.raises(symmoe.ClosedError, match="rs_norm_ag on rank"):
            group.rs_norm_ag(rows, epilogue=HALF)
    barrier()
