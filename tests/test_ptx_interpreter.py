"""The PTX interpreter itself: each operation against other arithmetic, each fault seen."""

from __future__ import annotations

import ctypes
import functools
import math
import random
import struct

import numpy as np
import pytest
import torch

import ptx

HEAD = ".version 8.7\n.target sm_90\n.address_size 64\n"
REGISTERS = ".reg .b32 %a<4>;.reg .b32 %r<9>;.reg .b16 %h<9>;.reg .b64 %d<9>;.reg .pred %p<9>;"
# Where float arithmetic is hard: zeros, subnormals, ties, the ends of the range, infinities, NaN.
HARD_F32 = [
    *(0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x3F800000, 0xBF800001),
    *(0x3F808000, 0x3F818000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000),
    *(0x7F800001, 0x33000000, 0x33000001, 0x38800000, 0x387FE000, 0x477FEFFF, 0x477FF000),
    *(0x0CFFFFFF, 0x1A000001, 0x00012345, 0x4B7FFFFF),
]


@functools.cache
def kernel(body: str, inputs: int) -> ptx.Program:
    """A kernel that reads `inputs` 64-bit numbers into %d1.., low halves in %a1.., writes %d0."""
    loads = "".join(
        f"ld.global.u64 %d{i}, [%d8+{8 * i}]; cvt.u32.u64 %a{i}, %d{i};"
        for i in range(1, inputs + 1)
    )
    text = f"{HEAD}.visible .entry k(.param .u64 p){{ {REGISTERS}\nld.param.u64 %d8, [p];"
    return ptx.load(f"{text}{loads}\n{body}\nst.global.u64 [%d8], %d0; ret; }}")["k"]


def evaluate(body: str, *inputs: int) -> int:
    memory = ptx.GlobalMemory()
    region = memory.add("numbers", struct.pack(f"<{len(inputs) + 1}Q", 0, *inputs))
    program = kernel(body, len(inputs))
    arguments = struct.pack("<Q", region.address)
    ptx.run(ptx.Launch(program, memory, arguments, (1, 1, 1), (1, 1, 1)))
    return int(region.array(np.uint64)[0])


def evaluate32(operation: str, *inputs: int) -> int:
    """An operation on %a1.. whose result is 32 bits wide."""
    names = ", ".join(f"%a{i}" for i in range(1, len(inputs) + 1))
    return evaluate(f"{operation} %r0, {names}; cvt.u64.u32 %d0, %r0;", *inputs)


def same_f32(got: int, expected: float) -> bool:
    if math.isnan(expected):
        return got == 0x7FFFFFFF
    return got == as_bits(expected)


def as_float(bits: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return value


def as_bits(value: float) -> int:
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return bits


def random_f32(generator: random.Random) -> int:
    return generator.choice([generator.getrandbits(32), generator.choice(HARD_F32)])


def test_fma_rounds_once() -> None:
    libm = ctypes.CDLL("libm.so.6")
    libm.fmaf.restype = ctypes.c_float
    libm.fmaf.argtypes = [ctypes.c_float] * 3
    generator = random.Random(1)
    twice = 0
    cases = [tuple(random_f32(generator) for _ in range(3)) for _ in range(1500)]
    # 24929 * 673 is a tie, 2^24 + 1; the addend is too small for float64 to keep beside it.
    for exponent in range(20, 60):
        cases.append((as_bits(24929.0), as_bits(673.0), as_bits(2.0**-exponent)))
        cases.append((as_bits(24929.0), as_bits(-673.0), as_bits(2.0**-exponent)))
    for a, b, c in cases:
        got = evaluate32("fma.rn.f32", a, b, c)
        assert same_f32(got, libm.fmaf(as_float(a), as_float(b), as_float(c))), (a, b, c)
        with np.errstate(all="ignore"):
            double = np.float32(np.float64(as_float(a)) * as_float(b) + as_float(c))
        twice += not same_f32(got, float(double))
    assert twice > 0, "no case in which rounding twice would be wrong"


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_float_arithmetic(name: str) -> None:
    generator = random.Random(2)
    compute = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[name]
    for _ in range(400):
        a, b = random_f32(generator), random_f32(generator)
        x, y = np.array([a, b], np.uint32).view(np.float32)
        with np.errstate(all="ignore"):
            expected = float(compute(x, y))
        assert same_f32(evaluate32(f"{name}.rn.f32", a, b), expected), (a, b)


def test_square_root() -> None:
    generator = random.Random(4)
    for bits in [*HARD_F32, *(generator.getrandbits(32) for _ in range(400))]:
        with np.errstate(all="ignore"):
            expected = float(np.sqrt(np.array([bits], np.uint32).view(np.float32))[0])
        assert same_f32(evaluate32("sqrt.rn.f32", bits), expected), hex(bits)


def test_min_and_max() -> None:
    nan, minus, plus = 0x7FC00001, 0x80000000, 0
    assert evaluate32("min.f32", plus, minus) == evaluate32("min.f32", minus, plus) == minus
    assert evaluate32("max.f32", plus, minus) == evaluate32("max.f32", minus, plus) == plus
    assert evaluate32("max.f32", nan, minus) == evaluate32("min.f32", minus, nan) == minus
    assert evaluate32("min.f32", nan, nan) == 0x7FFFFFFF
    assert evaluate32("neg.f32", plus) == minus
    assert evaluate32("abs.f32", 0xC0000000) == 0x40000000


@pytest.mark.parametrize(("kind", "dtype"), [("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_narrow_floats(kind: str, dtype: torch.dtype) -> None:
    generator = random.Random(3)
    patterns = HARD_F32 + [generator.getrandbits(32) for _ in range(300)]
    values = torch.tensor(np.array(patterns, np.uint32).view(np.float32))
    expected = values.to(dtype).view(torch.uint16).numpy()
    for bits, narrow in zip(patterns, expected, strict=True):
        wanted = 0x7FFF if math.isnan(as_float(bits)) else int(narrow)
        got = evaluate(f"cvt.rn.{kind}.f32 %h1, %a1; cvt.u64.u16 %d0, %h1;", bits)
        assert got == wanted, hex(bits)
        pair = evaluate32(f"cvt.rn.{kind}x2.f32", bits, 0x3F800000)
        assert pair >> 16 == wanted
        assert pair & 0xFFFF == {"f16": 0x3C00, "bf16": 0x3F80}[kind]
    for bits in [*range(0, 1 << 16, 97), 0x8000, 0xFFFF, 0x7C01, 0x7F81]:
        exact = torch.tensor([bits], dtype=torch.uint16).view(dtype).to(torch.float32)
        got = evaluate(
            f"cvt.u16.u32 %h1, %a1; cvt.f32.{kind} %r0, %h1; mov.b64 %d0, {{%r0,%r0}};", bits
        )
        assert same_f32(got & 0xFFFFFFFF, float(exact[0]))


def test_float_and_integer_conversions() -> None:
    for value in (0, 1, -1, 16777217, 16777219, -(1 << 31), (1 << 31) - 1):
        got = evaluate32("cvt.rn.f32.s32", value & 0xFFFFFFFF)
        assert same_f32(got, float(np.float32(value)))
    for value in ((1 << 40) + (1 << 16), (1 << 40) + (1 << 16) + 1, (1 << 64) - 1):
        got = evaluate("cvt.rn.f32.u64 %r0, %d1; cvt.u64.u32 %d0, %r0;", value)
        assert same_f32(got, float(np.uint64(value).astype(np.float32)))
    for number, expected in (
        (2.5, 2),
        (-2.5, -2),
        (3e9, 2**31 - 1),
        (-3e9, -(2**31)),
        (math.nan, 0),
    ):
        assert evaluate32("cvt.rzi.s32.f32", as_bits(number)) == expected & 0xFFFFFFFF
    assert evaluate32("cvt.rni.s32.f32", 0x40200000) == 2  # 2.5, the tie goes to even
    assert evaluate32("cvt.rpi.s32.f32", 0x40200000) == 3


def test_integer_conversions_extend_the_sign() -> None:
    assert evaluate("cvt.s64.s32 %d0, %a1;", 0xFFFFFFFE) == (1 << 64) - 2
    assert evaluate("cvt.u64.u32 %d0, %a1;", 0xFFFFFFFE) == 0xFFFFFFFE
    assert evaluate32("cvt.s32.s8", 0x180) == 0xFFFFFF80
    assert evaluate32("cvt.u32.u8", 0x180) == 0x80
    assert evaluate("ld.global.s8 %r0, [%d8+8]; cvt.u64.u32 %d0, %r0;", 0x80) == 0xFFFFFF80


def test_integer_arithmetic() -> None:
    generator = random.Random(4)
    for _ in range(200):
        a, b, c = (generator.getrandbits(32) for _ in range(3))
        x, y = (v - (1 << 32) if v >> 31 else v for v in (a, b))
        low = (1 << 32) - 1
        assert evaluate32("add.s32", a, b) == (a + b) & low
        assert evaluate32("sub.s32", a, b) == (a - b) & low
        assert evaluate32("mul.lo.s32", a, b) == a * b & low
        assert evaluate32("mul.hi.s32", a, b) == (x * y >> 32) & low
        assert evaluate32("mul.hi.u32", a, b) == a * b >> 32
        assert evaluate32("mad.lo.s32", a, b, c) == (a * b + c) & low
        assert evaluate("mul.wide.s32 %d0, %a1, %a2;", a, b) == x * y & (1 << 64) - 1
        assert evaluate32("div.s32", a, b or 1) == int(x / (y or 1)) & low
        assert evaluate32("rem.s32", a, b or 1) == math.fmod(x, y or 1) % (1 << 32)
        assert evaluate32("min.s32", a, b) == min(x, y) & low
        assert evaluate32("max.u32", a, b) == max(a, b)
        assert evaluate32("shl.b32", a, b & 63) == (a << (b & 63)) & low
        assert evaluate32("shr.s32", a, b & 63) == (x >> (b & 63)) & low
        assert evaluate32("shr.u32", a, b & 63) == a >> (b & 63)
        assert evaluate32("shf.l.wrap.b32", a, b, c) == ((b << 32 | a) << (c & 31) >> 32) & low
        assert evaluate32("not.b32", a) == ~a & low
        assert evaluate32("neg.s32", a) == -a & low
        assert evaluate32("popc.b32", a) == f"{a:b}".count("1")
        assert evaluate32("clz.b32", a) == 32 - len(f"{a:b}") if a else 32
        assert evaluate32("brev.b32", a) == int(f"{a:032b}"[::-1], 2)
        chosen = evaluate(
            "setp.lt.s32 %p1, %a1, %a2; selp.b32 %r0, %a1, %a2, %p1; cvt.u64.u32 %d0, %r0;", a, b
        )
        assert chosen == min(x, y) & low
        three = "lop3.b32 %r0, %a1, %a2, %a3, {}; cvt.u64.u32 %d0, %r0;"
        assert evaluate(three.format("0x96"), a, b, c) == a ^ b ^ c
        assert evaluate(three.format("0xCA"), a, b, c) == (a & b | ~a & c) & low
        assert evaluate("bfe.u32 %r0, %a1, 5, 9; cvt.u64.u32 %d0, %r0;", a) == a >> 5 & 0x1FF
        bfi = evaluate("bfi.b32 %r0, %a1, %a2, 4, 8; cvt.u64.u32 %d0, %r0;", a, b)
        assert bfi == b & ~0xFF0 | (a & 0xFF) << 4
    permuted = evaluate(
        "prmt.b32 %r0, %a1, %a2, 0xD610; cvt.u64.u32 %d0, %r0;", 0x44332211, 0x88776655
    )
    assert permuted == 0x00772211


def test_comparisons_of_nan() -> None:
    body = "setp.{}.f32 %p1, %a1, %a2; selp.u64 %d0, 1, 0, %p1;"
    results = {
        name: evaluate(body.format(name), 0x7FC00000, 0) for name in ("eq", "ne", "lt", "ge")
    }
    assert results == {"eq": 0, "ne": 0, "lt": 0, "ge": 0}
    results = {name: evaluate(body.format(name), 0x7FC00000, 0) for name in ("equ", "neu", "ltu")}
    assert results == {"equ": 1, "neu": 1, "ltu": 1}
    assert evaluate(body.format("eq"), 0x80000000, 0) == 1


def test_guards_and_loops() -> None:
    body = """
      mov.u64 %d0, 0;
    $again:
      setp.eq.u64 %p1, %d1, 0;
      @%p1 bra $done;
      add.s64 %d0, %d0, %d1;
      @!%p1 sub.s64 %d1, %d1, 1;
      bra $again;
    $done:
    """
    assert evaluate(body, 10) == 55


def test_a_value_that_is_not_wanted_may_be_missing() -> None:
    body = "and.b32 %r3, %r2, 255; setp.eq.u32 %p1, %a1, 7; selp.b32 %r4, %a1, %r3, %p1;"
    assert evaluate(f"{body} cvt.u64.u32 %d0, %r4;", 7) == 7
    with pytest.raises(ptx.UnsetRegisterError):
        evaluate(f"{body} cvt.u64.u32 %d0, %r4;", 6)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("mov.b64 %d0, {%r1, %a1};", "%d0 is used but has no value"),
        ("@%p3 mov.u64 %d0, 1;", "%p3 is used but has no value"),
        (
            "ld.global.u32 %r0, [%d8+16]; mov.u64 %d0, 1;",
            "out of bounds: read of 4 bytes at numbers",
        ),
        ("ld.global.v2.u32 {%r0, %r1}, [%d8+4];", "misaligned read of 8 bytes"),
        ("add.s64 %d2, %d8, %d3; ld.global.u64 %d0, [%d2];", "%d2 is used but has no value"),
        ("mov.u64 %d0, 0; $l: bra $l;", "has not ended"),
        ("ld.global.nc.u64 %d0, [%d8+8];", "which is read through the read-only cache"),
        ("mov.u64 %d0, 1; trap;", "trap"),
        ("div.s64 %d0, %d1, 0;", "division by zero"),
    ],
)
def test_faults(body: str, words: str) -> None:
    with pytest.raises(ptx.PtxError) as caught:
        evaluate(body, 1)
    assert words in str(caught.value)
    assert "thread 0" in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        "fma.rn.ftz.f32 %r0, %a1, %a1, %a1;",  # flushes subnormals
        "sqrt.approx.f32 %r0, %a1;",
        "ex2.approx.f32 %r0, %a1;",
        "div.full.f32 %r0, %a1, %a1;",
        "add.sat.s32 %r0, %a1, %a1;",
        "cvt.rz.bf16.f32 %h0, %a1;",
        "ld.acquire.global.u32 %r0, [%d8];",  # no scope
        "bar.sync 1, 32;",
        "mov.u64 %d0, nothing;",
        "add.s64 %d0, %a1, %d1;",  # a narrower register
    ],
)
def test_what_is_not_known_is_refused(body: str) -> None:
    with pytest.raises(ptx.UnknownPtxError):
        evaluate(body, 1)
