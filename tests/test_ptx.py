"""The device kernels as nvcc emitted them, run by the PTX interpreter: the CPU kernels' bits."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

import ptx
from ptx.compiler import ARCHITECTURES
from ptx.device_kernels import (
    BF16,
    COPY,
    F16,
    F32,
    RANK,
    TOPK,
    UNIT_BYTES,
    entries,
    module,
    source_names,
    texts,
)
from ptx.problems import Ranks, Sum, copy, rank_sum, topk

# The first of them waits for nvcc.
pytestmark = pytest.mark.timeout(300)
EVERYWHERE = pytest.mark.parametrize("architecture", ARCHITECTURES)
NAMES = {BF16: "bf16", F16: "f16", F32: "f32"}


@contextlib.contextmanager
def named(problem: object) -> Iterator[None]:
    """Says which problem a failure belongs to; many are run in one test."""
    try:
        yield
    except (AssertionError, ptx.PtxError) as error:
        raise AssertionError(f"{problem}: {type(error).__name__}: {error}") from error


def topk_cases() -> list[tuple[str, Sum]]:
    """Every instance, with each of the ways to call it."""
    cases = []
    for (columns, kind, out, fixed), name in sorted(entries("topk_reduce", TOPK).items()):
        wide, slots = columns == "Wide", int(fixed) or 3
        plain = Sum(int(kind), int(out), slots, 24 if wide else 13)
        plain = replace(plain, offset=0 if wide else 1)
        cases += [
            (name, plain),
            (name, replace(plain, weights="own", index=64, scale=0.7)),
            (name, replace(plain, weights="none", index=32)),
        ]
        if slots <= 3 and kind == out:
            shared = replace(plain, tokens=4, index=32, sizes=(1, 2))
            cases += [(name, shared), (name, replace(shared, device=True))]
            # Several groups of columns per thread, several chunks, and more slots than a tile has.
            cases.append((name, replace(plain, hidden=plain.hidden + 520, chunks=5, tokens=2)))
        if fixed == "0" and kind == out:
            cases.append((name, replace(plain, slots=33, index=32)))
    return cases


@EVERYWHERE
@pytest.mark.parametrize("columns", ["Wide", "Narrow"])
@pytest.mark.parametrize("kind", [BF16, F16, F32], ids=NAMES.values())
def test_topk_reduce(architecture: str, columns: str, kind: int) -> None:
    programs = module("topk_reduce", architecture)
    ran = 0
    for seed, (name, problem) in enumerate(topk_cases()):
        if problem.kind == kind and f"{columns}Columns" in name:
            with named(problem):
                topk(programs[name], problem, seed)
            ran += 1
    assert ran > 0


@EVERYWHERE
@pytest.mark.parametrize("kind", [BF16, F16, F32], ids=NAMES.values())
def test_rank_reduce(architecture: str, kind: int) -> None:
    name = entries("rank_reduce", RANK)[(str(kind),)]
    program = module("rank_reduce", architecture)[name]
    problems = [
        Ranks(kind, ranks, own, count=77, head=own % 3)
        for ranks in (1, 2, 3, 4, 5, 8, 9)
        for own in sorted({0, ranks // 2, ranks - 1})
    ]
    problems += [Ranks(kind, 3, 1, count=21, head=0, aligned=False), Ranks(kind, 2, 0, 1, 0)]
    for seed, problem in enumerate(problems):
        with named(problem):
            rank_sum(program, problem, 10 * seed)


@EVERYWHERE
def test_copy_to_window(architecture: str) -> None:
    for (unit_name,), name in entries("copy_to_window", COPY).items():
        unit = UNIT_BYTES[unit_name]
        program = module("copy_to_window", architecture)[name]
        for size in (unit, 7 * unit, 31 * unit + unit // 2, 50 * unit + 1):
            copy(program, unit, size, head=0)
            copy(program, unit, size, head=unit - 1)


def mutant(source: str, architecture: str, name: str, pattern: str, by: str) -> ptx.Program:
    """A kernel with one kind of instruction changed wherever the pattern finds it."""
    text = texts()[source, architecture]
    begin = text.index(f".entry {name}(")
    end = text.index("\n}", begin)
    changed, count = re.subn(pattern, by, text[begin:end])
    assert count > 0, f"{pattern} is not in {name} any more"
    return ptx.load(text[:begin] + changed + text[end:])[name]


def wide_topk(kind: int, slots: int) -> tuple[str, Sum]:
    name = entries("topk_reduce", TOPK)[("Wide", str(kind), str(kind), str(slots))]
    return name, Sum(kind, kind, slots, hidden=24)


@EVERYWHERE
@pytest.mark.parametrize(
    ("kind", "pattern", "by", "words"),
    [
        # The two halves of the packed result change places.
        (BF16, r"(cvt\.rn\.bf16x2\.f32 \S+), (\S+), (\S+);", r"\1, \3, \2;", "differ"),
        # A product and a sum with a rounding each.
        (
            F32,
            r"fma\.rn\.f32\s+(\S+), (\S+), (\S+), (\S+);",
            r"{.reg .f32 t; mul.rn.f32 t, \2, \3; add.rn.f32 \1, t, \4;}",
            "differ",
        ),
        (BF16, r"(ld\.global\.nc\.\S+v4\.u32 \{.*?\}, \[)(%rd\d+)\]", r"\1\2+8]", "misaligned"),
        (BF16, r"bar\.sync\s+0;", "", "since the last barrier|unwritten bytes at shared"),
        (BF16, r"(st\.global\.v4\.[uf]32 +\t?\[%rd\d+)\]", r"\1+16]", "out of bounds|differ"),
    ],
    ids=["swapped", "unfused", "misaligned", "no-barrier", "next-vector"],
)
def test_planted_faults_in_topk_reduce(
    architecture: str, kind: int, pattern: str, by: str, words: str
) -> None:
    name, problem = wide_topk(kind, 4)
    with pytest.raises((AssertionError, ptx.PtxError), match=words):
        topk(mutant("topk_reduce", architecture, name, pattern, by), problem)


@EVERYWHERE
def test_one_element_too_many_is_seen(architecture: str) -> None:
    name, problem = wide_topk(F32, 4)
    program = module("topk_reduce", architecture)[name]
    with pytest.raises(ptx.MemoryAccessError, match="out of bounds"):
        topk(program, replace(problem, short=4))
    narrow = entries("topk_reduce", TOPK)["Narrow", str(F16), str(F16), "0"]
    program = module("topk_reduce", architecture)[narrow]
    with pytest.raises(ptx.MemoryAccessError, match="out of bounds"):
        topk(program, Sum(F16, F16, 3, hidden=13, offset=1, short=2))


@EVERYWHERE
def test_planted_faults_in_rank_reduce(architecture: str) -> None:
    name = entries("rank_reduce", RANK)[(str(BF16),)]
    problem = Ranks(BF16, 3, 1, count=40, head=2)
    cached = mutant("rank_reduce", architecture, name, r"ld\.global\.(v4|u16)", r"ld.global.nc.\1")
    with pytest.raises(ptx.MemoryAccessError, match="other processors write"):
        rank_sum(cached, problem)
    program = module("rank_reduce", architecture)[name]
    with pytest.raises(ptx.MemoryAccessError, match="out of bounds"):
        rank_sum(program, replace(problem, short=2))


def test_every_source_is_tested() -> None:
    tested = [
        "apply_epilogue",
        "combine",
        "copy_to_window",
        "pull_epilogue",
        "pull_reduce",
        "rank_reduce",
        "route_mask",
        "topk_reduce",
    ]
    assert source_names() == tested
