"""Times of reduce-scatters on GPUs that others have published, each with where it stands.

All are bf16 and from within one NVLink domain. What a row times differs: the kernel alone, or a
call of an engine. `path_model` has constants for each of these ways.
"""

from __future__ import annotations

from dataclasses import dataclass

MEBI = 1 << 20


@dataclass(frozen=True)
class Published:
    """One figure.

    Attributes:
        machine: The GPUs.
        ranks: How many.
        path: "direct": from a registered window into ordinary memory; "staged": with a copy into
            the window and one out of it; "ring": NCCL's ordinary kernel.
        nbytes: Of one rank's partial rows, for the tokens of all ranks.
        time_us: What was published.
        timed: What that is: "kernel" (its time on the device), "call" (nccl-tests' time per call,
            with the number of blocks set by hand), "engine" (a call as an engine makes it, NCCL
            choosing the number of blocks).
        source: The thread.
    """

    machine: str
    ranks: int
    path: str
    nbytes: int
    time_us: float
    timed: str
    source: str


def _rows(
    machine: str, ranks: int, path: str, timed: str, source: str, times: dict[float, float]
) -> tuple[Published, ...]:
    """Rows of one table; `times`: MiB of partial rows to microseconds."""
    return tuple(
        Published(machine, ranks, path, int(mebibytes * MEBI), time_us, timed, source)
        for mebibytes, time_us in times.items()
    )


_MEGATRON = "https://github.com/NVIDIA/Megatron-LM/pull/5596"
_NCCL = "https://github.com/NVIDIA/nccl/pull/2307"
_VLLM = "https://github.com/vllm-project/vllm/pull/49194"

PUBLISHED: tuple[Published, ...] = (
    *_rows("H100", 8, "direct", "kernel", _MEGATRON, {2: 10.8, 8: 28.8, 32: 100.5}),
    *_rows("H100", 8, "ring", "kernel", _MEGATRON, {2: 18.6, 8: 47.0, 32: 112.6}),
    *_rows(
        *("B200", 2, "direct", "call", _NCCL),
        {1: 10.71, 2: 12.56, 4: 13.59, 8: 16.71, 16: 23.14},
    ),
    # Published by bytes of output per rank: 0.5 to 8 MiB.
    *_rows("GB200", 4, "direct", "engine", _VLLM, {2: 35.6, 4: 37.1, 8: 37.4, 16: 43.5, 32: 76.7}),
    *_rows("GB200", 4, "staged", "engine", _VLLM, {2: 42.4, 4: 43.1, 8: 42.3, 16: 51.6, 32: 84.8}),
)
