"""Own kernels of the GPU path, emulated: any sizes, in rank order, exact bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import device_scenarios as results
import device_scenarios_choice as choice
import device_scenarios_graphs as graphs
import device_scenarios_life as life
import device_scenarios_peers as scenarios
import device_scenarios_windows as windows
from device_lab import emulated_peers
from ranks import Ranks
from reference import DTYPES

pytestmark = pytest.mark.multi
WORLDS = [1, 2, 3, 4, 8]
SLOW = 100.0  # eight ranks take turns on few processors


# What NCCL's paths are tested by holds for own kernels too.
COMMON: list[tuple[Callable[..., None], list[Any]]] = [
    (results.in_place, [torch.bfloat16]),
    (results.gathers, [torch.float32]),
    (results.combines, [torch.float16]),
    (results.nothing_to_do, []),
    (results.special_values, [torch.bfloat16]),
    (results.wrong_index, []),
    (results.other_types, []),
    (graphs.refused_growth, [[0]]),
    (graphs.replays, [True]),
    (graphs.outgrown, []),
    (graphs.foreign_writes, [False]),
    (graphs.two_lanes, []),
    (graphs.work_outside, []),
    (graphs.abandoned, []),
    (windows.pairing, []),
    (windows.growth, []),
    (windows.slow_user, []),
    (windows.other_streams, []),
    (windows.lanes, []),
    (life.sleep, []),
    (life.ends, []),
    (life.several, []),
    (life.threads, []),
    (life.forked, []),
]


@pytest.mark.parametrize(
    ("scenario", "arguments"), COMMON, ids=[scenario.__name__ for scenario, _ in COMMON]
)
def test_common(ranks: Ranks, scenario: Callable[..., None], arguments: list[Any]) -> None:
    ranks.run(2, emulated_peers, scenario, *arguments, seconds=SLOW)


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


@pytest.mark.parametrize("own_only", [True, False])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_same_choice(ranks: Ranks, world: int, own_only: bool) -> None:
    ranks.run(world, emulated_peers, choice.same_choice, own_only, seconds=SLOW)
