"""float32 arithmetic with one rounding per operation; no flush to zero, nothing approximate."""

from __future__ import annotations

import math
from collections.abc import Callable

from ptx.decode import Operands, Step, binary, operation, ternary, unary
from ptx.errors import UnknownPtxError
from ptx.numbers import NAN32, f32_bits, f32_value, fma_f32

SIGN = 0x80000000


def _add(a: int, b: int) -> int:
    return f32_bits(f32_value(a) + f32_value(b))


def _subtract(a: int, b: int) -> int:
    return f32_bits(f32_value(a) - f32_value(b))


def _multiply(a: int, b: int) -> int:
    return f32_bits(f32_value(a) * f32_value(b))


def _divide(a: int, b: int) -> int:
    """Of doubles, whose rounding does not show behind that to float32."""
    dividend, divisor = f32_value(a), f32_value(b)
    if divisor != 0:
        return f32_bits(dividend / divisor)
    if dividend == 0 or math.isnan(dividend):
        return NAN32
    return 0x7F800000 | ((a ^ b) & SIGN)


def _root(a: int) -> int:
    value = f32_value(a)
    return NAN32 if math.isnan(value) or value < 0 else f32_bits(math.sqrt(value))


def _is_nan(bits: int) -> bool:
    return bits & ~SIGN > 0x7F800000


def _order(bits: int) -> tuple[float, bool]:
    """Sorts -0 below +0."""
    return f32_value(bits), not bits & SIGN


def _choose(pick: Callable[[int, int], int]) -> Callable[[int, int], int]:
    """For min and max: a NaN loses against a number."""

    def choose(a: int, b: int) -> int:
        if _is_nan(a) or _is_nan(b):
            return NAN32 if _is_nan(a) and _is_nan(b) else b if _is_nan(a) else a
        return pick(a, b)

    return choose


TWO: dict[str, Callable[[int, int], int]] = {
    "add": _add,
    "sub": _subtract,
    "mul": _multiply,
    "div": _divide,
    "min": _choose(lambda a, b: min(a, b, key=_order)),
    "max": _choose(lambda a, b: max(a, b, key=_order)),
}
ONE: dict[str, Callable[[int], int]] = {"neg": lambda a: a ^ SIGN, "abs": lambda a: a & ~SIGN}


def float_arithmetic(operands: Operands, kind: str) -> Step:
    """Operations that integers have as well."""
    # .rn is what add, sub and mul do without it too, but then ptxas may contract them.
    if kind != "f32" or operands.name not in TWO | ONE:
        raise UnknownPtxError(f"{operands.name} of .{kind}")
    # Others are approximate without it.
    if operands.take("rn") is None and operands.name == "div":
        raise UnknownPtxError("div that is not .rn")
    write = operands.write(0, 32)
    if operands.name in ONE:
        operands.done(2)
        return unary(write, ONE[operands.name], operands.read(1, 32))
    operands.done(3)
    return binary(write, TWO[operands.name], operands.read(1, 32), operands.read(2, 32))


@operation("sqrt")
def _sqrt(operands: Operands) -> Step:
    kind = operands.type()
    if kind != "f32" or operands.take("rn") is None:
        raise UnknownPtxError(f"sqrt of .{kind}, or not .rn")
    operands.done(2)
    return unary(operands.write(0, 32), _root, operands.read(1, 32))


@operation("fma")
def _fma(operands: Operands) -> Step:
    kind = operands.type()
    if kind != "f32" or operands.take("rn") is None:
        raise UnknownPtxError(f"fma of .{kind}, or not .rn")
    operands.done(4)
    read = [operands.read(index, 32) for index in (1, 2, 3)]
    return ternary(operands.write(0, 32), fma_f32, *read)


FLOAT_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a == a and b == b and a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "equ": lambda a, b: not (a < b or a > b),
    "neu": lambda a, b: a != b,
    "ltu": lambda a, b: not a >= b,
    "leu": lambda a, b: not a > b,
    "gtu": lambda a, b: not a <= b,
    "geu": lambda a, b: not a < b,
    "num": lambda a, b: not (math.isnan(a) or math.isnan(b)),
    "nan": lambda a, b: math.isnan(a) or math.isnan(b),
}
