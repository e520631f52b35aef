"""Windows of the GPU path, emulated: staging, pairing, growth, lanes, streams."""

from __future__ import annotations

import pytest

import device_scenarios_windows as scenarios
from device_lab import emulated
from ranks import Ranks

pytestmark = pytest.mark.multi


@pytest.mark.parametrize("world", [2, 3])
def test_what_is_staged(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.staging)


def test_launches(ranks: Ranks) -> None:
    ranks.run(2, emulated, scenarios.launches)


@pytest.mark.parametrize("growing", [False, True])
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("world", [2, 3])
def test_one_rank_has_not_acquired(ranks: Ranks, world: int, check: bool, growing: bool) -> None:
    ranks.run(world, emulated, scenarios.one_is_private, check, growing)


@pytest.mark.parametrize("world", [1, 2])
def test_other_rows_in_between(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.between if world > 1 else scenarios.pairing)


def test_pairing(ranks: Ranks) -> None:
    ranks.run(2, emulated, scenarios.pairing)


@pytest.mark.parametrize("world", [2, 3])
def test_part_of_a_window(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.parts_of_a_window)


@pytest.mark.parametrize("world", [2, 4])
def test_growth(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.growth)


@pytest.mark.parametrize("world", [1, 2])
def test_growth_under_a_kernel(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.slow_user)


@pytest.mark.parametrize("world", [1, 2])
def test_other_streams(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.other_streams)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_lanes(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.lanes)


def test_above_the_cap(ranks: Ranks) -> None:
    ranks.run(2, emulated, scenarios.capped)
