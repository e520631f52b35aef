"""Own kernels of the GPU path, emulated: any sizes, in rank order, exact bits."""

from __future__ import annotations

import pytest
import torch

import device_scenarios_peers as scenarios
from device_lab import emulated_peers
from ranks import Ranks
from reference import DTYPES

pytestmark = pytest.mark.multi
WORLDS = [1, 2, 3, 4, 8]
SLOW = 100.0  # eight ranks take turns on few processors


@pytest.mark.parametrize("source", ["nccl", "vmm"])
@pytest.mark.parametrize("world", WORLDS)
def test_sums(ranks: Ranks, world: int, source: str) -> None:
    dtype = DTYPES[(world + len(source)) % len(DTYPES)]
    ranks.run(world, emulated_peers, scenarios.sums, dtype, source, seconds=SLOW)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_types(ranks: Ranks, dtype: torch.dtype) -> None:
    ranks.run(2, emulated_peers, scenarios.sums, dtype, "nccl", seconds=SLOW)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_mixed_sources(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated_peers, scenarios.mixed_sources)


@pytest.mark.parametrize("world", [1, 2])
def test_odd_offsets(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated_peers, scenarios.odd_offsets)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("world", [2, 3, 4])
def test_combines(ranks: Ranks, world: int, dtype: torch.dtype) -> None:
    ranks.run(world, emulated_peers, scenarios.combines, dtype, seconds=SLOW)


def test_combines_of_eight(ranks: Ranks) -> None:
    ranks.run(8, emulated_peers, scenarios.combines, torch.bfloat16, seconds=SLOW)


@pytest.mark.parametrize("world", [2, 3])
def test_batches(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated_peers, scenarios.batches)


@pytest.mark.parametrize("world", [2, 3])
def test_lanes(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated_peers, scenarios.threads_and_lanes)


@pytest.mark.parametrize("path", ["pull", "fused"])
@pytest.mark.parametrize("world", [2, 3])
def test_graphs(ranks: Ranks, world: int, path: str) -> None:
    ranks.run(world, emulated_peers, scenarios.graphs, path, seconds=SLOW)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_growth(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated_peers, scenarios.growth)
