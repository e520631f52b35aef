"""The benchmark: its formula, its bookkeeping, and that its processes neither lie nor hang."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from symmoe import bench
from symmoe.bench import pattern, shapes
from symmoe.bench.arguments import add_arguments, make_problems
from symmoe.bench.errors import BenchError
from symmoe.bench.limit import Rates, limit_us, ranks_per_core, stream_us
from symmoe.bench.problem import Problem, format_size, of_shape, of_size, parse_size
from symmoe.bench.results import Calibration, Samples, compare, limit_of, make_row

QUICK = ["--rounds", "1", "--seconds", "0.01", "--timeout", "60"]

WRONG = """
    from symmoe.bench import PrivateMemory

    class Wrong(PrivateMemory):
        name = "wrong"

        def call(self):
            self._out.copy_(self._rows[: len(self._out)])
            if self.place.rank == 0:
                self._out.view(-1)[3] = 99

    class Idle(PrivateMemory):
        name = "idle"

        def call(self):
            pass
"""

DYING = """
    import os
    from symmoe.bench import PrivateMemory

    class Dying(PrivateMemory):
        name = "dying"
        calls = 0

        def call(self):
            self.calls += 1
            if self.place.rank == 1 and self.calls == 3:
                os._exit(7)
"""

FAILING = """
    from symmoe.bench import PrivateMemory

    class Failing(PrivateMemory):
        name = "failing"

        def call(self):
            raise ValueError(f"rank {self.place.rank} will not")
"""


def plug_in(folder: Path, source: str) -> str:
    file = folder / "backend.py"
    file.write_text(textwrap.dedent(source))
    return str(file)


def workers_alive() -> list[str]:
    """Command lines of workers that this process started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if "symmoe.bench.worker" in command and f"/proc/{os.getpid()}/fd" in command:
            found.append(command)
    return found


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("1", 1), ("4096", 4096), ("4K", 4096), ("4KiB", 4096), ("32m", 32 << 20), ("1G", 1 << 30)],
)
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes
    assert parse_size(format_size(nbytes)) == nbytes


@pytest.mark.parametrize("text", ["", "K", "0", "-4K", "1.5M", "4T", "4 K K"])
def test_senseless_sizes_are_refused(text: str) -> None:
    with pytest.raises(BenchError, match="size"):
        parse_size(text)


def test_limit_follows_the_formula() -> None:
    rates = Rates(barrier_us=0.2, cross=10.0, local=100.0, write=50.0)
    # 2 ranks on 2 cores: one shard from the other core, one of its own, one written.
    assert limit_us(100_000, 2, 2, rates) == pytest.approx(0.2 + 10 + 1 + 2)
    # 4 ranks on 2 cores: two take turns, each with two shards from either core.
    assert limit_us(100_000, 4, 2, rates) == pytest.approx(0.2 + 2 * (20 + 2 + 2))
    # Everything on one core: nothing comes from another.
    assert limit_us(100_000, 2, 1, rates) == pytest.approx(0.2 + 2 * (2 + 2))
    half = Rates(barrier_us=0.2, cross=10.0, local=100.0, write=50.0, overlap=0.5)
    assert limit_us(100_000, 2, 2, half) == pytest.approx(0.2 + 6.5)
    assert stream_us(50_000, 4, 2, Rates(0, 1, 1, 1, 1, stream=25.0)) == pytest.approx(4.0)
    assert [ranks_per_core(n, 2) for n in (1, 2, 3, 4, 8)] == [1, 1, 2, 2, 4]


def test_calibration_takes_the_slowest_rank_and_the_better_store() -> None:
    problem = of_size("collective", 2, "fp32", 4000)
    calibration = Calibration()
    for wobble in (0, 0, 5):
        each = {"barrier": [100.0], "cross": [400 + wobble], "local": [40], "write": [80]}
        each |= {"write_nt": [50], "all": [600], "all_nt": [441]}
        calibration.add([each, each | {"cross": [390]}])
    rates = calibration.rates(problem, cores=2)
    assert (rates.barrier_us, rates.cross, rates.local, rates.write) == (0.1, 10.0, 100.0, 80.0)
    assert rates.overlap == pytest.approx(0.9)
    assert limit_of(problem, rates, 2) == pytest.approx(0.1 + 0.441)


def test_rows_have_what_is_promised() -> None:
    problem = of_size("collective", 4, "bf16", 4096)
    samples = Samples()
    answers: list[dict[str, Any]] = [
        {"starts": [1000, 5000], "ends": [3000, 9000], "wrong": 0},
        {"starts": [1500, 5500], "ends": [4000, 8000], "wrong": 2},
    ]
    samples.add(answers)
    assert samples.spans_us == [3.0, 4.0]
    row = make_row(problem, "pull", samples, limit=7.0, plain_limit=8.0)
    assert row["time_us"] == statistics.median([3.0, 4.0])
    assert row["wrong"] == 2
    assert row["algbw_GBps"] == pytest.approx(4 * 4096 / 3.5 / 1e3)
    assert row["busbw_GBps"] == pytest.approx(row["algbw_GBps"] * 3 / 4)
    assert row["limit_ratio"] == pytest.approx(2.0)
    assert row["bad_calibration"]
    slow = row | {"path": "gloo", "time_us": 35.0}
    compare([row, slow])
    assert row["times_faster"] == {"gloo": pytest.approx(10.0)}


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("mode", ["collective", "combine"])
def test_expected_results_are_the_sums_of_the_inputs(mode: str, dtype: str) -> None:
    shape = shapes.Shape("small", hidden=4099, topk=3, experts=8)
    problem = of_shape(mode, 3, dtype, shape, tokens=7)
    total = torch.zeros(problem.rows, problem.hidden, dtype=torch.float64)
    torch_dtype = pattern.DTYPES[dtype]
    for rank in range(3):
        if mode == "collective":
            rows = torch.empty(problem.rows, problem.hidden, dtype=torch_dtype)
            pattern.fill_rows(rows, problem, rank, seed=5)
            partial = rows.double()
        else:
            experts = torch.empty(problem.rows, 3, problem.hidden, dtype=torch_dtype)
            pattern.fill_experts(experts, problem, rank, seed=5)
            weights = pattern.make_weights(problem, rank)
            partial = (experts.double() * weights.double()[:, :, None]).sum(1)
        assert torch.equal(pattern.expected(problem, rank, 5, alone=True).double(), partial)
        total += partial
    assert total.abs().max() > 2
    for rank in range(3):
        own = total[rank * 7 : rank * 7 + 7].to(torch_dtype)
        wanted = pattern.expected(problem, rank, 5, alone=False)
        assert pattern.count_wrong(own, wanted) == 0
        assert pattern.count_wrong(own + 1, wanted) == own.numel()


def problems_of(*words: str) -> list[Problem]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return make_problems(parser.parse_args(words))


def test_command_lines_become_problems() -> None:
    found = problems_of("--ranks", "2,4", "--dtype", "bf16,fp32", "--sizes", "4K,1M")
    assert [(p.ranks, p.dtype, p.nbytes) for p in found] == [
        (ranks, dtype, nbytes)
        for ranks in (2, 4)
        for dtype in ("bf16", "fp32")
        for nbytes in (4096, 1 << 20)
    ]
    (combine,) = problems_of(
        *("--mode", "combine", "--shape", "qwen3-30b", "--tokens", "16"),
        *("--ranks", "2", "--dtype", "bf16"),
    )
    assert (combine.rows, combine.topk, combine.hidden) == (32, 8, 2048)
    words = ["--ranks", "2", "--dtype", "bf16", "--sizes", "64K"]
    (combine,) = problems_of("--mode", "combine", *words)
    assert (combine.rows, combine.topk, combine.hidden, combine.nbytes) == (32, 2, 2048, 64 << 10)
    (alone,) = problems_of("--mode", "topk", "--topk", "4", *words)
    assert (alone.rows, alone.topk, alone.hidden) == (16, 4, 2048)
    for problem in problems_of("--mode", "topk"):
        assert problem.rows * problem.topk * problem.hidden * 2 >= 64 << 20


@pytest.mark.parametrize(
    "words",
    [
        ["--ranks", "0"],
        ["--dtype", "int8"],
        ["--sizes", "4Q"],
        ["--sizes", "3", "--dtype", "fp32"],
        ["--paths", "nccl"],
        ["--mode", "combine", "--shape", "gpt-5"],
        ["--mode", "combine", "--sizes", "4K", "--topk", "0"],
        ["--topk", "2"],
        ["--topk", "2", "--mode", "combine", "--shape", "qwen3-30b"],
        ["--backend-file", "/nowhere.py"],
    ],
)
def test_senseless_options_are_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.run(words) == 2
    assert "symmoe bench: " in capsys.readouterr().err


@pytest.mark.multi
@pytest.mark.parametrize(
    ("mode", "what", "nbytes"),
    [
        ("collective", ["--sizes", "4K"], 4096),
        ("combine", ["--sizes", "8K"], 8192),
        ("combine", ["--shape", "qwen3-30b", "--tokens", "2"], 2 * 2048 * 2),
    ],
)
def test_a_run_gives_right_rows(
    mode: str,
    what: list[str],
    nbytes: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "result.json"
    words = ["--mode", mode, "--ranks", "2", "--dtype", "bf16", "--paths", "pull,staged,gloo"]
    assert bench.run([*words, *what, *QUICK, "--json", str(file)]) == 0
    result = json.loads(file.read_text())
    assert result["machine"]["cpus"] >= 1
    assert [row["path"] for row in result["rows"]] == ["pull", "staged", "gloo"]
    for row in result["rows"]:
        assert row["mode"] == mode
        assert (row["ranks"], row["dtype"], row["wrong"]) == (2, "bf16", 0)
        assert row["bytes"] == nbytes
        for key in ("time_us", "algbw_GBps", "busbw_GBps", "limit_us", "limit_ratio"):
            assert row[key] > 0
    printed = capsys.readouterr().out
    assert "#wrong" in printed
    assert workers_alive() == []


@pytest.mark.multi
def test_wrong_results_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    words = ["--ranks", "2", "--dtype", "fp32", "--sizes", "4K", "--paths", "gloo"]
    words += ["--backend-file", plug_in(tmp_path, WRONG), "--json", str(file)]
    assert bench.run([*words, *QUICK]) == 1
    result = json.loads(file.read_text())
    wrong = {row["path"]: row["wrong"] for row in result["rows"]}
    assert wrong["gloo"] == 0
    assert wrong["wrong"] > 0
    # A call that does nothing leaves no right result of an earlier call behind.
    assert wrong["idle"] == 2 * 1024
    assert any(note.startswith("WRONG: idle") for note in result["notes"])


@pytest.mark.multi
@pytest.mark.parametrize(
    ("source", "name", "message"),
    [(DYING, "dying", "rank 1 ended"), (FAILING, "failing", "will not")],
)
def test_a_worker_that_fails_is_an_error_not_a_hang(
    source: str, name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--ranks", "2", "--dtype", "fp32", "--sizes", "4K", "--paths", name]
    begin = time.monotonic()
    assert bench.run([*words, "--backend-file", plug_in(tmp_path, source), *QUICK]) == 1
    assert time.monotonic() - begin < 45
    error = capsys.readouterr().err
    assert name in error
    assert message in error
    assert workers_alive() == []


@pytest.mark.multi
def test_a_peer_that_is_not_installed_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--ranks", "2", "--dtype", "fp32", "--sizes", "4K", "--paths", "mpich"]
    assert bench.run([*words, *QUICK, "--peers", str(tmp_path)]) == 1
    assert "mpich: not installed" in capsys.readouterr().err


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    from symmoe.bench.plot import draw

    rows = []
    for ranks in (2, 4):
        for nbytes in (4096, 1 << 20):
            samples = Samples(spans_us=[nbytes / 1e3])
            problem = of_size("collective", ranks, "bf16", nbytes)
            rows += [make_row(problem, path, samples, 1.0, 1.0) for path in ("pull", "mine")]
    file = tmp_path / "plot.png"
    draw(rows, file, {"cpus": 2, "processor": "test"})
    assert file.read_bytes().startswith(b"\x89PNG")
