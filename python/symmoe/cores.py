"""How the ranks of a host share its processors, and what a process may use while it has groups."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Sequence
from pathlib import Path

_ALL = len(os.sched_getaffinity(0))
_lock = threading.RLock()  # a collected group releases its claim in the midst of anything
_claims: list[Claim] = []  # of the groups that live, in the order in which they were made
_unpinned: dict[int, set[int]] = {}  # by thread, from before the first pin; 0: the process

# Threads for calls outside of groups: the smallest share of any living group.
thread_limit = _ALL


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


class Claim:
    """One group's share of the processors, until it is released.

    Args:
        processors: The share.
        pinned: Whether every thread of this process is bound to it. When the group goes, the share
            of the last group that is pinned applies again; with none left, what was before.
    """

    def __init__(self, processors: Sequence[int], pinned: bool) -> None:
        self.processors = processors
        self.pinned = pinned
        with _lock:
            if pinned:
                if not any(claim.pinned for claim in _claims):
                    _unpinned.clear()
                    _unpinned.update(_affinities())
                _bind(processors)
            _claims.append(self)
            _update_limit()

    def release(self) -> None:
        """Undoes what the claim did, once."""
        with _lock:
            if self not in _claims:
                return
            _claims.remove(self)
            _update_limit()
            if self.pinned:
                self._unpin()

    def _unpin(self) -> None:
        left = [claim for claim in _claims if claim.pinned]
        for task, now in _affinities().items():
            if task == 0 or now != set(self.processors):
                continue  # bound elsewhere by somebody else, or by a later claim
            before = _unpinned.get(task, _unpinned[0])
            with contextlib.suppress(OSError):  # it ended, or these processors were taken away
                os.sched_setaffinity(task, left[-1].processors if left else before)


def _update_limit() -> None:
    global thread_limit
    thread_limit = min([_ALL, *(len(claim.processors) for claim in _claims)])


def _affinities() -> dict[int, set[int]]:
    """What each thread of this process may run on; 0 stands for the process, so for new threads."""
    found = {0: os.sched_getaffinity(os.getpid())}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread that ended meanwhile
            found[int(task.name)] = os.sched_getaffinity(int(task.name))
    return found


def _bind(processors: Collection[int]) -> None:
    """Binds every thread of this process, and those to come, to `processors`."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), processors)
