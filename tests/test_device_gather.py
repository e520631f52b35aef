"""Rows gathered and reduced into a window of the GPU path, emulated."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import device_scenarios_gather as scenarios
import device_scenarios_gather_graphs as graphs
from device_lab import emulated, emulated_peers
from ranks import Ranks

pytestmark = pytest.mark.multi
LABS = pytest.mark.parametrize("run", [emulated, emulated_peers], ids=["nccl", "own kernels"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_gathers(ranks: Ranks, world: int, dtype: torch.dtype) -> None:
    ranks.run(world, emulated, scenarios.gathers, dtype)


@LABS
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_reduced_where_it_is_gathered_from(
    ranks: Ranks, world: int, deterministic: bool, run: Any
) -> None:
    ranks.run(world, run, scenarios.sharded_layers, deterministic)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_sizes_on_the_device(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated_peers, scenarios.sizes_on_the_device)


@LABS
@pytest.mark.parametrize("world", [1, 3])
def test_compared(ranks: Ranks, world: int, run: Any) -> None:
    ranks.run(world, run, scenarios.compared)


@LABS
@pytest.mark.parametrize("way", ["reduce_scatter", "combine", "all_gather"])
@pytest.mark.parametrize("world", [1, 2])
def test_other_streams(ranks: Ranks, world: int, way: str, run: Any) -> None:
    ranks.run(world, run, scenarios.other_streams, way)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_outgrown(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.outgrown)


@LABS
@pytest.mark.parametrize("world", [1, 2])
def test_refused(ranks: Ranks, world: int, run: Any) -> None:
    ranks.run(world, run, scenarios.refused)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_by_the_process_group(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.by_the_process_group)


@LABS
@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_graphs(ranks: Ranks, world: int, uneven: bool, run: Any) -> None:
    sizes = [2 * r + 1 for r in range(world)] if uneven else None
    ranks.run(world, run, graphs.replays, sizes)


@pytest.mark.parametrize("world", [1, 2])
def test_refused_in_a_capture(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, graphs.refused)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_lanes(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.lanes)


@pytest.mark.parametrize("world", [1, 2])
def test_tags(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.tags)
