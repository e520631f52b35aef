"""Two ranks of an emulated group as threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from device_lab import NCCL_PATHS, EmulatedLab
from symmoe import Config, testing
from symmoe.device import libraries
from symmoe.device.bootstrap import make_group
from symmoe.testing.group import HostPlace

WORLD = 2
SECONDS = 30


class ThreadExchange:
    """How two threads tell each other texts."""

    operation = "model"

    def __init__(self, rank: int, texts: list[str], barrier: threading.Barrier) -> None:
        self._rank, self._texts, self._barrier = rank, texts, barrier

    def gather(self, topic: str, text: str, look: object = None, grace: float = 0) -> list[str]:
        """Every rank's text."""
        self._texts[self._rank] = text
        self._barrier.wait(SECONDS)
        texts = list(self._texts)
        self._barrier.wait(SECONDS)
        return texts

    def finish(self) -> None:
        """Nothing was left anywhere."""


class Pair:
    """Two ranks of one group."""

    def __init__(self, granularity: int) -> None:
        self._threads = [ThreadPoolExecutor(1) for _ in range(WORLD)]
        self.lab = EmulatedLab()
        self.streams = [testing.Stream() for _ in range(WORLD)]
        texts, barrier = [""] * WORLD, threading.Barrier(WORLD)
        config = Config(granularity=granularity, timeout=SECONDS, paths=NCCL_PATHS)

        def make(rank: int) -> Any:
            exchange = ThreadExchange(rank, texts, barrier)
            return make_group(
                HostPlace(), None, rank, WORLD, config, exchange, lambda: None, [0] * WORLD,
                "", None, str(libraries.fake_nccl()),
            )  # fmt: skip

        self.groups: list[Any] = []
        self.groups = self.each(make)

    def each(self, call: Callable[[int], Any]) -> list[Any]:
        """What `call(rank)` gives on each rank, at the same time, in the rank's own stream."""

        def run(rank: int) -> Any:
            with testing.stream(self.streams[rank]):
                return call(rank)

        waiting = [self._threads[rank].submit(run, rank) for rank in range(WORLD)]
        results = [it.result(SECONDS) for it in waiting]
        testing.synchronize()
        return results

    def refuse(self, call: Callable[[int], Any], text: str) -> None:
        """`call` raises ValueError on all ranks."""

        def run(rank: int) -> None:
            with pytest.raises(ValueError, match=text):
                call(rank)

        self.each(run)

    def close(self) -> None:
        """Ends the group; nothing may be left."""
        self.each(lambda rank: self.groups[rank].close())
        self.groups.clear()
        for thread in self._threads:
            thread.shutdown()
