"""Kernels that wait for peers, as nvcc emitted them, run by the PTX interpreter on all ranks."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import ptx
from ptx.compiler import ARCHITECTURES
from ptx.device_kernels import BF16, COMBINE, F16, F32, PULL, ROUTE, entries, module
from ptx.peer_problems import Pull, combine, late, pull, route
from test_ptx import mutant, named

# The first of them waits for nvcc.
pytestmark = pytest.mark.timeout(300)
EVERYWHERE = pytest.mark.parametrize("architecture", ARCHITECTURES)
KINDS = pytest.mark.parametrize("kind", [BF16, F16, F32], ids=["bf16", "f16", "f32"])


def pull_entry(kind: int, columns: str = "Wide", at_once: str = "ManyRanks") -> str:
    return entries("pull_reduce", PULL)[columns, str(kind), str(kind), at_once]


@EVERYWHERE
@KINDS
def test_pull_reduce(architecture: str, kind: int) -> None:
    programs = module("pull_reduce", architecture)
    for at_once in ("FewRanks", "ManyRanks"):
        program = programs[pull_entry(kind, at_once=at_once)]
        for seed, problem in enumerate(
            [
                Pull(kind, 24),
                Pull(kind, 24, sizes=(0, 4, 1), masked=True, blocks=3),
                Pull(kind, 24, sizes=(2, 1), device="packed", masked=True, blocks=1),
                Pull(kind, 24, sizes=(1, 2, 1, 1, 1), device="padded", blocks=1),
            ]
        ):
            with named(problem):
                pull(program, problem, seed)
    program = programs[pull_entry(kind, "Narrow", "OneByOne")]
    for problem in (Pull(kind, 13, aligned=False), Pull(kind, 13, masked=True, aligned=False)):
        with named(problem):
            pull(program, problem)


@EVERYWHERE
@KINDS
def test_combine(architecture: str, kind: int) -> None:
    programs = module("combine", architecture)
    ran = 0
    for (columns, input_kind, out, slots, _), name in entries("combine", COMBINE).items():
        if int(out) != kind:
            continue
        wide = columns == "Wide"
        problem = Pull(kind, 24 if wide else 13, (2, 1), blocks=2, aligned=wide)
        problem = replace(problem, slots=int(slots) or 3, input_kind=int(input_kind))
        for masked in (False, True):
            with named(problem):
                combine(programs[name], replace(problem, masked=masked), seed=ran)
        ran += 1
    assert ran > 0


@EVERYWHERE
def test_route_mask(architecture: str) -> None:
    (name,) = entries("route_mask", ROUTE).values()
    program = module("route_mask", architecture)[name]
    hashes = {route(program, wide, 70, blocks) for wide in (False, True) for blocks in (1, 2)}
    assert len(hashes) == 1
    assert route(program, False, 69, 2) not in hashes
    padded = {route(program, False, 70, blocks, (20, 0, 9, 30, 1)) for blocks in (1, 2)}
    assert len(padded) == 1
    assert not padded & hashes
    assert route(program, False, 70, 1, (70, 0, 0, 0, 0)) in hashes


@EVERYWHERE
def test_a_peer_that_never_comes(architecture: str) -> None:
    program = module("pull_reduce", architecture)[pull_entry(BF16)]
    fault = late(program, Pull(BF16, 24, blocks=1))
    assert (fault.kind, fault.subject, fault.detail, fault.value) == (7, 1, 0, 1)


@EVERYWHERE
@pytest.mark.parametrize(
    ("pattern", "by", "words"),
    [
        # Peers' rows through a cache that does not see their stores.
        (r"ld\.global\.(v4\.)", r"ld.global.nc.\1", "other processors write"),
        # An epoch that is not counted: the second call finds the signals of the first.
        (r"(add\.s32 +\t?%r\d+, %r\d+, )1;", r"\g<1>0;", "differ|epochs"),
        (
            r"bar\.red\.and\.pred\s+(\S+), 0, (\S+);",
            r"mov.pred \1, \2;",
            "since the last barrier|unwritten bytes at shared",
        ),
    ],
    ids=["cached", "epoch", "no-barrier"],
)
def test_planted_faults_in_pull_reduce(
    architecture: str, pattern: str, by: str, words: str
) -> None:
    changed = mutant("pull_reduce", architecture, pull_entry(BF16), pattern, by)
    with pytest.raises((AssertionError, ptx.PtxError), match=re.compile(words, re.DOTALL)):
        pull(changed, Pull(BF16, 24, sizes=(2, 2)), calls=2)
