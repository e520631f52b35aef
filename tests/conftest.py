"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ranks import Ranks, fresh


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Processes that last for the whole session."""
    workers = Ranks()
    yield workers
    workers.stop()


@pytest.fixture(scope="module")
def own_ranks() -> Iterator[Ranks]:
    """Processes of one file: for tests that leave something behind in them, such as tags in use."""
    with fresh() as workers:
        yield workers
