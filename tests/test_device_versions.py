"""What a group of emulated devices does with an old NCCL, with different ones, and with none."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from device_lab import NCCL_PATHS, EmulatedLab, start_afresh, with_paths
from device_scenarios import HIDDEN, check_sum, inputs
from device_scenarios_life import use
from ranks import Ranks
from reference import own_rows
from symmoe import Config, MismatchError, testing
from symmoe.device.group import DeviceGroup

pytestmark = pytest.mark.multi
DTYPE = torch.bfloat16


def results(group: DeviceGroup) -> dict[str, int]:
    """Right sums by every kind of call; the counts."""
    lab, rank, world = EmulatedLab(), group.rank, group.world_size
    use(lab, group)
    sizes = [r + 1 for r in range(world)]
    given = inputs(world, sum(sizes), DTYPE)
    for deterministic in (False, True):
        found = group.reduce_scatter(given[rank], sizes=sizes, deterministic=deterministic)
        parts = [part[own_rows(sizes, rank)] for part in given]
        check_sum(lab.host(found), parts, deterministic)
    rows = torch.ones(2 * world, 3, HIDDEN, dtype=DTYPE)
    assert bool((lab.host(group.combine(rows)) == 3 * world).all())
    return group.stats()


def begin(trouble: str, **options: Any) -> DeviceGroup:
    """A group whose making warns of this, at the line that asked for it; "": of nothing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options["config"] = with_paths(options.get("config"), NCCL_PATHS)
        group = testing.init(**options)
    warned = [it for it in caught if issubclass(it.category, RuntimeWarning)]
    assert [it.filename for it in warned] == [__file__] * bool(trouble), warned
    assert all(trouble in str(it.message) for it in warned), warned
    return group


def old(rank: int, world: int, version: int, unsafe: bool, reason: str) -> None:
    start_afresh(version=str(version))
    try:
        trouble = f"init on rank {rank}: no windows" if reason else ""
        with begin(trouble, config=Config(allow_unsafe_nccl=unsafe)) as group:
            text = group.describe()["no_windows"]
            counts = results(group)
            rows = torch.ones(world, HIDDEN, dtype=DTYPE)
            decision = group.explain("reduce_scatter", rows)
            assert counts["calls_process_group"] == 0
            if not reason:
                assert text == ""
                assert decision.path == "direct"
                assert counts["calls_direct"] > 0
                assert group.acquire("combine", (world, HIDDEN), DTYPE) is not None
                return
            assert reason in text
            assert decision.path == "plain"
            assert any(it.path == "direct" and it.reason == text for it in decision.alternatives)
            assert counts["calls_direct"] == 0
            assert counts["calls_plain"] > 0
            assert group.acquire("combine", (world, HIDDEN), DTYPE) is None
            with pytest.warns(RuntimeWarning, match="NCCL 2"):
                assert not group.reserve(world, HIDDEN, DTYPE)
        kernels = {call.kernel for call in testing.nccl().calls()}
        assert "symmetric" not in kernels
    finally:
        start_afresh()


@pytest.mark.parametrize(
    ("version", "unsafe", "reason"),
    [
        (22700, False, "NCCL 2.27.0 has no windows; 2.27.3 is needed"),
        (22700, True, "NCCL 2.27.0 has no windows; 2.27.3 is needed"),
        (22800, True, "2.29.2 is needed"),
        (22902, False, "stale data; 2.30.7 is needed, or SYMMOE_ALLOW_UNSAFE_NCCL=1"),
        (22902, True, ""),
        (23004, False, "stale data; 2.30.7 is needed, or SYMMOE_ALLOW_UNSAFE_NCCL=1"),
        (23004, True, ""),
        (23007, False, ""),
    ],
)
def test_version(ranks: Ranks, version: int, unsafe: bool, reason: str) -> None:
    ranks.run(2, old, version, unsafe, reason)


def none(rank: int, world: int, missing_on: list[int]) -> None:
    start_afresh()
    nowhere = "/nowhere/libnccl.so.2"
    trouble = f"init on rank {rank}: no NCCL, calls use the process group: rank"
    with begin(trouble, nccl=nowhere if rank in missing_on else None) as group:
        reason = group.describe()["no_communicator"]
        assert f"rank {missing_on[0]}: " in reason
        assert nowhere in reason
        counts = results(group)
        assert counts["calls_process_group"] > 0
        assert counts["calls_plain"] == counts["calls_direct"] == 0
        decision = group.explain("reduce_scatter", torch.ones(world, HIDDEN, dtype=DTYPE))
        assert decision.path == "process_group"
        assert nowhere in str(decision)


@pytest.mark.parametrize("missing_on", [[0, 1], [1]], ids=["everywhere", "on one rank"])
def test_no_nccl(ranks: Ranks, missing_on: list[int]) -> None:
    ranks.run(2, none, missing_on)


def different(rank: int, world: int) -> None:
    start_afresh(version="23007" if rank else "22902")
    try:
        with begin("ranks have different NCCLs") as group:
            reason = group.describe()["no_communicator"]
            assert "different NCCLs: rank 0 2.29.2, rank 1 2.30.7" in reason
            assert results(group)["calls_process_group"] > 0
    finally:
        start_afresh()


def test_different_nccls(ranks: Ranks) -> None:
    ranks.run(2, different)


def unregistered(rank: int, world: int) -> None:
    start_afresh()
    testing.nccl().fail("ncclCommWindowRegister:1:1=null")
    with begin(f"init on rank {rank}: no windows, calls use NCCL's ordinary kernels: ") as group:
        assert "rank 1: " in group.describe()["no_windows"]
        assert results(group)["calls_plain"] > 0
    start_afresh()
    begin("").close()


def test_failed_registration(ranks: Ranks) -> None:
    ranks.run(2, unregistered)


def turned_off(rank: int, world: int) -> None:
    start_afresh()
    with begin("", config=Config(windows=False)) as group:
        assert "turned off" in group.describe()["no_windows"]
        counts = results(group)
        assert counts["calls_plain"] > 0
        assert counts["calls_process_group"] == counts["calls_direct"] == 0


def test_windows_turned_off(ranks: Ranks) -> None:
    ranks.run(2, turned_off)


def table(folder: str, plain_us: float) -> str:
    """A tuning table in which plain takes that long and direct 20 us."""
    rows = [
        {"path": path, "dtype": "bfloat16", "bytes": size, "time_us": time}
        for path, time in (("direct", 20.0), ("plain", plain_us))
        for size in (1024, 1 << 20)
    ]
    path = Path(folder) / f"{plain_us}.json"
    path.write_text(json.dumps({"world": 2, "machine": {"kind": "host"}, "rows": rows}))
    return str(path)


def tuned(rank: int, world: int, folder: str) -> None:
    """Measured times decide; plain from a window goes through a communicator without windows."""
    start_afresh()
    lab = EmulatedLab()
    rows = torch.ones(2 * world, HIDDEN, dtype=DTYPE)
    for plain_us, path in ((30.0, "direct"), (10.0, "plain")):
        start_afresh()
        if rank == 0:
            table(folder, plain_us)
        dist.barrier()
        tuning = str(Path(folder) / f"{plain_us}.json")
        with testing.init(config=Config(tuning=tuning, paths=NCCL_PATHS)) as group:
            window = group.acquire("combine", rows.shape, DTYPE)
            assert window is not None
            lab.put(window, rows)
            assert bool((lab.host(group.reduce_scatter(window)) == world).all())
            assert group.stats()[f"calls_{path}"] == 1
            decision = group.explain("reduce_scatter", window)
            assert decision.path == path
            assert "measured" in decision.reason
            calls = [c for c in testing.nccl().calls() if c.operation == "ncclReduceScatter"]
            kernel = "symmetric" if path == "direct" else "ordinary"
            assert [call.kernel for call in calls] == [kernel]
            windows = {c.communicator for c in testing.nccl().calls() if "Window" in c.operation}
            assert (calls[0].communicator in windows) == (path == "direct")
            assert testing.nccl().live()["communicators"] == (1 if path == "direct" else 2)
            group.reduce_scatter(rows[:0])
            assert group.stats()["calls_local"] == 1  # what does not move was not measured
        assert testing.nccl().live()["communicators"] == 0
    other = table(folder, 10.0 + rank)
    with pytest.raises(MismatchError, match=r"tuning|settings"):
        testing.init(config=Config(tuning=other, paths=NCCL_PATHS))


def test_tuning_table(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(2, tuned, str(tmp_path))
