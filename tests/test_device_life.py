"""The life of emulated groups: suspend, close, fork, threads, other groups, nothing left behind."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import device_scenarios_life as scenarios
from device_lab import EmulatedLab, Lab, emulated
from ranks import Ranks, fresh
from symmoe import Config, testing

pytestmark = pytest.mark.multi
ID_BYTES = 128


@pytest.mark.parametrize("world", [1, 2, 3])
def test_suspend(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.sleep)


@pytest.mark.parametrize("world", [1, 2])
def test_close(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.ends)


def test_several_groups(ranks: Ranks) -> None:
    ranks.run(2, emulated, scenarios.several)


@pytest.mark.parametrize("world", [1, 2])
def test_fork(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.forked)


@pytest.mark.parametrize("world", [1, 2])
def test_a_thread_per_lane(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.threads)


@pytest.mark.parametrize("world", [2, 3])
def test_different_calls(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.different_calls)


def test_same_bits_as_on_the_cpu(ranks: Ranks) -> None:
    ranks.run(2, emulated, scenarios.same_on_other_devices)


class _Id(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * ID_BYTES)]


def communicator(rank: int, world: int) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """A communicator of all ranks, and the NCCL that it is of."""
    library = ctypes.CDLL(str(testing.nccl()._library._name))
    library.ncclCommInitRank.argtypes = [
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_int,
        _Id,
        ctypes.c_int,
    ]
    library.ncclCommDestroy.argtypes = [ctypes.c_void_p]
    unique = _Id()
    if rank == 0:
        assert library.ncclGetUniqueId(ctypes.byref(unique)) == 0
    texts: list[bytes] = [ctypes.string_at(ctypes.byref(unique), ID_BYTES)]
    dist.broadcast_object_list(texts, 0)
    ctypes.memmove(ctypes.byref(unique), texts[0], ID_BYTES)
    made = ctypes.c_void_p()
    assert library.ncclCommInitRank(ctypes.byref(made), world, unique, rank) == 0
    return library, made


def borrowed(lab: Lab, rank: int, world: int) -> None:
    """A communicator of the caller's serves, and is neither destroyed nor aborted."""
    library, made = communicator(rank, world)
    for _ in range(2):
        with lab.init(comm_ptr=made.value) as group:
            scenarios.use(lab, group)
            assert group.stats()["calls_direct"] == 2
        assert testing.nccl().live()["communicators"] == 1
        assert testing.nccl().live()["windows"] == 0
    dist.barrier()
    assert library.ncclCommDestroy(made) == 0
    inits = [call for call in testing.nccl().calls() if call.operation == "ncclCommInitRank"]
    assert len(inits) == 1


def test_borrowed_communicator(ranks: Ranks) -> None:
    ranks.run(2, emulated, borrowed)


def borrowed_and_failed(lab: Lab, rank: int, world: int) -> None:
    """Where a communicator lives on, nothing else may come to lie where its windows are."""
    library, made = communicator(rank, world)
    group = lab.init(comm_ptr=made.value)
    group._core.poison("a test")
    dist.barrier()
    group.close()
    del group
    gc.collect()
    assert testing.nccl().live()["windows"] == 1
    assert testing.nccl().misuses() == []
    dist.barrier()
    assert library.ncclCommAbort(made) == 0  # and what is registered goes with it


def test_borrowed_communicator_of_a_failed_group() -> None:
    with fresh() as workers:  # they keep that memory for good
        workers.run(2, emulated, borrowed_and_failed)


def held() -> dict[str, int]:
    """What this process holds: of the system, of the device, of NCCL."""
    testing.synchronize()
    gc.collect()
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "memory": Path("/proc/self/maps").read_text().count("memfd:"),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "device_bytes": testing.live_bytes(),
        **testing.nccl().live(),
    }


def twenty_groups(rank: int, world: int) -> None:
    lab = EmulatedLab()
    with lab.init(Config(granularity=4096)) as group:
        scenarios.use(lab, group)
    dist.barrier()
    before = held()
    assert before["communicators"] == before["windows"] == before["allocations"] == 0, before
    for turn in range(20):
        group = lab.init(Config(granularity=4096))
        scenarios.use(lab, group, rows=1 + 50 * (turn % 3))
        view = group.acquire("combine", (2 * world, 32), torch.float32)
        if turn % 2:
            group.close()
        del group, view  # a group that was not closed closes itself
    dist.barrier()
    after = held()
    for name, number in before.items():
        assert after[name] <= number, (name, before, after)
    assert rank < world


def test_nothing_is_left(ranks: Ranks) -> None:
    ranks.run(2, twenty_groups)


def test_process_that_never_closes_ends_quietly() -> None:
    program = (
        "import torch\n"
        "from symmoe import testing\n"
        "group = testing.init()\n"
        "window = group.acquire('combine', (64, 32), torch.float32)\n"
        "testing.delay(0.1)\n"
        "group.reduce_scatter(window)\n"
        "group.all_gather(torch.ones(2, 32))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
    )
    assert (done.returncode, done.stderr) == (0, "")
