"""Integers of a given width, and floats with the GPU's rounding, both as bit patterns.

Python computes in float64. Of two float32 that is exact for a product, and near enough for a sum
that rounding once more changes nothing; the fused product and sum needs rounding to odd in between.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import numpy as np

# What the arithmetic instructions and conversions give for any NaN.
NAN32 = 0x7FFFFFFF
NAN16 = 0x7FFF
INF16 = 0x7C00
INF32 = 0x7F800000

_unpack_u16 = struct.Struct("<H").unpack
_unpack_u32 = struct.Struct("<I").unpack
_unpack_u64 = struct.Struct("<Q").unpack
_unpack_f16 = struct.Struct("<e").unpack
_unpack_f32 = struct.Struct("<f").unpack
_unpack_f64 = struct.Struct("<d").unpack
_pack_u16 = struct.Struct("<H").pack
_pack_u32 = struct.Struct("<I").pack
_pack_u64 = struct.Struct("<Q").pack
_pack_f16 = struct.Struct("<e").pack
_pack_f32 = struct.Struct("<f").pack
_pack_f64 = struct.Struct("<d").pack


def signed(value: int, bits: int) -> int:
    """The two's complement reading of an unsigned pattern."""
    return value - (1 << bits) if value >> (bits - 1) else value


def f32_value(bits: int) -> float:
    """A float32 pattern as a Python float."""
    value: float = _unpack_f32(_pack_u32(bits))[0]
    return value


def f32_bits(value: float) -> int:
    """Rounds to the nearest float32, ties to even."""
    if value != value:
        return NAN32
    try:
        bits: int = _unpack_u32(_pack_f32(value))[0]
    except OverflowError:
        return INF32 | (0x80000000 if value < 0 else 0)
    return bits


def f64_value(bits: int) -> float:
    """A float64 pattern as a Python float."""
    value: float = _unpack_f64(_pack_u64(bits))[0]
    return value


def f64_bits(value: float) -> int:
    """A Python float as its pattern."""
    bits: int = _unpack_u64(_pack_f64(value))[0]
    return bits


def f16_value(bits: int) -> float:
    """A float16 pattern as a Python float."""
    value: float = _unpack_f16(_pack_u16(bits))[0]
    return value


def f16_bits(value: float) -> int:
    """Rounds a float32 value to the nearest float16, ties to even."""
    if value != value:
        return NAN16
    try:
        bits: int = _unpack_u16(_pack_f16(value))[0]
    except OverflowError:
        return INF16 | (0x8000 if value < 0 else 0)
    return bits


def bf16_value(bits: int) -> float:
    """A bfloat16 pattern as a Python float."""
    return f32_value(bits << 16)


def bf16_bits(value: float) -> int:
    """Rounds a float32 value to the nearest bfloat16, ties to even."""
    if value != value:
        return NAN16
    bits = f32_bits(value)
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def fma_f32(a: int, b: int, c: int) -> int:
    """Computes a * b + c of float32 patterns with a single rounding."""
    product = f32_value(a) * f32_value(b)
    addend = f32_value(c)
    total = product + addend
    if total - total == 0.0:  # finite
        part = total - product
        error = (product - (total - part)) + (addend - part)
        if error and not f64_bits(total) & 1:
            total = math.nextafter(total, math.inf if error > 0.0 else -math.inf)
    return f32_bits(total)


def f32_from_int(value: int) -> int:
    """Rounds an integer of up to 64 bits to the nearest float32, in one step."""
    kind = np.int64 if value < 0 else np.uint64
    return int(np.array(value, kind).astype(np.float32).view(np.uint32))


def int_from_float(value: float, mode: str, bits: int, is_signed: bool) -> int:
    """Rounds to an integer as cvt does: values out of range saturate, NaN gives 0."""
    if value != value:
        return 0
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
    if math.isinf(value):
        return low if value < 0 else high
    rounding: dict[str, Callable[[float], int]] = {
        "rzi": math.trunc,
        "rni": round,
        "rmi": math.floor,
        "rpi": math.ceil,
    }
    rounded = rounding[mode](value)
    return max(low, min(high, rounded))
