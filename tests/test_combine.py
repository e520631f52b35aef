"""combine: the top-k sum into the window and the reduce-scatter, against the slow reference."""

from __future__ import annotations

import pytest
import torch

import symmoe
from ranks import Ranks
from reference import DTYPES, assert_same_bits, noise, own_rows, rank_sum, topk_sum

pytestmark = pytest.mark.multi
TOKENS, SLOTS, HIDDEN = 12, 4, 130


def dense_terms(seed: int, rank: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    expert_out = noise(10 * seed + rank, (TOKENS, SLOTS, HIDDEN), dtype)
    weights = noise(10 * seed + rank + 5000, (TOKENS, SLOTS), torch.float32)
    return expert_out, weights


def dense(rank: int, world: int, windows: bool) -> None:
    sizes = [TOKENS // world] * world
    with symmoe.init(config=symmoe.Config(windows=windows)) as group:
        for seed, dtype in enumerate(DTYPES):
            for scale in (None, 2.5):
                parts = []
                for r in range(world):
                    expert_out, weights = dense_terms(seed, r, dtype)
                    parts.append(topk_sum(expert_out, weights, scale=scale))
                expert_out, weights = dense_terms(seed, rank, dtype)
                right = rank_sum([part[own_rows(sizes, rank)] for part in parts])
                found = group.combine(expert_out, weights, scale=scale, deterministic=True)
                assert_same_bits(found, right)
                narrow = weights.to(dtype)
                group.combine(expert_out, narrow, out=found, scale=scale, deterministic=True)
            decision = group.explain("combine", expert_out, weights)
            assert decision.path == ("pull" if windows else "process_group")
        assert group.stats()["calls_pull"] == (12 if windows else 0)


@pytest.mark.parametrize("windows", [True, False])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_dense(ranks: Ranks, world: int, windows: bool) -> None:
    ranks.run(world, dense, windows)


def routed_terms(
    seed: int, rank: int, integer: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As after a grouped GEMM: rows only for the slots whose expert is here, in any order."""
    generator = torch.Generator().manual_seed(99 * seed + rank)
    here = torch.rand(TOKENS, SLOTS, generator=generator) < 0.4
    here[3] = False  # a token with nothing on this rank
    pairs = int(here.sum())
    index = torch.full((TOKENS, SLOTS), -1, dtype=integer)
    index[here] = torch.randperm(pairs, generator=generator).to(integer)
    rows = noise(7 * seed + rank, (pairs, HIDDEN), torch.bfloat16)
    weights = noise(8 * seed + rank, (TOKENS, SLOTS), torch.bfloat16)
    return rows, weights, index


def routed(rank: int, world: int, sizes: list[int]) -> None:
    with symmoe.init() as group:
        for seed, integer in enumerate((torch.int32, torch.int64)):
            parts = [
                topk_sum(rows, weights, index)
                for rows, weights, index in (routed_terms(seed, r, integer) for r in range(world))
            ]
            rows, weights, index = routed_terms(seed, rank, integer)
            out = torch.empty(sizes[rank], HIDDEN, dtype=torch.bfloat16)
            found = group.combine(rows, weights, index=index, sizes=sizes, out=out)
            assert found is out
            assert_same_bits(out, rank_sum([part[own_rows(sizes, rank)] for part in parts]))


@pytest.mark.parametrize("sizes", [[12], [6, 6], [5, 0, 7], [1, 2, 3, 6]])
def test_routed(ranks: Ranks, sizes: list[int]) -> None:
    ranks.run(len(sizes), routed, sizes)


def plain_rows(rank: int, world: int) -> None:
    """[M, H] counts as one expert per token; no weights means a plain sum."""
    with symmoe.init() as group:
        rows = noise(rank, (TOKENS, HIDDEN), torch.float16)
        right = rank_sum(
            [
                noise(r, (TOKENS, HIDDEN), torch.float16)[own_rows([TOKENS // world] * world, rank)]
                for r in range(world)
            ]
        )
        assert_same_bits(group.combine(rows), right)
        none = torch.empty(0, 4, HIDDEN, dtype=torch.float16)
        assert group.combine(none).shape == (0, HIDDEN)


def test_rows_without_slots(ranks: Ranks) -> None:
    ranks.run(2, plain_rows)


def too_large(rank: int, world: int) -> None:
    """Above the cap: no window on any rank, the same result."""
    with symmoe.init(config=symmoe.Config(max_buffer_bytes=1024)) as group:
        expert_out, weights = dense_terms(1, rank, torch.bfloat16)
        decision = group.explain("combine", expert_out, weights)
        assert decision.path == "process_group"
        assert "max_buffer_bytes" in decision.reason
        parts = [topk_sum(*dense_terms(1, r, torch.bfloat16)) for r in range(world)]
        right = rank_sum([part[own_rows([TOKENS // world] * world, rank)] for part in parts])
        assert_same_bits(group.combine(expert_out, weights, deterministic=True), right)
        assert group.stats()["calls_process_group"] == 1


def test_above_the_cap(ranks: Ranks) -> None:
    ranks.run(2, too_large)


def overwritten(rank: int, world: int) -> None:
    """Experts that write into the combine window of the same lane would be overwritten."""
    with symmoe.init() as group:
        window = group.acquire("combine", (TOKENS, HIDDEN), torch.bfloat16)
        assert window is not None
        window.fill_(1)
        with pytest.raises(ValueError, match="overlaps expert_out"):
            group.combine(window)
        assert bool((window == 1).all())
        other = group.acquire("combine", (TOKENS, HIDDEN), torch.bfloat16, lane=1)
        assert other is not None
        other.fill_(2)
        assert bool((group.combine(other) == 2 * world).all())


def test_experts_in_a_window(ranks: Ranks) -> None:
    ranks.run(2, overwritten)


def compiled(rank: int, world: int) -> None:
    with symmoe.init() as group:

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def exchange(rows: torch.Tensor) -> torch.Tensor:
            return group.combine(rows)

        @torch.compile(backend="eager")  # the tracer is what matters, not the code it makes
        def layer(rows: torch.Tensor) -> torch.Tensor:
            return torch.add(exchange(rows * 2), 1)

        for _ in range(3):
            assert bool((layer(torch.ones(TOKENS, HIDDEN)) == 2 * world + 1).all())
        assert group.stats()["calls_pull"] == 3


def test_called_from_compiled_code(ranks: Ranks) -> None:
    ranks.run(2, compiled)
