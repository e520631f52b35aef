"""How many collectives a piece of code calls, and how many bytes they are about."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from .observing import watch


@dataclass
class Count:
    """Collectives of one kind.

    Attributes:
        calls: How many.
        nbytes: Bytes of all ranks' rows together, added over the calls: what each rank offers to a
            reduce_scatter and gets from an all_gather.
    """

    calls: int = 0
    nbytes: int = 0


class Collectives:
    """What `count_collectives` has counted on this rank: a Count for each kind.

    Attributes:
        reduce_scatter: Those of `reduce_scatter` and `combine`.
        all_gather: Those of `all_gather`.
    """

    def __init__(self) -> None:
        self.reduce_scatter = Count()
        self.all_gather = Count()
        self._lock = threading.Lock()

    @property
    def calls(self) -> int:
        """Calls of all kinds."""
        return self.reduce_scatter.calls + self.all_gather.calls

    @property
    def nbytes(self) -> int:
        """Bytes of all kinds."""
        return self.reduce_scatter.nbytes + self.all_gather.nbytes

    def note(self, kind: str, nbytes: int) -> None:
        """Counts one."""
        count: Count = getattr(self, kind)
        with self._lock:
            count.calls += 1
            count.nbytes += nbytes

    def __repr__(self) -> str:
        kinds = (("reduce_scatter", self.reduce_scatter), ("all_gather", self.all_gather))
        said = ", ".join(f"{each.calls} {kind} ({each.nbytes} bytes)" for kind, each in kinds)
        return f"<symmoe.Collectives: {said}>"


@contextlib.contextmanager
def count_collectives() -> Iterator[Collectives]:
    """Counts the collectives of all groups of this process that succeed within the block.

    Those of `torch.distributed` itself are not seen, nor is the replay of a graph: a capture counts
    once. May be nested; each block counts for itself.
    """
    counted = Collectives()
    watch.add(counted)
    try:
        yield counted
    finally:
        watch.remove(counted)
