"""Sizes on the device, emulated: no host looks at them, and no wrong one does any harm."""

from __future__ import annotations

import pytest

import device_scenarios_sizes as scenarios
from device_lab import emulated_peers
from ranks import Ranks
from reference import DTYPES

pytestmark = pytest.mark.multi
SLOW = 100.0  # eight ranks take turns on few processors


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_sums(ranks: Ranks, world: int) -> None:
    dtype = DTYPES[world % len(DTYPES)]
    ranks.run(world, emulated_peers, scenarios.sums, dtype, seconds=SLOW)


@pytest.mark.parametrize("world", [2, 3])
def test_routed(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated_peers, scenarios.routed, seconds=SLOW)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("path", ["pull", "fused"])
def test_changing_in_a_graph(ranks: Ranks, path: str, padded: bool) -> None:
    ranks.run(2, emulated_peers, scenarios.changing, path, padded, seconds=SLOW)


@pytest.mark.parametrize("world", [2, 3])
def test_wrong(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated_peers, scenarios.wrong)


@pytest.mark.parametrize("path", ["pull", "fused"])
@pytest.mark.parametrize("world", [2, 3])
def test_no_room(ranks: Ranks, world: int, path: str) -> None:
    ranks.run(world, emulated_peers, scenarios.no_room, path)


@pytest.mark.parametrize("world", [2, 3])
def test_different(ranks: Ranks, world: int) -> None:
    found = ranks.run(world, emulated_peers, scenarios.different)
    for text in found:
        assert text.startswith("MismatchError"), text
        assert "different sizes or routings" in text


def test_refused(ranks: Ranks) -> None:
    ranks.run(2, emulated_peers, scenarios.refused)
