"""Settings of a group. All ranks of a group must use the same ones; init compares them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

PAGE_BYTES = 4096
MAX_BYTES = 1 << 62
MAX_SECONDS = 10**6
_BINARY_UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}
PATHS = ("direct", "plain", "grouped", "ordered", "pull", "routed", "fused")  # of GPUs
WINDOW_SOURCES = ("any", "nccl", "vmm")
_SWITCH = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}


def _switch(text: str) -> bool:
    try:
        return _SWITCH[text.lower()]
    except KeyError:
        raise ValueError("expected 0 or 1") from None


def _byte_count(text: str) -> int:
    shift = _BINARY_UNITS.get(text[-1:].upper(), 0)
    number = text[:-1] if shift else text
    if not number.isdecimal():
        raise ValueError("expected bytes, or a number with K, M, G or T")
    return int(number) << shift


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


@dataclass(frozen=True)
class Config:
    """Settings of one group.

    Attributes:
        timeout: Seconds a rank waits for a peer, in init and in every call, before DeadlineError.
            Waits inside torch.distributed, for calls that windows cannot serve, have the timeout of
            the process group instead.
        max_buffer_bytes: Cap of one window; calls that need more use the process group. None: no
            cap.
        granularity: Windows are multiples of this many bytes; a power of two of at least one page.
        spin_us: Microseconds of spinning before a waiting rank sleeps.
        check: Compare every call across ranks before it starts, so that different calls raise
            MismatchError on all ranks. Costs a barrier per call.
        pin: Bind each rank to its share of the processors that it may run on, until the group is
            closed.
        windows: False: no windows. On the CPU the process group's collectives serve then, on a GPU
            NCCL's ordinary ones.
        nccl_lib: Path of the NCCL (or RCCL) to use. None: the one that is in the process already,
            else pip's, else the system's.
        allow_unsafe_nccl: Take the direct path also below NCCL 2.30.7, whose symmetric kernels lack
            a wait: under CUDA graphs they can read stale rows, silently.
        tuning: Path of a table that `symmoe tune` wrote. None: paths are chosen by a model.
        paths: On GPUs, the only paths that calls may take (docs/paths.md); without "pull", "routed"
            and "fused" no memory is set aside for them. None: all.
        window_source: On GPUs, who makes windows: "nccl", "vmm" (the driver's shareable memory,
            which NCCL knows nothing of), or "any": what serves most paths.
        strict_layout: Refuse input without a tag (`symmoe.tag`) in reduce_scatter and all_gather.
    """

    timeout: float = 300.0
    max_buffer_bytes: int | None = None
    granularity: int = 2 << 20
    spin_us: float = 50.0
    check: bool = False
    pin: bool = False
    windows: bool = True
    nccl_lib: str | None = None
    allow_unsafe_nccl: bool = False
    tuning: str | None = None
    paths: tuple[str, ...] | None = None
    window_source: str = "any"
    strict_layout: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for a setting out of range."""
        if not 0 < self.timeout <= MAX_SECONDS:
            raise ValueError(
                f"Config: timeout must be over 0 and at most {MAX_SECONDS} seconds, "
                f"got {self.timeout}"
            )
        for name in ("max_buffer_bytes", "granularity"):
            size = getattr(self, name)
            if size is not None and size > MAX_BYTES:
                raise ValueError(f"Config: {name} must be at most {MAX_BYTES}, got {size}")
        if self.max_buffer_bytes is not None and self.max_buffer_bytes < 1:
            raise ValueError(
                f"Config: max_buffer_bytes must be positive or None, got {self.max_buffer_bytes}"
            )
        if self.granularity < PAGE_BYTES or self.granularity & (self.granularity - 1):
            raise ValueError(
                f"Config: granularity must be a power of two of at least {PAGE_BYTES} bytes, "
                f"got {self.granularity}"
            )
        if not 0 <= self.spin_us <= MAX_SECONDS * 1e6:
            raise ValueError(f"Config: spin_us must be 0 to {MAX_SECONDS}e6, got {self.spin_us}")
        for path in self.paths or ():
            if path not in PATHS:
                raise ValueError(f"Config: paths must be of {', '.join(PATHS)}, got {path!r}")
        if self.window_source not in WINDOW_SOURCES:
            raise ValueError(
                f"Config: window_source must be one of {', '.join(WINDOW_SOURCES)}, "
                f"got {self.window_source!r}"
            )

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None) -> Config:
        """The settings that SYMMOE_* variables give, defaults for the others.

        Variables: SYMMOE_TIMEOUT (seconds), SYMMOE_MAX_BUFFER_BYTES and SYMMOE_GRANULARITY (bytes,
        with K, M, G or T for powers of 1024), SYMMOE_SPIN_US, SYMMOE_CHECK, SYMMOE_PIN,
        SYMMOE_WINDOWS, SYMMOE_ALLOW_UNSAFE_NCCL and SYMMOE_STRICT_LAYOUT (0 or 1), SYMMOE_NCCL_LIB
        and SYMMOE_TUNING (files), SYMMOE_PATHS (names with commas), SYMMOE_WINDOW_SOURCE. An empty
        variable counts as unset.

        Raises:
            ValueError: A malformed value; the message names the variable.
        """
        source = os.environ if environment is None else environment
        given: dict[str, Any] = {}
        for name, parse in _PARSERS.items():
            variable = f"SYMMOE_{name.upper()}"
            text = source.get(variable, "").strip()
            if text:
                try:
                    given[name] = parse(text)
                    cls(**{name: given[name]})
                except ValueError as error:
                    raise ValueError(f"{variable}={text!r}: {error}") from None
        return cls(**given)

    def fingerprint(self) -> str:
        """All settings in words, equal for equal settings."""
        return ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


_PARSERS: dict[str, Callable[[str], Any]] = {
    "timeout": float,
    "max_buffer_bytes": _byte_count,
    "granularity": _byte_count,
    "spin_us": float,
    "check": _switch,
    "pin": _switch,
    "windows": _switch,
    "nccl_lib": str,
    "allow_unsafe_nccl": _switch,
    "tuning": str,
    "strict_layout": _switch,
    "paths": _names,
    "window_source": str,
}
