"""Several threads of a rank, one lane each: lanes interleave differently on different ranks."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest
import torch

import symmoe
from ranks import Ranks

pytestmark = pytest.mark.multi
HIDDEN = 16


def in_threads(bodies: list[Callable[[], None]]) -> None:
    """Runs all bodies at once; raises the first error."""
    errors: list[BaseException] = []

    def guarded(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def lane_work(group: symmoe.Group, lane: int, steps: int, chance: random.Random) -> None:
    """Calls of one lane: windows and other memory, reduces and gathers, sizes that change."""
    rank, world = group.rank, group.world_size
    for step in range(steps):
        rows = world * (1 + (step + lane) % 5)
        window = group.acquire("combine", (rows, HIDDEN), torch.float32, lane=lane)
        if window is None:
            window = torch.empty(rows, HIDDEN)
        window.fill_(100 * lane + step + rank)
        if chance.random() < 0.3:
            time.sleep(chance.random() * 0.002)
        source = window.clone() if chance.random() < 0.3 else window
        found = group.reduce_scatter(source, lane=lane)
        right = world * (100 * lane + step) + world * (world - 1) // 2
        assert bool((found == right).all()), (lane, step)
        mine = torch.full((1 + rank, HIDDEN), float(rank + step))
        gathered = group.all_gather(mine, sizes=[1 + r for r in range(world)], lane=lane)
        assert gathered[-1, 0] == world - 1 + step


def several_lanes(rank: int, world: int, config: symmoe.Config) -> None:
    with symmoe.init(config=config, device="cpu") as group:
        bodies: list[Callable[[], None]] = [
            lambda lane=lane: lane_work(group, lane, 60, random.Random(world * lane + rank))  # type: ignore[misc]
            for lane in range(3)
        ]
        if rank % 2:
            bodies.reverse()
        in_threads(bodies)
        stats = group.stats()
        served = stats["calls_pull"] + stats["calls_staged"]
        assert served == (180 if config.windows else 0)


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("windows", [True, False])
def test_lanes_in_threads(ranks: Ranks, windows: bool, check: bool) -> None:
    ranks.run(3, several_lanes, symmoe.Config(windows=windows, check=check))


def dual_batch(rank: int, world: int) -> None:
    """Two microbatches take turns: one computes while the other communicates."""
    with symmoe.init(device="cpu") as group:
        group.reserve(8 * world, HIDDEN, torch.bfloat16, lanes=2)
        turns = [threading.Semaphore(1), threading.Semaphore(0)]

        def microbatch(lane: int) -> None:
            for step in range(40):
                turns[lane].acquire()
                window = group.acquire("combine", (8 * world, HIDDEN), torch.bfloat16, lane=lane)
                assert window is not None
                window.fill_(lane + step % 7)
                turns[1 - lane].release()
                found = group.reduce_scatter(window, lane=lane)
                assert bool((found == world * (lane + step % 7)).all())

        in_threads([lambda: microbatch(0), lambda: microbatch(1)])
    assert rank < world


def test_dual_batch_overlap(ranks: Ranks) -> None:
    ranks.run(2, dual_batch)


def same_lane(rank: int, world: int) -> int:
    """Two threads on one lane are refused, never mixed up."""
    refused = 0
    with symmoe.init(device="cpu") as group:
        if rank == 0:
            first = threading.Thread(target=group.reduce_scatter, args=(torch.ones(world, 4),))
            first.start()
            time.sleep(0.2)
            with pytest.raises(ValueError, match="another thread"):
                group.reduce_scatter(torch.ones(world, 4))
            with pytest.raises(ValueError, match=r"close.*: a call is running"):
                group.close()
            refused = 1
            first.join()
        else:
            time.sleep(0.6)
            group.reduce_scatter(torch.ones(world, 4))
        assert bool((group.reduce_scatter(torch.ones(world, 4)) == world).all())
    return refused


def test_two_threads_on_one_lane(ranks: Ranks) -> None:
    assert ranks.run(2, same_lane) == [1, 0]


def interpreter_free(rank: int, world: int) -> int:
    """The interpreter lock is free while a rank waits."""
    counted = 0
    with symmoe.init(device="cpu") as group:
        if rank == 0:
            waiting = threading.Thread(target=group.reduce_scatter, args=(torch.ones(world, 4),))
            waiting.start()
            end = time.monotonic() + 0.3
            while time.monotonic() < end:
                counted += 1
            waiting.join()
        else:
            time.sleep(0.5)
            group.reduce_scatter(torch.ones(world, 4))
    return counted


def test_waiting_lets_other_threads_run(ranks: Ranks) -> None:
    assert ranks.run(2, interpreter_free)[0] > 10_000
