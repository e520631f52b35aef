"""Nothing is left: descriptors, maps, threads, processes, files; after closing, growing, dying."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import symmoe
from ranks import Ranks, fresh

pytestmark = pytest.mark.multi


def held() -> dict[str, int]:
    """What this process holds of the system."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "windows": maps.count("memfd:"),
        "threads": len(list(Path("/proc/self/task").iterdir())),
    }


def use(group: symmoe.Group, rows: int) -> None:
    window = group.acquire("combine", (rows, 32), torch.float32)
    assert window is not None
    window.fill_(1)
    group.reduce_scatter(window)
    group.reduce_scatter(torch.ones(group.world_size, 8))
    group.all_gather(torch.ones(1, 8))


def fifty_groups(rank: int, world: int) -> None:
    use_once = symmoe.init(device="cpu")
    use(use_once, 2 * world)
    use_once.close()
    dist.barrier()
    before = held()
    for turn in range(50):
        group = symmoe.init(device="cpu")
        use(group, (1 + turn % 3) * 2 * world)
        if turn % 2:
            group.close()
        del group  # a group that was not closed closes itself
    dist.barrier()
    after = held()
    assert after["descriptors"] <= before["descriptors"], (before, after)
    assert after["windows"] == 0, after
    assert after["threads"] <= before["threads"], (before, after)
    assert rank < world


def test_fifty_groups(ranks: Ranks) -> None:
    ranks.run(2, fifty_groups)


def growth(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        largest = 0
        for step in range(12):
            rows = world * (1 << (6 + step))
            use(group, rows)
            largest = rows * 32 * 4
            stats = group.stats()
            bound = 4 * largest + 8 * symmoe.Config().granularity
            assert stats["live_bytes"] + stats["retired_bytes"] <= bound, stats
        group.trim()
        stats = group.stats()
        assert stats["retired_bytes"] == 0, stats
        assert stats["live_bytes"] - stats["stage_bytes"] <= 2 * largest + 2 * (2 << 20), stats
        windows = held()["windows"]
        # Own and peers' windows, of three kinds here (combine, two stages), and control memory.
        assert windows <= 4 * world + 1, Path("/proc/self/maps").read_text()
    assert rank < world


def test_growth(ranks: Ranks) -> None:
    ranks.run(2, growth)


def views_keep_memory(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        first = group.acquire("combine", (64, 32), torch.float32)
        assert first is not None
        part = first[3:5]
        part.fill_(5)
        del first
        group.acquire("combine", (1 << 16, 32), torch.float32)
        group.trim()
        stats = group.stats()
        assert stats["view_bytes"] == stats["retired_bytes"] > 0, stats
        assert bool((part == 5).all())
        del part
        group.trim()
        assert group.stats()["retired_bytes"] == 0
        kept = group.acquire("combine", (1 << 16, 32), torch.float32)
        assert kept is not None
        group.retain(kept)
        del kept
        group.acquire("combine", (1 << 18, 32), torch.float32)
        group.trim()
        stats = group.stats()
        assert stats["pinned_bytes"] == stats["retired_bytes"] > 0, stats
        group.release_graphs()
        assert group.stats()["retired_bytes"] == 0
    assert rank < world


def test_views_and_graphs_keep_memory(ranks: Ranks) -> None:
    ranks.run(2, views_keep_memory)


def shared_memory_files() -> set[str]:
    return (
        {str(path) for path in Path("/dev/shm").iterdir()} if Path("/dev/shm").exists() else set()
    )


def socket_names(pid: int) -> set[str]:
    """Names of the unix sockets that a process holds."""
    targets = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    inodes = {target[8:-1] for target in targets if target.startswith("socket:[")}
    fields = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return {line[7] for line in fields if len(line) > 7 and line[6] in inodes}


def wait_for_signal(rank: int, world: int, folder: str) -> None:
    group = symmoe.init(device="cpu")
    use(group, 2 * world)
    Path(folder, str(rank)).touch()
    time.sleep(60)


def test_killed_processes_leave_nothing(tmp_path: Path) -> None:
    before = shared_memory_files()
    with fresh() as workers:
        workers.start(2, wait_for_signal, str(tmp_path))
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.05)
        pids = workers.pids
        assert any("memfd:" in Path(f"/proc/{pid}/maps").read_text() for pid in pids)
        sockets = socket_names(pids[0]) | socket_names(pids[1])
        assert sockets
        for rank in range(2):
            workers.kill(rank, signal.SIGKILL)
        workers.collect()
    assert shared_memory_files() - before == set()
    left = Path("/proc/net/unix").read_text()
    assert not [name for name in sockets if name in left]
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()


def test_process_that_never_closes_ends_quietly() -> None:
    program = (
        "import torch, symmoe\n"
        "torch.set_num_threads(2)\n"
        "group = symmoe.init()\n"
        "window = group.acquire('combine', (4096, 1024), torch.float32)\n"
        "window.fill_(1)\n"
        "group.reduce_scatter(window)\n"
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
