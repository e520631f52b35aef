"""Which devices the tests of this folder run on, and how a process gets its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

import device_lab
from device_lab import NCCL_PATHS, PEER_PATHS, CudaLab, EmulatedLab, Lab

VARIABLE = "SYMMOE_GPU_TESTS"  # "emulated": the rehearsal
# NCCL takes several ranks on one GPU only if it is asked to, and their grids must fit together.
SHARED_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "8"}


def emulated() -> bool:
    """Whether this is the rehearsal."""
    return os.environ.get(VARIABLE) == "emulated"


def count() -> int:
    """GPUs of this machine."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def world() -> int:
    """Ranks of a test: one per GPU, at most 8; two where there is one or none."""
    return min(count(), 8) if count() > 1 else 2


def environment() -> dict[str, str]:
    """What the processes of ranks need."""
    return SHARED_GPU if count() == 1 else {}


def lab_of(rank: int, paths: tuple[str, ...] | None = NCCL_PATHS) -> Lab:
    """The device of a rank, made this process's current one; its groups take these paths."""
    if emulated():
        return EmulatedLab(paths)
    torch.cuda.set_device(rank % count())
    return CudaLab(paths)


def on_device(rank: int, world: int, scenario: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a scenario, a function f(lab, rank, world, ...), in a process of its rank."""
    if emulated():
        return device_lab.emulated(rank, world, scenario, *arguments)
    lab = lab_of(rank)
    result = scenario(lab, rank, world, *arguments)
    lab.synchronize()
    return result


def with_peers(rank: int, world: int, scenario: Callable[..., Any], *arguments: Any) -> Any:
    """The same where own kernels serve whatever they can."""
    if emulated():
        return device_lab.emulated_peers(rank, world, scenario, *arguments)
    lab = lab_of(rank, PEER_PATHS)
    result = scenario(lab, rank, world, *arguments)
    lab.synchronize()
    return result


def why_no_peers(rank: int, world: int) -> str:
    """Why own kernels cannot run; empty if they can."""
    with lab_of(rank, None).init() as group:
        facts = group.describe()
        return str(facts["no_windows"] or facts["no_peers"])


def why_no_windows(rank: int, world: int) -> str:
    """What a group says of its windows; empty if it has them."""
    lab = lab_of(rank)
    with lab.init() as group:
        facts = group.describe()
        return str(facts["no_communicator"] or facts["no_windows"])
