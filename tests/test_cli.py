"""The `symmoe` command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import symmoe
from symmoe import _core, cli, doctor
from symmoe.device import facts, libraries


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "symmoe", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | environment,
    )


@pytest.mark.multi
def test_doctor() -> None:
    done = run("doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["ok"]
    assert found["probe"]["path"] == "pull"
    assert found["versions"]["symmoe"] == symmoe.__version__ == found["versions"]["core"]
    assert found["machine"]["instruction_set"] in found["machine"]["instruction_sets"]


@pytest.mark.multi
def test_doctor_where_windows_do_not_work() -> None:
    done = run("doctor", SYMMOE_WINDOWS="0")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "path here, CPU tensors: process_group (windows are turned off" in done.stdout
    assert "SYMMOE_WINDOWS=0" in done.stdout


@pytest.mark.multi
def test_doctor_with_a_malformed_setting() -> None:
    done = run("doctor", SYMMOE_TIMEOUT="soon")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "SYMMOE_TIMEOUT='soon'" in done.stdout


def test_report_has_all_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"path": "pull", "reason": "as a test", "right": True, "first_call_us": 1}
    monkeypatch.setattr(doctor, "probe", lambda: answer)
    text = doctor.render(doctor.examine())
    last = "path here, CPU tensors: pull (as a test)"
    for word in ("torch", "instruction_sets", "memfd", "gloo", last):
        assert word in text


def test_gpu_part_and_device_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_device(path: str, ordinal: int) -> object:
        raise symmoe.UnavailableError(f"no {kind} device: no driver")

    for kind in facts.KINDS:
        monkeypatch.setattr(libraries, "back_end", lambda _: None)
        assert facts.gpu()[kind].startswith("not built: ")
        monkeypatch.setattr(libraries, "back_end", lambda _: Path("there.so"))
        monkeypatch.setattr(_core, "Device", no_device)
        assert facts.gpu()[kind] == "built; no device: no driver"


def test_tuning_table_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SYMMOE_TUNING", raising=False)
    assert "tuning" not in facts.gpu()
    file = tmp_path / "table.json"
    monkeypatch.setenv("SYMMOE_TUNING", str(file))
    assert facts.gpu()["tuning"].startswith("no: ")
    assert facts.gpu()["tuning"].endswith(f"there is no file {file}")
    file.write_text(json.dumps({"rows": [], "world": 2, "machine": {"kind": "host"}}))
    assert facts.gpu()["tuning"] == f"{file}: 0 lines for 2 ranks on host"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"symmoe {symmoe.__version__}\n"


def test_unknown_command() -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["improve"])
    assert ended.value.code == 2
