"""rs_norm_ag of the GPU path, emulated."""

from __future__ import annotations

from typing import Any

import pytest

import device_scenarios_sequence as scenarios
from device_lab import emulated, emulated_peers
from ranks import Ranks

pytestmark = pytest.mark.multi
LABS = pytest.mark.parametrize("run", [emulated, emulated_peers], ids=["nccl", "own kernels"])


@LABS
@pytest.mark.parametrize("world", [1, 2, 3])
def test_in_place(ranks: Ranks, world: int, run: Any) -> None:
    ranks.run(world, run, scenarios.in_place)


@pytest.mark.parametrize("world", [1, 2])
def test_refused(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.refused)


@pytest.mark.parametrize("world", [1, 2])
def test_replays(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.replays)
