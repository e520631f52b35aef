"""Problems for the device kernels: run by the interpreter, compared with the CPU kernels."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

import ptx
from ptx.device_kernels import (
    BF16,
    ELEMENT_BYTES,
    F16,
    F32,
    Fault,
    RankReduceLaunch,
    RowShares,
    TopkReduceLaunch,
)
from symmoe import _core

Bits = npt.NDArray[np.unsignedinteger]
BITS: dict[int, type[np.unsignedinteger]] = {BF16: np.uint16, F16: np.uint16, F32: np.uint32}
TORCH = {BF16: torch.bfloat16, F16: torch.float16, F32: torch.float32}
# Both zeros, the smallest subnormals, the largest finite numbers, infinities, quiet and other NaN.
SPECIAL = {
    BF16: [0, 0x8000, 1, 0x8001, 0x007F, 0x0080, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0xFF81],
    F16: [0, 0x8000, 1, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFC01],
    F32: [0, 1 << 31, 1, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0xFF800001],
}
BLOCK = 32


def numbers(kind: int, shape: tuple[int, ...], seed: int, special: float = 0.2) -> Bits:
    """Bit patterns of ordinary numbers, with `special` ones among them."""
    generator = np.random.default_rng(seed)
    values = torch.from_numpy(generator.standard_normal(shape).astype(np.float32)).to(TORCH[kind])
    bits = values.view(torch.uint16 if kind != F32 else torch.uint32).numpy().copy()
    chosen = generator.random(shape) < special
    bits[chosen] = generator.choice(np.array(SPECIAL[kind], BITS[kind]), int(chosen.sum()))
    result: Bits = bits
    return result


def assert_same(got: Bits, expected: Bits, kind: int) -> None:
    """Equal bits; any NaN equals any NaN, but bfloat16 has one only."""
    nan = np.zeros(expected.shape, bool)
    if kind != BF16:
        infinity = 0x7C00 if kind == F16 else 0x7F800000
        magnitude = 0x7FFF if kind == F16 else 0x7FFFFFFF
        nan = (expected & magnitude > infinity) & (got & magnitude > infinity)
    wrong = np.flatnonzero((got != expected) & ~nan)
    assert wrong.size == 0, (
        f"{wrong.size} of {got.size} differ, the first at {wrong[0]}: "
        f"{got.flat[wrong[0]]:#x}, not {expected.flat[wrong[0]]:#x}"
    )


@dataclass(frozen=True)
class Sum:
    """A top-k problem.

    Attributes:
        weights: "f32", "own" for the input's type, or "none".
        index: Bits of an index, or 0 for rows in order.
        chunks: Into how many the columns are cut.
        offset: Elements by which rows begin after a multiple of 16 bytes.
        short: Bytes that the input lacks at its end: a planted fault.
        sizes: Rows of each rank that has an equal part of the tokens, the others being padding; or
            nothing, where all of them count.
        device: Whether these are in memory.
    """

    kind: int
    out: int
    slots: int
    hidden: int
    tokens: int = 3
    weights: str = "f32"
    index: int = 0
    scale: float | None = None
    chunks: int = 1
    offset: int = 0
    short: int = 0
    sizes: tuple[int, ...] = ()
    device: bool = False

    @property
    def padded_to(self) -> int:
        return self.tokens // len(self.sizes)

    def owned(self, token: int) -> bool:
        if not self.sizes:
            return True
        return token % self.padded_to < self.sizes[token // self.padded_to]

    def shares(self, address: int) -> RowShares:
        """As the kernel gets them; `address`: of the sizes in memory."""
        shares = RowShares()
        if self.device:
            shares.sizes, shares.padded_to, shares.rows = address, self.padded_to, self.tokens
            return shares
        for rank, size in enumerate(self.sizes):
            shares.begins[rank], shares.counts[rank] = rank * self.padded_to, size
        return shares

    def weight_type(self) -> int:
        return self.kind if self.weights == "own" else F32


def topk(program: ptx.Program, problem: Sum, seed: int = 0) -> None:
    """Runs the kernel and compares with the CPU's."""
    tokens, slots, hidden = problem.tokens, problem.slots, problem.hidden
    pairs = 5 if problem.index else tokens * slots
    rows = numbers(problem.kind, (pairs, hidden), seed)
    weights = numbers(problem.weight_type(), (tokens, slots), seed + 1, special=0.1)
    index = np.random.default_rng(seed).integers(-1, pairs, (tokens, slots))
    index[0] = -1
    wrong = index.copy()
    wrong[-1, 0], wrong[-1, -1] = pairs, -2
    index[-1, 0] = index[-1, -1] = -1
    padding = [token for token in range(tokens) if not problem.owned(token)]
    wrong[padding] = 1 << 30  # nobody looks
    kind = np.int64 if problem.index == 64 else np.int32

    memory = ptx.GlobalMemory()
    source = memory.add(
        "input",
        rows.tobytes()[: rows.nbytes - problem.short],
        offset=problem.offset * ELEMENT_BYTES[problem.kind],
        writable=False,
    )
    weight = memory.add("weights", weights, writable=False)
    chosen = memory.add("index", wrong.astype(kind), writable=False)
    shape = (tokens, hidden)
    poison = np.full(shape, 0x7FC1, BITS[problem.out])
    begin = problem.offset * ELEMENT_BYTES[problem.out]
    target = memory.add("output", poison, offset=begin, peers_write=True)
    fault = memory.add("fault", bytes(Fault()), peers_write=True)
    sizes = memory.add("sizes", np.array(problem.sizes or (0,), np.int32), writable=False)
    launch = TopkReduceLaunch(
        input=source.address,
        weights=weight.address if problem.weights != "none" else 0,
        index=chosen.address if problem.index else 0,
        output=target.address,
        fault=fault.address,
        tokens=tokens,
        slots=slots,
        hidden=hidden,
        pairs=pairs,
        scale=problem.scale or 1.0,
        has_scale=problem.scale is not None,
        input_type=problem.kind,
        output_type=problem.out,
        weights_type=problem.weight_type(),
        index_is_64bit=problem.index == 64,
        shares=problem.shares(sizes.address),
        ranks=len(problem.sizes),
    )
    arguments = bytes(launch) + bytes(ctypes.c_int(problem.chunks))
    blocks = 2 * problem.chunks
    ptx.run(ptx.Launch(program, memory, arguments, (blocks, 1, 1), (BLOCK, 1, 1)), seed=seed)

    expected = np.empty(shape, BITS[problem.out])
    index = index.astype(kind)
    _core.topk_reduce(
        rows.ctypes.data,
        weights.ctypes.data if problem.weights != "none" else 0,
        index.ctypes.data if problem.index else 0,
        expected.ctypes.data,
        tokens,
        slots,
        hidden,
        pairs,
        problem.scale,
        problem.kind,
        problem.out,
        problem.weight_type(),
        problem.index == 64,
        1,
    )
    expected[padding] = BITS[problem.out](0x7FC1)
    assert_same(target.array(BITS[problem.out]).reshape(shape), expected, problem.out)
    report = Fault.from_buffer_copy(fault.data)
    if problem.index:
        bad = {(tokens - 1, 0, pairs), (tokens - 1, slots - 1, -2)}
        assert report.kind == 1
        assert (report.subject, report.detail, wrong[report.subject, report.detail]) in (
            (token, slot, wrong[token, slot]) for token, slot, _ in bad
        )
        assert report.value == wrong[report.subject, report.detail]
    else:
        assert report.kind == report.being_written == 0


@dataclass(frozen=True)
class Ranks:
    """A rank_reduce problem; `head` elements come before the first vector."""

    kind: int
    ranks: int
    own: int
    count: int
    head: int
    aligned: bool = True
    short: int = 0


def rank_sum(program: ptx.Program, problem: Ranks, seed: int = 0) -> None:
    """Runs the kernel and compares with the CPU's."""
    size = ELEMENT_BYTES[problem.kind]
    vector = 16 // size
    count, ranks = problem.count, problem.ranks
    parts = [numbers(problem.kind, (count,), seed + rank) for rank in range(ranks)]
    offset = -problem.head * size % 16 if problem.aligned else size
    stride = -(-count // vector) * vector + 2 * vector
    memory = ptx.GlobalMemory()
    own = memory.add("own", parts[problem.own], offset=offset)
    base = memory.add("before", bytes(16)).address + 512 + offset
    for rank, part in enumerate(parts):
        if rank != problem.own:  # nobody has put anything in the own rank's place
            bytes_ = part.tobytes()[: part.nbytes - problem.short]
            memory.add(f"rank {rank}", bytes_, at=base + rank * stride * size, peers_write=True)
    target = memory.add("output", np.zeros(count, BITS[problem.kind]), offset=offset)
    vectors = (count - problem.head) // vector if problem.aligned else 0
    head = problem.head if problem.aligned else count
    launch = RankReduceLaunch(
        own=own.address,
        gathered=base,
        output=target.address,
        count=count,
        stride=stride,
        ranks=ranks,
        own_rank=problem.own,
        type=problem.kind,
    )
    arguments = bytes(launch) + bytes(ctypes.c_int64(head)) + bytes(ctypes.c_int64(vectors))
    ptx.run(ptx.Launch(program, memory, arguments, (2, 1, 1), (3, 1, 1)), seed=seed)
    expected = np.empty(count, BITS[problem.kind])
    _core.rank_reduce([p.ctypes.data for p in parts], expected.ctypes.data, count, problem.kind, 1)
    assert_same(target.array(BITS[problem.kind]), expected, problem.kind)


def copy(program: ptx.Program, unit: int, size: int, head: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size).astype(np.uint8)
    memory = ptx.GlobalMemory()
    # Both sides as far from a boundary; unit bytes apart from the largest unit that would fit both.
    offset = -head % unit
    source = memory.add("source", data, offset=offset + (unit if unit < 16 else 0), writable=False)
    target = memory.add("destination", np.zeros(size, np.uint8), offset=offset)
    fields = (source.address, target.address, size, head, (size - head) // unit)
    arguments = b"".join(bytes(ctypes.c_int64(field)) for field in fields)
    ptx.run(ptx.Launch(program, memory, arguments, (2, 1, 1), (3, 1, 1)))
    assert target.array(np.uint8).tolist() == data.tolist()
