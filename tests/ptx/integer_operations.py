"""Integer arithmetic, logic and bit fields."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ptx.decode import Operands, Step, binary, evaluating, operation, ternary, unary
from ptx.errors import PtxError, UnknownPtxError
from ptx.float_operations import float_arithmetic
from ptx.syntax import type_bits
from ptx.thread import Registers

Compute2 = Callable[[int, int], int]


def _divide(a: int, b: int) -> int:
    if b == 0:
        raise PtxError("division by zero")
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


def _remainder(a: int, b: int) -> int:
    return a - b * _divide(a, b)


SIMPLE: dict[str, Compute2] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "div": _divide,
    "rem": _remainder,
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}


@operation("add", "sub", "div", "rem", "min", "max", "and", "or", "xor")
def _two(operands: Operands) -> Step:
    kind = operands.type()
    if "f" in kind:
        return float_arithmetic(operands, kind)
    operands.done(3)
    a, b = operands.read_number(1, kind), operands.read_number(2, kind)
    return binary(operands.write(0, type_bits(kind)), SIMPLE[operands.name], a, b)


@operation("mul", "mad")
def _multiply(operands: Operands) -> Step:
    kind = operands.type()
    if "f" in kind:
        return float_arithmetic(operands, kind)
    bits = type_bits(kind)
    part = operands.take("lo", "hi", "wide")
    if part is None:
        raise UnknownPtxError("which half of the product?")
    shift = bits if part == "hi" else 0
    width = 2 * bits if part == "wide" else bits
    a, b = operands.read_number(1, kind), operands.read_number(2, kind)
    write = operands.write(0, width)
    if operands.name == "mul":
        operands.done(3)
        return binary(write, lambda x, y: x * y >> shift, a, b)
    operands.done(4)
    c = operands.read_number(3, f"{kind[0]}{width}")
    return ternary(write, lambda x, y, z: (x * y >> shift) + z, a, b, c)


@operation("neg", "abs", "not", "cnot")
def _one(operands: Operands) -> Step:
    kind = operands.type()
    if "f" in kind:
        return float_arithmetic(operands, kind)
    operands.done(2)
    compute: dict[str, Callable[[int], int]] = {
        "neg": lambda a: -a,
        "abs": abs,
        "not": lambda a: a ^ 1 if kind == "pred" else ~a,
        "cnot": lambda a: int(a == 0),
    }
    write = operands.write(0, type_bits(kind))
    return unary(write, compute[operands.name], operands.read_number(1, kind))


@operation("shl", "shr")
def _shift(operands: Operands) -> Step:
    kind = operands.type()
    bits = type_bits(kind)
    operands.done(3)
    value, count = operands.read_number(1, kind), operands.read(2, 32)
    left = operands.name == "shl"

    def shift(x: int, n: int) -> int:
        n = min(n, bits)
        return x << n if left else x >> n

    return binary(operands.write(0, bits), shift, value, count)


@operation("shf")
def _funnel(operands: Operands) -> Step:
    if operands.type() != "b32":
        raise UnknownPtxError("shf of another type than b32")
    direction = operands.take("l", "r")
    clamp = operands.take("clamp", "wrap") == "clamp"
    operands.done(4)

    def shift(low: int, high: int, n: int) -> int:
        n = min(n, 32) if clamp else n & 31
        wide = high << 32 | low
        return wide << n >> 32 if direction == "l" else wide >> n

    read = [operands.read(index, 32) for index in (1, 2, 3)]
    return ternary(operands.write(0, 32), shift, *read)


def _permute(a: int, b: int, selector: int) -> int:
    source = (b << 32 | a).to_bytes(8, "little")
    result = 0
    for place in range(4):
        choice = selector >> (4 * place) & 15
        byte = source[choice & 7]
        if choice & 8:
            byte = 0xFF if byte & 0x80 else 0
        result |= byte << (8 * place)
    return result


@operation("prmt")
def _prmt(operands: Operands) -> Step:
    kind = operands.type()
    if kind != "b32":
        raise UnknownPtxError(f"prmt of .{kind}")
    operands.done(4)
    return ternary(
        operands.write(0, 32), _permute, *(operands.read(index, 32) for index in (1, 2, 3))
    )


@operation("lop3")
def _lop3(operands: Operands) -> Step:
    if operands.type() != "b32":
        raise UnknownPtxError("lop3 of another type than b32")
    operands.done(5)
    table = int(operands.text(4), 0)

    def lookup(a: int, b: int, c: int) -> int:
        result = 0
        for row in range(8):
            if table >> row & 1:
                result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        return result

    read = [operands.read(index, 32) for index in (1, 2, 3)]
    return ternary(operands.write(0, 32), lookup, *read)


def _reverse(bits: int, value: int) -> int:
    return int(f"{value:0{bits}b}"[::-1], 2)


@operation("popc", "clz", "brev")
def _count(operands: Operands) -> Step:
    kind = operands.type()
    bits = type_bits(kind)
    operands.done(2)
    compute: dict[str, Callable[[int], int]] = {
        "popc": lambda value: value.bit_count(),
        "clz": lambda value: bits - value.bit_length(),
        "brev": partial(_reverse, bits),
    }
    result = bits if operands.name == "brev" else 32
    return unary(operands.write(0, result), compute[operands.name], operands.read(1, bits))


@operation("bfe")
def _extract(operands: Operands) -> Step:
    kind = operands.type()
    bits = type_bits(kind)
    operands.done(4)

    def extract(value: int, begin: int, length: int) -> int:
        begin, length = begin & 0xFF, length & 0xFF
        if length == 0:
            return 0
        # Places beyond the value repeat its sign, which a Python integer has of itself.
        length = min(length, bits)
        field = value >> begin & ((1 << length) - 1)
        if kind.startswith("s") and field >> (length - 1):
            field -= 1 << length
        return field

    a = operands.read_number(1, kind)
    return ternary(operands.write(0, bits), extract, a, operands.read(2, 32), operands.read(3, 32))


@operation("bfi")
def _insert(operands: Operands) -> Step:
    kind = operands.type()
    bits = type_bits(kind)
    operands.done(5)
    field, base = operands.read(1, bits), operands.read(2, bits)
    begin_of, length_of = operands.read(3, 32), operands.read(4, 32)

    def insert(registers: Registers) -> int:
        begin, length = begin_of(registers) & 0xFF, length_of(registers) & 0xFF
        mask = ((1 << length) - 1) << begin
        return base(registers) & ~mask | field(registers) << begin & mask

    return evaluating(operands.write(0, bits), insert)
