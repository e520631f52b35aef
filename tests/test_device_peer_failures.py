"""Own kernels when something is wrong: peers that do not come, other calls, old or no NCCL."""

from __future__ import annotations

import os
import signal
import time
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist

from device_lab import start_afresh
from device_scenarios import HIDDEN, inputs
from device_scenarios_peers import only
from ranks import Ranks, fresh
from reference import assert_same_bits, own_rows, rank_sum
from symmoe import Config, PoisonedError, SymmoeError, testing
from symmoe.device.group import DeviceGroup

pytestmark = pytest.mark.multi
DTYPE = torch.bfloat16


def outcome(group: DeviceGroup) -> str:
    """What the group's next look at itself raises; afterwards it has failed for good."""
    testing.synchronize()
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            group.check()
        except SymmoeError as error:
            with pytest.raises(PoisonedError):
                group.reduce_scatter(torch.ones(group.world_size, HIDDEN))
            return f"{type(error).__name__}: {error}"
        time.sleep(0.02)
    pytest.fail("the group has not noticed")


def absent(rank: int, world: int, path: str) -> str:
    """The last rank does not make the second call."""
    start_afresh()
    with testing.init(config=only(path, timeout=2.0)) as group:
        ones = torch.ones(world, HIDDEN, dtype=DTYPE)
        out = group.combine(ones)
        testing.synchronize()
        assert bool((out == world).all())
        text = ""
        if rank != world - 1:
            out.fill_(7.0)
            group.combine(ones, out=out)
            text = outcome(group)
            assert bool((out == 7).all())
        dist.barrier()
        return text


@pytest.mark.parametrize("path", ["pull", "fused"])
@pytest.mark.parametrize("world", [2, 3])
def test_a_rank_that_does_not_come(ranks: Ranks, world: int, path: str) -> None:
    found = ranks.run(world, absent, path)
    for text in found[:-1]:
        assert text.startswith(("DeadlineError", "PoisonedError", "PeerLostError")), text
    assert any(f"rank {world - 1} did not come in time at the entry barrier" in it for it in found)
    assert any("of the lane's call 2" in text for text in found)


def killed(rank: int, world: int) -> str:
    """A rank ends while the others wait for it on the device."""
    start_afresh()
    warnings.simplefilter("ignore")
    group = testing.init(config=only("pull", timeout=1000.0))
    ones = torch.ones(world, HIDDEN, dtype=DTYPE)
    group.reduce_scatter(ones)
    testing.synchronize()
    dist.barrier()
    if rank == world - 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    group.reduce_scatter(ones)
    return outcome(group)


def test_a_rank_that_ends_while_others_wait() -> None:
    with fresh() as own:
        found = own.outcomes(3, killed)
    for each in found[:-1]:
        assert each.error is None, each.trace
        assert "rank 2" in str(each.value) or "PeerLost" in str(each.value), each.value
    assert found[-1].exit_code == -signal.SIGKILL


def mismatched(rank: int, world: int, what: str) -> str:
    """The last rank makes another call."""
    start_afresh()
    with testing.init(config=only("pull", "routed", timeout=10.0)) as group:
        last = rank == world - 1
        ones = torch.ones(2 * world, HIDDEN, dtype=DTYPE)
        sizes = [2] * world
        if what == "hidden" and last:
            ones = torch.ones(2 * world, HIDDEN // 2, dtype=DTYPE)
        if what == "sizes" and last:
            sizes = [1, *[2] * (world - 2), 3]
        out = group.reduce_scatter(ones, sizes=sizes)
        del out
        text = outcome(group)
        dist.barrier()
        return text


@pytest.mark.parametrize("what", ["hidden", "sizes"])
@pytest.mark.parametrize("world", [2, 3])
def test_different_calls(ranks: Ranks, world: int, what: str) -> None:
    found = ranks.run(world, mismatched, what)
    assert all(text.startswith(("MismatchError", "PeerLostError")) for text in found), found
    assert any("ranks made different calls" in text for text in found)


def check_sums(group: DeviceGroup) -> None:
    """Uneven sums in rank order."""
    rank, world = group.rank, group.world_size
    sizes = [r + 1 for r in range(world)]
    given = inputs(world, sum(sizes), DTYPE)
    own = own_rows(sizes, rank)
    for deterministic in (False, True):
        found = group.reduce_scatter(given[rank], sizes=sizes, deterministic=deterministic)
        testing.synchronize()
        assert_same_bits(found, rank_sum([part[own] for part in given]))
    rows = torch.ones(2 * world, 3, HIDDEN, dtype=DTYPE)
    found = group.combine(rows)
    testing.synchronize()
    assert bool((found == 3 * world).all())
    assert group.stats()["calls_process_group"] == 0, group.stats()


def without_nccl(rank: int, world: int) -> None:
    """Own windows and kernels need no NCCL; all_gather goes through the process group."""
    start_afresh()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        group = testing.init(nccl="/nowhere/libnccl.so.2")
    assert "only reduce_scatter goes without it" in str(caught[0].message)
    with group:
        facts = group.describe()
        assert facts["windows"] == "VMM"
        assert facts["no_windows"] == facts["no_peers"] == ""
        assert "/nowhere" in facts["no_communicator"]
        check_sums(group)
        whole = group.all_gather(torch.full((2, HIDDEN), float(rank)))
        testing.synchronize()
        assert whole[:, 0].tolist() == [float(r) for r in range(world) for _ in "ab"]
        assert group.stats()["calls_process_group"] == 1


@pytest.mark.parametrize("world", [2, 3])
def test_no_nccl(ranks: Ranks, world: int) -> None:
    ranks.run(world, without_nccl)


def old_nccl(rank: int, world: int, version: int, source: str, windows: str) -> None:
    """Whose windows serve own kernels, and that NCCL keeps off windows that it must not read."""
    start_afresh(version=str(version))
    try:
        with testing.init(config=Config(window_source=source)) as group:
            facts = group.describe()
            assert facts["windows"] == windows, facts
            assert facts["no_peers"] == "", facts
            assert facts["no_direct"], facts
            check_sums(group)
            even = torch.ones(2 * world, HIDDEN, dtype=DTYPE)
            window = group.acquire("combine", even.shape, DTYPE)
            assert window is not None
            decision = group.explain("reduce_scatter", window)
            assert any(
                it.path == "direct" and it.reason == facts["no_direct"]
                for it in decision.alternatives
            )
        assert "symmetric" not in {call.kernel for call in testing.nccl().calls()}
    finally:
        start_afresh()


@pytest.mark.parametrize(
    ("version", "source", "windows"),
    [
        (22700, "any", "VMM"),
        (22800, "any", "VMM"),
        (22902, "any", "VMM"),
        (22902, "nccl", "NCCL"),
        (23007, "vmm", "VMM"),
    ],
)
def test_old_nccl(ranks: Ranks, version: int, source: str, windows: str) -> None:
    ranks.run(2, old_nccl, version, source, windows)


def noisy(rank: int, world: int) -> list[str]:
    """The choices of a rank whose device is larger, fuller and elsewhere than the others'."""
    start_afresh()
    ballast = [torch.empty(1000 * (rank + 1)) for _ in range(10 * rank + 1)]
    testing.limit_memory((64 << 20) * (rank + 2))
    with testing.init() as group:
        time.sleep(0.02 * rank)
        lines = []
        for rows in (1, 64, 4096):
            for sizes in (None, [rows * 2] + [rows] * (world - 2) + [0]):
                for deterministic in (False, True):
                    given = torch.empty(rows * world, HIDDEN, dtype=DTYPE)
                    for operation in ("reduce_scatter", "combine"):
                        decision = group.explain(
                            operation, given, sizes=sizes, deterministic=deterministic
                        )
                        lines.append(str(decision))
                        lines += [str(each.expected_us) for each in decision.alternatives]
        check_sums(group)
        stats = {name: n for name, n in group.stats().items() if name.startswith("calls_")}
        lines.append(str(stats))
    testing.limit_memory(0)
    assert ballast
    return lines


def test_all_ranks_choose_alike() -> None:
    # Each rank's device has another number of multiprocessors.
    with fresh() as own:
        found = own.run(3, noisy_device)
    assert found[0] == found[1] == found[2]
    assert len(found[0]) > 24


def noisy_device(rank: int, world: int) -> Any:
    """The number is read when the device is first used."""
    os.environ["SYMMOE_HOST_MULTIPROCESSORS"] = str((16, 132, 64)[rank])
    return noisy(rank, world)
