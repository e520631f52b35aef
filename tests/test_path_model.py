"""The model of the paths on GPUs: its formulas, its fit, and that it never passes for measured."""

from __future__ import annotations

import json
import runpy
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from symmoe import _core
from symmoe.bench import path_model
from symmoe.bench.device.limit import GpuRates, rates_of
from symmoe.bench.path_model import Link, Work, errors, fit, fit_line, predict_us
from symmoe.bench.published import MEBI, PUBLISHED

SCRIPT = Path(__file__).resolve().parent.parent / "bench" / "model_gpu.py"
LINK = Link(start_us=10.0, rate=1000.0, copy_us=2.0)
RATES = GpuRates(link=900.0, memory=10.0)  # 10 000 bytes per microsecond
BYTES = 4_000_000


def test_the_formulas() -> None:
    """Each path once, by hand: 4 ranks, top-2, 4 MB: 3 MB pulled, 5 MB touched."""
    rows, summed = Work(4, BYTES, 2), Work(4, BYTES, 2, with_sum=True)
    assert predict_us("direct", rows, LINK, RATES) == pytest.approx(10 + 3000)
    assert predict_us("pull", rows, LINK, RATES) == pytest.approx(10 + 3000)
    assert predict_us("staged", rows, LINK, RATES) == pytest.approx(10 + 3000 + 800 + 200)
    share = 1 - (3 / 4) ** 2
    assert predict_us("routed", rows, LINK, RATES) == pytest.approx(10 + 3000 * share + 3)
    assert predict_us("fused", rows, LINK, RATES) is None
    # The sum reads half of the slots' rows here and writes all rows, or those that count.
    assert predict_us("direct", summed, LINK, RATES) == pytest.approx(10 + 3000 + 3 + 400 * 1.5)
    assert predict_us("fused", summed, LINK, RATES) == pytest.approx(10 + 3000 + 2 * 400 * 1.5)
    assert predict_us("routed", summed, LINK, RATES) == pytest.approx(
        10 + 3000 * share + 3 + 3 + 400 * (0.5 + share)
    )
    # Where the memory is slower than the link, it is the memory.
    slow = GpuRates(link=900.0, memory=1.0)
    assert predict_us("direct", rows, LINK, slow) == pytest.approx(10 + 5000)
    # A small copy costs a launch, and a call no less than its floor.
    assert predict_us("staged", Work(4, 4000), LINK, RATES) == pytest.approx(10 + 3 + 2 + 2)
    floor = Link(10.0, 1000.0, floor_us=50.0)
    assert predict_us("direct", Work(4, 4000), floor, RATES) == pytest.approx(50)


def test_fit_line_finds_a_line_and_what_is_between_lines() -> None:
    start, rate = fit_line([(x, 5 + x / 300) for x in (1e3, 2e4, 3e6)])
    assert start == pytest.approx(5)
    assert rate == pytest.approx(300)
    noisy = [(0.0, 11.0), (0.0, 9.0), (1e6, 110.0), (1e6, 90.0)]
    start, rate = fit_line(noisy)
    assert 9 < start < 11
    assert 90 < start + 1e6 / rate < 110


def test_the_fit_is_that_of_the_published_rows() -> None:
    links = fit()
    assert links["H100"].start_us == pytest.approx(4.8, abs=0.1)
    assert links["H100"].rate == pytest.approx(307e3, rel=0.01)
    assert links["B200"].start_us == pytest.approx(10.3, abs=0.1)
    assert links["B200"].rate == pytest.approx(650e3, rel=0.01)
    assert links["GB200"].rate == pytest.approx(379e3, rel=0.01)
    assert links["GB200"].floor_us == pytest.approx(36.7, abs=0.1)
    # No link does more than its maker says.
    assert links["H100"].rate < 450e3
    assert links["B200"].rate < 900e3


MAJORS = {"H100": 9, "B200": 10}


@pytest.mark.parametrize("machine", MAJORS)
def test_groups_choose_by_the_fitted_constants(machine: str) -> None:
    costs, link = _core.device_costs(MAJORS[machine]), fit()[machine]
    assert costs["start_us"] == pytest.approx(link.start_us, abs=0.06)
    assert costs["link_bytes_per_us"] == pytest.approx(link.rate, rel=0.005)
    assert costs["copy_us"] == pytest.approx(link.copy_us, abs=0.06)
    rates = rates_of(machine)
    assert rates is not None
    assert costs["memory_bytes_per_us"] == pytest.approx(rates.memory * 1e3)


@pytest.mark.parametrize("major", MAJORS.values())
@pytest.mark.parametrize("path", ["direct", "pull", "fused", "routed"])
def test_groups_choose_by_the_same_formulas(path: str, major: int) -> None:
    costs = _core.device_costs(major)
    link = Link(costs["start_us"], costs["link_bytes_per_us"], copy_us=costs["copy_us"])
    rates = GpuRates(0.0, costs["memory_bytes_per_us"] / 1e3)
    for ranks in (2, 8):
        for own in (1 << 12, 1 << 26):
            for with_sum in (False, True):
                expected = predict_us(path, Work(ranks, own * ranks, 4, with_sum), link, rates)
                if expected is None:
                    continue
                found = _core.predicted_us(path, major, ranks, own, 4, with_sum, path == "routed")
                assert found == pytest.approx(expected)


def test_a_ring_takes_longer_by_its_hops() -> None:
    rows = {(r.path, r.nbytes): r for r in PUBLISHED if r.machine == "H100"}
    longer = [
        (row.time_us - rows["direct", nbytes].time_us) / row.ranks
        for (path, nbytes), row in rows.items()
        if path == "ring"
    ]
    hop = _core.predicted_us("plain", 9, 8, 1 << 18, 0, False, False)
    hop -= _core.predicted_us("direct", 9, 8, 1 << 18, 0, False, False)
    assert hop / 8 == pytest.approx(statistics.median(longer), abs=0.06)


def test_the_error_is_of_all_direct_and_staged_rows() -> None:
    compared = [row for row in PUBLISHED if row.path in ("direct", "staged")]
    assert len(errors()) == len(compared) == 18
    inside = [abs(error) for error in errors()]
    outside = [abs(error) for error in errors(left_out=True)]
    assert statistics.median(inside) < 0.015
    assert max(inside) < 0.055
    # A row is harder to meet by constants that have not seen it.
    assert statistics.median(inside) < statistics.median(outside) < 0.05
    assert max(outside) < 0.2


def test_a_wrong_figure_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    row = PUBLISHED[1]
    wrong = type(row)(**{**vars(row), "time_us": 2 * row.time_us})
    rows = [wrong if other is row else other for other in PUBLISHED]
    assert max(abs(error) for error in errors(rows)) > 0.2
    monkeypatch.setattr(path_model, "LAUNCH_US", 30.0)
    assert predict_us("routed", Work(4, BYTES, 2), LINK, RATES) == pytest.approx(
        10 + 3000 * (1 - (3 / 4) ** 2) + 30
    )


def test_published_rows_have_sources_and_plausible_rates() -> None:
    for row in PUBLISHED:
        assert row.source.startswith("https://github.com/")
        assert row.timed in ("kernel", "call", "engine")
        pulled = path_model.pulled_bytes(row.ranks, row.nbytes)
        assert pulled / row.time_us < (450e3 if row.machine == "H100" else 900e3)
    assert {row.nbytes % MEBI for row in PUBLISHED} == {0}


def run(*arguments: str) -> list[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def test_every_line_says_what_it_is(tmp_path: Path) -> None:
    out = tmp_path / "model.json"
    lines = run("--json", str(out), "--tokens", "64,2048", "--topk", "1")
    assert {line.split()[0] for line in lines} == {"model", "published"}
    result: dict[str, Any] = json.loads(out.read_text())
    assert result["model"] is True
    assert {row["kind"] for row in result["rows"]} == {"model"}
    assert {(row["machine"], row["ranks"]) for row in result["rows"]} == {
        (machine, ranks) for machine in ("H100", "H200", "B200") for ranks in (2, 4, 8)
    }
    assert {row["kind"] for row in result["published"]} == {"published"}
    assert len(result["published"]) == len(PUBLISHED)
    found = result["summary"]
    assert found["rows"] == 18
    assert any(
        f"median {found['median_error']:.1%}, max {found['max_error']:.1%};" in line
        for line in lines
    )
    # With one expert per token and large messages, only a part of the rows has to move.
    large = [row for row in result["rows"] if row["tokens"] == 2048 and row["ranks"] == 8]
    for row in large:
        assert row["us"]["routed"] < row["us"]["pull"] / 2
        assert row["us"]["staged"] > row["us"]["direct"]
        assert (row["us"]["fused"] is None) == (row["of"] == "rows")


def test_the_script_can_be_imported_without_running(capsys: pytest.CaptureFixture[str]) -> None:
    module = runpy.run_path(str(SCRIPT))
    assert capsys.readouterr().out == ""
    module["main"](["--tokens", "64"])
    assert "guesses" in capsys.readouterr().out
