"""Wrong input raises on the rank that has it, with values; nothing is written, nothing breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import symmoe
from ranks import Ranks

pytestmark = pytest.mark.multi
ROWS, HIDDEN = 4, 6


def rows(dtype: torch.dtype = torch.float32, count: int = ROWS) -> torch.Tensor:
    return torch.ones(count, HIDDEN, dtype=dtype)


@contextmanager
def refused(kind: type[Exception], *words: str) -> Iterator[None]:
    """The block raises `kind`, the message names all words; it is never a SymmoeError."""
    with pytest.raises(kind) as caught:
        yield
    assert not isinstance(caught.value, symmoe.SymmoeError)
    for word in words:
        assert word in str(caught.value), (word, str(caught.value))


def wrong_tensors(group: symmoe.Group, call: Callable[..., Any]) -> None:
    """What no collective takes as input."""
    with refused(TypeError, "input must be a tensor, got list"):
        call([[1.0]])
    with refused(ValueError, "meta", "expected the CPU"):
        call(torch.ones(ROWS, HIDDEN, device="meta"))
    with refused(ValueError, "[rows, hidden]", "[4]"):
        call(torch.ones(ROWS))
    with refused(ValueError, "[rows, hidden]", "[2, 2, 2]"):
        call(torch.ones(2, 2, 2))
    with refused(ValueError, "[rows, hidden]", "[4, 0]"):
        call(torch.ones(ROWS, 0))
    with refused(ValueError, "contiguous", "strides (1, 4)"):
        call(torch.ones(HIDDEN, ROWS).t())
    with refused(ValueError, "contiguous", "strides (12, 1)"):
        call(torch.ones(ROWS, 2 * HIDDEN)[:, :HIDDEN])
    with refused(ValueError, "dense", "sparse"):
        call(torch.ones(ROWS, HIDDEN).to_sparse())
    with refused(TypeError, "dtype bool"):
        call(rows(torch.bool))
    with refused(TypeError, "dtype complex64"):
        call(rows(torch.complex64))
    with refused(TypeError, "dtype float8_e4m3fn"):
        call(rows().to(torch.float8_e4m3fn))
    with refused(ValueError, "requires a gradient", "no_grad"):
        call(rows().requires_grad_())
    with refused(ValueError, "lane 16", "0..15"):
        call(rows(), lane=16)
    with refused(ValueError, "lane -1"):
        call(rows(), lane=-1)
    with refused(TypeError, "lane must be an integer, got 1.5"):
        call(rows(), lane=1.5)
    with refused(ValueError, "stream=7"):
        call(rows(), stream=7)
    assert group.stats()["calls_process_group"] == 0


def wrong_sizes(call: Callable[..., Any], world: int) -> None:
    """Sizes that make no sense for any collective."""
    with refused(ValueError, "3 sizes for", "[1, 1, 2]"):
        call(rows(), sizes=[1, 1, 2])
    with refused(ValueError, "sizes[0] = -1 is negative"):
        call(rows(), sizes=[-1, 5])
    with refused(ValueError, "sizes = -2 is negative"):
        call(rows(), sizes=-2)
    with refused(TypeError, "sizes[1] must be an integer, got 2.0"):
        call(rows(), sizes=[2, 2.0])
    with refused(TypeError, "sizes must be an integer, got True"):
        call(rows(), sizes=True)
    with refused(TypeError, "sizes must be a vector of integers"):
        call(rows(), sizes=torch.tensor([2.0, 2.0]))
    with refused(TypeError, "sizes must be a vector of integers", "(1, 2)"):
        call(rows(), sizes=torch.tensor([[2, 2]]))
    with refused(ValueError, "sizes is on meta"):
        call(rows(), sizes=torch.ones(2, dtype=torch.int32, device="meta"))
    with refused(ValueError, "padded_to = 2 needs sizes"):
        call(rows(), padded_to=2)
    with refused(ValueError, "sizes[0] = 3 is more than padded_to = 2"):
        call(rows(), sizes=[3, 1], padded_to=2)
    assert world == 2


def reduce_inputs(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        call = group.reduce_scatter
        wrong_tensors(group, call)
        wrong_sizes(call, world)
        with refused(ValueError, f"reduce_scatter on rank {rank}", "5 rows", "2 ranks"):
            call(rows(count=5))
        with refused(ValueError, "4 rows", "sum(sizes) = 5", "[2, 3]"):
            call(rows(), sizes=[2, 3])
        with refused(ValueError, "4 rows", "2 ranks of 3 = 6"):
            call(rows(), sizes=3)
        with refused(ValueError, "4 rows", "2 ranks of 4 = 8", "[1, 2]"):
            call(rows(), sizes=[1, 2], padded_to=4)
        works(group, world)


def outputs(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        window = group.acquire("combine", (ROWS, HIDDEN), torch.float32)
        assert window is not None
        window.fill_(1)
        for source in (window, rows()):
            with refused(TypeError, "out must be a tensor"):
                group.reduce_scatter(source, 3)  # type: ignore[arg-type]
            with refused(TypeError, "out is float64, expected float32"):
                group.reduce_scatter(source, rows(torch.float64, 2))
            with refused(ValueError, "[1, 6]", "at least [2, 6]"):
                group.reduce_scatter(source, rows(count=1))
            with refused(ValueError, "[2, 7]", "at least [2, 6]"):
                group.reduce_scatter(source, torch.ones(2, 7))
            with refused(ValueError, "out must be contiguous", "strides (1, 2)"):
                group.reduce_scatter(source, torch.ones(HIDDEN, 2).t())
            with refused(ValueError, "out is on meta"):
                group.reduce_scatter(source, torch.ones(2, HIDDEN, device="meta"))
            with refused(ValueError, "out overlaps a", "must be the caller's memory"):
                group.reduce_scatter(source, window[:2])
            with refused(ValueError, "out overlaps a", "must be the caller's memory"):
                group.reduce_scatter(source, window[2:])
        with refused(ValueError, "out overlaps a window"):
            group.reduce_scatter(rows(torch.int32), window.view(torch.int32)[:2])
        mine = rows()
        other = 1 - rank
        with refused(ValueError, "out overlaps input", "exactly the own rows"):
            group.reduce_scatter(mine, mine[2 * other : 2 * other + 2])
        with refused(ValueError, "out overlaps input"):
            group.reduce_scatter(mine, mine[1:3])
        with refused(ValueError, "out overlaps input"):
            group.reduce_scatter(mine, mine)
        assert bool((window == 1).all())
        assert bool((mine == 1).all())
        assert bool((group.reduce_scatter(window) == world).all())
        works(group, world)


def gather_inputs(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        wrong_tensors(group, group.all_gather)
        wrong_sizes(group.all_gather, world)
        with refused(ValueError, "4 rows", f"sizes[{rank}] = 3"):
            group.all_gather(rows(), sizes=3)
        with refused(ValueError, "5 rows", f"sizes[{rank}] = 2"):
            group.all_gather(rows(count=5), sizes=[2, 2], padded_to=4)
        with refused(ValueError, "[7, 6]", "at least [8, 6]"):
            group.all_gather(rows(), rows(count=7))
        whole = rows(count=8)
        with refused(ValueError, "out overlaps input"):
            group.all_gather(whole[2:6], whole)
        works(group, world)


def windows_and_roles(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        acquire = group.acquire
        with refused(ValueError, "role 'combined'", "combine, dispatch"):
            acquire("combined", (ROWS, HIDDEN), torch.float32)
        with refused(ValueError, "(-1, 6)"):
            acquire("combine", (-1, HIDDEN), torch.float32)
        with refused(ValueError, "(4, 0)"):
            acquire("combine", (ROWS, 0), torch.float32)
        with refused(ValueError, "(rows, hidden)"):
            acquire("combine", (ROWS,), torch.float32)
        with refused(TypeError, "shape must be an integer, got 4.5"):
            acquire("combine", (4.5, HIDDEN), torch.float32)  # type: ignore[arg-type]
        with refused(TypeError, "torch.dtype"):
            acquire("combine", (ROWS, HIDDEN), float)  # type: ignore[arg-type]
        with refused(TypeError, "float8_e5m2"):
            acquire("combine", (ROWS, HIDDEN), torch.float8_e5m2)
        with refused(ValueError, "lane 99"):
            acquire("combine", (ROWS, HIDDEN), torch.float32, lane=99)
        with refused(ValueError, "stream"):
            acquire("combine", (ROWS, HIDDEN), torch.float32, stream=object())
        with refused(ValueError, "lanes=17", "1..16"):
            group.reserve(ROWS, HIDDEN, torch.float32, lanes=17)
        with refused(ValueError, "rows=-1"):
            group.reserve(-1, HIDDEN, torch.float32)
        with refused(ValueError, "role 'both'"):
            group.reserve(ROWS, HIDDEN, torch.float32, roles=("both",))

        window = acquire("combine", [ROWS, HIDDEN], torch.float32)
        sent = acquire("dispatch", (ROWS, HIDDEN), torch.float32)
        assert window is not None
        assert sent is not None
        window.fill_(1)
        with refused(ValueError, "dispatch"):
            group.reduce_scatter(sent)
        with refused(ValueError, "combine"):
            group.all_gather(window)
        with refused(ValueError, "lane 0", "lane 1"):
            group.reduce_scatter(window, lane=1)
        assert bool((group.reduce_scatter(window) == world).all())
        for view in (window, window[:2]):
            with refused(ValueError, "reduced already", "acquire"):
                group.reduce_scatter(view)
        works(group, world)
        assert rank < world


def combine_inputs(rank: int, world: int) -> None:
    experts = torch.ones(ROWS, 3, HIDDEN)
    weights = torch.ones(ROWS, 3)
    index = torch.zeros(ROWS, 3, dtype=torch.int32)
    pairs = torch.ones(5, HIDDEN)
    with symmoe.init(device="cpu") as group:
        call = group.combine
        with refused(TypeError, "int32", f"combine on rank {rank}"):
            call(experts.to(torch.int32))
        with refused(TypeError, "float8_e4m3fn"):
            call(experts.to(torch.float8_e4m3fn))
        with refused(TypeError, "topk_weights is float16, expected float32"):
            call(experts, weights.half())
        with refused(ValueError, "[4, 2]", "[4, 3]"):
            call(experts, weights[:, :2].contiguous())
        with refused(ValueError, "topk_weights must be contiguous"):
            call(experts, weights.t().contiguous().t())
        with refused(ValueError, "[M, K, H]", "[6]"):
            call(torch.ones(HIDDEN))
        with refused(ValueError, "with an index", "[4, 3, 6]"):
            call(experts, weights, index=index)
        with refused(TypeError, "index is int16"):
            call(pairs, weights, index=index.to(torch.int16))
        with refused(TypeError, "scale must be a number, got 'x'"):
            call(experts, weights, scale="x")  # type: ignore[arg-type]
        with refused(ValueError, "requires a gradient"):
            call(experts.clone().requires_grad_())
        with refused(ValueError, "overlaps expert_out"):
            call(pairs[:4], out=pairs[2:4])
        with refused(ValueError, "4 rows", "sum(sizes) = 3"):
            call(experts, weights, sizes=[1, 2])
        out = torch.full((2, HIDDEN), 7.0)
        for wrong in (5, -2, 2**31 - 1):
            bad = index.clone()
            bad[2, 1] = wrong
            with refused(ValueError, str(wrong)):
                call(pairs, weights, index=bad, out=out)
        assert bool((out == 7).all())
        assert bool((call(experts, weights) == 3 * world).all())
        with refused(ValueError, "'broadcast'"):
            group.explain("broadcast", experts)
        with refused(ValueError, "5 rows"):
            group.explain("reduce_scatter", pairs)
        works(group, world)


def works(group: symmoe.Group, world: int) -> None:
    """After all that the group is as good as new."""
    group.check()
    for source in (rows(), group.acquire("combine", (ROWS, HIDDEN), torch.float32)):
        assert source is not None
        source.fill_(2)
        assert bool((group.reduce_scatter(source) == 2 * world).all())


@pytest.mark.parametrize(
    "case", [reduce_inputs, outputs, gather_inputs, windows_and_roles, combine_inputs]
)
def test_refused(ranks: Ranks, case: Callable[[int, int], None]) -> None:
    ranks.run(2, case)


def sensible_numbers(rank: int, world: int) -> None:
    """Numpy's integers and arrays are integers."""
    import numpy as np

    with symmoe.init(device="cpu") as group:
        sizes: tuple[Any, ...] = (np.int64(2), np.array([1, 3]), range(2, 0, -1), [np.int32(4), 0])
        for given in sizes:
            counts = [2, 2] if isinstance(given, np.int64) else [int(it) for it in given]
            found = group.reduce_scatter(rows(count=sum(counts)), sizes=given, lane=np.int64(1))
            assert found.shape == (counts[rank], HIDDEN)
            assert bool((found == world).all())
            window = group.acquire("combine", (sum(counts), HIDDEN), torch.float32)
            assert window is not None
            window.fill_(1)
            found = group.reduce_scatter(window, sizes=given)
            assert found.shape == (counts[rank], HIDDEN)
        changing = [torch.tensor(1), torch.tensor(3)]
        for _ in range(2):
            window = group.acquire("combine", (4, HIDDEN), torch.float32)
            assert window is not None
            window.fill_(1)
            found = group.reduce_scatter(window, sizes=changing)  # type: ignore[arg-type]
            assert found.shape[0] == changing[rank]
            changing[0] += 2
            changing[1] -= 2


def test_numpy_numbers(ranks: Ranks) -> None:
    ranks.run(2, sensible_numbers)
