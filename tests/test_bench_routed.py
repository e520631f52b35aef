"""The benchmark of routed calls: its inputs, what it counts, and that results are checked."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch

from symmoe import bench
from symmoe.bench import pattern, routes, shapes
from symmoe.bench.arguments import add_arguments, make_paths, make_problems
from symmoe.bench.errors import BenchError
from symmoe.bench.limit import Rates, limit_us
from symmoe.bench.problem import Problem, of_shape, of_size
from symmoe.bench.results import limit_of
from test_bench import QUICK

SMALL = shapes.Shape("small", hidden=67, topk=3, experts=8)


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def rows_with(route: routes.Route, rank: int) -> int:
    """Rows for which a rank has an expert, the slow way."""
    ranks = route.expert_to_rank.tolist()
    return sum(any(ranks[expert] == rank for expert in row) for row in route.ids.tolist())


def test_command_lines() -> None:
    words = ["--mode", "combine", "--ranks", "4", "--dtype", "bf16", "--tokens", "512"]
    words += ["--shape", "mixtral-8x7b", "--shape", "llama4-maverick,qwen3-30b"]
    found = make_problems(parsed(*words, "--paths", "pull,routed"))
    assert [(p.shape, p.hidden, p.topk, p.experts) for p in found] == [
        ("mixtral-8x7b", 4096, 2, 8),
        ("llama-4-maverick", 5120, 1, 128),
        ("qwen3-30b", 2048, 8, 128),
    ]
    assert {p.experts for p in make_problems(parsed(*words, "--paths", "pull,gloo"))} == {0}
    every = parsed("--mode", "collective", "--sizes", "64K", "--paths", "all")
    assert {(p.topk, p.experts) for p in make_problems(every)} == {(1, 128)}
    paths, optional = make_paths(every)
    assert {"pull", "staged", "routed", "gloo", "gloo_allreduce", "mpich"} <= set(paths)
    assert "routed" not in optional
    assert "mpich" in optional
    assert "routed" not in make_paths(parsed())[0]
    wide = parsed("--sizes", "64K", "--topk", "4", "--paths", "routed", "--ranks", "2")
    assert {p.topk for p in make_problems(wide)} == {4}
    with pytest.raises(BenchError, match="at most 128"):
        make_problems(parsed("--sizes", "64K", "--topk", "129", "--paths", "routed"))


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("mode", ["collective", "combine"])
def test_inputs_and_expected_results(mode: str, ranks: int) -> None:
    problem = of_shape(mode, ranks, "bf16", SMALL, 9, routed=True)
    total = torch.zeros(problem.rows, problem.hidden, dtype=torch.float64)
    for rank in range(ranks):
        if mode == "collective":
            rows = torch.empty(problem.rows, problem.hidden, dtype=torch.bfloat16)
            pattern.fill_rows(rows, problem, rank, seed=3)
            assert bool((rows[~pattern.has_rows(problem, rank)] == 0).all())
            partial = rows.double()
        else:
            pairs, index = pattern.make_pairs(problem, rank, seed=3)
            assert sorted(index[index >= 0].tolist()) == list(range(len(pairs)))
            weights = pattern.make_weights(problem, rank)
            wide = torch.cat([pairs.double(), torch.zeros(1, problem.hidden).double()])
            partial = (wide[index.long()] * weights.double()[:, :, None]).sum(1)
        assert torch.equal(pattern.expected(problem, rank, 3, alone=True).double(), partial)
        total += partial
    assert total.abs().max() >= 1
    for rank in range(ranks):
        own = total[9 * rank : 9 * rank + 9].to(torch.bfloat16)
        wanted = pattern.expected(problem, rank, 3, alone=False)
        assert pattern.count_wrong(own, wanted) == 0


def test_rows_of_an_expert_lie_together() -> None:
    problem = of_shape("combine", 2, "bf16", SMALL, 9, routed=True)
    route = routes.route_of(problem)
    for rank in range(2):
        index = route.index_on(rank)
        experts = [int(route.ids[index == row]) for row in range(int(index.max()) + 1)]
        assert experts == sorted(experts)


def test_traffic_is_counted_from_the_ids() -> None:
    problem = of_shape("combine", 4, "bf16", SMALL, 50, routed=True)
    route = routes.route_of(problem)
    assert all(len(set(row)) == 3 for row in route.ids.tolist())
    present = sum(rows_with(route, rank) for rank in range(4))
    assert routes.dense_traffic(problem) == (600, 800, 800, 200)
    assert routes.routed_traffic(problem) == (600, present, present, 200)
    assert 200 < present < 600
    collective = of_shape("collective", 4, "bf16", SMALL, 50, routed=True)
    assert routes.routed_traffic(collective) == (0, 0, present, 200)
    # Every rank has all slots where there are no experts to spread.
    dense = Problem("combine", 4, "bf16", 50, 64, topk=3)
    assert routes.dense_traffic(dense) == (2400, 800, 800, 200)


def test_the_limit_of_fewer_rows() -> None:
    rates = Rates(barrier_us=0.5, cross=10.0, local=100.0, write=50.0)
    assert limit_us(100_000, 2, 2, rates, share=0.5) == pytest.approx(0.5 + 5 + 0.5 + 2)
    problem = of_size("collective", 2, "fp32", 1 << 20, experts=128)
    traffic = routes.routed_traffic(problem)
    assert traffic.read * 2 == routes.dense_traffic(problem).read  # one expert, one rank of two
    assert limit_of(problem, rates, 2, traffic) == pytest.approx(
        limit_us(1 << 20, 2, 2, rates, share=0.5)
    )


@pytest.mark.multi
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("mode", "ranks"), [("collective", 2), ("combine", 1), ("combine", 3)])
def test_a_run(mode: str, ranks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    words = ["--mode", mode, "--ranks", str(ranks), "--dtype", "bf16", "--tokens", "8"]
    words += ["--shape", "mixtral-8x7b", "--shape", "llama4-maverick", "--paths", "pull,routed"]
    assert bench.run([*words, *QUICK, "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [(row["shape"], row["path"]) for row in rows] == [
        (shape, path)
        for shape in ("mixtral-8x7b", "llama-4-maverick")
        for path in ("pull", "routed")
    ]
    for row in rows:
        assert row["wrong"] == 0
        shape = shapes.SHAPES[row["shape"]]
        problem = of_shape(mode, ranks, "bf16", shape, 8, routed=True)
        route = routes.route_of(problem)
        present = sum(rows_with(route, rank) for rank in range(ranks))
        moved = 8 * ranks * ranks if row["path"] == "pull" else present
        pairs = route.ids.numel()
        counted = moved + 8 * ranks if mode == "collective" else pairs + 2 * moved + 8 * ranks
        assert row["bytes_moved"] == counted * shape.hidden * 2
        if row["path"] == "pull":
            assert row["bytes_moved"] == row["dense_bytes"]
            assert row["limit_us"] == row["dense_limit_us"]
        elif ranks > 1:
            assert row["bytes_moved"] < row["dense_bytes"]
            assert row["limit_us"] < row["dense_limit_us"]
    printed = capsys.readouterr().out
    assert ("times faster predicted" in printed) == (ranks > 1)
    assert ("limits: dense" in printed) == (ranks > 1)


@pytest.mark.multi
@pytest.mark.timeout(240)
def test_all_paths_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    words = ["--mode", "combine", "--ranks", "2", "--dtype", "bf16", "--tokens", "2"]
    words += ["--shape", "qwen3-30b", "--paths", "all", "--peers", str(tmp_path)]
    assert bench.run([*words, *QUICK, "--json", str(file)]) == 0
    result = json.loads(file.read_text())
    found = {row["path"]: row["wrong"] for row in result["rows"]}
    wanted = ("pull", "staged", "routed", "gloo", "gloo_allreduce", "topk")
    assert found == dict.fromkeys(wanted, 0)
    assert any("not installed" in note for note in result["notes"])
    assert "routed" in capsys.readouterr().out
