"""Problems with an epilogue: run by the interpreter, compared with the CPU's kernel."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

import ptx
from ptx.device_kernels import ELEMENT_BYTES, F32, RowShares
from ptx.memory import GlobalMemory, Region
from ptx.peer_problems import THREADS, Pull, Ranks
from ptx.peer_structures import PullLaunch
from ptx.problems import BITS, Bits, assert_same, numbers
from symmoe import _core

SCALE, EPS = 1.7, 1e-6
UNTOUCHED = 0x5A


class Epilogue(ctypes.Structure):
    """kernels/epilogue.h, field by field."""

    _fields_ = (
        ("shared", ctypes.c_uint64),
        ("residual", ctypes.c_uint64),
        ("norm_weight", ctypes.c_uint64),
        ("scales", ctypes.c_uint64),
        ("scale", ctypes.c_float),
        ("eps", ctypes.c_float),
        ("has_scale", ctypes.c_bool),
        ("scale_shared", ctypes.c_bool),
        ("weight_type", ctypes.c_uint8),
        ("quantized", ctypes.c_uint8),
    )


class EpilogueLaunch(ctypes.Structure):
    """kernels/device/launch.h, field by field."""

    _fields_ = (
        ("input", ctypes.c_uint64),
        ("output", ctypes.c_uint64),
        ("steps", Epilogue),
        ("rows", ctypes.c_int64),
        ("hidden", ctypes.c_int64),
        ("type", ctypes.c_uint8),
        ("shares", RowShares),
        ("rank", ctypes.c_int),
        ("world", ctypes.c_int),
    )


class PullEpilogueLaunch(ctypes.Structure):
    """kernels/device/launch.h, field by field."""

    _fields_ = (("pull", PullLaunch), ("steps", Epilogue))


@dataclass(frozen=True)
class Steps:
    """Which steps there are.

    Attributes:
        scale: "", "first" or "last".
        norm: Type of the weights, or None.
        quantized: 0, or the number of what to: int8 or float8_e4m3.
    """

    scale: str = ""
    shared: bool = True
    residual: bool = True
    norm: int | None = None
    quantized: int = 0


class Finishing:
    """One rank's memory for its rows' epilogue, on the device and on the CPU."""

    def __init__(
        self,
        memory: GlobalMemory,
        name: str,
        steps: Steps,
        kind: int,
        rows: int,
        hidden: int,
        seed: int,
    ) -> None:
        self.steps, self.kind, self.shape = steps, kind, (rows, hidden)
        self.shared = numbers(kind, self.shape, seed + 1, special=0.02)
        self.before = numbers(kind, self.shape, seed + 2, special=0.02)
        self.weight = numbers(kind if steps.norm is None else steps.norm, (hidden,), seed + 3, 0.0)
        self._shared = memory.add(f"shared {name}", self.shared, writable=False)
        self._weight = memory.add(f"weight {name}", self.weight, writable=False)
        self._residual = memory.add(f"residual {name}", self.before)
        self._scales = memory.add(f"scales {name}", np.full(rows * 4, UNTOUCHED, np.uint8))
        size = 1 if steps.quantized else ELEMENT_BYTES[kind]
        self.output = memory.add(
            f"result {name}", np.full(rows * hidden * size, UNTOUCHED, np.uint8)
        )

    def for_kernel(self) -> Epilogue:
        steps = self.steps
        return Epilogue(
            shared=self._shared.address if steps.shared else 0,
            residual=self._residual.address if steps.residual else 0,
            norm_weight=0 if steps.norm is None else self._weight.address,
            scales=self._scales.address if steps.quantized else 0,
            scale=SCALE,
            eps=EPS,
            has_scale=bool(steps.scale),
            scale_shared=steps.scale == "last",
            weight_type=self.kind if steps.norm is None else steps.norm,
            quantized=steps.quantized,
        )

    def compare(self, sums: Bits, own: int | None = None) -> None:
        """With what the CPU's kernel makes of the same sums; rows behind `own` are as before."""
        rows, hidden = self.shape
        own = rows if own is None else own
        steps = self.steps
        residual = self.before.copy()
        scales = np.full(rows * 4, UNTOUCHED, np.uint8)
        output = np.full(len(self.output.data), UNTOUCHED, np.uint8)
        _core.Epilogue(
            self.shared.ctypes.data if steps.shared else 0,
            SCALE if steps.scale else None,
            steps.scale == "last",
            residual.ctypes.data if steps.residual else 0,
            0 if steps.norm is None else self.weight.ctypes.data,
            self.kind if steps.norm is None else steps.norm,
            EPS,
            steps.quantized,
            scales.ctypes.data if steps.quantized else 0,
        ).apply(sums.ctypes.data, output.ctypes.data, own, hidden, self.kind, 1)
        assert_same(self._bits(self._residual), residual.reshape(-1), self.kind)
        assert_same(self._scales.array(np.uint32), scales.view(np.uint32), F32)
        if steps.quantized:
            assert self.output.array(np.uint8).tolist() == output.tolist()
        else:
            assert_same(self._bits(self.output), output.view(BITS[self.kind]), self.kind)

    def _bits(self, region: Region) -> Bits:
        bits: Bits = region.array(BITS[self.kind])
        return bits


def finish(
    program: ptx.Program,
    steps: Steps,
    kind: int,
    hidden: int,
    own: int | None = None,
    threads: int = THREADS,
    seed: int = 0,
) -> None:
    """Runs the kernel on three rows and compares with the CPU's.

    With `own`, a tensor says that so many of them are there.
    """
    rows = 3
    memory = ptx.GlobalMemory()
    sums = numbers(kind, (rows, hidden), seed, special=0.02)
    source = memory.add("sums", sums, writable=False, peers_write=True)
    it = Finishing(memory, "", steps, kind, rows, hidden, seed)
    launch = EpilogueLaunch(
        input=source.address,
        output=it.output.address,
        steps=it.for_kernel(),
        rows=rows,
        hidden=hidden,
        type=kind,
        world=1,
    )
    if own is not None:
        sizes = memory.add("sizes", np.array([own], np.int32), writable=False)
        launch.shares = RowShares(sizes=sizes.address, rows=rows, output_rows=rows)
    ptx.run(ptx.Launch(program, memory, bytes(launch), (2, 1, 1), (threads, 1, 1)), seed=seed)
    it.compare(sums, own)


def pull_and_finish(
    program: ptx.Program, problem: Pull, steps: Steps, plain: ptx.Program, seed: int = 0
) -> None:
    """All ranks but the last with the epilogue; that one runs pull_reduce. Twice, as a graph."""
    ranks = Ranks(problem, seed)
    ends = [
        Finishing(ranks.memory, str(rank), steps, problem.kind, size, problem.hidden, seed + rank)
        for rank, size in enumerate(problem.sizes[:-1])
    ]
    last = problem.world - 1
    launches = [ranks.launch(plain, ranks.pull(last))]
    for rank, end in enumerate(ends):
        pull = ranks.pull(rank)
        pull.output = end.output.address
        arguments = bytes(PullEpilogueLaunch(pull, end.for_kernel()))
        grid = (problem.blocks, 1, 1)
        launches.append(ptx.Launch(program, ranks.memory, arguments, grid, (THREADS, 1, 1)))
    ptx.run(*launches, seed=seed)
    ranks.assert_output(last)
    for rank, end in enumerate(ends):
        assert ranks.fault(rank).kind == 0, f"fault {ranks.fault(rank).kind}"
        end.compare(ranks.expected(rank))
