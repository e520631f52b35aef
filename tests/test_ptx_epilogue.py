"""Kernels with an epilogue, as nvcc emitted them, run by the PTX interpreter: the CPU's bits."""

from __future__ import annotations

import pytest

import ptx
from ptx.compiler import ARCHITECTURES
from ptx.device_kernels import BF16, EPILOGUE, F16, F32, PULL, PULL_EPILOGUE, entries, module
from ptx.epilogue_problems import Steps, finish, pull_and_finish
from ptx.peer_problems import Pull
from test_ptx import mutant, named

# The first of them waits for nvcc.
pytestmark = pytest.mark.timeout(300)
EVERYWHERE = pytest.mark.parametrize("architecture", ARCHITECTURES)
KINDS = pytest.mark.parametrize("kind", [BF16, F16, F32], ids=["bf16", "f16", "f32"])
INT8, FLOAT8 = 1, 2


def entry(kind: int, columns: str = "Wide") -> str:
    return entries("apply_epilogue", EPILOGUE)[columns, str(kind), str(kind)]


@EVERYWHERE
@KINDS
def test_apply_epilogue(architecture: str, kind: int) -> None:
    programs = module("apply_epilogue", architecture)
    wide, narrow = programs[entry(kind)], programs[entry(kind, "Narrow")]
    for seed, steps in enumerate(
        [
            Steps(scale="first"),
            Steps(norm=kind),
            Steps(scale="last", norm=F32, quantized=INT8),
            Steps(shared=False, norm=kind, quantized=FLOAT8),
            Steps(residual=False, quantized=FLOAT8),
        ]
    ):
        for program, hidden in ((wide, 72), (narrow, 77)):
            with named((steps, hidden)):
                finish(program, steps, kind, hidden, seed=seed)
    full = Steps(scale="last", norm=kind, quantized=INT8)
    # Several groups of columns per thread; and fewer rows than there is room for.
    finish(wide, full, kind, 64 * 8 + 16)
    for own in (2, 0):
        finish(wide, full, kind, 72, own=own)


@EVERYWHERE
@KINDS
def test_pull_epilogue(architecture: str, kind: int) -> None:
    programs = module("pull_epilogue", architecture)
    plain = module("pull_reduce", architecture)[
        entries("pull_reduce", PULL)["Wide", str(kind), str(kind), "ManyRanks"]
    ]
    for columns, at_once in (("Wide", "FewRanks"), ("Wide", "ManyRanks"), ("Narrow", "OneByOne")):
        name = entries("pull_epilogue", PULL_EPILOGUE)[columns, str(kind), str(kind), at_once]
        for seed, (problem, steps) in enumerate(
            [
                (Pull(kind, 72, sizes=(3, 1)), Steps(scale="first", norm=kind)),
                (
                    Pull(kind, 72, sizes=(2, 0, 1), device="packed", masked=True, blocks=1),
                    Steps(norm=F32, quantized=INT8),
                ),
            ]
        ):
            with named((problem, steps)):
                pull_and_finish(programs[name], problem, steps, plain, seed)


@EVERYWHERE
@pytest.mark.parametrize(
    ("pattern", "by", "words"),
    [
        (r"bar\.sync\s+0;", "", "since the last barrier|unwritten bytes at shared"),
        (r"div\.rn\.f32(\s+\S+), (\S+), (\S+);", r"mul.rn.f32\1, \2, \3;", "differ"),
        (r"(ld\.global\.)(v4\.)", r"\1nc.\2", "which other processors write"),
    ],
    ids=["no-barrier", "times", "cached"],
)
def test_planted_faults_in_apply_epilogue(
    architecture: str, pattern: str, by: str, words: str
) -> None:
    changed = mutant("apply_epilogue", architecture, entry(BF16), pattern, by)
    with pytest.raises((AssertionError, ptx.PtxError), match=words):
        finish(changed, Steps(norm=BF16), BF16, 72)
