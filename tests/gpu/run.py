"""`make gpu`: builds, tests and times the GPU path on this machine, with what is installed here.

Downloads nothing. The exit code is 0 only if everything passed; 2 if something needed is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "python" / "symmoe"
NEEDED = {"torch": "torch", "setuptools": "setuptools", "pybind11": "pybind11", "pytest": "pytest"}
SECONDS = 3600.0


@dataclass
class Verdict:
    """What came of one step or one test file.

    Attributes:
        name: What it was.
        passed: How many tests, or 1.
        failed: How many tests, or 1.
        skipped: Reasons.
    """

    name: str
    passed: int
    failed: int
    skipped: list[str]


def missing(emulated: bool) -> list[str]:
    """What this machine lacks, in words."""
    lacks = [f"Python package {name}" for name, module in NEEDED.items() if not _has(module)]
    if emulated:
        return lacks
    lacks += [tool for tool in ("cmake", "ninja", "g++") if shutil.which(tool) is None]
    if _nvcc() is None:
        lacks.append("nvcc (PATH, CUDACXX, CUDA_HOME or /usr/local/cuda)")
    if _has("torch"):
        import torch

        if not torch.version.cuda:
            lacks.append(f"a torch with CUDA (torch {torch.__version__} has none)")
        elif not torch.cuda.is_available():
            lacks.append("a GPU that torch can use")
    return lacks


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    named = os.environ.get("CUDACXX") or "nvcc"
    return shutil.which(named) or shutil.which("nvcc", path=f"{home}/bin")


def build() -> None:
    """Compiles the core and the CUDA back end in place.

    Raises:
        subprocess.CalledProcessError: It failed; the compiler has said why.
    """
    flags = f"{os.environ.get('CMAKE_ARGS', '')} -DSYMMOE_CUDA=ON".strip()
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"CMAKE_ARGS": flags})


def run_tests(environment: dict[str, str], arguments: list[str]) -> list[Verdict]:
    """Runs pytest on this folder; a verdict per file."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        here = Path(__file__).parent
        command = [sys.executable, "-m", "pytest", "-c", str(here / "pytest.ini"), str(here)]
        command += ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments]
        done = subprocess.run(command, cwd=ROOT, check=False, env=environment)
        verdicts: dict[str, Verdict] = {}
        if report.exists():
            for case in ElementTree.parse(report).getroot().iter("testcase"):
                name = str(case.get("classname", "")).rpartition(".")[2]
                verdict = verdicts.setdefault(name, Verdict(name, 0, 0, []))
                skip = case.find("skipped")
                if case.find("failure") is not None or case.find("error") is not None:
                    verdict.failed += 1
                elif skip is not None:
                    verdict.skipped.append(f"{case.get('name')}: {skip.get('message')}")
                else:
                    verdict.passed += 1
        found = list(verdicts.values())
        if done.returncode != 0 and not any(verdict.failed for verdict in found):
            found.append(Verdict(f"pytest ended with {done.returncode}", 0, 1, []))
        return found


def run_benchmark(
    environment: dict[str, str], emulated: bool, results: Path, extra: list[str]
) -> tuple[Verdict, str]:
    """Runs the micro-benchmark; what it printed."""
    device = "emulated" if emulated else "cuda"
    command = [sys.executable, "-m", "symmoe", "bench", "--device", device, "--json", str(results)]
    done = subprocess.run(
        [*command, *extra],
        cwd=ROOT,
        check=False,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    print(done.stdout, end="", flush=True)
    right = done.returncode == 0
    return Verdict("micro-benchmark", int(right), int(not right), []), done.stdout


def summary(verdicts: list[Verdict]) -> list[str]:
    """The short table."""
    lines = [f"{'':<28} {'passed':>7} {'failed':>7} {'skipped':>8}"]
    for verdict in verdicts:
        lines.append(
            f"{verdict.name:<28} {verdict.passed:>7} {verdict.failed:>7} {len(verdict.skipped):>8}"
        )
    reasons = [reason for verdict in verdicts for reason in verdict.skipped]
    lines += [f"  skipped: {reason}" for reason in reasons]
    failed = any(verdict.failed for verdict in verdicts)
    lines.append("FAILED" if failed else "all that could run here passed")
    return lines


def main() -> int:
    """The whole of it."""
    parser = argparse.ArgumentParser(
        prog="make gpu", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--emulated", action="store_true", help="a rehearsal without a GPU")
    parser.add_argument("--no-build", action="store_true", help="with what is built already")
    parser.add_argument("--name", default=None, help="of the results: gpu-NAME.json, gpu-NAME.txt")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results")
    parser.add_argument("--pytest", default="", help="further options, separated by blanks")
    parser.add_argument("--bench", default="", help="further options, separated by blanks")
    options = parser.parse_args()
    lacks = missing(options.emulated)
    if lacks:
        print(f"make gpu: this machine lacks: {'; '.join(lacks)}", file=sys.stderr)
        return 2
    name = options.name or _name_of_device(options.emulated)
    environment = dict(os.environ)
    environment["SYMMOE_GPU_TESTS"] = "emulated" if options.emulated else "cuda"
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if not options.no_build:
        print("== building", flush=True)
        try:
            build()
        except subprocess.CalledProcessError as error:
            print(f"make gpu: the build failed with {error.returncode}", file=sys.stderr)
            return 1
        paths = [str(PACKAGE.parent), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        if not options.emulated and not (PACKAGE / "libsymmoe_cuda.so").is_file():
            print("make gpu: the build left the CUDA back end out", file=sys.stderr)
            return 1
    print("== tests", flush=True)
    begin = time.monotonic()
    verdicts = run_tests(environment, options.pytest.split())
    print("== micro-benchmark", flush=True)
    options.results.mkdir(parents=True, exist_ok=True)
    numbers = options.results / f"gpu-{name}.json"
    numbers.unlink(missing_ok=True)
    verdict, printed = run_benchmark(environment, options.emulated, numbers, options.bench.split())
    verdicts.append(verdict)
    found = json.loads(numbers.read_text()) if numbers.exists() else {}
    found["tests"] = [vars(each) for each in verdicts]
    found["seconds"] = round(time.monotonic() - begin)
    numbers.write_text(json.dumps(found, indent=1) + "\n")
    text = [*summary(verdicts), ""]
    (options.results / f"gpu-{name}.txt").write_text(printed + "\n" + "\n".join(text))
    print("== summary\n" + "\n".join(text), flush=True)
    return 1 if any(each.failed for each in verdicts) else 0


def _name_of_device(emulated: bool) -> str:
    if emulated:
        return "emulated"
    import torch

    words = torch.cuda.get_device_name(0).replace("NVIDIA", "").split()
    return "-".join([*words, f"x{torch.cuda.device_count()}"]).lower()


if __name__ == "__main__":
    sys.exit(main())
