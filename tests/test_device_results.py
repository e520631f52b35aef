"""The GPU path's results, emulated: the CPU's bits where they are determined, else a right sum."""

from __future__ import annotations

import pytest
import torch

import device_scenarios as scenarios
from device_lab import emulated
from ranks import Ranks
from reference import DTYPES

pytestmark = pytest.mark.multi
WORLDS = [1, 2, 3, 4]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("world", WORLDS)
def test_reduce_scatter(ranks: Ranks, world: int, dtype: torch.dtype) -> None:
    ranks.run(world, emulated, scenarios.sums, dtype)


def test_reduce_scatter_of_eight(ranks: Ranks) -> None:
    ranks.run(8, emulated, scenarios.sums, torch.bfloat16, seconds=100.0)


@pytest.mark.parametrize("world", WORLDS)
def test_in_place(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.in_place, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("world", [1, 2, 4])
def test_combine(ranks: Ranks, world: int, dtype: torch.dtype) -> None:
    ranks.run(world, emulated, scenarios.combines, dtype)


@pytest.mark.parametrize("world", WORLDS)
def test_all_gather(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.gathers, torch.float16)


@pytest.mark.parametrize("world", [1, 3])
def test_gather_from_windows_of_different_sizes(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.large_gathers)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_zero_rows(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.nothing_to_do)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_values(ranks: Ranks, dtype: torch.dtype) -> None:
    ranks.run(2, emulated, scenarios.special_values, dtype)


@pytest.mark.parametrize("world", [1, 2])
def test_index_out_of_range(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.wrong_index)


def test_types_without_windows(ranks: Ranks) -> None:
    ranks.run(2, emulated, scenarios.other_types)
