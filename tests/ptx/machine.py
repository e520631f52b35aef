"""Blocks of threads, and the order in which they run."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from ptx.errors import BarrierError, PtxError
from ptx.memory import GlobalMemory, LocalMemory
from ptx.program import Program
from ptx.shared import SharedMemory
from ptx.thread import WARP_LANES, Barrier, BarrierVote, Exit, Pause, Thread, WarpOperation

Extent = tuple[int, int, int]
MAX_BLOCK = 1024


@dataclass(frozen=True)
class Launch:
    """A kernel with its arguments.

    Attributes:
        arguments: As the parameters lie in memory, from the first one on.
        dynamic_shared: Bytes behind the kernel's own shared variables.
    """

    program: Program
    memory: GlobalMemory
    arguments: bytes
    grid: Extent
    block: Extent
    dynamic_shared: int = 0


def run(*launches: Launch, seed: int | None = None) -> None:
    """Runs launches to their end, all blocks of all of them side by side.

    Args:
        launches: Kernels that may wait for one another.
        seed: For the order of blocks and threads; None for that of their numbers.

    Raises:
        PtxError: What went wrong, with the instruction, the block and the thread.
    """
    order = random.Random(seed) if seed is not None else None
    blocks = [block for launch in launches for block in _blocks(launch)]
    while blocks:
        if order is not None:
            order.shuffle(blocks)
        for block in blocks:
            block.turn(order)
        blocks = [block for block in blocks if block.live()]


def _blocks(launch: Launch) -> list[_Block]:
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    entry = launch.program.entry
    limit = min(MAX_BLOCK, entry.max_threads or MAX_BLOCK)
    if not 1 <= threads <= limit:
        raise PtxError(f"{entry.name}: {threads} threads in a block, at most {limit}")
    expected = entry.sizes.get("param", 0)
    if len(launch.arguments) != expected:
        raise PtxError(f"{entry.name}: {len(launch.arguments)} bytes of arguments, not {expected}")
    places = itertools.product(*(range(extent) for extent in reversed(launch.grid)))
    return [_Block(launch, (x, y, z)) for z, y, x in places]


class _Block:
    """The threads of one block; each runs until it has to wait."""

    def __init__(self, launch: Launch, place: Extent) -> None:
        self._program = launch.program
        self._place = place
        shared = SharedMemory(self._program.entry.sizes.get("shared", 0) + launch.dynamic_shared)
        parameters = LocalMemory("param", 0, launch.arguments)
        columns, rows, _ = launch.block
        count = columns * rows * launch.block[2]
        fixed = {"%nwarpid": -(-count // WARP_LANES)}
        for name, extent in (("ntid", launch.block), ("ctaid", place), ("nctaid", launch.grid)):
            fixed |= {f"%{name}.{axis}": part for axis, part in zip("xyz", extent, strict=True)}
        self._threads = []
        for index in range(count):
            rest, x = divmod(index, columns)
            z, y = divmod(rest, rows)
            special = fixed | {"%tid.x": x, "%tid.y": y, "%tid.z": z} | _lane_registers(index)
            self._threads.append(
                Thread(self._program, index, special, launch.memory, shared, parameters)
            )

    def live(self) -> bool:
        """Whether any thread has not ended."""
        return any(not isinstance(thread.waiting, Exit) for thread in self._threads)

    def turn(self, order: random.Random | None) -> None:
        """Lets every thread run that can, then whoever was waiting together."""
        ready = [thread for thread in self._threads if thread.waiting is None]
        if order is not None:
            order.shuffle(ready)
        for thread in ready:
            self._run(thread)
        progress = bool(ready)
        for thread in self._threads:
            if isinstance(thread.waiting, Pause):
                thread.waiting = None
                progress = True
        for begin in range(0, len(self._threads), WARP_LANES):
            progress |= self._meet_in_warp(self._threads[begin : begin + WARP_LANES])
        progress |= self._meet_at_barrier()
        if not progress:
            raise BarrierError(self._describe_waiting("threads wait for others that cannot come"))

    def _run(self, thread: Thread) -> None:
        steps = self._program.steps
        place = thread.next
        try:
            while thread.waiting is None:
                place = thread.next
                thread.next = place + 1
                thread.waiting = steps[place](thread)
        except PtxError as error:
            raise type(error)(
                f"{error}\n  in {self._program.entry.name}: {self._program.text(place)}\n"
                f"  block {self._place}, thread {thread.index}"
            ) from None

    def _meet_in_warp(self, warp: Sequence[Thread]) -> bool:
        """Finishes the operations for which all lanes of a mask have come to the same place."""
        met = False
        for leader in warp:
            event = leader.waiting
            if not isinstance(event, WarpOperation):
                continue
            if not event.mask >> leader.lane & 1:
                raise BarrierError(self._describe_waiting(f"lane {leader.lane} is not in its mask"))
            lanes = {t.lane: t for t in warp if event.mask >> t.lane & 1}
            if event.mask.bit_count() != len(lanes) and len(warp) == WARP_LANES:
                raise BarrierError(self._describe_waiting(f"mask {event.mask:#x}"))
            if not all(self._same_place(leader, thread) for thread in lanes.values()):
                continue
            event.finish(lanes)
            whole = len(lanes) == len(warp)
            for thread in lanes.values():
                thread.waiting = None
                thread.warp_phase += event.is_barrier and whole
            met = True
        return met

    @staticmethod
    def _same_place(leader: Thread, thread: Thread) -> bool:
        return isinstance(thread.waiting, WarpOperation) and thread.next == leader.next

    def _meet_at_barrier(self) -> bool:
        waiting = [thread for thread in self._threads if isinstance(thread.waiting, Barrier)]
        if not waiting:
            return False
        for thread in self._threads:
            if isinstance(thread.waiting, Exit):
                reason = f"thread {thread.index} has ended, others wait at a barrier"
                raise BarrierError(self._describe_waiting(reason))
        if len(waiting) < len(self._threads):
            return False
        for begin in range(0, len(self._threads), WARP_LANES):
            if len({thread.next for thread in self._threads[begin : begin + WARP_LANES]}) > 1:
                reason = f"threads of warp {begin // WARP_LANES} are at different barriers"
                raise BarrierError(self._describe_waiting(reason))
        events = [thread.waiting for thread in waiting if isinstance(thread.waiting, Barrier)]
        if len({(type(event), event.number) for event in events}) > 1:
            raise BarrierError(self._describe_waiting("warps are at different kinds of barriers"))
        votes = [event for event in events if isinstance(event, BarrierVote)]
        for thread, vote in zip(waiting, votes, strict=False):
            vote.write(thread.registers, int(all(other.vote for other in votes)))
        for thread in waiting:
            thread.waiting = None
            thread.block_phase += 1
        return True

    def _describe_waiting(self, reason: str) -> str:
        lines = [f"{self._program.entry.name}, block {self._place}: {reason}"]
        places: dict[str, list[int]] = {}
        for thread in self._threads:
            ended = isinstance(thread.waiting, Exit)
            text = "ended" if ended else self._program.text(thread.next - 1)
            places.setdefault(text, []).append(thread.index)
        for text, threads in places.items():
            shown = ", ".join(map(str, threads[:8])) + (", ..." if len(threads) > 8 else "")
            lines.append(f"  {text}: threads {shown}")
        return "\n".join(lines)


def _lane_registers(index: int) -> dict[str, int]:
    warp, lane = divmod(index, WARP_LANES)
    below, itself = (1 << lane) - 1, 1 << lane
    above = 0xFFFFFFFF & ~(below | itself)
    return {
        "%laneid": lane,
        "%warpid": warp,
        "%lanemask_eq": itself,
        "%lanemask_lt": below,
        "%lanemask_le": below | itself,
        "%lanemask_gt": above,
        "%lanemask_ge": above | itself,
    }
