"""From an instruction's text to a closure that carries it out; done once per program.

The modules named *_operations register a decoder per first part of the opcode. A decoder looks the
operands up and returns the step; anything that it does not expect is UnknownPtxError.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ptx.errors import UnknownPtxError, UnsetRegisterError
from ptx.numbers import signed
from ptx.syntax import Entry, Instruction, type_bits
from ptx.thread import Event, Registers, Thread

Step = Callable[[Thread], Event | None]
Reader = Callable[[Registers], int]
Writer = Callable[[Registers, int | None], None]
DecodeFunction = Callable[["Operands"], Step]

DECODERS: dict[str, DecodeFunction] = {}
# "_" as a destination: the value is not wanted.
SINK = "_"


def operation(*names: str) -> Callable[[DecodeFunction], DecodeFunction]:
    """Registers a decoder for opcodes that begin with one of these."""

    def register(decoder: DecodeFunction) -> DecodeFunction:
        for name in names:
            DECODERS[name] = decoder
        return decoder

    return register


class Operands:
    """One instruction's parts, ready to be looked up by a decoder.

    Attributes:
        name: First part of the opcode.
        modifiers: The other parts; `expect` and `take` remove what a decoder has understood.
    """

    def __init__(self, entry: Entry, slots: dict[str, int], instruction: Instruction) -> None:
        self.entry = entry
        self.instruction = instruction
        self.name = instruction.opcode[0]
        self.modifiers = list(instruction.opcode[1:])
        self._slots = slots

    def __len__(self) -> int:
        return len(self.instruction.operands)

    def text(self, index: int) -> str:
        """An operand as written."""
        if index >= len(self):
            raise UnknownPtxError(f"operand {index} is missing")
        return self.instruction.operands[index]

    def take(self, *wanted: str) -> str | None:
        """Removes and returns the first of these modifiers that is there."""
        for name in wanted:
            if name in self.modifiers:
                self.modifiers.remove(name)
                return name
        return None

    def type(self) -> str:
        """Removes and returns the last modifier, the type."""
        if not self.modifiers:
            raise UnknownPtxError("no type")
        return self.modifiers.pop()

    def done(self, operands: int) -> None:
        """Refuses modifiers that nobody took, and another number of operands."""
        if self.modifiers:
            raise UnknownPtxError(f"modifier .{self.modifiers[0]}")
        if len(self) != operands:
            raise UnknownPtxError(f"{len(self)} operands, not {operands}")

    def slot(self, name: str) -> int:
        """Where a register lives; special registers get a place when they are first named."""
        if name in self.entry.registers:
            return self._slots.setdefault(name, len(self._slots))
        if name.startswith("%") and name in SPECIAL_REGISTERS:
            return self._slots.setdefault(name, len(self._slots))
        raise UnknownPtxError(f"register {name}")

    def width(self, name: str) -> int:
        """A register's bits."""
        kind = self.entry.registers.get(name)
        return type_bits(kind) if kind else SPECIAL_REGISTERS[name]

    def is_register(self, name: str) -> bool:
        """Whether an operand is a register rather than a number or a variable."""
        return name in self.entry.registers or name in SPECIAL_REGISTERS

    def read(self, operand: int | str, bits: int) -> Reader:
        """Reads an operand as a pattern of `bits`."""
        name = self.text(operand) if isinstance(operand, int) else operand
        if name.startswith("!") and bits == 1:
            positive = self.read(name[1:], 1)
            return lambda registers: positive(registers) ^ 1
        if not self.is_register(name):
            value = self._constant(name) & ((1 << bits) - 1)
            return lambda registers: value
        slot = self.slot(name)
        width = self.width(name)
        if width < bits:
            raise UnknownPtxError(f"{name} has {width} bits, not {bits}")
        mask = (1 << bits) - 1

        def read_all(registers: Registers) -> int:
            value = registers[slot]
            if value is None:
                raise UnsetRegisterError(f"{name} is used but has no value")
            return value

        def read_low(registers: Registers) -> int:
            return read_all(registers) & mask

        return read_all if width == bits else read_low

    def read_number(self, operand: int | str, kind: str) -> Reader:
        """Reads an operand as an integer, with its sign if the type has one."""
        bits = type_bits(kind)
        pattern = self.read(operand, bits)
        if not kind.startswith("s"):
            return pattern
        return lambda registers: signed(pattern(registers), bits)

    def write(self, operand: int | str, bits: int) -> Writer:
        """Writes an operand; the value is cut to `bits` and fills the register with zeros."""
        name = self.text(operand) if isinstance(operand, int) else operand
        if name == SINK:
            return lambda registers, value: None
        if name not in self.entry.registers:
            raise UnknownPtxError(f"{name} is not a register to write")
        if self.width(name) < bits:
            raise UnknownPtxError(f"{name} has {self.width(name)} bits, not {bits}")
        slot = self.slot(name)
        mask = (1 << bits) - 1

        def write(registers: Registers, value: int | None) -> None:
            registers[slot] = None if value is None else value & mask

        return write

    def write_extended(self, operand: int | str, kind: str) -> Writer:
        """Writes an operand as cvt and ld do: cut to the type, then extended to the register."""
        name = self.text(operand) if isinstance(operand, int) else operand
        bits = type_bits(kind)
        if not kind.startswith("s") or name == SINK or self.width(name) == bits:
            return self.write(name, bits)
        write_all, mask = self.write(name, self.width(name)), (1 << bits) - 1

        def write(registers: Registers, value: int | None) -> None:
            write_all(registers, None if value is None else signed(value & mask, bits))

        return write

    def vector(self, operand: int) -> list[str]:
        """The names in {a, b}, or the single one."""
        text = self.text(operand)
        return [name.strip() for name in text.strip("{}").split(",")]

    def address(self, operand: int) -> tuple[Reader, int]:
        """Base and offset of [base+offset]; the base is a register, a variable or a number."""
        match = re.fullmatch(r"\[\s*([%\w$#]+)\s*(?:\+\s*(-?\w+))?\s*\]", self.text(operand))
        if match is None:
            raise UnknownPtxError(f"address {self.text(operand)}")
        base = match[1]
        bits = self.width(base) if self.is_register(base) else 64
        return self.read(base, bits), int(match[2] or "0", 0)

    def _constant(self, text: str) -> int:
        float_match = re.fullmatch(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})", text)
        if float_match is not None:
            return int(float_match[1] or float_match[2], 16)
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|0[bB][01]+|[0-9]+)U?", text):
            digits = text.rstrip("U")
            octal = re.fullmatch(r"(-?)0([0-7]+)", digits)
            return int(octal[1] + octal[2], 8) if octal else int(digits, 0)
        for space in ("param", "shared", "local"):
            variable = self.entry.spaces.get(space, {}).get(text)
            if variable is not None:
                return variable.offset
        raise UnknownPtxError(f"operand {text}")


SPECIAL_REGISTERS = {
    f"%{name}.{axis}": 32 for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"
} | {"%laneid": 32, "%warpid": 32, "%nwarpid": 32}
SPECIAL_REGISTERS |= {f"%lanemask_{kind}": 32 for kind in ("eq", "lt", "le", "gt", "ge")}


def evaluating(write: Writer, compute: Callable[[Registers], int]) -> Step:
    """The step of an operation without other effects: what it makes of no value is no value.

    Compilers move and combine bytes that nobody set, such as those between a structure's members.
    That is harmless until an address, a branch or global memory depends on them.
    """

    def step(thread: Thread) -> None:
        registers = thread.registers
        try:
            value: int | None = compute(registers)
        except UnsetRegisterError:
            value = None
        write(registers, value)

    return step


def unary(write: Writer, compute: Callable[[int], int], a: Reader) -> Step:
    """The step of an operation with one operand."""
    return evaluating(write, lambda registers: compute(a(registers)))


def binary(write: Writer, compute: Callable[[int, int], int], a: Reader, b: Reader) -> Step:
    """The step of an operation with two operands."""
    return evaluating(write, lambda registers: compute(a(registers), b(registers)))


def ternary(
    write: Writer, compute: Callable[[int, int, int], int], a: Reader, b: Reader, c: Reader
) -> Step:
    """The step of an operation with three operands."""
    return evaluating(write, lambda registers: compute(a(registers), b(registers), c(registers)))
