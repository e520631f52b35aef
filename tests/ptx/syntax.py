"""PTX text to instructions with named operands, before anything is known of their meaning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ptx.errors import UnknownPtxError

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
ENTRY = re.compile(
    r"(?:\.visible\s+|\.weak\s+)*\.entry\s+([\w$]+)\s*\((.*?)\)([^{;]*)\{", re.DOTALL
)
PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>[a-z]\d+)\s+"
    r"(?:\.ptr\s+(?:\.(?:global|const|local|shared)\s+)?(?:\.align\s+\d+\s+)?)?"
    r"(?P<name>[\w$]+)(?:\[(?P<count>\d+)\])?"
)
VARIABLE = re.compile(
    r"\.(?P<space>shared|local)\s+(?:\.align\s+(?P<align>\d+)\s+)?"
    r"\.(?P<type>[a-z]\d+)\s+(?P<name>[\w$]+)(?:\[(?P<count>\d*)\])?$"
)
REGISTERS = re.compile(r"\.reg\s+\.(pred|[a-z]+\d+)\s+(.*)", re.DOTALL)
LABEL = re.compile(r"([\w$]+)\s*:(?!:)")
INSTRUCTION = re.compile(r"(?:@(!?)([%\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*")
NAME = re.compile(r"[%\w$]+")


@dataclass(frozen=True)
class Instruction:
    """One instruction; operands are as written, with the scope's own registers made unique.

    Attributes:
        guard: Predicate register without its @, or None.
        negated: Whether the guard is @!.
        opcode: Parts between the dots, such as ("ld", "global", "v4", "b32").
        operands: Registers, immediates, [addresses] and {vectors}.
        text: As it stands in the program, for messages.
    """

    guard: str | None
    negated: bool
    opcode: tuple[str, ...]
    operands: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Variable:
    """A parameter or a variable in shared or local memory, at its place in its space."""

    offset: int
    size: int


@dataclass
class Entry:
    """A kernel as written.

    Attributes:
        spaces: For "param", "shared" and "local", the variables by name.
        sizes: Bytes of each space.
        registers: Type by name, such as "b32" and "pred".
        labels: Index of the instruction that follows.
        max_threads: From .maxntid; None if it states none.
    """

    name: str
    spaces: dict[str, dict[str, Variable]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    registers: dict[str, str] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    max_threads: int | None = None

    def place(self, space: str, name: str, size: int, alignment: int) -> None:
        """Adds a variable behind those that its space already has."""
        begin = -(-self.sizes.get(space, 0) // alignment) * alignment
        self.spaces.setdefault(space, {})[name] = Variable(begin, size)
        self.sizes[space] = begin + size


def type_bits(name: str) -> int:
    """Width of a type such as "bf16x2", "u8" or "pred"."""
    if name == "pred":
        return 1
    match = re.fullmatch(r"(?:s|u|b|f|bf)(8|16|32|64)(x2)?", name)
    if match is None:
        raise UnknownPtxError(f"type .{name}")
    return int(match[1]) * (2 if match[2] else 1)


def parse(text: str) -> dict[str, Entry]:
    """The kernels of a PTX file by their (mangled) name."""
    text = COMMENT.sub(" ", text)
    entries = {}
    position = 0
    while (match := ENTRY.search(text, position)) is not None:
        end = _closing_brace(text, match.end())
        _refuse_outside(text[position : match.start()])
        entry = Entry(match[1])
        for parameter in PARAMETER.finditer(match[2]):
            _place(entry, "param", parameter)
        if len(entry.spaces.get("param", {})) != match[2].count(".param"):
            raise UnknownPtxError(f"parameters of {entry.name}: {match[2]}")
        limit = re.search(r"\.maxntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", match[3])
        if limit is not None:
            entry.max_threads = int(limit[1]) * int(limit[2] or 1) * int(limit[3] or 1)
        _Body(entry).read(text[match.end() : end])
        _place_dynamic_shared(entry, text)
        entries[entry.name] = entry
        position = end + 1
    _refuse_outside(text[position:])
    return entries


def _closing_brace(text: str, position: int) -> int:
    depth = 1
    while depth:
        brace = re.compile(r"[{}]").search(text, position)
        if brace is None:
            raise UnknownPtxError("a kernel has no end")
        depth += 1 if brace[0] == "{" else -1
        position = brace.end()
    return position - 1


def _place_dynamic_shared(entry: Entry, text: str) -> None:
    """Puts dynamic shared memory, whose size the launch decides, behind the kernel's own."""
    for match in re.finditer(r"\.extern\s+([^;]*?)\s*;", text):
        variable = VARIABLE.fullmatch(" ".join(match[1].split()))
        if variable is None:
            raise UnknownPtxError(match[0])
        entry.place("shared", variable["name"], 0, int(variable["align"] or 1))


def _refuse_outside(text: str) -> None:
    """Outside of kernels, only what says how to read the file, and dynamic shared memory."""
    known = r"\.version [\d.]+|\.target [\w, ]+|\.address_size 64|\.extern \.shared [^;]*;"
    rest = re.sub(known, "", " ".join(text.split()).replace("debug", "")).strip()
    if rest:
        raise UnknownPtxError(f"outside of kernels: {rest[:200]}")


def _place(entry: Entry, space: str, match: re.Match[str]) -> None:
    element = type_bits(match["type"]) // 8
    count = int(match["count"] or 1)
    entry.place(space, match["name"], element * count, int(match["align"] or element))


class _Body:
    """Reads the statements of one kernel; inline assembly opens scopes with their own names."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.scopes: list[dict[str, str]] = [{}]
        self.opened = 0

    def read(self, text: str) -> None:
        for statement in _statements(text):
            if statement == "{":
                self.opened += 1
                self.scopes.append({})
            elif statement == "}":
                self.scopes.pop()
            elif statement.endswith(":"):
                self.entry.labels[statement[:-1].strip()] = len(self.entry.instructions)
            elif statement.startswith("."):
                self._directive(statement)
            else:
                self._instruction(statement)

    def _directive(self, statement: str) -> None:
        registers = REGISTERS.fullmatch(statement)
        variable = VARIABLE.fullmatch(statement)
        if registers is not None:
            for declared in registers[2].split(","):
                self._declare(declared.strip(), registers[1])
        elif variable is not None and variable["count"] != "":
            _place(self.entry, variable["space"], variable)
        elif not statement.startswith(".pragma"):
            raise UnknownPtxError(f"{statement} in {self.entry.name}")

    def _declare(self, declared: str, kind: str) -> None:
        family = re.fullmatch(r"([%\w$]+)<(\d+)>", declared)
        names = [f"{family[1]}{i}" for i in range(int(family[2]))] if family else [declared]
        for name in names:
            unique = name if len(self.scopes) == 1 else f"{name}#{self.opened}"
            self.scopes[-1][name] = unique
            self.entry.registers[unique] = kind

    def _unique(self, match: re.Match[str]) -> str:
        for scope in reversed(self.scopes):
            if match[0] in scope:
                return scope[match[0]]
        return match[0]

    def _instruction(self, statement: str) -> None:
        match = INSTRUCTION.fullmatch(statement)
        if match is None:
            raise UnknownPtxError(f"{statement} in {self.entry.name}")
        operands = NAME.sub(self._unique, match[4])
        self.entry.instructions.append(
            Instruction(
                guard=NAME.sub(self._unique, match[2]) if match[2] else None,
                negated=bool(match[1]),
                opcode=tuple(re.split(r"(?<!:)\.", match[3])),
                operands=tuple(part.strip() for part in OPERAND.findall(operands)),
                text=statement,
            )
        )


def _statements(text: str) -> Iterator[str]:
    """Braces of scopes, labels with their colon, and the rest up to each semicolon."""
    position = 0
    while True:
        while position < len(text) and (text[position].isspace() or text[position] == ";"):
            position += 1
        if position == len(text):
            return
        label = LABEL.match(text, position)
        if text[position] in "{}":
            end = position + 1
        elif label is not None:
            end = label.end()
        else:
            end = text.find(";", position)
            if end < 0:
                raise UnknownPtxError(f"no semicolon after {text[position : position + 80]}")
        yield " ".join(text[position:end].split())
        position = end
