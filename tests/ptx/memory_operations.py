"""Loads, stores and atomics in every space."""

from __future__ import annotations

from collections.abc import Callable

from ptx.decode import Operands, Reader, Step, Writer, operation
from ptx.errors import MemoryAccessError, UnknownPtxError, UnsetRegisterError
from ptx.memory import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES
from ptx.numbers import signed
from ptx.syntax import type_bits
from ptx.thread import Pause, Thread

SPACES = ("global", "shared::cta", "shared", "local", "param")
SCOPES = ("cta", "cluster", "gpu", "sys")
CACHE_HINTS = ("ca", "cg", "cs", "lu", "cv", "wb", "wt")
# Orders that say that somebody else may be writing: a good moment to let them.
WATCHING = ("volatile", "acquire", "relaxed", "acq_rel")


def _place(thread: Thread, space: str, address: int) -> tuple[str, int]:
    """Space and address that a generic address means."""
    if space != "generic":
        return space, address
    for name, window in (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW)):
        if window <= address < window + WINDOW_BYTES:
            return name, address - window
    return "global", address


def _load(
    thread: Thread, space: str, address: int, size: int, read_only: bool, atomic: bool = False
) -> int:
    space, address = _place(thread, space, address)
    if space == "shared":
        return thread.shared.load(address, size, thread.moment(), atomic)
    if space == "local":
        return thread.local.load(address, size)
    if space == "param":
        return thread.parameters.load(address, size)
    return thread.memory.load(address, size, read_only)


def _store(
    thread: Thread, space: str, address: int, size: int, value: int, atomic: bool = False
) -> None:
    space, address = _place(thread, space, address)
    if space == "shared":
        thread.shared.store(address, size, value, thread.moment(), atomic)
    elif space == "local":
        thread.local.store(address, size, value)
    elif space == "param":
        raise MemoryAccessError("write to a parameter")
    else:
        thread.memory.store(address, size, value)


def _forget(thread: Thread, space: str, address: int, size: int, error: UnsetRegisterError) -> None:
    """Takes the value from bytes of shared or local memory that a register without one went to."""
    space, address = _place(thread, space, address)
    if space == "shared":
        thread.shared.forget(address, size)
    elif space == "local":
        thread.local.forget(address, size)
    else:
        raise error


class _Access:
    """What the modifiers of a load or a store say."""

    def __init__(self, operands: Operands) -> None:
        self.kind = operands.type()
        self.bits = type_bits(self.kind)
        space = operands.take(*SPACES) or "generic"
        self.space = space.removesuffix("::cta")
        self.lanes = int((operands.take("v2", "v4", "v8") or "v1")[1:])
        self.order = operands.take("weak", "release", *WATCHING)
        scope = operands.take(*SCOPES)
        if self.order in ("acquire", "relaxed", "release", "acq_rel") and scope is None:
            raise UnknownPtxError(f"{self.order} without a scope")
        operands.take(*CACHE_HINTS)
        self.read_only = operands.take("nc") is not None
        operands.modifiers = [
            name for name in operands.modifiers if not name.startswith(("L1::", "L2::"))
        ]
        self.size = self.bits // 8 * self.lanes

    def target(self, operands: Operands, index: int) -> Callable[[Thread], int]:
        """Computes the address."""
        base, offset = operands.address(index)
        # The smaller spaces have addresses of 32 bits, which wrap around.
        mask = (1 << (64 if self.space in ("generic", "global") else 32)) - 1
        return lambda thread: base(thread.registers) + offset & mask


@operation("ld", "ldu")
def _ld(operands: Operands) -> Step:
    access = _Access(operands)
    operands.done(2)
    names = operands.vector(0)
    if len(names) != access.lanes:
        raise UnknownPtxError(f"{len(names)} registers for .v{access.lanes}")
    writes = [operands.write_extended(name, access.kind) for name in names]
    target = access.target(operands, 1)
    space, size, bits, read_only = access.space, access.size, access.bits, access.read_only
    pause = Pause() if access.order in WATCHING else None

    def step(thread: Thread) -> Pause | None:
        value = _load(thread, space, target(thread), size, read_only)
        for write in writes:
            write(thread.registers, value)
            value >>= bits
        return pause

    return step


@operation("st")
def _st(operands: Operands) -> Step:
    access = _Access(operands)
    operands.done(2)
    names = operands.vector(1)
    if len(names) != access.lanes or access.read_only:
        raise UnknownPtxError(f"{len(names)} registers for .v{access.lanes}")
    parts = [operands.read(name, access.bits) for name in names]
    target = access.target(operands, 0)
    space, size, bits = access.space, access.size, access.bits

    def step(thread: Thread) -> None:
        value = 0
        unset: list[tuple[int, UnsetRegisterError]] = []
        for place, part in enumerate(parts):
            try:
                value |= part(thread.registers) << (place * bits)
            except UnsetRegisterError as error:
                unset.append((place * bits // 8, error))
        address = target(thread)
        _store(thread, space, address, size, value)
        for begin, reason in unset:
            _forget(thread, space, address + begin, bits // 8, reason)

    return step


ATOMIC: dict[str, Callable[[int, int], int]] = {
    "add": lambda old, new: old + new,
    "exch": lambda old, new: new,
    "min": min,
    "max": max,
    "and": lambda old, new: old & new,
    "or": lambda old, new: old | new,
    "xor": lambda old, new: old ^ new,
    "inc": lambda old, new: 0 if old >= new else old + 1,
    "dec": lambda old, new: new if old == 0 or old > new else old - 1,
}


@operation("atom", "red")
def _atomic(operands: Operands) -> Step:
    kind = operands.modifiers[-1]
    if "f" in kind:
        raise UnknownPtxError(f"atomic of .{kind}")
    name = operands.take(*ATOMIC, "cas")
    access = _Access(operands)
    first = 1 if operands.name == "atom" else 0
    operands.done(first + (3 if name == "cas" else 2))
    write = operands.write(0, access.bits) if first else None
    target = access.target(operands, first)
    arguments = [operands.read_number(index, kind) for index in range(first + 1, len(operands))]
    return _atomic_step(access, kind, name, target, arguments, write)


def _atomic_step(
    access: _Access,
    kind: str,
    name: str | None,
    target: Callable[[Thread], int],
    arguments: list[Reader],
    write: Writer | None,
) -> Step:
    space, size, bits = access.space, access.size, access.bits
    mask = (1 << bits) - 1
    if name is None:
        raise UnknownPtxError("which atomic operation?")
    compute = ATOMIC.get(name)

    def step(thread: Thread) -> Pause:
        address = target(thread)
        pattern = _load(thread, space, address, size, False, atomic=True)
        old = signed(pattern, bits) if kind.startswith("s") else pattern
        values = [argument(thread.registers) for argument in arguments]
        if compute is None:
            new = values[1] if old == values[0] else old
        else:
            new = compute(old, values[0])
        _store(thread, space, address, size, new & mask, atomic=True)
        if write is not None:
            write(thread.registers, pattern)
        return Pause()

    return step


@operation("fence", "membar", "prefetch", "prefetchu", "discard", "applypriority")
def _no_effect(operands: Operands) -> Step:
    """Threads run one at a time here, so that memory is always in order."""
    return lambda thread: None
