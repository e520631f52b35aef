"""Captured graphs of the GPU path, emulated."""

from __future__ import annotations

import pytest

import device_scenarios_graphs as scenarios
from device_lab import emulated
from ranks import Ranks

pytestmark = pytest.mark.multi


@pytest.mark.parametrize("capturing", [[0], [0, 1]], ids=["one captures", "both capture"])
def test_growth_is_refused(ranks: Ranks, capturing: list[int]) -> None:
    ranks.run(2, emulated, scenarios.refused_growth, capturing)


def test_scratch_growth_is_refused(ranks: Ranks) -> None:
    ranks.run(2, emulated, scenarios.refused_scratch)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("world", [1, 2])
def test_hundred_replays(ranks: Ranks, world: int, deterministic: bool) -> None:
    ranks.run(world, emulated, scenarios.replays, deterministic)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_outgrown_window(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.outgrown)


@pytest.mark.parametrize("reserved", [False, True])
@pytest.mark.parametrize("world", [1, 2])
def test_foreign_kernel(ranks: Ranks, world: int, reserved: bool) -> None:
    ranks.run(world, emulated, scenarios.foreign_writes, reserved)


def test_release_graphs_frees(ranks: Ranks) -> None:
    ranks.run(2, emulated, scenarios.freed)


@pytest.mark.parametrize("world", [1, 2])
def test_two_lanes(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.two_lanes)


def test_capture_does_not_wait_for_work_outside(ranks: Ranks) -> None:
    ranks.run(2, emulated, scenarios.work_outside)


@pytest.mark.parametrize("world", [2, 3])
def test_without_windows(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.without_windows)


def test_abandoned_capture(ranks: Ranks) -> None:
    ranks.run(2, emulated, scenarios.abandoned)
