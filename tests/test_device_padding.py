"""Padding rows of the GPU path, emulated: whatever belongs to them, nobody looks at it."""

from __future__ import annotations

import pytest

import device_scenarios_padding as scenarios
from device_lab import emulated_peers
from ranks import Ranks

pytestmark = pytest.mark.multi
SLOW = 100.0  # eight ranks take turns on few processors


@pytest.mark.parametrize("path", ["pull", "routed", "fused", "ordered", "grouped", ""])
@pytest.mark.parametrize("world", [2, 3])
def test_sizes_of_the_host(ranks: Ranks, world: int, path: str) -> None:
    ranks.run(world, emulated_peers, scenarios.combines, path, False, seconds=SLOW)


@pytest.mark.parametrize("path", ["pull", "routed", "fused"])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_sizes_on_the_device(ranks: Ranks, world: int, path: str) -> None:
    ranks.run(world, emulated_peers, scenarios.combines, path, True, seconds=SLOW)


@pytest.mark.parametrize("device_sizes", [False, True])
@pytest.mark.parametrize("path", ["routed", "fused"])
def test_other_sizes(ranks: Ranks, path: str, device_sizes: bool) -> None:
    ranks.run(3, emulated_peers, scenarios.other_sizes, path, device_sizes)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("path", ["routed", "fused", "pull"])
def test_changing_in_a_graph(ranks: Ranks, path: str, padded: bool) -> None:
    ranks.run(2, emulated_peers, scenarios.replays, path, padded, seconds=SLOW)


@pytest.mark.parametrize("world", [2, 3])
def test_wrong_sizes(ranks: Ranks, world: int) -> None:
    for text in ranks.run(world, emulated_peers, scenarios.wrong_sizes):
        assert f"sizes[{world - 1}] is 5, allowed 0..4" in text
