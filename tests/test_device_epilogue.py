"""Epilogues on devices, emulated: in the kernel that sums, behind other paths, and replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import device_scenarios_epilogue as scenarios
from device_lab import emulated, emulated_peers
from ranks import Ranks
from reference import DTYPES

pytestmark = pytest.mark.multi
SLOW = 100.0  # eight ranks take turns on few processors


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_pulled(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated_peers, scenarios.pulled, DTYPES[world % 3], seconds=SLOW)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_routed(ranks: Ranks, dtype: torch.dtype) -> None:
    ranks.run(3, emulated_peers, scenarios.routed, dtype, seconds=SLOW)


@pytest.mark.parametrize("path", ["direct", "grouped", "ordered", "fused"])
def test_behind(ranks: Ranks, path: str) -> None:
    ranks.run(2, emulated_peers if path == "fused" else emulated, scenarios.behind, path)


OTHERS: list[tuple[Callable[..., None], list[Any]]] = [
    (scenarios.by_the_process_group, []),
    (scenarios.sized_on_the_device, ["pull"]),
    (scenarios.sized_on_the_device, ["fused"]),
    (scenarios.replays, [None]),
    (scenarios.replays, ["fp8_e4m3"]),
    (scenarios.alone, []),
    (scenarios.misused, []),
]


@pytest.mark.parametrize(
    ("scenario", "arguments"),
    OTHERS,
    ids=["-".join([scenario.__name__, *map(str, more)]) for scenario, more in OTHERS],
)
@pytest.mark.parametrize("world", [1, 2])
def test_others(
    ranks: Ranks, world: int, scenario: Callable[..., None], arguments: list[Any]
) -> None:
    ranks.run(world, emulated_peers, scenario, *arguments, seconds=SLOW)


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_replays_of_nccl(ranks: Ranks, quantize: str | None) -> None:
    ranks.run(2, emulated, scenarios.replays, quantize, seconds=SLOW)
