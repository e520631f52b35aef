"""Which nvcc and which disassemblers are found, among fake ones."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parent.parent / "tools"


@pytest.fixture
def toolchain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The finder on a machine that has nothing: no variables, an empty PATH, no wheels."""
    monkeypatch.syspath_prepend(str(TOOLS))
    module = importlib.import_module("cuda_toolchain")
    for variable in ("CUDACXX", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setattr(module, "DEFAULT_HOME", tmp_path / "no-home")
    monkeypatch.setattr(module.sysconfig, "get_path", lambda kind: str(tmp_path / "site"))
    return module


def fake(folder: Path, name: str, version: str) -> Path:
    """A program that states a version as NVIDIA's do."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release, V{version}'\n")
    program.chmod(0o755)
    return program


def test_nothing_there(toolchain: ModuleType) -> None:
    assert toolchain.find_all() == {"nvcc": None, "cuobjdump": None, "nvdisasm": None}
    with pytest.raises(toolchain.ToolchainError, match="--install"):
        toolchain.find_nvcc()


def test_order_of_places(
    toolchain: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = [fake(tmp_path / "site/nvidia/cu9/bin", "nvcc", "13.0.1")]
    found.append(fake(tmp_path / "site/nvidia/cu13/bin", "nvcc", "13.0.2"))
    assert toolchain.find_nvcc().path == found[-1], "the newest CUDA among the wheels"
    found.append(fake(tmp_path / "home/bin", "nvcc", "13.0.3"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert toolchain.find_nvcc().path == found[-1]
    found.append(fake(tmp_path / "path", "nvcc", "13.0.4"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/bin")
    assert toolchain.find_nvcc().path == found[-1]
    found.append(fake(tmp_path / "own", "nvcc-13", "13.0.5"))
    monkeypatch.setenv("CUDACXX", str(found[-1]))
    assert toolchain.find_nvcc().path == found[-1]
    assert toolchain.find_nvcc().version == (13, 0, 5)


def test_what_is_too_old_or_broken_is_passed_over(
    toolchain: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake(tmp_path / "path", "nvcc", "12.7.99")
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/bin")
    broken = fake(tmp_path / "home/bin", "nvcc", "13.0.1")
    broken.write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    right = fake(tmp_path / "site/nvidia/cu13/bin", "nvcc", "13.1.1")
    assert toolchain.find_nvcc().path == right
    # A disassembler may be newer than the compiler, never older.
    fake(tmp_path / "path", "cuobjdump", "13.0.9")
    assert toolchain.find_all()["cuobjdump"] is None
    newer = fake(tmp_path / "site/nvidia/cu13/bin", "cuobjdump", "13.2.1")
    assert toolchain.find_all()["cuobjdump"].path == newer


def test_the_program_says_what_it_found() -> None:
    command = [sys.executable, str(TOOLS / "cuda_toolchain.py")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["nvcc", "cuobjdump", "nvdisasm"]
    assert done.returncode == int("not found" in done.stdout)
