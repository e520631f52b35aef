"""Branches, the end, barriers and what the lanes of a warp do together."""

from __future__ import annotations

from collections.abc import Callable

from ptx.decode import Operands, Reader, Step, Writer, operation
from ptx.errors import PtxError, UnknownPtxError
from ptx.syntax import type_bits
from ptx.thread import Barrier, BarrierVote, Event, Exit, Pause, Thread, WarpOperation


@operation("bra")
def _branch(operands: Operands) -> Step:
    operands.take("uni")
    operands.done(1)
    target = operands.entry.labels.get(operands.text(0))
    if target is None:
        raise UnknownPtxError(f"label {operands.text(0)}")

    def step(thread: Thread) -> None:
        thread.jump(target)

    return step


@operation("ret", "exit")
def _end(operands: Operands) -> Step:
    operands.take("uni")
    operands.done(0)
    end = Exit()
    return lambda thread: end


@operation("trap")
def _trap(operands: Operands) -> Step:
    operands.done(0)

    def step(thread: Thread) -> None:
        raise PtxError("trap")

    return step


@operation("nanosleep")
def _sleep(operands: Operands) -> Step:
    pause = Pause()
    return lambda thread: pause


@operation("bar", "barrier")
def _barrier(operands: Operands) -> Step:
    operands.take("cta")
    if operands.take("warp") is not None:
        return _warp_barrier(operands)
    if operands.name == "bar" and operands.take("red") is not None:
        return _barrier_vote(operands)
    aligned = operands.take("aligned") is not None or operands.name == "bar"
    if operands.take("sync") is None or not aligned or len(operands) != 1:
        # A part of the block, or threads of one warp at different places.
        raise UnknownPtxError("a barrier that is not one of the whole block")
    operands.done(1)
    if operands.is_register(operands.text(0)):
        raise UnknownPtxError("a barrier with a computed number")
    event = Barrier(int(operands.text(0), 0))
    return lambda thread: event


def _barrier_vote(operands: Operands) -> Step:
    if operands.type() != "pred" or operands.take("and") is None:
        raise UnknownPtxError("a vote of another kind than bar.red.and.pred")
    operands.done(3)
    number, write, vote = int(operands.text(1), 0), operands.write(0, 1), operands.read(2, 1)

    def step(thread: Thread) -> Event:
        return BarrierVote(number, vote(thread.registers), write)

    return step


def _warp_barrier(operands: Operands) -> Step:
    operands.take("sync")
    operands.done(1)
    mask = operands.read(0, 32)

    def step(thread: Thread) -> Event:
        return WarpOperation(mask(thread.registers), lambda lanes: None, is_barrier=True)

    return step


def _source_lane(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """Lane to read from and whether it lies inside the segment, as the PTX manual defines shfl."""
    limit, segment = c & 31, c >> 8 & 31
    low = lane & segment
    high = low | limit & ~segment
    if mode == "up":
        source = lane - b
        inside = source >= high
    elif mode == "down":
        source = lane + b
        inside = source <= high
    else:
        source = lane ^ b if mode == "bfly" else low | b & ~segment
        inside = source <= high
    return (source, True) if inside else (lane, False)


@operation("shfl")
def _shuffle(operands: Operands) -> Step:
    operands.type()
    mode = operands.take("up", "down", "bfly", "idx")
    if operands.take("sync") is None or mode is None:
        raise UnknownPtxError("shfl without .sync")
    operands.done(5)
    names = operands.text(0).split("|")
    write = operands.write(names[0].strip(), 32)
    predicate: Writer | None = operands.write(names[1].strip(), 1) if len(names) == 2 else None
    value, b, c, mask = (operands.read(index, 32) for index in (1, 2, 3, 4))

    def finish(lanes: dict[int, Thread]) -> None:
        results = {}
        for lane, thread in lanes.items():
            registers = thread.registers
            source, inside = _source_lane(mode, lane, b(registers) & 31, c(registers))
            if source not in lanes:
                raise PtxError(f"shfl of lane {lane} reads lane {source}, which is not in the mask")
            results[lane] = value(lanes[source].registers), inside
        for lane, (result, inside) in results.items():
            write(lanes[lane].registers, result)
            if predicate is not None:
                predicate(lanes[lane].registers, int(inside))

    return _collective(mask, finish)


def _collective(mask: Reader, finish: Callable[[dict[int, Thread]], None]) -> Step:
    def step(thread: Thread) -> Event:
        return WarpOperation(mask(thread.registers), finish)

    return step


@operation("vote")
def _vote(operands: Operands) -> Step:
    kind = operands.type()
    mode = operands.take("all", "any", "uni", "ballot")
    if operands.take("sync") is None or mode is None:
        raise UnknownPtxError("vote without .sync")
    operands.done(3)
    write = operands.write(0, type_bits(kind))
    flag, mask = operands.read(1, 1), operands.read(2, 32)

    def finish(lanes: dict[int, Thread]) -> None:
        votes = {lane: flag(thread.registers) for lane, thread in lanes.items()}
        ballot = sum(vote << lane for lane, vote in votes.items())
        results = {
            "all": int(all(votes.values())),
            "any": int(any(votes.values())),
            "uni": int(len(set(votes.values())) == 1),
            "ballot": ballot,
        }
        for thread in lanes.values():
            write(thread.registers, results[mode])

    return _collective(mask, finish)


@operation("redux")
def _reduce(operands: Operands) -> Step:
    kind = operands.type()
    combine: dict[str, Callable[[int, int], int]] = {
        "add": lambda a, b: a + b,
        "min": min,
        "max": max,
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
    }
    mode = operands.take(*combine)
    if operands.take("sync") is None or mode is None:
        raise UnknownPtxError("redux without .sync")
    operands.done(3)
    write, value = operands.write(0, 32), operands.read_number(1, kind)
    mask = operands.read(2, 32)

    def finish(lanes: dict[int, Thread]) -> None:
        values = [value(thread.registers) for thread in lanes.values()]
        total = values[0]
        for other in values[1:]:
            total = combine[mode](total, other)
        for thread in lanes.values():
            write(thread.registers, total)

    return _collective(mask, finish)
