"""The command line of `symmoe bench`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from . import peers
from .backend import BUILT_IN, ROUTED_PATHS, load_file
from .errors import BenchError
from .machine import usable_cpus
from .problem import (
    ELEMENT_BYTES,
    MODES,
    PLAIN_EXPERTS,
    Problem,
    of_shape,
    of_size,
    parse_size,
)
from .shapes import SHAPES, find_shape
from .sweep import Effort
from .workers import Setting

_SIZES = "4K,32K,256K,512K,1M,2M,4M,8M,32M"
_QUICK_SIZES = "4K,64K,512K,4M"
_OWN_PATHS = ["pull", "staged", "gloo", "gloo_allreduce"]
_ALL = "all"
_QUICK_PATHS = ["pull", "staged", "gloo"]
_TOPK = 2
DEVICE_SIZES = {"cuda": "512K,1M,2M,4M,8M", "emulated": "4K"}
DEVICE_HIDDEN = {"cuda": "8192,2048,7168,2880", "emulated": "64"}
DEVICE_TOPK = {"cuda": 8, "emulated": 2}
_DEFAULT_SHAPES = {
    "collective": "",
    "combine": "mixtral-8x7b,qwen3-235b",
    "topk": "llama-4-maverick,mixtral-8x7b,qwen3-235b,nemotron-3-super",
}
# In mode topk: enough tokens that the input is no smaller than this.
_TOPK_INPUT_BYTES = 64 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the benchmark's options. Lists are given with commas."""
    add = parser.add_argument
    add("--device", default="cpu", choices=("cpu", *DEVICE_SIZES), help="(default cpu)")
    add(
        "--ranks",
        default=None,
        help="processes, such as 2,4 (default 2,4; cuda one per GPU, but at least 2; emulated 2)",
    )
    add(
        "--dtype",
        default=None,
        help=f"of {','.join(ELEMENT_BYTES)} (default bf16,fp32; others bf16)",
    )
    add(
        "--sizes",
        default=None,
        help=f"output per rank (default {_SIZES}; {_of_devices(DEVICE_SIZES)})",
    )
    add(
        "--paths",
        default=None,
        help=f"of {','.join(BUILT_IN)} (default: all installed but routed; all: with routed)."
        " With routed, experts are spread over the ranks for all paths",
    )
    add(
        "--mode",
        default=None,
        choices=MODES,
        help="what is timed (default collective; cuda and emulated combine,collective)",
    )
    add(
        "--shape",
        action="append",
        default=None,
        help=f"model shapes, with commas or given again: {','.join(SHAPES)}",
    )
    add(
        "--hidden",
        default=None,
        help=f"elements per row, not with cpu (default {_of_devices(DEVICE_HIDDEN)})",
    )
    add(
        "--topk",
        type=int,
        default=None,
        help=f"experts per token, with --sizes (default {_TOPK}, in collectives 1;"
        f" {_of_devices(DEVICE_TOPK)})",
    )
    add("--tokens", default=None, help="tokens per rank, with --shape (default 16,128,1024)")
    add("--json", type=Path, metavar="FILE", help="write all results")
    add("--plot", type=Path, metavar="FILE", help="draw time over size (PNG; needs matplotlib)")
    add("--quick", action="store_true", help="few sizes, few rounds")
    add(
        "--rounds", type=int, default=None, help="turns of each path (default 5; emulated always 1)"
    )
    add("--seconds", type=float, default=None, help="what a turn should take (default 0.15)")
    add("--threads", type=int, default=1, help="threads per rank (default 1, as for the limit)")
    add("--no-pin", action="store_true", help="let ranks move between processors")
    add(
        "--backend-file",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="Python file with further symmoe.bench.Backend classes; may be given again",
    )
    add("--peers", type=Path, default=None, metavar="DIR", help="where peers are installed")
    add("--timeout", type=float, default=300.0, help="seconds a turn may take (default 300)")


def _of_devices(defaults: Mapping[str, object]) -> str:
    return "; ".join(f"{device} {default}" for device, default in defaults.items())


def split(text: str) -> list[str]:
    """The parts between commas, each once."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def integers(name: str, text: str) -> list[int]:
    """Positive numbers with commas between them.

    Raises:
        BenchError: Something else.
    """
    parts = split(text)
    if not parts or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise BenchError(f"{name} {text}: positive numbers with commas between them")
    return [int(part) for part in parts]


def is_routed(arguments: argparse.Namespace) -> bool:
    """Whether the problems' experts are spread over the ranks."""
    paths = split(arguments.paths or "")
    return arguments.mode != "topk" and any(path in (*ROUTED_PATHS, _ALL) for path in paths)


def make_problems(arguments: argparse.Namespace) -> list[Problem]:
    """What is to be timed, rank count by rank count.

    Raises:
        BenchError: An option makes no sense.
    """
    quick = arguments.quick
    mode = arguments.mode or "collective"
    default_ranks = str(len(usable_cpus())) if mode == "topk" else "2,4"
    ranks = integers("--ranks", arguments.ranks or default_ranks)
    dtypes = split(arguments.dtype or ("bf16" if quick or mode == "topk" else "bf16,fp32"))
    for dtype in dtypes:
        if dtype not in ELEMENT_BYTES:
            raise BenchError(f"--dtype {dtype}: one of {', '.join(ELEMENT_BYTES)}")
    if arguments.hidden:
        raise BenchError("--hidden goes with --device")
    if arguments.sizes and (arguments.shape or arguments.tokens):
        raise BenchError("--sizes goes without --shape and --tokens")
    routed = is_routed(arguments)
    experts = PLAIN_EXPERTS if routed else 0
    if arguments.topk is not None and (
        (mode == "collective" and not routed) or not arguments.sizes
    ):
        raise BenchError(
            "--topk goes with --sizes, in --mode combine or topk or with --paths routed"
        )
    topk = arguments.topk
    if topk is None:
        topk = 1 if mode == "collective" else _TOPK
    if topk < 1 or (routed and topk > experts):
        raise BenchError(f"--topk {topk}: must be positive, and at most {PLAIN_EXPERTS} if routed")
    shape_names = ",".join(arguments.shape or [])
    if not shape_names and not arguments.sizes:
        shape_names = _DEFAULT_SHAPES[mode]
    problems = []
    for count in ranks:
        for dtype in dtypes:
            if shape_names:
                for name in split(shape_names):
                    problems += _of_tokens(arguments, mode, count, dtype, name)
            else:
                sizes = split(arguments.sizes or (_QUICK_SIZES if quick else _SIZES))
                problems += [
                    of_size(mode, count, dtype, parse_size(size), topk, experts) for size in sizes
                ]
    return problems


def _of_tokens(
    arguments: argparse.Namespace, mode: str, ranks: int, dtype: str, name: str
) -> list[Problem]:
    shape = find_shape(name)
    if mode == "topk" and not arguments.tokens:
        token_bytes = shape.topk * shape.hidden * ELEMENT_BYTES[dtype]
        tokens = [-(-_TOPK_INPUT_BYTES // token_bytes)]
    else:
        default = "16,256" if arguments.quick else "16,128,1024"
        tokens = integers("--tokens", arguments.tokens or default)
    routed = is_routed(arguments)
    return [of_shape(mode, ranks, dtype, shape, count, routed) for count in tokens]


def make_paths(arguments: argparse.Namespace) -> tuple[list[str], set[str]]:
    """The paths to time, and which of them may be left out where they do not work.

    Raises:
        BenchError: There is no such path.
    """
    own = [cls.name for file in arguments.backend_file for cls in load_file(file)]
    if arguments.paths and split(arguments.paths) != [_ALL]:
        paths = split(arguments.paths)
        for path in paths:
            if path not in BUILT_IN and path not in own:
                raise BenchError(f"--paths {path}: one of {', '.join([*BUILT_IN, *own])}")
        return list(dict.fromkeys([*paths, *own])), set()
    if arguments.mode == "topk":
        return ["topk"], set()
    if arguments.quick and not arguments.paths:
        return [*_QUICK_PATHS, *own], set()
    peer_names = list(peers.PEERS)
    alone = ["topk"] if arguments.mode == "combine" else []
    routed = sorted(ROUTED_PATHS) if arguments.paths else []
    return [*_OWN_PATHS, *routed, *peer_names, *alone, *own], set(peer_names)


def make_setting(arguments: argparse.Namespace) -> Setting:
    """Processors, placement and folders.

    Raises:
        BenchError: A number makes no sense.
    """
    if arguments.threads < 1 or arguments.timeout <= 0:
        raise BenchError("--threads and --timeout must be positive")
    return Setting(
        cpus=usable_cpus(),
        pin=not arguments.no_pin,
        threads=arguments.threads,
        peer_folder=(arguments.peers or peers.default_folder()).resolve(),
        backend_files=[file.resolve() for file in arguments.backend_file],
        timeout=arguments.timeout,
    )


def make_effort(arguments: argparse.Namespace) -> Effort:
    """How long to measure.

    Raises:
        BenchError: A number makes no sense.
    """
    effort = Effort(
        rounds=arguments.rounds or (2 if arguments.quick else 5),
        seconds=arguments.seconds or (0.05 if arguments.quick else 0.15),
    )
    if effort.rounds < 1 or effort.seconds < 0:
        raise BenchError("--rounds and --seconds must be positive")
    return effort
