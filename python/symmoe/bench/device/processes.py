"""Processes of a measurement on devices: torchrun's, or some of our own on this machine."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from ..errors import BenchError

EMULATED_RANKS = 2
# Several ranks on one GPU are an experiment of NCCL's, and small grids leave room for all of them.
SHARED_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "8"}
_FAILURES = (mp.ProcessRaisedException, mp.ProcessExitedException)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Seat:
    """This process among the others.

    Attributes:
        rank: Its number.
        world: Number of processes.
        ordinal: The GPU to use.
        sharing: Processes that use the same GPU.
    """

    rank: int
    world: int
    ordinal: int
    sharing: int


# Called in each process with its seat and the arguments; what rank 0 returns comes back.
Task = Callable[..., Any]


def gpus() -> int:
    """GPUs that torch sees here."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def under_torchrun() -> bool:
    """Whether another program has started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def seat_of(rank: int, world: int, gpu_count: int, local: int, neighbours: int) -> Seat:
    """The seat of a rank.

    Args:
        rank: Its number.
        world: Number of ranks.
        gpu_count: GPUs of its machine; 0: emulated ones.
        local: Its number among the ranks on its machine.
        neighbours: How many they are.
    """
    if gpu_count == 0:
        return Seat(rank, world, 0, 1)
    return Seat(rank, world, local % gpu_count, -(-neighbours // gpu_count))


def run(device: str, ranks: int | None, seconds: float, task: Task, *arguments: Any) -> Any:
    """Runs `task(seat, *arguments)` in every process.

    Args:
        device: "cuda" or "emulated".
        ranks: How many processes; None: one per GPU, two where there is one or none.
        seconds: How long that may take, for processes that this starts.
        task: Importable: it is called in other processes.
        *arguments: Picklable.

    Returns:
        What rank 0 returned; on torchrun's other ranks None.

    Raises:
        BenchError: There is no GPU, or a process failed or took too long.
    """
    count = gpus() if device == "cuda" else 0
    if device == "cuda" and count == 0:
        raise BenchError("--device cuda: torch sees no GPU here (try --device emulated)")
    if under_torchrun():
        return _join(count, task, arguments)
    world = ranks or (count if count > 1 else EMULATED_RANKS)
    with tempfile.TemporaryDirectory(prefix="symmoe-bench-") as folder:
        context = mp.start_processes(  # type: ignore[attr-defined, no-untyped-call]
            _work, (world, count, folder, task, arguments), nprocs=world, join=False
        )
        end = time.monotonic() + seconds
        try:
            while not context.join(timeout=1.0):
                if time.monotonic() > end:
                    raise BenchError(f"the processes did not end within {seconds:g} s")
        except _FAILURES as error:
            raise BenchError(f"a process failed: {error}") from None
        finally:
            for process in context.processes:
                if process.is_alive():
                    process.kill()
                    process.join()
        found: Any = torch.load(Path(folder, "result"), weights_only=False)
        return found


def _join(count: int, task: Task, arguments: tuple[Any, ...]) -> Any:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local = int(os.environ.get("LOCAL_RANK", rank))
    seat = seat_of(rank, world, count, local, int(os.environ.get("LOCAL_WORLD_SIZE", world)))
    _prepare(seat, count)
    with contextlib.ExitStack() as stack:
        if not dist.is_initialized():
            dist.init_process_group("gloo")
            stack.callback(dist.destroy_process_group)
        result = task(seat, *arguments)
    return result if rank == 0 else None


def _work(
    rank: int, world: int, count: int, folder: str, task: Task, arguments: tuple[Any, ...]
) -> None:
    seat = seat_of(rank, world, count, rank, world)
    _prepare(seat, count)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
    )
    result = task(seat, *arguments)
    if rank == 0:
        torch.save(result, Path(folder, "result"))
    dist.destroy_process_group()


def _prepare(seat: Seat, count: int) -> None:
    torch.set_num_threads(1)
    if seat.sharing > 1:
        for name, value in SHARED_GPU.items():
            os.environ.setdefault(name, value)
    if count:
        torch.cuda.set_device(seat.ordinal)
