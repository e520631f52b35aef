"""Runs the examples at small widths: with processes of their own, and under torchrun."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "qwen3_moe_layer.py"
WIDTHS = {"hidden": 128, "intermediate": 64, "experts": 8, "top-k": 3}
LATENT = ROOT / "examples" / "latent_moe.py"
LATENT_WIDTHS = ["--hidden=128", "--latent=32", "--intermediate=64", "--experts=8", "--top-k=3"]
SEQUENCE = ROOT / "examples" / "sequence_parallel_layer.py"
SEQUENCE_WIDTHS = ["--hidden=64", "--heads=4", "--head-width=16", "--experts=10", "--top-k=3"]
SMALL = [f"--{name}={value}" for name, value in (WIDTHS | {"tokens": 60, "repeats": 3}).items()]

pytestmark = [pytest.mark.multi, pytest.mark.slow]


def run(*command: str) -> str:
    """What a command prints; fails the test if it fails."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SYMMOE_")}
    done = subprocess.run(
        [sys.executable, *command],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        env=environment | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_starts_processes_of_its_own() -> None:
    text = run(str(EXAMPLE), "--processes", "2", *SMALL)
    assert "processes                   2, with 4 experts each" in text
    assert "pull: the input is in a window" in text
    assert "staging: 0 bytes, 0 of 6 reduces, 0 of 12 gathers" in text
    assert "the same bits in 5 more runs" in text
    assert "split to unsplit" in text


def test_takes_the_processes_of_torchrun_and_one_has_no_tokens() -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    text = run(*launcher, str(EXAMPLE), *SMALL, "--tokens", "1")
    assert "tokens of each process      [1, 0]" in text
    assert "the same bits in 5 more runs" in text


def test_experts_that_cannot_be_split() -> None:
    with pytest.raises(AssertionError, match="8 experts cannot be split evenly over 3 processes"):
        run(str(EXAMPLE), "--processes", "3", *SMALL)


def table_of(text: str) -> list[list[str]]:
    """The lines of the latent example's table: tokens, order, sums before and after, bytes."""
    lines = [line for line in text.splitlines() if line.startswith(("fc2_latent ", "norm, fc2_l"))]
    return [line.split()[-6:] for line in lines]


def test_latent_experts_take_one_sum_over_ranks_or_two() -> None:
    text = run(str(LATENT), *LATENT_WIDTHS, "--many=4000")
    both, hidden = 2 * (128 + 32), 2 * 128
    assert table_of(text) == [
        ["8", "late", "2", "1", str(8 * both), str(8 * hidden)],
        ["4000", "early", "2", "2", str(4000 * both), str(4000 * both)],
        ["8", "early", "2", "2", str(8 * both), str(8 * both)],
    ]
    assert "RMSNorm at 0 is a norm" in text
    assert "at most twice as far from fp64" in text


def test_latent_experts_under_torchrun_without_shared_ones() -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    text = run(*launcher, str(LATENT), *LATENT_WIDTHS, "--few=1", "--many=9", "--no-shared")
    assert [line[1:4] for line in table_of(text)] == [["early", "1", "1"]] * 3
    assert "at most twice as far from fp64" in text


def test_latent_experts_of_one_process_are_summed_over_no_ranks() -> None:
    text = run(str(LATENT), *LATENT_WIDTHS, "--processes=1", "--many=9")
    assert [line[1:4] for line in table_of(text)] == [["none", "2", "0"]] * 3


def sequence_table(text: str) -> dict[str, list[int]]:
    """Gathers before and after, reduce-scatters, bytes; by part of the layer."""
    names = ("norm", "attention", "MoE", "MTP head")
    lines = {
        name: line.removeprefix(name).split()
        for line in text.splitlines()
        for name in names
        if line.startswith(f"{name} ")
    }
    return {name: [int(word) for word in words] for name, words in lines.items()}


def test_a_draft_head_of_a_sequence_parallel_layer_takes_one_gather() -> None:
    text = run(str(SEQUENCE), *SEQUENCE_WIDTHS, "--tokens=61", "--draft-intermediate=96")
    h, choice = 61 * 64 * 2, 61 * 2 * 3 * 4
    assert "2 processes with [20, 41] tokens" in text
    assert sequence_table(text) == {
        "norm": [1, 1, 0, 0, h, h],
        "attention": [1, 1, 1, 1, 2 * h, 2 * h],
        "MoE": [2, 1, 1, 1, 2 * h + choice, 2 * h],
        "MTP head": [2, 1, 1, 0, 4 * h, h],
    }
    assert "the same bits fused and step by step" in text
    assert "gathered: 61 rows, no padding; the same bits on all ranks" in text
    assert len(re.findall(r"(?:hidden|draft): .* as far from fp64 as one rank alone", text)) == 2


def test_a_sequence_parallel_layer_under_torchrun_with_shares_that_are_not_even() -> None:
    """Three ranks of four heads and ten experts; one has no tokens."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    text = run(*launcher, str(SEQUENCE), *SEQUENCE_WIDTHS, "--tokens=2")
    assert "3 processes with [0, 1, 1] tokens" in text
    assert sequence_table(text)["MTP head"][:4] == [2, 1, 1, 0]
    assert "gathered: 2 rows, no padding" in text


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example's own module of that name."""
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    return importlib.import_module("processes")


@pytest.mark.timeout(30)
def test_waiting_for_processes_ends_however_they_end(
    processes: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the last ones end between two looks, which is seen by waiting late."""
    wait = processes.wait

    def late_wait(running: set[int]) -> list[int]:
        assert running, "this would wait for ever"
        time.sleep(0.05)
        ended: list[int] = wait(running)
        return ended

    monkeypatch.setattr(processes, "wait", late_wait)
    context = multiprocessing.get_context("fork")
    for delays in ((0.0, 0.0), (0.0, 0.1), (0.0, 0.05), (0.1, 0.2, 0.2)):
        ranks = [context.Process(target=time.sleep, args=(delay,)) for delay in delays]
        for rank in ranks:
            rank.start()
            # Whoever asks sees the last one end between two questions.
            answers = iter([rank is ranks[-1]] + [False] * 99)
            monkeypatch.setattr(rank, "is_alive", answers.__next__)
        assert processes.wait_for(ranks) == []
        monkeypatch.undo()
        monkeypatch.setattr(processes, "wait", late_wait)
        for rank in ranks:
            rank.join()


def test_ranks_that_fail_are_named(processes: ModuleType) -> None:
    """Every time: a process that is seen to end may not have its exit code yet."""
    context = multiprocessing.get_context("fork")
    for _ in range(20):
        ranks = [context.Process(target=sys.exit, args=(code,)) for code in (0, 3)]
        for rank in ranks:
            rank.start()
        assert processes.wait_for(ranks) == [1]
        for rank in ranks:
            rank.join()
