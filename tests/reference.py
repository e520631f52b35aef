"""What the results must be, bit for bit, computed the slow way with numpy and torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def _fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """float32 a * b + c with one rounding.

    The product is exact in float64. The sum is rounded to odd there, so that rounding it once more,
    to float32, gives what a single rounding would have.
    """
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = np.broadcast_to(c, product.shape).astype(np.float64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    bits = total.view(np.int64)
    inexact = np.isfinite(total) & (error != 0) & (bits % 2 == 0)
    away = (error > 0) == (total > 0)  # the exact sum is larger in magnitude
    odd = np.where(away, bits + 1, bits - 1).view(np.float64)
    with np.errstate(over="ignore"):
        return np.where(inexact, odd, total).astype(np.float32)


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().to(torch.float32).numpy()


def topk_sum(
    expert_out: torch.Tensor,
    weights: torch.Tensor | None = None,
    index: torch.Tensor | None = None,
    scale: float | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The top-k weighted sum: first present term, then fma over the present slots in order."""
    rows = _to_numpy(expert_out)
    if index is not None:
        chosen = index.numpy()
        present = chosen >= 0
        none = np.zeros((*chosen.shape, rows.shape[1]), dtype=np.float32)
        rows = rows[np.maximum(chosen, 0)] if rows.shape[0] else none
    else:
        rows = rows if rows.ndim == 3 else rows[:, None, :]
        present = np.ones(rows.shape[:2], dtype=bool)
    tokens, slots, hidden = rows.shape
    total = np.zeros((tokens, hidden), dtype=np.float32)
    started = np.zeros(tokens, dtype=bool)
    with np.errstate(all="ignore"):
        for slot in range(slots):
            term = rows[:, slot]
            if weights is None:
                first, later = term, total + term
            else:
                weight = _to_numpy(weights)[:, slot, None]
                first, later = weight * term, _fma(weight, term, total)
            here = present[:, slot]
            total = np.where((here & ~started)[:, None], first, total)
            total = np.where((here & started)[:, None], later, total)
            started |= here
        if scale is not None:
            total = total * np.float32(scale)
    return torch.from_numpy(total).to(dtype or expert_out.dtype)


def rank_sum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Sum in the order given, in fp32 for floating types, with one rounding."""
    dtype = parts[0].dtype
    wide = torch.float32 if dtype in DTYPES else dtype
    total = parts[0].to(wide)
    for part in parts[1:]:
        total = total + part.to(wide)
    return total.to(dtype)


def own_rows(sizes: Sequence[int], rank: int, padded_to: int | None = None) -> slice:
    """Where a rank's rows are."""
    begin = sum(sizes[:rank]) if padded_to is None else rank * padded_to
    return slice(begin, begin + sizes[rank])


def noise(seed: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Numbers that every process can make again from the seed."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(*shape, generator=generator).to(dtype)
    return torch.randint(-50 if dtype.is_signed else 0, 50, tuple(shape), generator=generator).to(
        dtype
    )


def assert_same_bits(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal bits, signed zeros included; any NaN equals any NaN."""
    assert found.dtype is expected.dtype, (found.dtype, expected.dtype)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    if not found.dtype.is_floating_point:
        assert torch.equal(found, expected)
        return
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[found.dtype.itemsize]
    same = found.contiguous().view(integers) == expected.contiguous().view(integers)
    same |= found.isnan() & expected.isnan()
    if not bool(same.all()):
        where = (~same).nonzero()[0].tolist()
        here = tuple(where)
        raise AssertionError(
            f"{int((~same).sum())} of {same.numel()} differ, first at {where}: "
            f"{found[here].item()!r}, expected {expected[here].item()!r}"
        )
