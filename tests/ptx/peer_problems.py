"""Problems for kernels that wait for peers: all ranks' launches side by side, in one memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

import ptx
from ptx.device_kernels import (
    BF16,
    ELEMENT_BYTES,
    F32,
    Fault,
    RoutingView,
    RowShares,
    TopkReduceLaunch,
)
from ptx.memory import Region
from ptx.peer_structures import (
    MAX_ORDINALS,
    CombineLaunch,
    MaskHash,
    PeerGroup,
    PullLaunch,
    RouteMaskLaunch,
    SignalPage,
)
from ptx.problems import BITS, Bits, assert_same, numbers
from symmoe import _core

# The launchers' least, one per peer.
THREADS = 64
FAR_DEADLINE_NS = 10**9
SIGNATURE = 0x5EED


@dataclass(frozen=True)
class Pull:
    """Rows pulled from the windows of a few ranks.

    Attributes:
        device: "" for sizes of the host, "packed" or "padded" for a tensor of them.
        masked: Each row is held by some ranks only, the first by none; other rows are NaN.
        aligned: Whether the output begins at a multiple of 16 bytes.
        slots: Of the top-k sums that come first, in the same launch; 0: there are none.
    """

    kind: int
    hidden: int
    sizes: tuple[int, ...] = (3, 2)
    device: str = ""
    masked: bool = False
    aligned: bool = True
    blocks: int = 2
    slots: int = 0
    input_kind: int = BF16

    @property
    def world(self) -> int:
        return len(self.sizes)

    @property
    def padded_to(self) -> int:
        return max(self.sizes) if self.device == "padded" else 0

    def begin(self, rank: int) -> int:
        return rank * self.padded_to if self.padded_to else sum(self.sizes[:rank])

    @property
    def rows(self) -> int:
        return self.world * self.padded_to if self.padded_to else sum(self.sizes)

    def owned_rows(self) -> list[int]:
        """Rows that are in somebody's share."""
        return [
            self.begin(rank) + row for rank, size in enumerate(self.sizes) for row in range(size)
        ]


class Ranks:
    """Memory of all ranks, and the launches over it."""

    def __init__(self, problem: Pull, seed: int) -> None:
        self.problem = problem
        self.memory = ptx.GlobalMemory()
        generator = np.random.default_rng(seed)
        world, rows = problem.world, problem.rows
        self.masks = np.full(rows, (1 << world) - 1, np.uint64)
        # Experts: two of each rank, one of nobody.
        self.expert_to_rank = np.array([-1, *(rank for rank in range(world) for _ in "ab")])
        self.ids = generator.integers(-1, len(self.expert_to_rank) + 1, (rows, problem.slots or 2))
        if problem.masked:
            self.masks = masks_of(self.ids, self.expert_to_rank)
        self.windows: list[Region] = []
        self.pages: list[Region] = []
        self.faults: list[Region] = []
        self.outputs: list[Region] = []
        for rank in range(world):
            self._add_rank(rank, seed)
        self.tables = [self._add_table(rank) for rank in range(world)]
        self.sizes = self.memory.add("sizes", np.array(problem.sizes, np.int32), writable=False)
        self.mask = self.memory.add("mask", self.masks, writable=False)
        self.hash = self.memory.add("hash", bytes(MaskHash(value=seed)), writable=False)

    def holds(self, rank: int, row: int) -> bool:
        return bool(int(self.masks[row]) >> rank & 1)

    def _add_rank(self, rank: int, seed: int) -> None:
        problem = self.problem
        rows = numbers(problem.kind, (problem.rows, problem.hidden), seed + rank)
        owned = problem.owned_rows()
        for row in range(problem.rows):
            if problem.slots or row not in owned or not self.holds(rank, row):
                rows[row] = BITS[problem.kind](0x7FC1)
        self.windows.append(self.memory.add(f"window {rank}", rows, peers_write=True))
        self.pages.append(self.memory.add(f"page {rank}", bytes(SignalPage()), peers_write=True))
        self.faults.append(self.memory.add(f"fault {rank}", bytes(Fault()), peers_write=True))
        count = problem.sizes[rank] * problem.hidden
        offset = 0 if problem.aligned else ELEMENT_BYTES[problem.kind]
        output = np.zeros(count, BITS[problem.kind])
        self.outputs.append(self.memory.add(f"output {rank}", output, offset=offset))

    def _add_table(self, rank: int) -> tuple[int, int]:
        world = self.problem.world
        signals = np.array([page.address for page in self.pages], np.uint64)
        windows = np.zeros((MAX_ORDINALS, world), np.uint64)
        for peer, window in enumerate(self.windows):
            windows[peer, peer] = window.address  # the ordinal is the rank
        pages = self.memory.add(f"signals of {rank}", signals, writable=False)
        return pages.address, self.memory.add(f"table of {rank}", windows, writable=False).address

    def pull(self, rank: int, deadline_ns: int = FAR_DEADLINE_NS) -> PullLaunch:
        problem = self.problem
        signals, windows = self.tables[rank]
        shares = RowShares(padded_to=problem.padded_to, rows=problem.rows)
        shares.output_rows = problem.sizes[rank]
        if problem.device:
            shares.sizes = self.sizes.address
        else:
            for peer, size in enumerate(problem.sizes):
                shares.begins[peer], shares.counts[peer] = problem.begin(peer), size
        return PullLaunch(
            peers=PeerGroup(
                signals, 0, windows, self.faults[rank].address, deadline_ns, rank, problem.world
            ),
            shares=shares,
            output=self.outputs[rank].address,
            mask=self.mask.address if problem.masked else 0,
            mask_hash=self.hash.address,
            hidden=problem.hidden,
            ordinal=rank,
            signature=SIGNATURE,
            blocks=problem.blocks,
            type=problem.kind,
        )

    def launch(self, program: ptx.Program, launch: ctypes.Structure) -> ptx.Launch:
        # One chunk of columns.
        arguments = bytes(launch) + bytes(ctypes.c_int(1))
        grid = (self.problem.blocks, 1, 1)
        return ptx.Launch(program, self.memory, arguments, grid, (THREADS, 1, 1))

    def fault(self, rank: int) -> Fault:
        return Fault.from_buffer_copy(self.faults[rank].data)

    def window(self, rank: int) -> Bits:
        shape = (self.problem.rows, self.problem.hidden)
        rows: Bits = self.windows[rank].array(BITS[self.problem.kind]).reshape(shape)
        return rows

    def expected(self, rank: int) -> Bits:
        """The CPU's sum of what is in the windows of those that hold something of its rows."""
        problem = self.problem
        expected = np.zeros((problem.sizes[rank], problem.hidden), BITS[problem.kind])
        for i in range(problem.sizes[rank]):
            row = problem.begin(rank) + i
            sources = [
                np.ascontiguousarray(self.window(peer)[row])
                for peer in range(problem.world)
                if self.holds(peer, row)
            ]
            if sources:
                _core.rank_reduce(
                    [source.ctypes.data for source in sources],
                    expected[i].ctypes.data,
                    problem.hidden,
                    problem.kind,
                    1,
                )
        return expected

    def assert_output(self, rank: int) -> None:
        """A rank's output is its sum."""
        expected = self.expected(rank)
        kind = self.problem.kind
        assert_same(self.outputs[rank].array(BITS[kind]).reshape(expected.shape), expected, kind)
        assert self.fault(rank).kind == 0, f"fault {self.fault(rank).kind}"

    def assert_outputs(self) -> None:
        """Each rank's output is its sum."""
        for rank in range(self.problem.world):
            self.assert_output(rank)


def pull(program: ptx.Program, problem: Pull, seed: int = 0, calls: int = 2) -> None:
    """Runs the kernel on all ranks, a few times as a graph would, and compares with the CPU's."""
    ranks = Ranks(problem, seed)
    launches = [ranks.launch(program, ranks.pull(rank)) for rank in range(problem.world)]
    for call in range(calls):
        ptx.run(*launches, seed=seed + call)
        ranks.assert_outputs()
    for page in ranks.pages:
        epochs = list(SignalPage.from_buffer_copy(page.data).epoch[: problem.blocks])
        assert epochs == [calls] * problem.blocks, f"epochs {epochs} after {calls} calls"


def late(program: ptx.Program, problem: Pull) -> Fault:
    """Runs only the first rank, whose deadline is near; its fault."""
    ranks = Ranks(problem, 0)
    ptx.run(ranks.launch(program, ranks.pull(0, deadline_ns=50_000)))
    assert not any(ranks.outputs[0].data)
    for page in ranks.pages:
        assert SignalPage.from_buffer_copy(page.data).broken == 1
    return ranks.fault(0)


def combine(program: ptx.Program, problem: Pull, seed: int = 0) -> None:
    """Top-k sums and the pull in one launch: both compared with the CPU's."""
    ranks = Ranks(problem, seed)
    shape = (problem.rows, problem.slots)
    inputs = [
        numbers(problem.input_kind, (*shape, problem.hidden), seed + 10 + rank)
        for rank in range(problem.world)
    ]
    weights = numbers(F32, shape, seed + 5, special=0.0)
    weight = ranks.memory.add("weights", weights, writable=False)
    ids = ranks.memory.add("ids", ranks.ids.astype(np.int64), writable=False)
    experts = ranks.memory.add("experts", ranks.expert_to_rank.astype(np.int32), writable=False)
    launches = []
    for rank in range(problem.world):
        offset = 0 if problem.aligned else ELEMENT_BYTES[problem.input_kind]
        source = ranks.memory.add(f"input {rank}", inputs[rank], offset=offset, writable=False)
        routing = RoutingView(rank=rank)
        if problem.masked:
            count = len(ranks.expert_to_rank)
            addresses = (ids.address, experts.address, ranks.mask.address)
            routing = RoutingView(*addresses, count, rank, True)
        topk = TopkReduceLaunch(
            input=source.address,
            weights=weight.address,
            output=ranks.windows[rank].address,
            tokens=problem.rows,
            slots=problem.slots,
            hidden=problem.hidden,
            scale=1.0,
            input_type=problem.input_kind,
            output_type=problem.kind,
            weights_type=F32,
            routing=routing,
        )
        launches.append(ranks.launch(program, CombineLaunch(topk, ranks.pull(rank))))
    ptx.run(*launches, seed=seed)
    for rank in range(problem.world):
        _assert_sums(ranks, rank, inputs[rank], weights)
    ranks.assert_outputs()


def _assert_sums(ranks: Ranks, rank: int, rows: Bits, weights: Bits) -> None:
    """The window holds the CPU's top-k sums of the rows that the rank writes, and no others."""
    problem = ranks.problem
    positions = np.arange(rows.shape[0] * rows.shape[1], dtype=np.int64).reshape(rows.shape[:2])
    if problem.masked:
        positions[rank_of(ranks.ids, ranks.expert_to_rank) != rank] = -1
    expected = np.empty((problem.rows, problem.hidden), BITS[problem.kind])
    _core.topk_reduce(
        rows.ctypes.data,
        weights.ctypes.data,
        positions.ctypes.data,
        expected.ctypes.data,
        problem.rows,
        problem.slots,
        problem.hidden,
        positions.size,
        None,
        problem.input_kind,
        problem.kind,
        F32,
        True,
        1,
    )
    for row in range(problem.rows):
        if row not in problem.owned_rows() or not ranks.holds(rank, row):
            expected[row] = BITS[problem.kind](0x7FC1)
    assert_same(ranks.window(rank), expected, problem.kind)


def rank_of(ids: np.ndarray, expert_to_rank: np.ndarray) -> np.ndarray:
    """Of each id's expert; -1: nobody."""
    known = (ids >= 0) & (ids < len(expert_to_rank))
    return np.where(known, expert_to_rank[np.clip(ids, 0, len(expert_to_rank) - 1)], -1)


def masks_of(ids: np.ndarray, expert_to_rank: np.ndarray) -> np.ndarray:
    """A bit for each rank that holds one of a row's experts."""
    masks = np.zeros(len(ids), np.uint64)
    for row, ranks in enumerate(rank_of(ids, expert_to_rank)):
        for rank in ranks[ranks >= 0]:
            masks[row] |= np.uint64(1 << int(rank))
    return masks


def route(
    program: ptx.Program, wide_ids: bool, rows: int, blocks: int, sizes: tuple[int, ...] = ()
) -> int:
    """Runs the kernel twice, compares the masks with a plain count, and returns their hash.

    With `sizes`, which are in memory, the rows behind all ranks' ones are padding.
    """
    generator = np.random.default_rng(7)
    expert_to_rank = generator.integers(-1, 5, 12).astype(np.int32)
    ids = generator.integers(-2, 14, (rows, 3)).astype(np.int64 if wide_ids else np.int32)
    shares = RowShares(rows=rows)
    shares.counts[0] = owned = rows
    masks = masks_of(ids, expert_to_rank)
    memory = ptx.GlobalMemory()
    mask = memory.add("mask", np.zeros(rows, np.uint64))
    result = memory.add("hash", bytes(MaskHash()))
    if sizes:
        shares.sizes = memory.add("sizes", np.array(sizes, np.int32), writable=False).address
        owned = sum(sizes)
    masks[owned:] = 0
    launch = RouteMaskLaunch(
        ids=memory.add("ids", ids, writable=False).address,
        expert_to_rank=memory.add("experts", expert_to_rank, writable=False).address,
        mask=mask.address,
        hash=result.address,
        fault=memory.add("fault", bytes(Fault()), peers_write=True).address,
        shares=shares,
        rows=rows,
        slots=3,
        experts=12,
        world=5,
        ids_are_64bit=wide_ids,
    )
    hashes = set()
    for seed in range(2):
        grid = (blocks, 1, 1)
        ptx.run(ptx.Launch(program, memory, bytes(launch), grid, (THREADS, 1, 1)), seed=seed)
        assert mask.array(np.uint64).tolist() == masks.tolist()
        found = MaskHash.from_buffer_copy(result.data)
        assert found.sum == found.blocks_done == 0
        hashes.add(int(found.value))
    assert len(hashes) == 1
    return hashes.pop()
