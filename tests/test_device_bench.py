"""The benchmark on devices and `make gpu`, as far as they can go without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from symmoe.bench.device.limit import GpuRates, limit_us, rates_of
from symmoe.bench.device.paths import WAYS
from symmoe.bench.device.processes import seat_of
from symmoe.bench.device.report import problem_of
from symmoe.bench.problem import Problem
from symmoe.bench.routes import dense_traffic, routed_traffic

ROOT = Path(__file__).resolve().parent.parent
NO_MEANING = "# *emulated: no GPU was used, times mean nothing"
REMARK = "  *emulated"


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"} | environment,
    )


def bench(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run("-m", "symmoe", "bench", "--device", *words, **environment)


@pytest.mark.multi
def test_all_ways_in_emulation(tmp_path: Path) -> None:
    file = tmp_path / "results" / "bench.json"
    done = bench("emulated", "--hidden", "64,40", "--topk", "3", "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    rows = found["rows"]
    assert found["times_mean_nothing"]
    assert found["device"]["kind"] == "host"
    ways = {"direct", "pull", "fused", "staged", "plain", "double"}
    assert {row["way"] for row in rows} == ways
    collective = {row["way"] for row in rows if row["mode"] == "collective"}
    assert collective == ways - {"fused"}  # without a sum there is nothing to fuse
    assert {(row["mode"], row["topk"]) for row in rows} == {("combine", 3), ("collective", 1)}
    assert len(rows) == (6 + 5) * 2 * 2  # ways of both modes, hidden sizes, eager and graph
    assert all(row["wrong"] == 0 and row["time_us"] > 0 for row in rows)
    assert all(row["ranks"] == 2 and row["limit_ratio"] is None for row in rows)
    first, *lines = [line for line in done.stdout.splitlines() if line and "# wrote" not in line]
    assert first == NO_MEANING
    assert all(line.endswith(REMARK) for line in lines)
    # Neither the limit's part nor any ratio of two ways: gain and limit are the last columns.
    assert all(row["times_faster"] == {} for row in rows)
    assert all(line.removesuffix(REMARK).split()[-2:] == ["-", "-"] for line in lines[-4:])
    assert "gain" in lines[-5]
    assert [line.split()[:2] for line in lines[-4:]] == [
        ["combine", "64"],
        ["combine", "40"],
        ["collective", "64"],
        ["collective", "40"],
    ]


@pytest.mark.multi
def test_chosen_ways(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    done = bench(
        *("emulated", "--paths", "pull,fused", "--mode", "combine", "--json", str(file)),
        *("--ranks", "3"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(file.read_text())["rows"]
    assert {row["way"] for row in rows} == {"pull", "fused"}
    assert all(row["wrong"] == 0 for row in rows)


@pytest.mark.multi
@pytest.mark.parametrize("ranks", [2, 3])
def test_routed_beside_all_ways(tmp_path: Path, ranks: int) -> None:
    file = tmp_path / "bench.json"
    done = bench(
        *("emulated", "--paths", "all", "--topk", "1", "--json", str(file)),
        *("--ranks", str(ranks), "--hidden", "40", "--sizes", "2K"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(file.read_text())["rows"]
    assert {row["way"] for row in rows if row["mode"] == "combine"} == set(WAYS)
    assert {row["way"] for row in rows if row["mode"] == "collective"} == set(WAYS) - {"fused"}
    for row in rows:
        assert row["wrong"] == 0
        assert row["experts"] == 128
        problem = problem_of(row)
        assert row["dense_bytes"] == dense_traffic(problem).rows * 40 * 2
        moved = routed_traffic(problem) if row["way"] == "routed" else dense_traffic(problem)
        assert row["bytes_moved"] == moved.rows * 40 * 2
        if row["way"] == "routed":  # of a token with one expert, one rank has the row
            assert moved.read == row["tokens"] * ranks


def test_routed_is_asked_for() -> None:
    done = bench("emulated", "--paths", "routed", "--topk", "129")
    assert done.returncode == 2
    assert "at most 128 where routed takes part" in done.stderr


def test_the_limit_of_a_routing() -> None:
    rates = GpuRates(450.0, 3350.0)
    problem = Problem("combine", 8, "bf16", 2048, 1024, 1, experts=128)
    traffic = routed_traffic(problem)
    assert traffic.read == 8 * 2048
    whole, dense = 8 * 2048 * 1024 * 2, limit_us(problem, rates, 5.0)
    # A row of each token on one of eight ranks: an eighth of the link, and of the sum's writing.
    link, summed = whole * 7 / 8 / 450.0 / 1e3, whole / 3350.0 / 1e3
    assert dense == pytest.approx(5.0 + link + summed * (1 / 8 + 1))
    routed = limit_us(problem, rates, 5.0, traffic=traffic)
    assert routed == pytest.approx(5.0 + link / 8 + summed * (1 / 8 + 1 / 8))


@pytest.mark.multi
def test_an_old_nccl_leaves_out_what_needs_windows() -> None:
    done = bench("emulated", "--mode", "collective", SYMMOE_FAKE_NCCL_VERSION="22900")
    assert done.returncode == 0, done.stdout + done.stderr
    for way in ("direct", "staged", "double"):
        assert f"# {way} was left out: " in done.stdout
    assert "2.29.0" in done.stdout
    assert "plain/g" in done.stdout


@pytest.mark.multi
def test_a_failing_rank_is_reported() -> None:
    done = bench("emulated", SYMMOE_FAKE_NCCL_FAIL="ncclReduceScatter:3:1=error")
    assert done.returncode == 1
    assert "symmoe bench: a process failed" in done.stderr


@pytest.mark.multi
def test_under_torchrun() -> None:
    done = run(
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"),
        *("-m", "symmoe", "bench", "--device", "emulated", "--mode", "collective"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("gain: how much less") == 1  # one rank speaks for all
    assert "# collective, 3 ranks" in done.stdout


def test_without_a_gpu_it_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = bench("cuda")
    assert done.returncode == 1
    assert done.stderr == (
        "symmoe bench: --device cuda: torch sees no GPU here (try --device emulated)\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--shape", "mixtral-8x7b"), "--shape goes with --device cpu"),
        (("--paths", "sideways"), "--paths sideways: all, or some of direct, pull"),
        (("--plot", "x.png"), "--plot goes with --device cpu"),
        (("--no-pin",), "--no-pin goes with --device cpu"),
        (("--mode", "topk"), "--mode topk"),
        (("--topk", "0"), "--topk 0"),
        (("--hidden", "0"), "--hidden 0"),
        (("--ranks", "2,4"), "--ranks 2,4"),
        (("--ranks", "1"), "--ranks 1"),
        (("--dtype", "int8"), "--dtype int8"),
    ],
)
def test_senseless_options(words: tuple[str, ...], message: str) -> None:
    done = bench("emulated", *words)
    assert done.returncode == 2
    assert message in done.stderr


def test_help_has_the_defaults_of_each_device() -> None:
    done = run("-m", "symmoe", "bench", "--help", COLUMNS="400")
    assert done.returncode == 0, done.stderr
    for words in (
        "8M,32M; cuda 512K,1M,2M,4M,8M; emulated 4K)",
        "(default cuda 8192,2048,7168,2880; emulated 64)",
        "(default 2, in collectives 1; cuda 8; emulated 2)",
    ):
        assert words in done.stdout


def test_hidden_is_for_devices() -> None:
    done = bench("cpu", "--hidden", "64")
    assert done.returncode == 2
    assert "--hidden goes with --device" in done.stderr


def test_limit_follows_the_formula() -> None:
    rates = GpuRates(link=450.0, memory=4800.0)
    out = 450_000  # bytes per rank; the whole is four times as much
    collective = Problem("collective", 4, "bf16", 1, out // 2)
    # Three shards of 1 us each over the link; the memory needs less.
    assert limit_us(collective, rates, 5.0) == pytest.approx(5 + 3)
    slow = GpuRates(link=450.0, memory=100.0)
    assert limit_us(collective, slow, 5.0) == pytest.approx(5 + 4 * 450 * 1.25 / 100)
    combine = Problem("combine", 4, "bf16", 1, out // 2, topk=2)
    assert limit_us(combine, rates, 5.0) == pytest.approx(8 + 3 * 4 * 450 / 4800)
    # Two ranks on each GPU: no link, and the memory serves both.
    assert limit_us(collective, rates, 5.0, sharing=2) == pytest.approx(
        5 + 2 * 4 * 450 * 1.25 / 4800
    )
    assert rates_of("NVIDIA H200") == rates
    assert rates_of("NVIDIA GB200") == rates_of("NVIDIA B200") != rates_of("NVIDIA H100 80GB HBM3")
    assert rates_of("host emulation") is None


def test_seats() -> None:
    def seats(world: int, gpus: int) -> list[tuple[int, int]]:
        found = [seat_of(rank, world, gpus, rank, world) for rank in range(world)]
        return [(seat.ordinal, seat.sharing) for seat in found]

    assert seats(2, 0) == [(0, 1), (0, 1)]
    assert seats(2, 2) == [(0, 1), (1, 1)]
    assert seats(2, 1) == [(0, 2), (0, 2)]
    assert seats(4, 2) == [(0, 2), (1, 2), (0, 2), (1, 2)]
    assert seat_of(9, 16, 8, 1, 8).ordinal == 1  # the second rank of a second machine


@pytest.mark.multi
def test_host_overhead_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    done = run(
        str(ROOT / "bench" / "host_overhead.py"),
        "--calls",
        "20",
        "--rounds",
        "2",
        "--json",
        str(file),
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr  # the bar is not a test's matter
    times = json.loads(file.read_text())
    assert 0 < times["core call"] < times["symmoe"]
    assert 0 < times["ctypes call"] < times["wrapper"] < times["wrapper, same checks"]
    judged = [line for line in done.stdout.splitlines() if " bar 0.5: " in line]
    assert len(judged) == 1
    assert judged[0].startswith("symmoe to wrapper that checks as much ")
    assert judged[0].endswith("missed" if done.returncode else "met")


@pytest.mark.multi
def test_rehearsal_of_make_gpu(tmp_path: Path) -> None:
    done = run(
        *(str(ROOT / "tests" / "gpu" / "run.py"), "--emulated", "--no-build"),
        *("--results", str(tmp_path), "--bench=--mode collective", "--pytest=-k staging"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tail = done.stdout.partition("== summary\n")[2]
    assert "scenarios_on_gpus" in tail
    assert "micro-benchmark" in tail
    assert tail.rstrip().endswith("all that could run here passed")
    found = json.loads((tmp_path / "gpu-emulated.json").read_text())
    assert {each["name"]: each["failed"] for each in found["tests"]} == {
        "scenarios_on_gpus": 0,
        "micro-benchmark": 0,
    }
    assert found["rows"]
    assert "times mean nothing" in (tmp_path / "gpu-emulated.txt").read_text()


def test_make_gpu_names_what_is_missing() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = run(str(ROOT / "tests" / "gpu" / "run.py"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("make gpu: this machine lacks: ")
    assert "a torch with CUDA" in done.stderr or "a GPU that torch can use" in done.stderr
    assert done.stderr.count("\n") == 1
