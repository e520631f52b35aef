"""Scenarios of the GPU path: the life of a group, other groups beside it, and threads."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable

import pytest
import torch

import symmoe
from device_lab import Lab, barrier
from device_scenarios import HIDDEN
from symmoe import ClosedError, Config, MismatchError
from symmoe.device.group import DeviceGroup

DTYPE = torch.bfloat16
SMALL = Config(granularity=4096)


def use(lab: Lab, group: DeviceGroup, rows: int = 2, lane: int = 0) -> None:
    """One call of each kind."""
    world = group.world_size
    ones = lab.tensor(torch.ones(rows * world, HIDDEN, dtype=DTYPE))
    window = group.acquire("combine", (rows * world, HIDDEN), DTYPE, lane=lane)
    if window is not None:
        lab.put(window, ones)
        assert bool((lab.host(group.reduce_scatter(window, lane=lane)) == world).all())
    for deterministic in (False, True):
        found = group.reduce_scatter(ones, lane=lane, deterministic=deterministic)
        assert bool((lab.host(found) == world).all())
    assert bool((lab.host(group.all_gather(ones[:rows], lane=lane)) == 1).all())


def sleep(lab: Lab, rank: int, world: int) -> None:
    """A group that is suspended gives all windows back, unless something holds one on some rank."""
    with lab.init(SMALL) as group:
        use(lab, group, rows=100)
        window = group.acquire("combine", (2, HIDDEN), DTYPE) if rank == world - 1 else None
        with pytest.raises(ValueError, match=rf"rank {world - 1}: .* held by tensors"):
            group.suspend()
        del window
        use(lab, group)  # nothing has changed
        group.reserve(2, HIDDEN, DTYPE, graph=True)
        with pytest.raises(ValueError, match=r"pinned for graphs; call release_graphs\(\)"):
            group.suspend()
        group.release_graphs()
        before = group.stats()
        group.suspend()
        stats = group.stats()
        for name in ("live_bytes", "retired_bytes", "scratch_bytes", "buffers"):
            assert stats[name] == 0, stats
        with pytest.raises(ValueError, match=r"suspended; call resume\(\)"):
            group.acquire("combine", (2, HIDDEN), DTYPE)
        with pytest.raises(ValueError, match="suspended"):
            group.all_gather(lab.tensor(torch.ones(2, HIDDEN)))
        group.resume()
        group.resume()
        windows = group.stats()
        use(lab, group, rows=100)
        after = group.stats()
        assert after["live_bytes"] == before["live_bytes"], (before, after)
        assert world == 1 or after["growths"] == windows["growths"]
    group.close()


def ends(lab: Lab, rank: int, world: int) -> None:
    """Tensors outlive the group; a second close is harmless; all else says that it is closed."""
    group = lab.init(SMALL)
    window = group.acquire("combine", (2 * world, HIDDEN), DTYPE)
    gathered = group.acquire("dispatch", (2, HIDDEN), DTYPE)
    assert window is not None
    assert gathered is not None
    values = lab.tensor(torch.full((2 * world, HIDDEN), 5.0, dtype=DTYPE))
    lab.put(window, values)
    lab.put(gathered, values[:2].contiguous())
    lab.slow(0.05)
    out = group.reduce_scatter(window)
    group.close()
    group.close()
    assert bool((lab.host(out) == 5 * world).all())
    assert bool((lab.host(window) == 5).all())
    assert bool((lab.host(gathered) == 5).all())
    for call in (
        lambda: group.acquire("combine", (2 * world, HIDDEN), DTYPE),
        lambda: group.reduce_scatter(window),
        lambda: group.reduce_scatter(values),
        lambda: group.all_gather(values),
        lambda: group.combine(values),
        lambda: group.reserve(1, HIDDEN, DTYPE),
        lambda: group.retain(window),
        lambda: group.explain("reduce_scatter", values),
        group.trim,
        group.release_graphs,
        group.suspend,
        group.resume,
        group.check,
        group.stats,
        group.describe,
    ):
        with pytest.raises(ClosedError, match="closed"):
            call()
    assert "closed" in repr(group)
    barrier()
    with lab.init(SMALL) as group:  # a view of a group that is gone is ordinary memory
        found = group.reduce_scatter(window)
        assert bool((lab.host(found) == 5 * world).all())
        assert group.stats()["calls_staged"] == (1 if world > 1 else 0)


def several(lab: Lab, rank: int, world: int) -> None:
    """Groups side by side have nothing to do with each other."""
    groups = [lab.init(SMALL) for _ in range(3)]
    for turn in range(3):
        for number, group in enumerate(groups):
            use(lab, group, rows=1 + 60 * turn * number)
    for group in groups[:2]:
        group.close()
    use(lab, groups[2], rows=300)
    with pytest.raises(ClosedError):
        groups[0].check()
    groups[2].close()


def forked(lab: Lab, rank: int, world: int) -> None:
    """A child process is told that the group is its parent's, and does it no harm."""
    with lab.init(SMALL) as group:
        use(lab, group)
        window = group.acquire("combine", (world, HIDDEN), DTYPE)
        assert window is not None
        lab.synchronize()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                calls: list[Callable[[], object]] = [
                    lambda: group.acquire("combine", (world, HIDDEN), DTYPE),
                    lambda: group.reduce_scatter(window),
                    group.trim,
                    group.check,
                ]
                for call in calls:
                    with pytest.raises(ClosedError, match="fork"):
                        call()
                group.close()
                del window, group
                gc.collect()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        lab.put(window, lab.tensor(torch.ones(world, HIDDEN, dtype=DTYPE)))
        assert bool((lab.host(group.reduce_scatter(window)) == world).all())
        use(lab, group, rows=100)


class Turns:
    """Lets threads pass one after the other, in the same order everywhere."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._next = 0
        self._changed = threading.Condition()

    def wait(self, number: int) -> None:
        """Returns when it is this thread's turn."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._next % self._threads == number, 20)

    def done(self) -> None:
        """The next one, please."""
        with self._changed:
            self._next += 1
            self._changed.notify_all()


def threads(lab: Lab, rank: int, world: int) -> None:
    """A thread per lane. NCCL wants its calls in the same order on all ranks; all else is free."""
    count, turns_each = 3, 15
    with lab.init(SMALL) as group:
        assert group.reserve(2 * world, HIDDEN, DTYPE, lanes=count)
        turns = Turns(count)
        errors: list[BaseException] = []

        def work(lane: int) -> None:
            try:
                stream = lab.stream()
                for turn in range(turns_each):
                    with lab.use(stream):
                        shape = (2 * world, HIDDEN)
                        window = group.acquire("combine", shape, DTYPE, lane=lane)
                        assert window is not None
                        value = 1.0 + 10 * lane + turn
                        lab.put(window, lab.tensor(torch.full(shape, value, dtype=DTYPE)))
                        if world > 1:
                            turns.wait(lane)
                        out = group.reduce_scatter(window, lane=lane)
                        if world > 1:
                            turns.done()
                        stream.synchronize()
                        assert bool((out == world * value).all()), (lane, turn)
            except BaseException as error:
                errors.append(error)

        workers = [threading.Thread(target=work, args=(lane,)) for lane in range(count)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(30)
        assert not errors, errors
        assert not any(worker.is_alive() for worker in workers)
        counts = group.stats()
        path = "direct" if "direct" in (lab.paths or ()) else "pull"
        assert counts["calls_local" if world == 1 else f"calls_{path}"] == count * turns_each
        assert counts["calls_staged"] == 0


def different_calls(lab: Lab, rank: int, world: int) -> None:
    """With Config.check, different calls raise on all ranks, and the group goes on."""
    with lab.init(Config(check=True, granularity=4096, timeout=20)) as group:
        start = time.monotonic()
        rows = lab.tensor(torch.ones(world, HIDDEN, dtype=DTYPE))
        more = lab.tensor(torch.ones(2 * world, HIDDEN, dtype=DTYPE))
        wide = lab.tensor(torch.ones(world, HIDDEN))
        last = rank == world - 1
        for mine in (
            lambda: group.reduce_scatter(more if last else rows),
            lambda: group.reduce_scatter(wide if last else rows),
            lambda: (
                group.reduce_scatter(rows, deterministic=True)
                if last
                else group.reduce_scatter(rows)
            ),
            lambda: group.reduce_scatter(rows, lane=int(last)),
            lambda: group.all_gather(rows) if last else group.reduce_scatter(rows),
            lambda: group.trim() if last else group.reduce_scatter(rows),
            lambda: group.reserve(500 + last, HIDDEN, DTYPE),
            lambda: group.acquire("combine", ((500 + last) * world, HIDDEN), DTYPE),
        ):
            with pytest.raises(MismatchError, match=r"Rank 0: .* Rank"):
                mine()
        assert time.monotonic() - start < 10  # nobody waited for a deadline
        use(lab, group)
        small = group.acquire("combine", (world, HIDDEN), DTYPE)
        large = group.acquire("combine", (500 * world, HIDDEN), DTYPE)
        assert small is not None
        assert large is not None
        lab.put(small, rows)
        lab.put(large, lab.tensor(torch.zeros(500 * world, HIDDEN, dtype=DTYPE)))
        with pytest.raises(MismatchError, match="window"):
            group.reduce_scatter(small if last else large[:world])
        assert bool((lab.host(group.reduce_scatter(small)) == world).all())


def same_on_other_devices(lab: Lab, rank: int, world: int) -> None:
    """The CPU's group and the device's, of the same ranks, agree in bits."""
    rows = torch.randn(2 * world, 3, HIDDEN, generator=torch.Generator().manual_seed(rank))
    with lab.init(SMALL) as group, symmoe.init(device="cpu") as host:
        found = lab.host(group.combine(lab.tensor(rows), deterministic=True))
        assert torch.equal(found, host.combine(rows))
