"""Requests for windows: the checks of what `acquire` and `reserve` are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from . import _core
from .config import MAX_BYTES
from .plans import OTHER_TYPES, ROLES, WINDOW_TYPES, as_int, check_lane, name_of


class Acquisition(NamedTuple):
    """One window to be had now.

    Attributes:
        role: The core's number.
        lane: Its lane.
        shape: Rows and elements per row.
        nbytes: Bytes of that.
    """

    role: int
    lane: int
    shape: tuple[int, int]
    nbytes: int


class Reservation(NamedTuple):
    """Windows to be had ahead of their use: for each role, in lanes 0..lanes-1.

    Attributes:
        roles: The core's numbers.
        lanes: How many.
        nbytes: Bytes of each.
    """

    roles: list[int]
    lanes: int
    nbytes: int


def check_acquire(
    where: str, role: str, shape: Sequence[int], dtype: torch.dtype, lane: int
) -> Acquisition:
    """What `acquire` is asked for. The dtype may be one that windows do not know.

    Raises:
        TypeError: A dtype that cannot be combined at all, or something that is no integer.
        ValueError: Anything else; the message gives the value.
    """
    number = _role_of(where, role)
    lane = check_lane(where, lane)
    _check_dtype(where, dtype)
    try:
        given = tuple(shape)
    except TypeError:
        raise TypeError(f"{where}: shape must be (rows, hidden), got {shape!r}") from None
    if len(given) != 2:
        raise ValueError(f"{where}: shape must be (rows, hidden), got {given}")
    rows, hidden = (as_int(f"{where}: shape", size) for size in given)
    if rows < 0 or hidden < 1:
        raise ValueError(f"{where}: shape must be (rows, hidden), got {(rows, hidden)}")
    return Acquisition(number, lane, (rows, hidden), _bytes_of(where, rows, hidden, dtype))


def check_reserve(
    where: str, rows: int, hidden: int, dtype: torch.dtype, lanes: int, roles: Sequence[str]
) -> Reservation:
    """What `reserve` is asked for. The dtype may be one that windows do not know.

    Raises:
        TypeError, ValueError: As check_acquire.
    """
    names = (roles,) if isinstance(roles, str) else tuple(roles)
    if not names:
        raise ValueError(f"{where}: no roles given")
    numbers = [_role_of(where, role) for role in names]
    _check_dtype(where, dtype)
    rows, hidden = as_int(f"{where}: rows", rows), as_int(f"{where}: hidden", hidden)
    if rows < 0 or hidden < 1:
        raise ValueError(f"{where}: rows={rows}, hidden={hidden} make no window")
    lanes = as_int(f"{where}: lanes", lanes)
    if not 1 <= lanes <= _core.MAX_LANES:
        raise ValueError(f"{where}: lanes={lanes} is not in 1..{_core.MAX_LANES}")
    return Reservation(numbers, lanes, _bytes_of(where, rows, hidden, dtype))


def why_no_type(dtype: torch.dtype) -> str:
    """Why there are no windows for a dtype; empty if there can be."""
    return "" if dtype in WINDOW_TYPES else f"windows do not know {name_of(dtype)}"


def _role_of(where: str, role: str) -> int:
    if role not in ROLES:
        raise ValueError(f"{where}: role {role!r} is none of {', '.join(ROLES)}")
    return ROLES[role]


def _check_dtype(where: str, dtype: object) -> None:
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{where}: dtype must be a torch.dtype, got {dtype!r}")
    if dtype not in WINDOW_TYPES and dtype not in OTHER_TYPES:
        raise TypeError(f"{where}: dtype {name_of(dtype)} is not supported")


def _bytes_of(where: str, rows: int, hidden: int, dtype: torch.dtype) -> int:
    nbytes = rows * hidden * dtype.itemsize
    if nbytes > MAX_BYTES:
        raise ValueError(f"{where}: {rows} rows of {hidden} are over {MAX_BYTES} bytes")
    return nbytes
