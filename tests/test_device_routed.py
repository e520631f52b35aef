"""Routed calls of the GPU path, emulated: rows that nobody wrote are read by nobody."""

from __future__ import annotations

import pytest
import torch

import device_scenarios_routed as scenarios
from device_lab import emulated_peers
from ranks import Ranks
from reference import DTYPES

pytestmark = pytest.mark.multi
SLOW = 100.0  # eight ranks take turns on few processors


@pytest.mark.parametrize("path", ["routed", "fused", "pull"])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_combines(ranks: Ranks, world: int, path: str) -> None:
    dtype = DTYPES[world % len(DTYPES)]
    ranks.run(world, emulated_peers, scenarios.combines, dtype, path, seconds=SLOW)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_types(ranks: Ranks, dtype: torch.dtype) -> None:
    ranks.run(2, emulated_peers, scenarios.combines, dtype, "routed", seconds=SLOW)


@pytest.mark.parametrize("path", ["ordered", ""])
@pytest.mark.parametrize("world", [2, 3])
def test_combines_without_own_kernels(ranks: Ranks, world: int, path: str) -> None:
    ranks.run(world, emulated_peers, scenarios.combines, torch.bfloat16, path, seconds=SLOW)


@pytest.mark.parametrize("path", ["routed", "pull", "ordered"])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_rows_of_experts(ranks: Ranks, world: int, path: str) -> None:
    ranks.run(world, emulated_peers, scenarios.by_experts, path, seconds=SLOW)


@pytest.mark.parametrize("path", ["routed", "fused"])
def test_graphs(ranks: Ranks, path: str) -> None:
    ranks.run(2, emulated_peers, scenarios.in_graphs, path, seconds=SLOW)


@pytest.mark.parametrize("path", ["routed", "fused"])
def test_rewritten_ids(ranks: Ranks, path: str) -> None:
    ranks.run(2, emulated_peers, scenarios.rewritten, path)


@pytest.mark.parametrize("world", [2, 3])
def test_different_routings(ranks: Ranks, world: int) -> None:
    texts = ranks.run(world, emulated_peers, scenarios.different)
    for text in texts:
        assert text.startswith(("MismatchError", "PoisonedError", "PeerLostError")), text
    assert any("different sizes or routings" in text for text in texts)


@pytest.mark.parametrize("world", [2, 3])
def test_wrong_owner(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated_peers, scenarios.wrong_owner)


@pytest.mark.parametrize("world", [1, 2])
def test_refused(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated_peers, scenarios.refused)
