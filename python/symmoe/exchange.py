"""How ranks tell each other small things while a group is set up, and when its memory changes.

Through the process group's store, which waits with a deadline and can say who is missing; where
there is none, through the process group's own collectives.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, TypeAlias
from weakref import WeakKeyDictionary

import torch.distributed as dist

from .errors import DeadlineError, PeerLostError, SymmoeError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

SLICE_SECONDS = 0.4
Look: TypeAlias = "Callable[[], None]"

_inits: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()


class Exchange(Protocol):
    """Collects one text per rank, any number of times.

    Attributes:
        operation: What errors say has failed.
    """

    operation: str

    def gather(
        self, topic: str, text: str, look: Look | None = None, grace: float = 0.0
    ) -> list[str]:
        """Every rank's `text`, in rank order. Collective; each topic is used once.

        `look`, if given, is called now and then while waiting; it raises PeerLostError when a peer
        has ended. `grace`: seconds to wait beyond the timeout.
        """

    def finish(self) -> None:
        """Clears up. Every rank calls it after its last gather."""


class StoreExchange:
    """Exchange through a torch.distributed store.

    Args:
        store: Store that all ranks share.
        namespace: Begins every key; unique to this use of the store.
        rank: This rank.
        world: Number of ranks.
        timeout: Seconds each gather waits.
    """

    def __init__(self, store: Store, namespace: str, rank: int, world: int, timeout: float) -> None:
        self._store = store
        self._namespace = namespace
        self._rank = rank
        self._world = world
        self._timeout = timeout
        self.operation = "init"
        self._topics: list[str] = []
        self._lost: PeerLostError | None = None

    def _keys(self, topic: str) -> list[str]:
        return [f"{self._namespace}/{topic}/{rank}" for rank in range(self._world)]

    def gather(
        self, topic: str, text: str, look: Look | None = None, grace: float = 0.0
    ) -> list[str]:
        """Publishes `text` and waits for all ranks.

        Raises:
            DeadlineError: Ranks did not show up; the message names them.
            PeerLostError: `look` raised it, and the rank has left no text behind.
            SymmoeError: The store failed.
        """
        keys = self._keys(topic)
        self._topics.append(topic)
        end = time.monotonic() + self._timeout + grace
        try:
            self._store.set(keys[self._rank], text)
            while not self._wait(keys, min(end, time.monotonic() + SLICE_SECONDS)):
                missing = [rank for rank, key in enumerate(keys) if not self._has(key)]
                if missing and time.monotonic() >= end:
                    raise DeadlineError(
                        f"{self.operation} on rank {self._rank}: rank(s) {missing} of "
                        f"{self._world} did not reach '{topic}' within {self._timeout + grace:g} s"
                    )
                if missing and look is not None:
                    self._look(look)
            texts = [self._store.get(key).decode() for key in keys]
            self._forget_before(topic)
            return texts
        except SymmoeError:
            raise
        except RuntimeError as error:
            raise SymmoeError(
                f"{self.operation} on rank {self._rank}: the process group's store failed: {error}"
            ) from error

    def _forget_before(self, topic: str) -> None:
        """Deletes this rank's earlier words: whoever has come to `topic` has read them all."""
        earlier, self._topics = self._topics[:-1], [topic]
        with contextlib.suppress(RuntimeError, NotImplementedError):
            for old in earlier:
                self._store.delete_key(self._keys(old)[self._rank])

    def _wait(self, keys: list[str], until: float) -> bool:
        """Whether all keys are there, at the latest at `until`."""
        start = time.monotonic()
        seconds = max(until - start, 0.001)
        try:
            self._store.wait(keys, timedelta(seconds=seconds))
        except RuntimeError:
            if time.monotonic() - start < seconds / 2:
                raise  # not a timeout: the store itself fails
            return False
        return True

    def _look(self, look: Look) -> None:
        """Raises PeerLostError if a peer has ended, and a slice later has left no word either."""
        if self._lost is not None:
            raise PeerLostError(
                f"{self.operation} on rank {self._rank}: {self._lost}"
            ) from self._lost
        try:
            look()
        except PeerLostError as lost:
            self._lost = lost

    def _has(self, key: str) -> bool:
        return bool(self._store.check([key]))

    def finish(self) -> None:
        """The last rank to come deletes all keys, where the store can."""
        counter = f"{self._namespace}/finished"
        with contextlib.suppress(RuntimeError, NotImplementedError):
            if self._store.add(counter, 1) == self._world:
                for topic in self._topics:
                    for key in self._keys(topic):
                        self._store.delete_key(key)
                self._store.delete_key(counter)


class CollectiveExchange:
    """Exchange through `all_gather_object` of a process group."""

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self.operation = "init"
        self._process_group = process_group

    def gather(
        self, topic: str, text: str, look: Look | None = None, grace: float = 0.0
    ) -> list[str]:
        """Collects `text` from all ranks; waits as long as the process group does.

        There is nothing to look at meanwhile, and no other deadline.

        Raises:
            SymmoeError: The process group failed.
        """
        del look, grace
        return gather_texts(self._process_group, f"{self.operation}, '{topic}'", text)

    def finish(self) -> None:
        """Nothing was left anywhere."""


class LoneExchange:
    """Exchange in a world of one."""

    operation = "init"

    def gather(
        self, topic: str, text: str, look: Look | None = None, grace: float = 0.0
    ) -> list[str]:
        """The only rank's text."""
        del topic, look, grace
        return [text]

    def finish(self) -> None:
        """Nothing to clear up."""


def gather_texts(process_group: dist.ProcessGroup, operation: str, text: str) -> list[str]:
    """Every rank's text through the process group's collectives.

    Raises:
        SymmoeError: The process group failed.
    """
    texts: list[str] = [""] * process_group.size()
    try:
        dist.all_gather_object(texts, text, group=process_group)
    except RuntimeError as error:
        raise SymmoeError(
            f"{operation} on rank {process_group.rank()}: the process group failed: {error}"
        ) from error
    return texts


def open_exchange(process_group: dist.ProcessGroup | None, timeout: float) -> Exchange:
    """The exchange of the next group on a process group; None is a world of one."""
    if process_group is None:
        return LoneExchange()
    turn = _inits.get(process_group, 0)
    _inits[process_group] = turn + 1
    try:
        store = process_group.get_group_store()
    except (AttributeError, RuntimeError):
        return CollectiveExchange(process_group)
    return StoreExchange(
        store, f"symmoe/{turn}", process_group.rank(), process_group.size(), timeout
    )
