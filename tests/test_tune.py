"""`symmoe tune`, the table that it writes, and the choice that follows from one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import symmoe
import symmoe.testing
from device_lab import NCCL_PATHS
from ranks import Ranks
from symmoe.device.bootstrap import read_tuning
from symmoe.testing import NcclCall

pytestmark = pytest.mark.multi
ROWS, HIDDEN = 8, 64
BYTES = ROWS * HIDDEN * 2  # of one rank's rows in bfloat16


def table(direct_us: float, plain_us: float, **changed: Any) -> dict[str, Any]:
    times = {"direct": direct_us, "plain": plain_us}
    rows = [
        {"path": path, "dtype": "bfloat16", "bytes": BYTES, "time_us": us}
        for path, us in times.items()
    ]
    return {"rows": rows, "world": 2, "machine": {"kind": "host"}} | changed


def write(folder: Path, content: dict[str, Any], name: str = "table.json") -> str:
    file = folder / name
    file.write_text(json.dumps(content))
    return str(file)


def follow(rank: int, world: int, path: str) -> tuple[str, str, list[NcclCall]]:
    """Reduces from a window and from private memory; the path, why, and NCCL's calls."""
    nccl = symmoe.testing.nccl()
    nccl.reset()
    with symmoe.testing.init(config=symmoe.Config(tuning=path, paths=NCCL_PATHS)) as group:
        window = group.acquire("combine", (ROWS * world, HIDDEN), torch.bfloat16)
        assert window is not None
        window.fill_(rank + 1)
        decision = group.explain("reduce_scatter", window)
        out = group.reduce_scatter(window)
        private = torch.full((ROWS * world, HIDDEN), rank + 1.0, dtype=torch.bfloat16)
        again = group.reduce_scatter(private)
        symmoe.testing.synchronize()
        assert bool((out == 3).all())
        assert bool((again == 3).all())
        stats = group.stats()
        assert stats[f"calls_{decision.path}"] == 2
        assert stats["calls_staged"] == (1 if decision.path == "direct" else 0)
        other = group.acquire("combine", (ROWS * world, HIDDEN), torch.float32)
        assert other is not None
        assert group.explain("reduce_scatter", other).path == "direct"  # nobody measured float32
    assert nccl.misuses() == []
    return decision.path, decision.reason, nccl.calls()


def communicators(calls: list[NcclCall], operation: str) -> set[int]:
    return {call.communicator for call in calls if call.operation == operation}


def test_direct_where_it_was_faster(ranks: Ranks, tmp_path: Path) -> None:
    for path, reason, calls in ranks.run(2, follow, write(tmp_path, table(5.0, 50.0))):
        assert path == "direct"
        assert "5.0 us measured" in reason
        reduced = [call for call in calls if call.operation == "ncclReduceScatter"]
        assert [call.kernel for call in reduced] == ["symmetric"] * 2
        # The table wants no other path anywhere, so there is no second communicator.
        assert {call.communicator for call in reduced} == communicators(
            calls, "ncclCommWindowRegister"
        )
        assert len(communicators(calls, "ncclCommInitRank")) == 1


def test_plain_where_it_was_faster(ranks: Ranks, tmp_path: Path) -> None:
    for path, reason, calls in ranks.run(2, follow, write(tmp_path, table(50.0, 5.0))):
        assert path == "plain"
        assert "5.0 us measured" in reason
        reduced = [call for call in calls if call.operation == "ncclReduceScatter"]
        assert [call.kernel for call in reduced] == ["ordinary"] * 2
        # By a communicator that does not know the window: the other one would see it is registered.
        with_window = communicators(calls, "ncclCommWindowRegister")
        assert len(with_window) == 1
        without = {call.communicator for call in reduced}
        assert len(without) == 1
        assert not with_window & without
        assert communicators(calls, "ncclCommInitRank") == with_window | without


def between(rank: int, world: int, path: str) -> list[str]:
    """The choice at sizes that the table has and at one in the middle."""
    with symmoe.testing.init(config=symmoe.Config(tuning=path, paths=NCCL_PATHS)) as group:
        chosen = []
        for rows in (ROWS, 2 * ROWS, 3 * ROWS, 4 * ROWS):
            window = group.acquire("combine", (rows * world, HIDDEN), torch.bfloat16)
            chosen.append(group.explain("reduce_scatter", window).path)
        return chosen


def test_between_two_sizes_times_are_interpolated(ranks: Ranks, tmp_path: Path) -> None:
    content = table(5.0, 20.0)
    content["rows"] += [
        {"path": "direct", "dtype": "bfloat16", "bytes": 4 * BYTES, "time_us": 50.0},
        {"path": "plain", "dtype": "bfloat16", "bytes": 4 * BYTES, "time_us": 23.0},
    ]
    # direct: 5, 20, 35, 50; plain: 20, 21, 22, 23.
    for chosen in ranks.run(2, between, write(tmp_path, content)):
        assert chosen == ["direct", "direct", "plain", "plain"]


def refused(rank: int, world: int, paths: list[str]) -> str:
    with pytest.raises((ValueError, symmoe.MismatchError)) as error:
        symmoe.testing.init(config=symmoe.Config(tuning=paths[rank]))
    return f"{error.typename}: {error.value}"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"world": 4}, "was measured with 4 ranks on host; this group has 2 ranks on host"),
        ({"machine": {"kind": "cuda"}}, "with 2 ranks on cuda; this group has 2 ranks on host"),
        ({"rows": [{"path": "sideways"}]}, "is no tuning table"),
        ({"rows": [{"path": "direct", "dtype": "int8", "bytes": 1, "time_us": 1}]}, "int8"),
        ({"rows": [{"path": "direct", "dtype": "float32", "bytes": 1, "time_us": 0}]}, "positive"),
        ({"rows": [{"path": "direct", "dtype": "float32", "bytes": 0, "time_us": 1}]}, "positive"),
        ({"world": None}, "is no tuning table"),
    ],
)
def test_a_table_of_something_else_is_refused(
    ranks: Ranks, tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, table(5.0, 50.0, **changed))
    for text in ranks.run(2, refused, [path, path]):
        assert text.startswith("ValueError")
        assert message in text


def test_a_bad_file_on_one_rank_is_refused_on_all(ranks: Ranks, tmp_path: Path) -> None:
    path = write(tmp_path, table(5.0, 50.0))
    absent = str(tmp_path / "absent.json")
    for text in ranks.run(2, refused, [path, absent]):
        assert text.startswith("ValueError")
        assert "wrong setting on rank 1: " in text
        assert text.endswith(f"there is no file {absent}")


def same_path(rank: int, world: int, folder: str) -> str:
    """The path is the same for all, the file that a rank finds there is not."""
    os.chdir(Path(folder) / str(rank))
    return refused(rank, world, ["table.json"] * world)


def test_different_tables_are_a_mismatch_on_all_ranks(ranks: Ranks, tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / str(rank)).mkdir()
        write(tmp_path / str(rank), table(5.0, 50.0 + rank))
    for text in ranks.run(2, same_path, str(tmp_path)):
        assert text.startswith("MismatchError")
        assert "tuning differs" in text


def test_a_world_of_one_and_the_cpu_take_no_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYMMOE_TUNING", write(tmp_path, table(5.0, 50.0, world=8)))
    rows = torch.ones(4, 8)
    with symmoe.testing.init() as group:
        found = group.reduce_scatter(rows)
        symmoe.testing.synchronize()
        assert torch.equal(found, rows)
    with symmoe.init() as cpu:
        assert torch.equal(cpu.reduce_scatter(rows), rows)


def tune(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "symmoe", "tune", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"},
    )


def test_what_it_writes_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "made" / "tuning.json"
    done = tune(
        *("--emulated", "--sizes", "16K,64K", "--dtypes", "bf16,fp32"),
        *("--replays", "2", "--out", str(file)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(file.read_text())
    assert (content["world"], content["machine"]["kind"]) == (2, "host")
    lines = read_tuning(str(file), 2, "host")
    assert len(lines) == len(content["rows"]) == 12  # two sizes, two types, three paths
    assert {row["path"] for row in content["rows"]} == {"direct", "pull", "plain"}
    assert {row["bytes"] for row in content["rows"]} == {16 << 10, 64 << 10}
    first, *shown = [line for line in done.stdout.splitlines() if "SYMMOE_TUNING" not in line]
    assert first == "# *emulated: no GPU was used, times mean nothing"
    assert len(shown) == 6
    assert all(line.endswith("  *emulated") for line in shown)
    assert all(line.split()[-2] == "-" for line in shown[2:])  # neither is faster


def test_small_sizes_in_emulation_and_lines_as_they_come(tmp_path: Path) -> None:
    file = tmp_path / "tuning.json"
    words = ["--emulated", "--dtypes", "bf16", "--replays", "2", "--out", str(file)]
    with subprocess.Popen(
        [sys.executable, "-m", "symmoe", "tune", *words],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"},
    ) as process:
        assert process.stdout is not None
        rows = []
        for line in process.stdout:
            if line.split()[0] == "bfloat16":
                rows.append(line.split()[1])
                assert not file.exists()  # a line does not wait for the end
        assert process.wait(100) == 0
    assert rows == ["16K", "64K"]


def test_help_has_the_sizes_of_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert "(default 16K to 64M, doubling; with --emulated 16K,64K)" in tune("--help").stdout


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = tune("--out", str(tmp_path / "no.json"))
    assert done.returncode == 1
    assert done.stderr == "symmoe tune: torch sees no GPU here (try --emulated)\n"
    assert not (tmp_path / "no.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--sizes", "16Q"), "size '16Q'"),
        (("--sizes", "3"), "no multiple"),
        (("--dtypes", "int8"), "--dtypes int8"),
        (("--replays", "0"), "--replays 0"),
        (("--ranks", "1"), "--ranks 1"),
    ],
)
def test_senseless_options(words: tuple[str, ...], message: str) -> None:
    done = tune("--emulated", *words)
    assert done.returncode == 2
    assert message in done.stderr
