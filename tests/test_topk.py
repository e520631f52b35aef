"""topk_reduce: the same bits as the slow reference, on every instruction set and in every mode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import symmoe
from ranks import fresh
from reference import DTYPES, assert_same_bits, noise, topk_sum
from symmoe import _core, cores

ISAS = _core.available_isas()


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _core.isa_name()
    _core.set_isa(request.param)
    yield request.param
    _core.set_isa(before)


@pytest.fixture(params=[False, True], ids=["", "flush-denormal"])
def flush(request: pytest.FixtureRequest) -> Iterator[bool]:
    yield request.param
    torch.set_flush_denormal(False)


def check(
    flush: bool,
    expert_out: torch.Tensor,
    weights: torch.Tensor | None = None,
    index: torch.Tensor | None = None,
    scale: float | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    right = topk_sum(expert_out, weights, index, scale, dtype)
    out = torch.full_like(right, 7)
    torch.set_flush_denormal(flush)
    found = symmoe.topk_reduce(expert_out, weights, out=out, index=index, scale=scale)
    torch.set_flush_denormal(False)
    assert found is out
    assert_same_bits(out, right)


@pytest.mark.parametrize("hidden", [1, 7, 16, 33, 2048, 2051])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dense(isa: str, dtype: torch.dtype, hidden: int) -> None:
    assert isa == _core.isa_name()
    for slots in (1, 2, 3, 8):
        expert_out = noise(slots, (5, slots, hidden), dtype)
        weights = noise(slots + 1, (5, slots), torch.float32)
        check(False, expert_out, weights)
        check(False, expert_out, weights.to(dtype), scale=-1.7)
        check(False, expert_out)
        check(False, expert_out[:, 0].contiguous())


@pytest.mark.parametrize("out_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_types(isa: str, dtype: torch.dtype, out_dtype: torch.dtype) -> None:
    assert isa
    expert_out = noise(3, (4, 3, 100), dtype)
    weights = noise(4, (4, 3), torch.float32)
    check(False, expert_out, weights, dtype=out_dtype)
    check(False, expert_out, dtype=out_dtype, scale=3)


@pytest.mark.parametrize("integer", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_index(isa: str, dtype: torch.dtype, integer: torch.dtype) -> None:
    assert isa
    rows = noise(1, (9, 70), dtype)
    index = torch.tensor([[0, 8, -1], [-1, -1, -1], [3, 3, 3], [-1, 5, -1], [8, -1, 0]]).to(integer)
    weights = noise(2, (5, 3), dtype)
    check(False, rows, weights, index)
    check(False, rows, None, index)
    check(False, rows, weights, index, 0.5)
    none = torch.full((4, 2), -1, dtype=integer)
    check(False, torch.empty(0, 70, dtype=dtype), None, none)


def extremes(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Zeros of both signs, subnormals, the largest and smallest numbers, infinities, NaN."""
    limits = torch.finfo(dtype)
    tiny = limits.smallest_normal
    values = [0.0, -0.0, tiny, -tiny, tiny / 2, -tiny / 4, limits.max, limits.min, 1.0, -1.0]
    values += [limits.eps, 1 + limits.eps, float("inf"), float("-inf"), float("nan"), 3e-39]
    generator = torch.Generator().manual_seed(shape[-1])
    chosen = torch.randint(len(values), shape, generator=generator)
    return torch.tensor(values, dtype=torch.float64).to(dtype)[chosen]


@pytest.mark.parametrize("out_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_extremes(isa: str, flush: bool, dtype: torch.dtype, out_dtype: torch.dtype) -> None:
    assert isa
    for slots in (1, 2, 4):
        expert_out = extremes(dtype, (8, slots, 129))
        check(flush, expert_out, extremes(torch.float32, (8, slots)), dtype=out_dtype)
        check(flush, expert_out, extremes(dtype, (8, slots)), scale=0.25, dtype=out_dtype)
        check(flush, expert_out, dtype=out_dtype)


def test_a_small_scale_counts(flush: bool) -> None:
    """A scale below the smallest normal number is not flushed on its way to the kernel."""
    out = torch.empty(1, 8)
    symmoe.topk_reduce(torch.full((1, 1, 8), 2.0**120), scale=2.0**-130, out=out)
    assert bool((out.view(torch.int32) == torch.tensor(2.0**-10).view(torch.int32)).all()), flush


def test_signed_zero() -> None:
    expert_out = torch.full((1, 2, 40), -0.0)
    out = torch.ones(1, 40)
    symmoe.topk_reduce(expert_out, out=out)
    assert bool(torch.signbit(out).all())  # starting from +0 would lose the sign
    symmoe.topk_reduce(expert_out[0], out=out, index=torch.full((1, 3), -1))
    assert not bool(torch.signbit(out).any())


def test_any_alignment(isa: str) -> None:
    assert isa
    for dtype in DTYPES:
        for shift in range(1, 33, 5):
            memory = torch.zeros(4 * 3 * 50 + shift, dtype=dtype)
            expert_out = memory[shift:].view(4, 3, 50)
            expert_out.copy_(noise(shift, (4, 3, 50), dtype))
            target = torch.zeros(4 * 50 + shift + 3, dtype=dtype)
            out = target[shift : shift + 200].view(4, 50)
            symmoe.topk_reduce(expert_out, out=out)
            assert_same_bits(out, topk_sum(expert_out))
            assert not target[:shift].any()
            assert not target[shift + 200 :].any()


def with_threads(rank: int, world: int) -> list[int]:
    """How many threads a sum has started, for several numbers of them: the same bits."""
    shape = (1200, 4, 1025)  # 12 MB: less is not worth waking anybody for
    expert_out, weights = noise(1, shape, torch.bfloat16), noise(2, shape[:2], torch.float32)
    right = topk_sum(expert_out, weights)
    started = []
    cores.thread_limit = 3
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        out = torch.empty(1200, 1025, dtype=torch.bfloat16)
        before = len(list(Path("/proc/self/task").iterdir()))
        symmoe.topk_reduce(expert_out, weights, out=out)
        started.append(len(list(Path("/proc/self/task").iterdir())) - before)
        assert torch.equal(out.view(torch.int16), right.view(torch.int16))
    return started


@pytest.mark.multi
def test_threads_do_not_change_the_bits() -> None:
    with fresh() as workers:  # in which no thread was started before
        assert workers.run(1, with_threads, distributed=False) == [[0, 1, 1]]


def test_reference_has_one_rounding() -> None:
    """The reference itself against exact arithmetic."""
    from fractions import Fraction

    from reference import _fma

    generator = np.random.default_rng(1)
    a, b, c = (generator.standard_normal(2000).astype(np.float32) for _ in range(3))
    c *= np.float32(2.0) ** generator.integers(-30, 4, 2000).astype(np.float32)
    found = _fma(a, b, c)
    for x, y, z, result in zip(a, b, c, found, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        neighbours = [np.nextafter(result, np.float32(side)) for side in (-np.inf, np.inf)]
        distance = abs(Fraction(float(result)) - exact)
        assert all(distance <= abs(Fraction(float(other)) - exact) for other in neighbours)


def test_refused() -> None:
    experts = torch.ones(4, 2, 6)
    out = torch.zeros(4, 6)
    cases: list[tuple[type[Exception], str, dict[str, object]]] = [
        (TypeError, "out is float64", {"out": out.double()}),
        (ValueError, r"\[3, 6\], expected \[M, H\] = \[4, 6\]", {"out": out[:3]}),
        (ValueError, "contiguous", {"out": torch.zeros(6, 4).t()}),
        (ValueError, "overlaps expert_out", {"out": experts.view(8, 6)[:4]}),
        (TypeError, "topk_weights is float64", {"topk_weights": torch.ones(4, 2).double()}),
        (ValueError, r"expected \[M, K\] = \[4, 2\]", {"topk_weights": torch.ones(2, 4)}),
        (ValueError, "with an index", {"index": torch.zeros(4, 2, dtype=torch.int32)}),
        (TypeError, "scale", {"scale": True}),
        (ValueError, "stream", {"stream": 1}),
    ]
    for kind, text, arguments in cases:
        with pytest.raises(kind, match=text):
            symmoe.topk_reduce(experts, **({"out": out} | arguments))  # type: ignore[arg-type]
    for bad in (2, -2):
        index = torch.zeros(4, 2, dtype=torch.int64)
        index[3, 1] = bad
        with pytest.raises(ValueError, match=str(bad)):
            symmoe.topk_reduce(torch.ones(2, 6), out=out, index=index)
    with pytest.raises(TypeError, match="float8"):
        symmoe.topk_reduce(experts.to(torch.float8_e5m2), out=out)
    assert not out.any()
