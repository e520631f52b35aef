"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Processes that last for the whole session."""
    workers = Ranks()
    yield workers
    workers.stop()
