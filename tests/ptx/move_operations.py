"""Moves, conversions, comparisons and selection."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ptx.decode import Operands, Reader, Step, binary, evaluating, operation, unary
from ptx.errors import UnknownPtxError
from ptx.float_operations import FLOAT_COMPARE
from ptx.memory import LOCAL_WINDOW, SHARED_WINDOW
from ptx.numbers import (
    bf16_bits,
    bf16_value,
    f16_bits,
    f16_value,
    f32_bits,
    f32_from_int,
    f32_value,
    f64_bits,
    f64_value,
    int_from_float,
    signed,
)
from ptx.syntax import type_bits
from ptx.thread import Registers, Thread


@operation("mov")
def _move(operands: Operands) -> Step:
    bits = type_bits(operands.type())
    operands.done(2)
    if operands.text(1) == "%globaltimer":
        return _look_at_clock(operands, bits)
    if operands.text(0).startswith("{"):
        return _unpack(operands, bits)
    if operands.text(1).startswith("{"):
        return _pack(operands, bits)
    return unary(operands.write(0, bits), lambda value: value, operands.read(1, bits))


def _look_at_clock(operands: Operands, bits: int) -> Step:
    write = operands.write(0, bits)
    return lambda thread: write(thread.registers, thread.look_at_clock())


def _shifted_right(places: int, value: int) -> int:
    return value >> places


def _unpack(operands: Operands, bits: int) -> Step:
    names = operands.vector(0)
    width = bits // len(names)
    writes = [operands.write(name, width) for name in names]
    source = operands.read(1, bits)

    steps = []
    for place, write in enumerate(writes):
        steps.append(unary(write, partial(_shifted_right, place * width), source))

    def step(thread: Thread) -> None:
        for part in steps:
            part(thread)

    return step


def _pack(operands: Operands, bits: int) -> Step:
    names = operands.vector(1)
    width = bits // len(names)
    parts = [operands.read(name, width) for name in names]

    def join(registers: Registers) -> int:
        value = 0
        for place, part in enumerate(parts):
            value |= part(registers) << (place * width)
        return value

    return evaluating(operands.write(0, bits), join)


WINDOWS = {"global": 0, "param": 0, "shared": SHARED_WINDOW, "local": LOCAL_WINDOW}


@operation("cvta")
def _generic_address(operands: Operands) -> Step:
    if operands.type() != "u64":
        raise UnknownPtxError("cvta of another type than u64")
    away = operands.take("to") is not None
    space = operands.take(*WINDOWS, "shared::cta") or "generic"
    window = WINDOWS.get(space.removesuffix("::cta"))
    operands.done(2)
    if window is None:
        raise UnknownPtxError(f"cvta of {space}")
    shift = -window if away else window
    return unary(operands.write(0, 64), lambda value: value + shift, operands.read(1, 64))


TO_FLOAT: dict[str, Callable[[int], float]] = {
    "f16": f16_value,
    "bf16": bf16_value,
    "f32": f32_value,
    "f64": f64_value,
}
FROM_FLOAT: dict[str, Callable[[float], int]] = {
    "f16": f16_bits,
    "bf16": bf16_bits,
    "f32": f32_bits,
    "f64": f64_bits,
}


@operation("cvt")
def _convert(operands: Operands) -> Step:
    source, target = operands.type(), operands.type()
    mode = operands.take("rn", "rzi", "rni", "rmi", "rpi")
    if target in ("f16x2", "bf16x2"):
        return _convert_pair(operands, source, target, mode)
    operands.done(2)
    if target not in FROM_FLOAT and source not in TO_FLOAT:
        if mode is not None:
            raise UnknownPtxError(f"rounding .{mode} between integers")
        write = operands.write_extended(0, target)
        return unary(write, lambda value: value, operands.read_number(1, source))
    return unary(
        operands.write(0, type_bits(target)),
        _float_conversion(source, target, mode),
        operands.read(1, type_bits(source)),
    )


def _float_conversion(source: str, target: str, mode: str | None) -> Callable[[int], int]:
    if target in FROM_FLOAT and source in TO_FLOAT:
        # Two roundings would be wrong, so float64 goes to float32 alone.
        narrows = type_bits(target) < type_bits(source)
        if (mode == "rn") != narrows or (source == "f64" and target != "f32"):
            raise UnknownPtxError(f"cvt.{mode} from .{source} to .{target}")
        value_of, bits_of = TO_FLOAT[source], FROM_FLOAT[target]
        return lambda pattern: bits_of(value_of(pattern))
    if source in TO_FLOAT and mode in ("rzi", "rni", "rmi", "rpi"):
        value_of, bits = TO_FLOAT[source], type_bits(target)
        is_signed = target.startswith("s")
        return lambda pattern: int_from_float(value_of(pattern), mode, bits, is_signed)
    if target == "f32" and mode == "rn":
        bits = type_bits(source)
        if source.startswith("s"):
            return lambda pattern: f32_from_int(signed(pattern, bits))
        return f32_from_int
    raise UnknownPtxError(f"cvt.{mode} from .{source} to .{target}")


def _convert_pair(operands: Operands, source: str, target: str, mode: str | None) -> Step:
    """cvt.rn.bf16x2.f32 d, a, b: a becomes the upper half."""
    if source != "f32" or mode != "rn":
        raise UnknownPtxError(f"cvt.{mode} from .{source} to .{target}")
    operands.done(3)
    bits_of = FROM_FLOAT[target.removesuffix("x2")]

    def convert(upper: int, lower: int) -> int:
        return bits_of(f32_value(upper)) << 16 | bits_of(f32_value(lower))

    return binary(operands.write(0, 32), convert, operands.read(1, 32), operands.read(2, 32))


INTEGER_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lo": lambda a, b: a < b,
    "ls": lambda a, b: a <= b,
    "hi": lambda a, b: a > b,
    "hs": lambda a, b: a >= b,
}
COMBINE: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}


def _comparison(kind: str, relation: str | None) -> Callable[[int, int], bool]:
    if kind in TO_FLOAT and relation in FLOAT_COMPARE:
        value_of, compare = TO_FLOAT[kind], FLOAT_COMPARE[relation]
        return lambda a, b: compare(value_of(a), value_of(b))
    if kind not in TO_FLOAT and relation in INTEGER_COMPARE:
        return INTEGER_COMPARE[relation]
    raise UnknownPtxError(f"comparison .{relation} of .{kind}")


@operation("setp")
def _set_predicate(operands: Operands) -> Step:
    kind = operands.type()
    relation = operands.modifiers.pop(0)
    compare = _comparison(kind, relation)
    combine = operands.take(*COMBINE)
    targets = operands.text(0).split("|")
    a, b = operands.read_number(1, kind), operands.read_number(2, kind)
    operands.done(3 if combine is None else 4)
    other: Reader | None = None if combine is None else operands.read(3, 1)

    def holds(negated: int, registers: Registers) -> int:
        result = int(compare(a(registers), b(registers))) ^ negated
        if combine is not None and other is not None:
            result = COMBINE[combine](result, other(registers))
        return result

    steps = []
    for negated, target in enumerate(targets):
        write = operands.write(target, 1)
        steps.append(evaluating(write, partial(holds, negated)))
    if len(steps) == 1:
        return steps[0]

    def step(thread: Thread) -> None:
        for part in steps:
            part(thread)

    return step


@operation("selp")
def _select(operands: Operands) -> Step:
    bits = type_bits(operands.type())
    operands.done(4)
    a, b, chosen = operands.read(1, bits), operands.read(2, bits), operands.read(3, 1)
    # The other one need not have a value.
    return evaluating(
        operands.write(0, bits),
        lambda registers: a(registers) if chosen(registers) else b(registers),
    )
