"""Scenarios of the GPU path: graphs that write "dispatch" windows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from device_lab import Lab
from device_scenarios import HIDDEN, check_sum
from device_scenarios_gather import DTYPE, SMALL, window_of
from reference import noise, own_rows, topk_sum


def replays(lab: Lab, rank: int, world: int, sizes: list[int] | None) -> None:
    """Reduce, gather and a consumer in a graph; the graph's window outlives its growth."""
    counts = [3] * world if sizes is None else sizes
    rows, own = sum(counts), own_rows(counts, rank)
    with lab.init(SMALL) as group:
        stream = lab.stream()
        terms = lab.tensor(torch.zeros(rows, 2, HIDDEN, dtype=DTYPE))
        out = lab.tensor(torch.zeros(rows, HIDDEN, dtype=DTYPE))
        assert group.reserve(rows, HIDDEN, DTYPE, roles=("combine", "dispatch"))
        assert group.stats()["pinned_bytes"] == 0
        window = window_of(group, rows)  # outside: only the calls tell that a graph writes it
        lab.synchronize()
        with lab.capture(stream) as graph:
            group.combine(terms, out=window[own], sizes=sizes)
            group.all_gather(window[own], window, sizes=sizes)
            lab.topk_reduce(window.view(rows, 1, HIDDEN), out=out)
        assert group.stats()["pinned_bytes"] == 8192
        address = window.data_ptr()

        def replay(graph: Any, turn: int) -> None:
            fresh = [noise(100 * turn + r, (rows, 2, HIDDEN), DTYPE) for r in range(world)]
            with lab.use(stream):
                lab.put(terms.view(-1, HIDDEN), lab.tensor(fresh[rank]).view(-1, HIDDEN))
                if turn % 10 == rank:
                    lab.slow(0.01)
                graph.replay()
            check_sum(lab.host(out), [topk_sum(one) for one in fresh], False)

        for turn in range(30):
            replay(graph, turn)
        del window
        larger = window_of(group, 400 * world)
        assert not address <= larger.data_ptr() < address + 4096
        lab.put(larger, lab.tensor(torch.full((400 * world, HIDDEN), -7.0, dtype=DTYPE)))
        lab.synchronize()
        group.trim()
        assert group.stats()["pinned_bytes"] == 8192
        for turn in range(30, 33):
            replay(graph, turn)
        assert bool((lab.host(larger) == -7).all())
        graph.reset()
        del graph
        lab.synchronize()
        group.release_graphs()
        stats = group.stats()
        assert stats["pinned_bytes"] == stats["retired_bytes"] == 0, stats


def refused(lab: Lab, rank: int, world: int) -> None:
    """A graph cannot wait for what still writes the window; nothing is captured then."""
    own = own_rows([2] * world, rank)
    with lab.init(SMALL) as group:
        stream, busy = lab.stream(), lab.stream()
        ones = lab.tensor(torch.ones(2 * world, HIDDEN, dtype=DTYPE))
        terms = ones.view(2 * world, 1, HIDDEN)
        group.combine(terms)
        window = window_of(group, 2 * world)
        lab.synchronize()
        with lab.use(busy):
            lab.slow(0.5)
            group.all_gather(ones[own], window)
            window_of(group, 2 * world)
        with lab.capture(stream) as graph:
            for call in (group.reduce_scatter, group.combine):
                given = ones if call == group.reduce_scatter else terms
                with pytest.raises(ValueError, match="still running on another stream"):
                    call(given, out=window[own])
        lab.synchronize()
        graph.reset()
        group.reduce_scatter(ones, window[own])
        group.all_gather(window[own], window)
        assert bool((lab.host(window) == world).all())
