"""Runs what nvcc emitted as PTX, inline assembly included, on the CPU; see README.md."""

from __future__ import annotations

from ptx.errors import (
    BarrierError,
    MemoryAccessError,
    PtxError,
    RaceError,
    UnknownPtxError,
    UnsetRegisterError,
)
from ptx.machine import Launch, run
from ptx.memory import GlobalMemory, Region
from ptx.program import Module, Program, load

__all__ = [
    "BarrierError",
    "GlobalMemory",
    "Launch",
    "MemoryAccessError",
    "Module",
    "Program",
    "PtxError",
    "RaceError",
    "Region",
    "UnknownPtxError",
    "UnsetRegisterError",
    "load",
    "run",
]
