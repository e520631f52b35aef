"""One thread's state, and what makes it wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptx.errors import PtxError
from ptx.memory import GlobalMemory, LocalMemory
from ptx.shared import Moment, SharedMemory

if TYPE_CHECKING:
    from ptx.program import Program

WARP_LANES = 32
# Steps back in loops before a thread is taken for one that never ends.
MAX_LOOPS = 20_000
# Between two looks of a thread at the clock.
CLOCK_STEP_NS = 1000

Registers = list[int | None]


@dataclass(frozen=True)
class Exit:
    """The thread has ended."""


@dataclass(frozen=True)
class Pause:
    """The thread has looked at memory that others may be about to write; let them run."""


@dataclass(frozen=True)
class Barrier:
    """Waits for all threads of the block."""

    number: int


@dataclass(frozen=True)
class BarrierVote(Barrier):
    """The same, and `write` tells each of them whether all came with a `vote` of 1."""

    vote: int
    write: Callable[[Registers, int], None]


@dataclass(frozen=True)
class WarpOperation:
    """Waits for the lanes in `mask`, then `finish` sets the results of all of them."""

    mask: int
    finish: Callable[[dict[int, Thread]], None]
    is_barrier: bool = False


Event = Exit | Pause | Barrier | WarpOperation


class Thread:
    """Registers, local memory and the place in the program."""

    __slots__ = (
        "block_phase",
        "clock_ns",
        "index",
        "lane",
        "local",
        "loops",
        "memory",
        "next",
        "parameters",
        "registers",
        "shared",
        "waiting",
        "warp",
        "warp_phase",
    )

    def __init__(
        self,
        program: Program,
        index: int,
        special: dict[str, int],
        memory: GlobalMemory,
        shared: SharedMemory,
        parameters: LocalMemory,
    ) -> None:
        self.index = index
        self.warp, self.lane = divmod(index, WARP_LANES)
        self.registers: Registers = [None] * len(program.slots)
        for name, value in special.items():
            if name in program.slots:
                self.registers[program.slots[name]] = value
        self.memory = memory
        self.shared = shared
        self.local = LocalMemory("local", program.entry.sizes.get("local", 0))
        self.parameters = parameters
        self.next = 0
        self.loops = 0
        self.clock_ns = 0
        self.block_phase = 0
        self.warp_phase = 0
        self.waiting: Event | None = None

    def moment(self) -> Moment:
        """Now, as shared memory wants to know it."""
        return Moment(self.index, self.warp, self.block_phase, self.warp_phase)

    def look_at_clock(self) -> int:
        """Nanoseconds of a clock that goes on with every look at it."""
        self.clock_ns += CLOCK_STEP_NS
        return self.clock_ns

    def jump(self, target: int) -> None:
        """Goes on elsewhere; a loop without end is a fault."""
        if target < self.next:
            self.loops += 1
            if self.loops > MAX_LOOPS:
                raise PtxError(f"thread {self.index} has not ended after {MAX_LOOPS} loops")
        self.next = target
