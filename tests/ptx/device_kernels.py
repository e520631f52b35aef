"""How the library's kernels are called: their parameters, and their names among the PTX entries."""

from __future__ import annotations

import ctypes
import functools
import re
from pathlib import Path

import ptx
from ptx.compiler import ARCHITECTURES, ROOT, emit

SOURCES = ROOT / "csrc" / "kernels" / "device"
# As in base/dtype.h.
BF16, F16, F32 = range(3)
MAX_PEERS = 64  # kMaxPeers
ELEMENT_BYTES = {BF16: 2, F16: 2, F32: 4}

# As the Itanium C++ ABI writes template arguments: enumerators, then the number of slots.
TOPK = re.compile(r"11topk_reduceI.*?(Wide|Narrow)ColumnsIL\w*?DTypeE(\d)EL\w+?_(\d)EEELi(\d+)E")
RANK = re.compile(r"11rank_reduceI\w*?DTypeE(\d)E")
COPY = re.compile(r"14copy_to_windowI(?:\w*?(Bits128)|([jth]))E")
COLUMNS = r"INS1_\d+(Wide|Narrow)ColumnsIL\w*?DTypeE(\d)EL\w+?_(\d)EEE"
AT_ONCE = r"NS1_\d+(FewRanks|ManyRanks|OneByOne)EEE"
PULL = re.compile(rf"11pull_reduce{COLUMNS}{AT_ONCE}")
PULL_EPILOGUE = re.compile(rf"13pull_epilogue{COLUMNS}{AT_ONCE}")
EPILOGUE = re.compile(rf"14apply_epilogue{COLUMNS}E")
COMBINE = re.compile(rf"7combine{COLUMNS}Li(\d+)E{AT_ONCE}")
ROUTE = re.compile(r"(10route_mask)E")
UNIT_BYTES = {"Bits128": 16, "j": 4, "t": 2, "h": 1}


class RoutingView(ctypes.Structure):
    """kernels/device/launch.h, field by field."""

    _fields_ = (
        ("ids", ctypes.c_uint64),
        ("expert_to_rank", ctypes.c_uint64),
        ("mask", ctypes.c_uint64),
        ("experts", ctypes.c_int64),
        ("rank", ctypes.c_int),
        ("ids_are_64bit", ctypes.c_bool),
    )


class RowShares(ctypes.Structure):
    """kernels/device/launch.h, field by field."""

    _fields_ = (
        ("sizes", ctypes.c_uint64),
        ("padded_to", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("output_rows", ctypes.c_int64),
        ("begins", ctypes.c_int64 * MAX_PEERS),
        ("counts", ctypes.c_int64 * MAX_PEERS),
    )


class TopkReduceLaunch(ctypes.Structure):
    """kernels/device/launch.h, field by field; behind it, the number of chunks."""

    _fields_ = (
        ("input", ctypes.c_uint64),
        ("weights", ctypes.c_uint64),
        ("index", ctypes.c_uint64),
        ("output", ctypes.c_uint64),
        ("fault", ctypes.c_uint64),
        ("tokens", ctypes.c_int64),
        ("slots", ctypes.c_int64),
        ("hidden", ctypes.c_int64),
        ("pairs", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("has_scale", ctypes.c_bool),
        ("input_type", ctypes.c_uint8),
        ("output_type", ctypes.c_uint8),
        ("weights_type", ctypes.c_uint8),
        ("index_is_64bit", ctypes.c_bool),
        ("shares", RowShares),
        ("ranks", ctypes.c_int),
        ("routing", RoutingView),
    )


class RankReduceLaunch(ctypes.Structure):
    """kernels/device/launch.h, field by field."""

    _fields_ = (
        ("own", ctypes.c_uint64),
        ("gathered", ctypes.c_uint64),
        ("output", ctypes.c_uint64),
        ("count", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("ranks", ctypes.c_int),
        ("own_rank", ctypes.c_int),
        ("type", ctypes.c_uint8),
    )


class Fault(ctypes.Structure):
    """kernels/device/launch.h, field by field."""

    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("being_written", ctypes.c_uint32),
        ("subject", ctypes.c_int64),
        ("detail", ctypes.c_int64),
        ("value", ctypes.c_int64),
    )


@functools.cache
def texts() -> dict[tuple[str, str], str]:
    """PTX of every device source for every architecture."""
    return emit(sorted(SOURCES.glob("*.cu")))


@functools.cache
def module(source: str, architecture: str) -> ptx.Module:
    """The kernels of one source."""
    return ptx.load(texts()[source, architecture])


def entries(source: str, pattern: re.Pattern[str]) -> dict[tuple[str, ...], str]:
    """Names of the instances by their template arguments; the same on every architecture."""
    found: dict[tuple[str, ...], str] = {}
    for name in module(source, ARCHITECTURES[0]):
        match = pattern.search(name)
        if match is None:
            raise LookupError(f"{name} is not what {pattern.pattern} describes")
        found[tuple(group for group in match.groups() if group)] = name
    return found


def source_names() -> list[str]:
    """Stems of the device sources."""
    return [Path(path).stem for path in sorted(SOURCES.glob("*.cu"))]
