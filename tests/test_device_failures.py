"""What goes wrong on one rank of an emulated group: all hear of it, and none waits for ever."""

from __future__ import annotations

import dataclasses
import gc
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from device_lab import NCCL_PATHS, EmulatedLab, start_afresh
from ranks import Ranks, fresh
from symmoe import Config, DeadlineError, Epilogue, PoisonedError, SymmoeError, testing
from symmoe.testing import runtime

pytestmark = pytest.mark.multi
HIDDEN, DTYPE = 40, torch.bfloat16
QUICK = Config(granularity=4096, timeout=4, paths=NCCL_PATHS)
LOST = 77  # exit code of a process that the fake NCCL ends


def program(group: Any) -> None:
    """Every NCCL call that a group makes, at least twice."""
    lab, world = EmulatedLab(), group.world_size

    def expect(found: torch.Tensor, value: float) -> None:
        testing.synchronize()
        group.check()
        assert bool((found == value).all())

    sizes = [r + 1 for r in range(world)]
    for rows in (2, 200, 600):
        ones = torch.ones(rows * world, HIDDEN, dtype=DTYPE)
        window = group.acquire("combine", ones.shape, DTYPE)
        if window is not None:
            lab.put(window, ones)
            expect(group.reduce_scatter(window), world)
        del window
        expect(group.reduce_scatter(ones), world)
        expect(group.reduce_scatter(ones, deterministic=True), world)
        expect(group.all_gather(ones[:rows]), 1)
        few = ones[: sum(sizes)].contiguous() if rows > 2 else torch.ones(sum(sizes), HIDDEN)
        expect(group.reduce_scatter(few, sizes=sizes), world)
        expect(group.all_gather(few[: sizes[group.rank]], sizes=sizes), 1)
    group.trim()


def survive(rank: int, world: int, fault: str, device_fault: str, config: Config) -> Any:
    """Runs the program with failures ordered; what it raised, and what became of the group."""
    start_afresh(timeout="1.5")
    warnings.simplefilter("ignore")
    runtime.device()  # which keeps some memory for good
    before = live()
    if fault:
        testing.nccl().fail(fault)
    if device_fault and rank == 1:
        name, _, nth = device_fault.partition(":")
        testing.fail_device(name, int(nth))
    error, reason, windows = "", "", None
    try:
        group = testing.init(config=config)
    except SymmoeError as caught:
        error = f"{type(caught).__name__}: {caught}"
    else:
        error, reason, windows = run(group)
    testing.fail_device("")
    testing.nccl().fail("")
    gc.collect()
    return error, reason, windows, {n: v for n, v in live().items() if v != before[n]}


def run(group: Any) -> tuple[str, str, bool]:
    """The program's error, why the group has no NCCL or windows, whether it has."""
    description = group.describe()
    reason = description["no_communicator"] or description["no_windows"]
    error = ""
    windows = False
    try:
        windows = group.acquire("combine", (1, HIDDEN), DTYPE) is not None
        program(group)
    except SymmoeError as caught:
        error = f"{type(caught).__name__}: {caught}"
        with pytest.raises(SymmoeError):  # a group that failed stays so
            group.all_gather(torch.ones(1, HIDDEN))
    group.close()
    return error, reason, windows


def until_error(group: Any, call: Callable[[], Any] | None) -> str:
    """Repeats a call, or just looks, until the group has failed; how."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            if call is not None:
                call()
                testing.synchronize()
            group.check()
        except SymmoeError as error:
            return str(error)
        time.sleep(0.02)
    pytest.fail("the group has not noticed")


def live() -> dict[str, int]:
    """What there is of NCCL's things, and of device memory."""
    return testing.nccl().live() | {"bytes": testing.live_bytes()}


SETUP = [
    ("ncclGetUniqueId:1=error", 0),
    ("ncclCommInitRank:1:1=error", 1),
    ("ncclMemAlloc:1:1=oom", 1),
    ("ncclMemAlloc:1:1=error", 1),
    ("ncclCommWindowRegister:1:1=null", 1),
    ("ncclCommWindowRegister:1:1=error", 1),
]


@pytest.mark.parametrize(("fault", "culprit"), SETUP, ids=[fault for fault, _ in SETUP])
def test_setup_fails_on_one_rank(ranks: Ranks, fault: str, culprit: int) -> None:
    """The group works without, on all ranks, and says why."""
    found = ranks.run(2, survive, fault, "", QUICK)
    for error, reason, windows, left in found:
        assert error == "", error
        assert f"rank {culprit}: " in reason
        assert not windows
        assert left == {}
    assert found[0][1] == found[1][1]


GROWTH = [
    "ncclMemAlloc:2:1=oom",
    "ncclMemAlloc:3:0=error",
    "ncclCommWindowRegister:2:1=null",
]


@pytest.mark.parametrize("fault", GROWTH)
def test_growth_fails_on_one_rank(ranks: Ranks, fault: str) -> None:
    """Larger calls go another way, on all ranks; nothing is kept."""
    for error, reason, windows, left in ranks.run(2, survive, fault, "", QUICK):
        assert (error, reason, windows) == ("", "", True)
        assert left == {}


CALLS = [
    "ncclReduceScatter:2:1=error",
    "ncclReduceScatter:1:1=async",
    "ncclReduceScatter:2:0=hang",
    "ncclAllGather:1:1=error",
    "ncclAllGather:1:0=async",
    "ncclReduce:1:1=error",
    "ncclReduce:3:1=async",
    "ncclBroadcast:2:1=error",
    "ncclSend:1:1=error",
    "ncclRecv:1:1=async",
    "ncclCommWindowRegister:2:1=error",
    "ncclCommWindowDeregister:1:1=error",
    "ncclCommGetAsyncError:2:1=error",
]


@pytest.mark.parametrize("fault", CALLS)
def test_call_fails_on_one_rank(ranks: Ranks, fault: str) -> None:
    """All ranks raise, soon, and nothing is left."""
    start = time.monotonic()
    found = ranks.run(2, survive, fault, "", QUICK)
    assert time.monotonic() - start < 12
    for error, _, _, left in found:
        assert left == {}
        if "Register:2:1=error" in fault and not error:
            continue  # a rank whose peer could not register goes on without, if told in time
        assert error
        assert "rank" in error, error
        assert error.split("Error")[0] in ("Nccl", "Poisoned", "PeerLost", "Deadline"), error


@pytest.mark.parametrize("fault", ["allocate_pinned:1", "event_create:1"])
def test_device_fails_at_init(ranks: Ranks, fault: str) -> None:
    """No rank gets a group, and all know whose fault it is."""
    start = time.monotonic()
    for error, _, _, left in ranks.run(2, survive, "", fault, QUICK):
        assert error
        assert "DeviceError" in error
        assert "rank 1: " in error
        assert left == {}
    assert time.monotonic() - start < 4  # nobody waited for the deadline


@pytest.mark.parametrize("fault", ["copy_to_window:2", "rank_reduce:1"])
def test_kernel_fails_on_one_rank(ranks: Ranks, fault: str) -> None:
    """It cannot take part, and says so to the others."""
    found = ranks.run(2, survive, "", fault, QUICK)
    assert "DeviceError" in found[1][0]
    assert found[0][0]
    for *_, left in found:
        assert left == {}


def no_scratch(rank: int, world: int) -> None:
    start_afresh()
    with testing.init(config=QUICK) as group:
        rows = torch.ones(2 * world, HIDDEN, dtype=DTYPE)
        if rank == 1:
            testing.fail_device("allocate", 1, 2)
        for _ in range(2):
            assert bool((group.reduce_scatter(rows, deterministic=True) == world).all())
        assert group.stats()["calls_process_group"] == 2
        assert bool((EmulatedLab().host(group.reduce_scatter(rows)) == world).all())


def test_no_scratch_memory_on_one_rank(ranks: Ranks) -> None:
    ranks.run(2, no_scratch)


def failed_sum(rank: int, world: int) -> None:
    """The sum's kernel cannot start on rank 1: its peers do not wait for its rows."""
    start_afresh(timeout="20")
    group = testing.init(config=QUICK)
    rows = torch.ones(2 * world, HIDDEN, dtype=DTYPE)
    group.combine(rows)
    testing.synchronize()
    if rank == 1:
        testing.fail_device("topk_reduce", 1)
    start = time.monotonic()
    until_error(group, lambda: group.combine(rows))
    assert time.monotonic() < start + 3
    with pytest.raises(PoisonedError, match="topk_reduce kernel" if rank == 1 else "rank"):
        group.combine(rows)
    group.close()


def test_failed_sum_is_noticed(ranks: Ranks) -> None:
    ranks.run(2, failed_sum)


def failed_epilogue(rank: int, world: int, path: str) -> None:
    """Nor can that of an epilogue, in front of the meeting of ranks or behind their collective."""
    start_afresh(timeout="3")
    kernel = "pull_epilogue" if path == "pull" else "apply_epilogue"
    group = testing.init(config=dataclasses.replace(QUICK, paths=(path,)))
    rows = torch.ones(2 * world, HIDDEN, dtype=DTYPE)

    def call() -> None:
        epilogue = Epilogue(scale=2.0)
        group.reduce_scatter(rows, deterministic=path == "ordered", epilogue=epilogue)

    call()
    testing.synchronize()
    if rank == 1:
        testing.fail_device(kernel, 1)
    until_error(group, call)
    with pytest.raises(PoisonedError, match=f"{kernel} kernel" if rank == 1 else "rank"):
        call()
    group.close()


@pytest.mark.parametrize("path", ["pull", "ordered"])
def test_failed_epilogue_is_noticed(ranks: Ranks, path: str) -> None:
    ranks.run(2, failed_epilogue, path)


def mismatch(rank: int, world: int, kind: str) -> None:
    """Without Config.check, what does not fit together ends in an error all the same."""
    start_afresh(timeout="3")
    group = testing.init(config=QUICK)
    rows = torch.ones((2 + 2 * rank * (kind == "rows")) * world, HIDDEN)
    if kind == "dtype" and rank == 1:
        rows = rows.half()
    takes_part = kind != "absent" or rank == 0
    text = until_error(group, (lambda: group.reduce_scatter(rows)) if takes_part else None)
    assert "rank" in text
    group.close()
    assert testing.nccl().live()["communicators"] == 0


@pytest.mark.parametrize("kind", ["rows", "dtype", "absent"])
def test_mismatch_without_check(ranks: Ranks, kind: str) -> None:
    ranks.run(2, mismatch, kind)


def never_ends(rank: int, world: int) -> None:
    """A collective that hangs is ended at the deadline, by whoever waits."""
    start_afresh(timeout="60")
    group = testing.init(config=Config(timeout=1.5, paths=NCCL_PATHS))
    rows = torch.ones(2 * world, HIDDEN)
    group.reduce_scatter(rows)
    testing.synchronize()
    if rank == 1:
        testing.nccl().fail("ncclReduceScatter:1:1=hang")
    start = time.monotonic()
    group.reduce_scatter(rows)
    text = until_error(group, None)
    assert "did not end within 1500 ms" in text or "aborted" in text
    assert 1 < time.monotonic() - start < 4
    testing.synchronize()
    group.close()


def test_hang_is_ended(ranks: Ranks) -> None:
    ranks.run(2, never_ends)


def missing_peer(rank: int, world: int) -> None:
    """A collective memory call that one rank does not make ends at the deadline and names it."""
    start_afresh()
    group = testing.init(config=Config(timeout=1.5, granularity=4096, paths=NCCL_PATHS))
    if rank == 0:
        with pytest.raises(DeadlineError, match=r"reserve: .* rank\(s\) \[1\] of 2"):
            group.reserve(100, HIDDEN, DTYPE)
        with pytest.raises(PoisonedError, match=r"rank\(s\) \[1\]"):
            group.trim()
    dist.barrier()
    group.close()


def test_missing_peer(ranks: Ranks) -> None:
    ranks.run(2, missing_peer)


DEATHS = [
    "ncclCommInitRank:1:1=die",
    "ncclMemAlloc:1:1=die",
    "ncclMemAlloc:2:1=die",
    "ncclCommWindowRegister:1:1=die",
    "ncclCommWindowRegister:2:1=die",
    "ncclReduceScatter:2:1=die",
    "ncclAllGather:1:1=die",
    "ncclReduce:2:1=die",
    "ncclSend:1:1=die",
    "ncclCommWindowDeregister:1:1=die",
    "ncclMemFree:1:1=die",
]


@pytest.mark.parametrize("fault", DEATHS)
def test_rank_dies(fault: str) -> None:
    """The survivor raises soon, or goes on without it, and names the rank."""
    with fresh() as workers:
        first, second = workers.outcomes(2, survive, fault, "", QUICK)
    assert second.exit_code == LOST
    assert first.error is None, first.trace
    error, reason, _, left = first.value
    assert "rank 1" in error + reason, (error, reason)
    assert left == {}
