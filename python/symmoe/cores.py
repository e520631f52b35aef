"""How the ranks of a host share its processors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path


def affinity() -> list[int]:
    """The processors this process may run on, in order."""
    return sorted(os.sched_getaffinity(0))


def own_share(mine: Sequence[int], others: Sequence[Sequence[int]], place: int) -> list[int]:
    """The processors that a rank may count on, at least one.

    Args:
        mine: Processors this rank may run on.
        others: The same of every rank of this host, this one included, in rank order.
        place: Where this rank stands in `others`.

    Returns:
        A slice of `mine`: divided evenly among the ranks that may run on any of them.
    """
    overlapping = [index for index, other in enumerate(others) if not set(mine).isdisjoint(other)]
    turn = overlapping.index(place)
    count = len(mine) // len(overlapping)
    if count == 0:
        return [mine[turn % len(mine)]]
    return list(mine[turn * count : (turn + 1) * count])


def pin(processors: Sequence[int]) -> None:
    """Binds every thread of this process, and those to come, to `processors`."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread that ended meanwhile
            os.sched_setaffinity(int(task.name), processors)
