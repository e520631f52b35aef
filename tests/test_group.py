"""Setting groups up and ending them: launchers, several groups, settings, hosts, pool calls."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

import symmoe
from ranks import Ranks
from symmoe import _core, bootstrap, cores
from symmoe.device import libraries
from symmoe.exchange import CollectiveExchange, StoreExchange

pytestmark = pytest.mark.multi
FOLDER = Path(__file__).resolve().parent


def total(group: symmoe.Group, rank: int, world: int, lane: int = 0) -> None:
    """One right combine."""
    window = group.acquire("combine", (2 * world, 8), torch.float32, lane=lane)
    assert window is not None
    window.fill_(rank + 1)
    assert bool((group.reduce_scatter(window, lane=lane) == world * (world + 1) // 2).all())


def launched() -> None:
    """What each process under torchrun does."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    with symmoe.init(device="cpu") as group:
        total(group, rank, world)
        assert group.stats()["calls_pull"] == 1
        Path(os.environ["SYMMOE_TEST_OUT"], str(rank)).write_text(repr(group))
    dist.destroy_process_group()


def test_torchrun(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, "--no-python", sys.executable, "-c", "import test_group as t; t.launched()"],
        cwd=FOLDER,
        env=os.environ | {"SYMMOE_TEST_OUT": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "1").read_text() == "<symmoe.Group rank 1 of 2: windows>"


def spawned(rank: int, world: int, folder: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
    )
    with symmoe.init(device="cpu") as group:
        total(group, rank, world)
    dist.destroy_process_group()


def test_spawn(tmp_path: Path) -> None:
    spawn(spawned, args=(2, str(tmp_path)), nprocs=2)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("how", [{"device": "cuda"}, {"device": "cuda:1"}, {"comm_ptr": 5}])
def test_gpu_asked_for_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    """What is missing is said: torch's part, this package's, or the GPU itself."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delattr(torch._C, "_cuda_getCurrentRawStream", raising=False)
    where = f'init: device="{how.get("device", "cuda")}": '
    with pytest.raises(symmoe.UnavailableError) as error:
        symmoe.init(**how)
    assert str(error.value) == (
        f"{where}this torch ({torch.__version__}) has no CUDA; symmoe.testing.init() is the same "
        f"group without a GPU"
    )
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda gpu: 0, raising=False)
    monkeypatch.setattr(libraries, "back_end", lambda kind: None)
    with pytest.raises(symmoe.UnavailableError) as error:
        symmoe.init(**how)
    assert str(error.value).startswith(f"{where}this build of symmoe has no GPU part")
    monkeypatch.setattr(libraries, "back_end", lambda kind: Path("/nowhere.so"))
    with pytest.raises(symmoe.UnavailableError, match=r"/nowhere\.so"):
        symmoe.init(**how)


def without_gpu_on_rank_1(rank: int, world: int) -> str:
    """Rank 0 opens the emulated device in place of a GPU; rank 1 has nothing to open."""
    emulated = libraries.back_end("host")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda gpu: 0, raising=False)
        patch.setattr(libraries, "back_end", lambda kind: Path("/nowhere.so") if rank else emulated)
        with pytest.raises(symmoe.UnavailableError) as error:
            symmoe.init(device="cuda:0")
    return str(error.value)


def test_one_rank_without_a_gpu_ends_init_on_all(ranks: Ranks) -> None:
    for text in ranks.run(2, without_gpu_on_rank_1):
        assert "rank 1" in text
        assert "/nowhere.so" in text


def test_world_of_one_without_torch_distributed() -> None:
    with symmoe.init(device="cpu") as group:
        assert (group.rank, group.world_size) == (0, 1)
        total(group, 0, 1)
        rows = torch.randn(3, 5)
        assert torch.equal(group.all_gather(rows), rows)
        whole = torch.arange(6).view(3, 2)
        assert torch.equal(group.reduce_scatter(whole), whole)


def several(rank: int, world: int) -> None:
    """Expert parallelism inside data parallelism: overlapping groups on the same processes."""
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    everyone = symmoe.init(device="cpu")
    row = symmoe.init(rows[rank // 2], device="cpu")
    column = symmoe.init(columns[rank % 2], device="cpu")
    again = symmoe.init(rows[rank // 2], device="cpu")
    for _ in range(3):
        total(row, row.rank, 2)
        total(everyone, rank, world)
        total(column, column.rank, 2)
        total(again, again.rank, 2)
    assert (row.rank, column.rank) == (rank % 2, rank // 2)
    with pytest.raises(ValueError, match="not a member"):
        symmoe.init(rows[1 - rank // 2])
    row.close()
    total(again, again.rank, 2)
    for group in (everyone, column, again):
        group.close()


def test_several_groups(ranks: Ranks) -> None:
    ranks.run(4, several)


def init_again(rank: int, world: int) -> None:
    for _ in range(5):
        with symmoe.init(device="cpu") as group:
            total(group, rank, world)


def test_init_again_on_the_same_process_group(ranks: Ranks) -> None:
    ranks.run(2, init_again)


def keys_left(rank: int, world: int) -> int:
    store = dist.group.WORLD.get_group_store()  # type: ignore[union-attr]
    dist.barrier()
    before = store.num_keys()
    dist.barrier()
    symmoe.init().close()
    dist.barrier()
    return int(store.num_keys()) - before


def test_store_is_left_clean(ranks: Ranks) -> None:
    assert ranks.run(3, keys_left) == [0, 0, 0]


def without_store(rank: int, world: int) -> None:
    def collective(process_group: dist.ProcessGroup, timeout: float) -> CollectiveExchange:
        assert timeout == 300
        return CollectiveExchange(process_group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrap, "open_exchange", collective)
        group = symmoe.init(device="cpu")
    total(group, rank, world)
    group.close()


def test_without_a_store(ranks: Ranks) -> None:
    ranks.run(2, without_store)


def missing(rank: int, world: int) -> str:
    if rank == 1:
        return ""
    start = time.monotonic()
    with pytest.raises(symmoe.DeadlineError) as caught:
        symmoe.init(config=symmoe.Config(timeout=1.0))
    assert time.monotonic() - start < 3
    return str(caught.value)


def test_missing_rank_is_named(ranks: Ranks) -> None:
    text = ranks.run(3, missing)[0]
    assert "rank(s) [1] of 3" in text
    assert "within 1 s" in text


def settings_differ(rank: int, world: int) -> None:
    with pytest.raises(symmoe.MismatchError, match=r"rank 0 has timeout=5.*rank 1 has timeout=6"):
        symmoe.init(config=symmoe.Config(timeout=5 + rank))
    symmoe.init().close()


def test_different_settings(ranks: Ranks) -> None:
    ranks.run(2, settings_differ)


def hosts_differ(rank: int, world: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_core, "host_identity", lambda: f"host{rank // 2}")
        group = symmoe.init(device="cpu")
    decision = group.explain("reduce_scatter", torch.ones(world, 4))
    assert decision.path == "process_group"
    assert "ranks 0 and 2 are on different hosts (host0, host1)" in decision.reason
    assert group.acquire("combine", (world, 4), torch.float32) is None
    found = group.reduce_scatter(torch.full((world, 4), float(rank)))
    assert bool((found == world * (world - 1) // 2).all())
    assert group.stats()["calls_process_group"] == 1
    group.close()


def test_different_hosts(ranks: Ranks) -> None:
    ranks.run(3, hosts_differ)


def set_up_fails(rank: int, world: int) -> None:
    real = _core.Group

    def failing(*arguments: object) -> object:
        group = real(*arguments)  # type: ignore[arg-type]
        if rank == 1:
            raise symmoe.WindowMemoryError("no memory, as a test")
        return group

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_core, "Group", failing)
        with pytest.warns(RuntimeWarning, match="rank 1 could not set up its windows"):
            group = symmoe.init(device="cpu")
    reason = group.explain("reduce_scatter", torch.ones(world, 4)).reason
    assert reason.startswith("rank 1 could not set up its windows: WindowMemoryError"), reason
    assert bool((group.reduce_scatter(torch.ones(world, 4)) == world).all())
    group.close()


def test_windows_on_all_ranks_or_none(ranks: Ranks) -> None:
    ranks.run(3, set_up_fails)


def closing(rank: int, world: int) -> None:
    group = symmoe.init(device="cpu")
    total(group, rank, world)
    kept = group.acquire("combine", (world, 4), torch.float32)
    assert kept is not None
    kept.fill_(3)
    dist.barrier()
    group.close()
    group.close()
    assert "closed" in repr(group)
    assert bool((kept == 3).all())
    kept.fill_(4)
    calls = [
        lambda: group.acquire("combine", (world, 4), torch.float32),
        lambda: group.reduce_scatter(kept),
        lambda: group.reduce_scatter(torch.ones(world, 4)),
        lambda: group.all_gather(torch.ones(world, 4)),
        lambda: group.combine(torch.ones(world, 4)),
        lambda: group.reserve(4, 4, torch.float32),
        lambda: group.explain("reduce_scatter", kept),
        group.stats,
        group.trim,
        group.check,
        group.release_graphs,
    ]
    for call in calls:
        with pytest.raises(symmoe.ClosedError, match="closed"):
            call()


def test_close(ranks: Ranks) -> None:
    ranks.run(2, closing)


def forked(rank: int, world: int) -> None:
    group = symmoe.init(device="cpu")
    window = group.acquire("combine", (world, 4), torch.float32)
    assert window is not None
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(symmoe.ClosedError, match="fork"):
                group.reduce_scatter(window)
            with pytest.raises(symmoe.ClosedError, match="fork"):
                group.acquire("combine", (world, 4), torch.float32)
            with pytest.raises(symmoe.ClosedError, match="fork"):
                group.combine(torch.ones(world, 4))
            group.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    dist.barrier()
    total(group, rank, world)
    group.close()


def test_forked_child(ranks: Ranks) -> None:
    ranks.run(2, forked)


def pool_calls(rank: int, world: int) -> None:
    with symmoe.init(config=symmoe.Config(max_buffer_bytes=1 << 20), device="cpu") as group:
        assert group.reserve(64, 64, torch.float32, lanes=3, roles=("combine", "dispatch"))
        before = group.stats()
        assert before["buffers"] == 6
        total(group, rank, world, lane=2)
        assert group.stats()["live_bytes"] == before["live_bytes"]
        with pytest.warns(RuntimeWarning, match="max_buffer_bytes=1048576"):
            assert not group.reserve(1 << 20, 64, torch.float32)
        window = group.acquire("combine", (2 * world, 8), torch.float32)
        assert window is not None
        group.retain(window)
        assert group.stats()["pinned_bytes"] > 0
        group.release_graphs()
        assert group.stats()["pinned_bytes"] == 0
        with pytest.raises(ValueError, match="not in a window"):
            group.retain(torch.ones(2, 2))
        group.check()
        dist.barrier()


def test_reserve_retain_release(ranks: Ranks) -> None:
    ranks.run(2, pool_calls)


def test_own_share_of_processors() -> None:
    four = [0, 1, 2, 3]
    assert cores.own_share(four, [four, four], 1) == [2, 3]
    assert cores.own_share(four, [four], 0) == four
    assert cores.own_share([0, 1], [[0, 1]] * 4, 3) == [1]
    assert cores.own_share([0, 1], [[0, 1], [2, 3]], 0) == [0, 1]
    assert cores.own_share([2], [[0, 1], [2]], 1) == [2]


def test_settings_from_the_environment() -> None:
    config = symmoe.Config.from_env(
        {
            "SYMMOE_TIMEOUT": "2.5",
            "SYMMOE_MAX_BUFFER_BYTES": "64M",
            "SYMMOE_CHECK": "1",
            "SYMMOE_WINDOWS": "off",
            "SYMMOE_PIN": "",
        }
    )
    assert config == symmoe.Config(
        timeout=2.5, max_buffer_bytes=64 << 20, check=True, windows=False
    )
    for variable, text in (
        ("SYMMOE_TIMEOUT", "soon"),
        ("SYMMOE_TIMEOUT", "-1"),
        ("SYMMOE_MAX_BUFFER_BYTES", "1.5M"),
        ("SYMMOE_GRANULARITY", "5000"),
        ("SYMMOE_CHECK", "yes please"),
        ("SYMMOE_SPIN_US", "nan"),
    ):
        with pytest.raises(ValueError, match=f"{variable}='{text}'"):
            symmoe.Config.from_env({variable: text})


def test_exchange_gives_up_when_the_store_fails() -> None:
    class Broken:
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("connection lost")

    exchange = StoreExchange(Broken(), "test", 0, 2, 5.0)  # type: ignore[arg-type]
    with pytest.raises(symmoe.SymmoeError, match="connection lost"):
        exchange.gather("card", "text")
