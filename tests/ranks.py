"""Runs a function on each of N real processes and brings back what came of it.

Processes are kept for a whole session, because importing torch takes seconds; every run gets a new
gloo process group. Tests that kill ranks ask for `fresh` processes. A run that does not end in time
is killed and fails, with the stacks of the ranks that hang.

Functions must be importable (top level of a test module), and are called as f(rank, world, *args).
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing as mp
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

SECONDS = 40.0


@dataclass
class Outcome:
    """What came of one rank.

    Attributes:
        value: What the function returned.
        error: What it raised; None if nothing.
        trace: Where.
        exit_code: Of a process that died instead.
    """

    value: Any = None
    error: BaseException | None = None
    trace: str = ""
    exit_code: int | None = None


def _serve(inbox: Connection, stacks: str, environment: dict[str, str]) -> None:
    """Main loop of a worker process."""
    os.environ.update(environment)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    with Path(stacks).open("w") as file:
        faulthandler.register(signal.SIGUSR1, file, all_threads=True)
        while True:
            try:
                order = inbox.recv()
            except EOFError:
                return
            function, rank, world, store, arguments = order
            outcome = Outcome()
            try:
                if store:
                    dist.init_process_group(
                        "gloo", init_method=f"file://{store}", rank=rank, world_size=world
                    )
                outcome.value = function(rank, world, *arguments)
            except BaseException as error:
                outcome.error = error
                outcome.trace = traceback.format_exc()
            try:
                inbox.send(outcome)
            except Exception:  # something that cannot be pickled
                inbox.send(Outcome(error=RuntimeError(outcome.trace), trace=outcome.trace))
            outcome = Outcome()
            if dist.is_initialized():
                dist.destroy_process_group()


class _Worker:
    def __init__(self, start: str, folder: Path, number: int, environment: dict[str, str]) -> None:
        context = mp.get_context(start)
        if start == "forkserver":
            context.set_forkserver_preload(["torch", "torch.distributed", "symmoe"])
        self.stacks = folder / f"stacks{number}"
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, str(self.stacks), environment)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)  # type: ignore[attr-defined]
        self.process.start()
        theirs.close()


class Ranks:
    """Worker processes; as many as the largest run so far has needed.

    Args:
        start: How processes start: "spawn", or "forkserver" for a quicker start.
        environment: Variables to set in the workers.
    """

    def __init__(self, start: str = "spawn", environment: dict[str, str] | None = None) -> None:
        self._start = start
        self._environment = environment or {}
        self._folder = tempfile.TemporaryDirectory(prefix="symmoe-test-")
        self._workers: list[_Worker] = []
        self._world = 0
        self._runs = 0

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        return [worker.process.pid or 0 for worker in self._workers]

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Sends a signal to one rank."""
        os.kill(self.pids[rank], number)

    def start(
        self, world: int, function: Callable[..., Any], *arguments: Any, distributed: bool = True
    ) -> None:
        """Begins a run of `function` on `world` ranks."""
        folder = Path(self._folder.name)
        while len(self._workers) < world:
            self._workers.append(
                _Worker(self._start, folder, len(self._workers), self._environment)
            )
        self._world = world
        self._runs += 1
        store = str(folder / f"store{self._runs}") if distributed else ""
        for rank in range(world):
            self._workers[rank].pipe.send((function, rank, world, store, arguments))

    def collect(self, seconds: float = SECONDS) -> list[Outcome]:
        """Waits for the run to end on all ranks."""
        end = time.monotonic() + seconds
        outcomes = []
        for rank in range(self._world):
            worker = self._workers[rank]
            if not worker.pipe.poll(max(0.0, end - time.monotonic())):
                stacks = self._stacks()
                self.stop()
                pytest.fail(f"rank {rank} of {self._world} did not end in {seconds} s\n{stacks}")
            try:
                outcomes.append(worker.pipe.recv())
            except EOFError:
                worker.process.join(5)
                outcomes.append(Outcome(exit_code=worker.process.exitcode))
        return outcomes

    def _stacks(self) -> str:
        for worker in self._workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process.pid or 0, signal.SIGUSR1)
        time.sleep(0.3)
        return "\n".join(
            f"--- rank {number}\n{worker.stacks.read_text() if worker.stacks.exists() else ''}"
            for number, worker in enumerate(self._workers)
        )

    def outcomes(
        self,
        world: int,
        function: Callable[..., Any],
        *arguments: Any,
        seconds: float = SECONDS,
        distributed: bool = True,
    ) -> list[Outcome]:
        """Runs `function` on `world` ranks; errors are left for the caller to look at."""
        self.start(world, function, *arguments, distributed=distributed)
        return self.collect(seconds)

    def run(
        self,
        world: int,
        function: Callable[..., Any],
        *arguments: Any,
        seconds: float = SECONDS,
        distributed: bool = True,
    ) -> list[Any]:
        """Runs `function` on `world` ranks and returns their values; fails if any raised."""
        outcomes = self.outcomes(
            world, function, *arguments, seconds=seconds, distributed=distributed
        )
        failures = [
            f"--- rank {rank}: {outcome.trace or f'ended with {outcome.exit_code}'}"
            for rank, outcome in enumerate(outcomes)
            if outcome.trace or outcome.exit_code is not None
        ]
        if failures:
            pytest.fail("\n".join(failures), pytrace=False)
        return [outcome.value for outcome in outcomes]

    def stop(self) -> None:
        """Ends all workers, by force if need be."""
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(1)
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()
        self._workers = []


@contextlib.contextmanager
def fresh(environment: dict[str, str] | None = None) -> Iterator[Ranks]:
    """Processes of one's own, gone afterwards."""
    ranks = Ranks("forkserver", environment)
    try:
        yield ranks
    finally:
        ranks.stop()
