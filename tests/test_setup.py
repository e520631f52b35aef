"""init says what it could not have, gives back what it took, and never leaves ranks waiting."""

from __future__ import annotations

import gc
import os
import threading
import time
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist

import symmoe
from ranks import Ranks, fresh
from symmoe import _core, bootstrap, cards, cores

pytestmark = pytest.mark.multi


def bad_environment(rank: int, world: int, name: str, value: str) -> str:
    if rank == world - 1:
        os.environ[name] = value
    start = time.monotonic()
    with pytest.raises(ValueError, match=f"rank {world - 1}: .*{value}") as caught:
        symmoe.init()
    assert time.monotonic() - start < 10
    os.environ.pop(name, None)
    with symmoe.init() as group:  # all are in step still
        assert bool((group.reduce_scatter(torch.ones(world, 4)) == world).all())
        dist.barrier()
    return str(caught.value)


@pytest.mark.parametrize("variable", [("SYMMOE_ISA", "sse9"), ("SYMMOE_TIMEOUT", "soon")])
def test_a_bad_variable_on_one_rank_raises_on_all(variable: tuple[str, str]) -> None:
    with fresh() as workers:
        texts = workers.run(3, bad_environment, *variable)
    assert all(f"init on rank {rank}: " in text for rank, text in enumerate(texts))


def version_differs(rank: int, world: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cards, "__version__", f"0.{rank}")
        if rank == 1:  # whose cards have other fields
            patch.setattr(bootstrap, "asdict", lambda card: {"version": card.version})
        with pytest.raises(symmoe.MismatchError, match=r"rank 0 runs symmoe 0.0, rank 1 runs 0.1"):
            symmoe.init()


def test_different_versions(ranks: Ranks) -> None:
    ranks.run(2, version_differs)


def no_listener(rank: int, world: int) -> None:
    def failing() -> object:
        raise symmoe.SystemCallError("socket: refused, as a test")

    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            patch.setattr(_core, "Listener", failing)
        with pytest.warns(RuntimeWarning, match=r"no windows.*rank 0 cannot listen.*refused"):
            group = symmoe.init()
    group.close()


def test_windows_are_not_lost_silently(ranks: Ranks) -> None:
    ranks.run(2, no_listener)


def quiet(rank: int, world: int) -> None:
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("error")
        symmoe.init().close()
        symmoe.init(config=symmoe.Config(windows=False)).close()
        if world > 1:
            patch.setattr(_core, "host_identity", lambda: f"host{rank}")
            symmoe.init().close()


@pytest.mark.parametrize("world", [1, 2])
def test_what_was_asked_for_is_no_warning(ranks: Ranks, world: int) -> None:
    ranks.run(world, quiet)


def test_all_threads_are_pinned_and_let_go() -> None:
    with fresh() as workers:
        first, second = workers.run(2, pinned)
    assert first
    assert second
    assert len(os.sched_getaffinity(0)) < 2 or not set(first) & set(second)


def pinned(rank: int, world: int) -> list[int]:
    before = os.sched_getaffinity(0)
    outer = symmoe.init(config=symmoe.Config(pin=True))
    share = os.sched_getaffinity(0)
    inner = symmoe.init(config=symmoe.Config(pin=True))
    found: list[set[int]] = []
    thread = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
    thread.start()
    thread.join()
    assert found == [os.sched_getaffinity(0)]
    dist.barrier()
    outer.close()  # not in the order in which they were made
    assert os.sched_getaffinity(0) <= share
    inner.close()
    assert os.sched_getaffinity(0) == before
    group = symmoe.init(config=symmoe.Config(pin=True))
    del group
    gc.collect()
    assert os.sched_getaffinity(0) == before
    group = symmoe.init(config=symmoe.Config(pin=True))
    os.sched_setaffinity(0, {max(before)})  # what the application does later is its own
    group.close()
    assert os.sched_getaffinity(0) == {max(before)} or share == {max(before)}
    os.sched_setaffinity(0, before)
    return sorted(share)


def thread_limits(rank: int, world: int) -> None:
    everything = cores.thread_limit
    share = max(1, everything // world)
    first = symmoe.init()
    assert cores.thread_limit == share
    second = symmoe.init()
    first.close()
    assert cores.thread_limit == share
    second.close()
    assert cores.thread_limit == everything
    with pytest.raises(symmoe.MismatchError):
        symmoe.init(config=symmoe.Config(timeout=20 + rank))
    assert cores.thread_limit == everything


def test_thread_limit_ends_with_the_last_group(ranks: Ranks) -> None:
    ranks.run(2, thread_limits)


def leaving(rank: int, world: int) -> None:
    """What ended the block is what one sees, also where the group cannot be closed just then."""
    group = symmoe.init()
    if rank == 0:
        thread = threading.Thread(target=group.reduce_scatter, args=(torch.ones(world, 4),))
        with pytest.raises(KeyError, match="the cause"), group:  # noqa: PT012
            thread.start()
            time.sleep(0.2)
            raise KeyError("the cause")
        with pytest.raises(ValueError, match=r"close.*: a call is running"), group:
            pass
        dist.barrier()
        thread.join()
    else:
        dist.barrier()
        group.reduce_scatter(torch.ones(world, 4))
    group.close()
    with pytest.raises(KeyError), symmoe.init() as other:
        raise KeyError
    with pytest.raises(symmoe.ClosedError):
        other.check()


def test_leaving_the_block_with_an_error(ranks: Ranks) -> None:
    ranks.run(2, leaving)


class OutOfMemory:
    """A core that has no memory to reserve; notes what was asked of it."""

    def __init__(self, core: _core.Group) -> None:
        self.core = core
        self.asked: list[tuple[object, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    def reserve(self, *arguments: object) -> str:
        self.asked.append(arguments)
        return "rank 1: no memory, as a test"


def all_or_nothing(rank: int, world: int) -> None:
    """All roles are one request to the core: where it fails, none of them has windows."""
    rows = 1 << 10
    mine = torch.ones(rows, 64)
    with symmoe.init(device="cpu") as group:
        core = group._core
        assert core is not None
        short = OutOfMemory(core)
        group._core = short  # type: ignore[assignment]
        roles = ("combine", "dispatch")
        with pytest.warns(RuntimeWarning, match="rank 1: no memory, as a test"):
            assert not group.reserve(rows, 64, torch.float32, lanes=2, roles=roles)
        assert short.asked == [([_core.COMBINE, _core.DISPATCH], 2, mine.nbytes, False)]
        group._core = core
        assert group.stats()["buffers"] == 0
        for operation in ("reduce_scatter", "all_gather"):
            decision = group.explain(operation, mine)
            assert decision.path == "process_group"
            assert "no memory, as a test" in decision.reason
        with pytest.raises(ValueError, match="no roles"):
            group.reserve(rows, 64, torch.float32, roles=())
        # In any order, also twice.
        roles = ("dispatch", "combine", "dispatch") if rank else roles  # type: ignore[assignment]
        assert group.reserve(8, 64, torch.float32, roles=roles)
        assert group.stats()["buffers"] == 2
        dist.barrier()


def test_reserve_is_for_all_roles_or_none(ranks: Ranks) -> None:
    ranks.run(2, all_or_nothing)


def refused_by_the_cap(rank: int, world: int) -> None:
    with symmoe.init(config=symmoe.Config(max_buffer_bytes=1 << 20)) as group:
        with pytest.warns(RuntimeWarning, match="max_buffer_bytes"):
            assert not group.reserve(1 << 20, 64, torch.float32, roles=("combine", "dispatch"))
        assert group.stats()["buffers"] == 0
        assert group.reserve(1 << 10, 64, torch.float32, roles=("combine", "dispatch"))
        dist.barrier()


def test_reserve_beyond_the_cap(ranks: Ranks) -> None:
    ranks.run(2, refused_by_the_cap)
