"""Runs a function in several processes of this host, one per rank."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any


def run_ranks(body: Callable[..., None], world: int, *args: Any) -> list[int]:
    """Runs body(rank, world, *args) in `world` new processes and returns the ranks that failed.

    As soon as one has failed the others are ended: they would wait for it.
    """
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=body, args=(rank, world, *args)) for rank in range(world)]
    for process in ranks:
        process.start()
    failed = wait_for(ranks)
    for process in ranks:
        if failed:
            process.terminate()
        process.join()
    return failed


def wait_for(processes: Sequence[BaseProcess]) -> list[int]:
    """Returns when all have ended, or one has failed: the numbers of those that have."""
    failed: list[int] = []
    running: dict[Any, int] = {process.sentinel: rank for rank, process in enumerate(processes)}
    while running and not failed:
        # Who still runs follows from what ended here. To ask the processes could leave nobody to
        # wait for, if the last one ends just then, and such a wait has no end.
        for ended in wait(running):
            rank = running.pop(ended)
            processes[rank].join()  # it is about to end; before that it has no exit code
            if processes[rank].exitcode:
                failed.append(rank)
    return sorted(failed)
