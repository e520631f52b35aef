"""The checks of machine code see what they are there for: planted kernels must be reported."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ptx.compiler import CASES, ROOT

# The first of them waits for nvcc.
pytestmark = pytest.mark.timeout(300)
TOOLS = ROOT / "tools"


@pytest.fixture
def checker(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("check_device")


def check(case: str, *options: str) -> tuple[int, str]:
    source = str(CASES / f"{case}.cu")
    command = [sys.executable, str(TOOLS / "check_device.py"), "--source", source, *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_a_vector_kernel_passes() -> None:
    code, said = check("vector_copy")
    assert code == 0, said
    assert "3 device kernels, 0 breaches" in said
    assert "| `vector_copy` |" in said


@pytest.mark.parametrize(
    ("case", "options", "breaches"),
    [
        ("scalar_copy", (), ["0 loads of 16 bytes", "0 stores of 16 bytes"]),
        ("vector_copy", ("--define", "CACHED"), ["through the read-only cache: LDG.E"]),
        ("flush", (), ["flushes subnormals: FADD.FTZ"]),
        ("local_array", ("--loose",), ["32 bytes of stack memory", "accesses of local memory"]),
        (
            "local_array",
            ("--loose", "--define", "SPILL"),
            ["bytes of stack memory", "accesses of local memory"],
        ),
    ],
    ids=["scalar", "cached", "flush", "local", "spill"],
)
def test_planted_kernels_are_reported(
    case: str, options: tuple[str, ...], breaches: list[str]
) -> None:
    code, said = check(case, *options)
    assert code == 1
    for architecture in ("sm_80", "sm_90", "sm_100"):
        lines = "\n".join(line for line in said.splitlines() if f"({architecture})" in line)
        for breach in breaches:
            assert breach in lines, said


@pytest.mark.parametrize(
    ("define", "words"),
    [((), "Local memory used"), (("--define", "SPILL"), "Registers are spilled")],
    ids=["local", "spill"],
)
def test_ptxas_refuses_by_itself(define: tuple[str, ...], words: str) -> None:
    code, said = check("local_array", *define)
    assert code == 1
    assert words in said


def test_narrow_accesses_among_vectors_are_reported(checker: ModuleType) -> None:
    sass = importlib.import_module("sass")
    text = """
 Function k:
  REG:20 STACK:0 SHARED:0 LOCAL:0
		Function : k
        /*0000*/                   MOV R1, c[0x0][0x28] ;         /* 0x0 */
        /*0010*/              @!P0 LDG.E.NA.128.CONSTANT R4, desc[UR4][R2.64] ;  /* 0x0 */
        /*0020*/                   LDG.E.U16 R8, desc[UR4][R2.64+0x20] ;  /* 0x0 */
        /*0030*/                   STG.E.128 desc[UR4][R12.64], R4 ;  /* 0x0 */
        /*0040*/               @P0 BRA 0x10 ;                     /* 0x0 */
        /*0050*/                   EXIT ;                         /* 0x0 */
        /*0060*/                   BRA 0x60;                      /* 0x0 */
"""
    (kernel,) = sass.parse(text, "")
    assert kernel.registers == 20
    assert [instruction.offset for instruction in kernel.vector_body] == [16, 32, 48, 64]
    rule = checker.Rule(1, 1, read_only_cache=True)
    (breach,) = checker.breaches(kernel, rule)
    assert "LDG.E.U16 R8" in breach
    assert not list(checker.breaches(kernel, checker.Rule(1, 1, 1, read_only_cache=True)))
    assert "read-only cache" in next(iter(checker.breaches(kernel, checker.Rule(1, 1, 1))))
    assert list(checker.breaches(kernel, None)), "a kernel that nobody has a rule for"


def test_occupancy(checker: ModuleType) -> None:
    table = importlib.import_module("kernel_table")
    sass = importlib.import_module("sass")
    gpu = table.MULTIPROCESSORS["sm_90"]

    def occupancy(registers: int, shared: int = 0, threads: int = 256) -> float:
        resources = {"REG": registers, "SHARED": shared}
        share: float = gpu.occupancy(sass.Kernel("k", resources, threads))
        return share

    assert occupancy(32) == 1.0
    assert occupancy(33) == 0.75  # 40 registers: 6 blocks of 8 warps
    assert occupancy(255) == 0.125
    assert occupancy(16, shared=100 * 1024) == 0.25
    assert occupancy(16, threads=32) == 0.5  # 32 blocks at most


def test_names(checker: ModuleType) -> None:
    name = "_ZN6symmoe7kernels4cuda11rank_reduceILNS_5DTypeE1EEEvNS0_16RankReduceLaunchEll"
    assert checker.short_name(name) == "rank_reduce<fp16>"
    assert checker.rule_for("rank_reduce<fp16>") is not None
    assert checker.rule_for("another<fp16>") is None


def test_a_stale_document_is_reported(
    checker: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    document = tmp_path / "device_kernels.md"
    document.write_text(f"Words.\n\n{checker.MARK}\n| old |\n")
    monkeypatch.setattr(checker, "DOCUMENT", document)
    monkeypatch.setattr(checker, "DOCUMENTED_NVCC", checker.find_nvcc().version)
    assert checker.check_document("| new |\n")
    checker.write_document("| new |\n")
    assert not checker.check_document("| new |\n")
    assert document.read_text().startswith("Words.\n")


@pytest.mark.parametrize("under_ci", [True, False])
def test_a_machine_without_hip(
    checker: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    under_ci: bool,
) -> None:
    monkeypatch.setattr(checker.hip_compiler, "COMPILERS", ())
    monkeypatch.setenv("CI", "true" if under_ci else "")
    breaches = checker.check_hip()
    said = capsys.readouterr().out
    assert bool(breaches) == under_ci
    assert ("HIP NOT CHECKED" in said) != under_ci


def test_what_clang_refuses_is_reported(
    checker: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.cu"
    bad.write_text("__global__ void bad(int* p) { *p = unknown; }\n")
    monkeypatch.setattr(checker.hip_compiler, "device_sources", lambda: [bad])
    under_ci = os.environ.get("CI") == "true"
    monkeypatch.setenv("CI", "")
    breaches = checker.check_hip()
    if checker.hip_compiler.check().compiler is None:
        assert not under_ci, "CI installs a clang with HIP"
        pytest.skip(f"no clang with HIP: {checker.hip_compiler.PACKAGES}")
    (breach,) = breaches
    assert "use of undeclared identifier 'unknown'" in breach
