"""A kernel decoded into steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ptx import (  # noqa: F401  (each registers its decoders)
    control_operations,
    float_operations,
    integer_operations,
    memory_operations,
    move_operations,
)
from ptx.decode import DECODERS, Operands, Step
from ptx.errors import PtxError, UnknownPtxError, UnsetRegisterError
from ptx.syntax import Entry, Instruction, parse
from ptx.thread import Event, Thread


@dataclass(frozen=True)
class Program:
    """A kernel that can be launched.

    Attributes:
        steps: One per instruction, and a last one that nobody should reach.
        slots: Place of each register that the kernel names.
    """

    entry: Entry
    steps: tuple[Step, ...]
    slots: dict[str, int]

    def text(self, index: int) -> str:
        """The instruction at a place, for messages."""
        instructions = self.entry.instructions
        return instructions[index].text if index < len(instructions) else "(past the end)"


class Module:
    """The kernels of a PTX file; each is decoded when it is first asked for."""

    def __init__(self, text: str) -> None:
        self._entries = parse(text)
        self._programs: dict[str, Program] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __getitem__(self, name: str) -> Program:
        if name not in self._programs:
            self._programs[name] = _decode(self._entries[name])
        return self._programs[name]


def load(text: str) -> Module:
    """Reads a PTX file.

    Raises:
        UnknownPtxError: The interpreter does not know something; or later, for a kernel.
    """
    return Module(text)


def _decode(entry: Entry) -> Program:
    slots: dict[str, int] = {}
    steps = [_step(entry, slots, instruction) for instruction in entry.instructions]

    def past_the_end(thread: Thread) -> None:
        raise PtxError("the kernel runs past its end")

    return Program(entry, (*steps, past_the_end), slots)


def _step(entry: Entry, slots: dict[str, int], instruction: Instruction) -> Step:
    try:
        decoder = DECODERS.get(instruction.opcode[0])
        if decoder is None:
            raise UnknownPtxError(f"operation {instruction.opcode[0]}")
        step = decoder(Operands(entry, slots, instruction))
    except UnknownPtxError as error:
        raise UnknownPtxError(f"{error}\n  in {entry.name}: {instruction.text}") from None
    if instruction.guard is None:
        return step
    return _guarded(step, Operands(entry, slots, replace(instruction, guard=None)), instruction)


def _guarded(step: Step, operands: Operands, instruction: Instruction) -> Step:
    guard = instruction.guard
    assert guard is not None
    slot = operands.slot(guard)
    negated = instruction.negated

    def guarded(thread: Thread) -> Event | None:
        flag = thread.registers[slot]
        if flag is None:
            raise UnsetRegisterError(f"{guard} is used but has no value")
        return step(thread) if bool(flag) != negated else None

    return guarded
