"""Whether anybody watches the groups' calls, and who: tags (`tags.py`), counters (`counting.py`).

As long as nobody does, calls take the core's short way and know nothing of it. While somebody does,
they take the long way, which tells.
"""

from __future__ import annotations

import threading
from typing import Protocol


class Counter(Protocol):
    """What wants to hear of every collective."""

    def note(self, kind: str, nbytes: int) -> None:
        """A collective was called, whose rows of all ranks have so many bytes."""


class Watch:
    """Who watches, in this process.

    Attributes:
        on: Whether anybody does; all that a call has to look at.
        tags: Whether tags are in use. Once they are, they stay so.
        counters: Those that count.
    """

    __slots__ = ("_lock", "counters", "on", "tags")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.tags = False
        self.counters: tuple[Counter, ...] = ()
        self.on = False

    def use_tags(self) -> None:
        """From now on tags are looked at and given."""
        with self._lock:
            self.tags = self.on = True

    def add(self, counter: Counter) -> None:
        """From now on `counter` hears of every collective."""
        with self._lock:
            self.counters = (*self.counters, counter)
            self.on = True

    def remove(self, counter: Counter) -> None:
        """`counter` hears no more."""
        with self._lock:
            self.counters = tuple(each for each in self.counters if each is not counter)
            self.on = self.tags or bool(self.counters)

    def tell(self, kind: str, nbytes: int) -> None:
        """Tells all counters of a collective."""
        for counter in self.counters:
            counter.note(kind, nbytes)


watch = Watch()
