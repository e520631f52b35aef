"""What kernels that wait for peers are given: launch.h and signal_page.h of kernels/device."""

from __future__ import annotations

import ctypes

from ptx.device_kernels import MAX_PEERS, RowShares, TopkReduceLaunch

MAX_BLOCKS = 64
MAX_ORDINALS = 256


class EntrySignal(ctypes.Structure):
    """kernels/device/signal_page.h, field by field."""

    _fields_ = (
        ("stamp", ctypes.c_uint64),
        ("values", ctypes.c_uint32),
        ("ordinal", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("unused", ctypes.c_uint64),
    )


class SignalPage(ctypes.Structure):
    """kernels/device/signal_page.h, field by field."""

    _fields_ = (
        ("entry", EntrySignal * MAX_PEERS * MAX_BLOCKS),
        ("exit", ctypes.c_uint32 * MAX_PEERS * MAX_BLOCKS),
        ("epoch", ctypes.c_uint32 * MAX_BLOCKS),
        ("broken", ctypes.c_uint32),
        ("padding", ctypes.c_uint32 * 63),
    )


class MaskHash(ctypes.Structure):
    """kernels/device/launch.h, field by field."""

    _fields_ = (
        ("value", ctypes.c_uint64),
        ("sum", ctypes.c_uint64),
        ("blocks_done", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
    )


class RouteMaskLaunch(ctypes.Structure):
    """kernels/device/launch.h, field by field."""

    _fields_ = (
        ("ids", ctypes.c_uint64),
        ("expert_to_rank", ctypes.c_uint64),
        ("mask", ctypes.c_uint64),
        ("hash", ctypes.c_uint64),
        ("fault", ctypes.c_uint64),
        ("shares", RowShares),
        ("rows", ctypes.c_int64),
        ("slots", ctypes.c_int64),
        ("experts", ctypes.c_int64),
        ("world", ctypes.c_int),
        ("ids_are_64bit", ctypes.c_bool),
    )


class PeerGroup(ctypes.Structure):
    """kernels/device/launch.h, field by field."""

    _fields_ = (
        ("signals", ctypes.c_uint64),
        ("page_offset", ctypes.c_uint64),
        ("windows", ctypes.c_uint64),
        ("fault", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("rank", ctypes.c_int),
        ("world", ctypes.c_int),
    )


class PullLaunch(ctypes.Structure):
    """kernels/device/launch.h, field by field."""

    _fields_ = (
        ("peers", PeerGroup),
        ("shares", RowShares),
        ("output", ctypes.c_uint64),
        ("mask", ctypes.c_uint64),
        ("mask_hash", ctypes.c_uint64),
        ("hidden", ctypes.c_int64),
        ("offset", ctypes.c_uint64),
        ("ordinal", ctypes.c_uint32),
        ("signature", ctypes.c_uint32),
        ("blocks", ctypes.c_int),
        ("type", ctypes.c_uint8),
    )


class CombineLaunch(ctypes.Structure):
    """kernels/device/launch.h, field by field."""

    _fields_ = (("sum", TopkReduceLaunch), ("pull", PullLaunch))
