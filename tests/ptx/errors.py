"""What can be wrong with a program or its run; each message ends with the instruction."""

from __future__ import annotations


class PtxError(Exception):
    """Any fault of a program; the ones below say which."""


class UnknownPtxError(PtxError):
    """The interpreter does not know this syntax or operation, and says so rather than guess."""


class MemoryAccessError(PtxError):
    """An access that is out of bounds, misaligned, or through the wrong cache."""


class UnsetRegisterError(PtxError):
    """Something depends on a register that nobody has written."""


class BarrierError(PtxError):
    """Threads wait for others that will never come."""


class RaceError(PtxError):
    """Two threads touch the same shared memory with no barrier in between."""
