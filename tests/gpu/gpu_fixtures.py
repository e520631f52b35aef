"""Fixtures of the tests on GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import gpu_device
import pytest

from ranks import Ranks


@pytest.fixture(scope="session")
def gpu_ranks() -> Iterator[Ranks]:
    """Processes that last for the whole session, one per rank."""
    workers = Ranks(environment=gpu_device.environment())
    yield workers
    workers.stop()


@pytest.fixture(scope="session")
def no_windows(gpu_ranks: Ranks) -> str:
    """Why this machine's NCCL gives no windows; empty if it does."""
    reasons = gpu_ranks.run(gpu_device.world(), gpu_device.why_no_windows, seconds=120)
    assert len(set(reasons)) == 1, reasons
    return str(reasons[0])


@pytest.fixture(scope="session")
def no_peers(gpu_ranks: Ranks) -> str:
    """Why own kernels cannot read the peers' windows here; empty if they can."""
    reasons = gpu_ranks.run(gpu_device.world(), gpu_device.why_no_peers, seconds=120)
    assert len(set(reasons)) == 1, reasons
    return str(reasons[0])
