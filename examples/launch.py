"""Starts an example's ranks: those of torchrun if it was run by that, or new ones of its own."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
from collections.abc import Callable

import torch
import torch.distributed as dist
from processes import run_ranks

import symmoe

Demonstration = Callable[[symmoe.Group, argparse.Namespace], None]


def world_of(options: argparse.Namespace) -> int:
    """Number of ranks: torchrun's, which comes first, or `options.processes`."""
    return int(os.environ["WORLD_SIZE"]) if _under_torchrun() else options.processes


def launch(demonstrate: Demonstration, options: argparse.Namespace) -> None:
    """Runs demonstrate(group, options) on all ranks; ends this process if one has failed.

    Args:
        demonstrate: At the top level of a module, so that new processes find it.
        options: The command line, with the number of `processes`.
    """
    world = world_of(options)
    if _under_torchrun():
        run_rank(int(os.environ["RANK"]), world, "env://", demonstrate, options)
        return
    print(f"... starting {world} processes", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        failed = run_ranks(run_rank, world, f"file://{folder}/rendezvous", demonstrate, options)
    if failed:
        sys.exit(f"failed: rank {', '.join(map(str, failed))}")


def run_rank(
    rank: int, world: int, address: str, demonstrate: Demonstration, options: argparse.Namespace
) -> None:
    """All that one process does."""
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world))
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    _with_group(demonstrate, options)
    # Nobody has the group any more, so this ends gloo's threads. One that still held a tensor when
    # the interpreter ends would abort the process.
    gc.collect()
    dist.destroy_process_group()


def silent(text: str) -> None:
    """Stands in for print, on all ranks but the first."""


def _with_group(demonstrate: Demonstration, options: argparse.Namespace) -> None:
    with torch.no_grad(), symmoe.init(device="cpu") as group:
        demonstrate(group, options)


def _under_torchrun() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ
