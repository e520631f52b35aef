"""One thing to time: mode, ranks, element type and shape."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from .errors import BenchError
from .shapes import Shape

MODES = ("collective", "combine", "topk")
# The name under which the workers run that calibrate the limit, beside the paths.
LIMIT = "limit"
# Bytes per element, by the names used on the command line and in results.
ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
# Widest row taken for a size in bytes that comes without a model's shape.
PLAIN_HIDDEN = 2048
# Experts of a routed problem that comes without a model's shape.
PLAIN_EXPERTS = 128

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes of "4096", "4K", "32M" or "1G" (powers of 1024).

    Raises:
        BenchError: It is something else, or not positive.
    """
    cleaned = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = cleaned[-1:] if cleaned[-1:] in _UNITS else ""
    number = cleaned[: len(cleaned) - len(unit)]
    if not number.isdecimal() or int(number) == 0:
        raise BenchError(f"size '{text}' is not a positive number with K, M, G or nothing")
    return int(number) * _UNITS[unit]


def format_size(nbytes: int) -> str:
    """The inverse of parse_size, exact: 4096 -> "4K", 5760 -> "5760"."""
    for unit in ("G", "M", "K"):
        if nbytes % _UNITS[unit] == 0:
            return f"{nbytes // _UNITS[unit]}{unit}"
    return str(nbytes)


@dataclass(frozen=True)
class Problem:
    """One thing to time.

    Attributes:
        mode: "collective": partial rows are ready, until each rank has its own rows summed.
            "combine": from expert output to the same; that is [rows, topk, hidden] on every rank,
            or with `experts` [slots of the rank's experts, hidden] and an index. "topk": the top-k
            sum alone, no rank talks to another.
        ranks: Number of ranks (in mode topk: of processes that work at the same time).
        dtype: "bf16", "fp16" or "fp32", in and out.
        tokens: Rows each rank gets.
        hidden: Elements per row.
        topk: Expert rows per token; 1 in mode collective without experts.
        shape: Name of the model the shape is of, or "".
        experts: Experts that are spread over the ranks, of which each token chooses topk; 0: every
            rank has something for every token.
    """

    mode: str
    ranks: int
    dtype: str
    tokens: int
    hidden: int
    topk: int = 1
    shape: str = ""
    experts: int = 0

    @property
    def rows(self) -> int:
        """Rows that a rank sums: those of all ranks' tokens; in mode topk its own."""
        return self.tokens if self.mode == "topk" else self.tokens * self.ranks

    @property
    def count(self) -> int:
        """Elements of a rank's output."""
        return self.tokens * self.hidden

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of a rank's output: the size by which results are named."""
        return self.count * self.element_bytes

    def to_json(self) -> dict[str, Any]:
        """What from_json takes."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Problem:
        """The problem that to_json wrote."""
        return cls(**fields)


def of_size(
    mode: str, ranks: int, dtype: str, nbytes: int, topk: int = 1, experts: int = 0
) -> Problem:
    """Something with this many bytes of output per rank, in rows of PLAIN_HIDDEN where that fits.

    Raises:
        BenchError: The size is no whole number of elements.
    """
    element = ELEMENT_BYTES[dtype]
    if nbytes % element:
        raise BenchError(f"size {nbytes} is no multiple of the {element} bytes of {dtype}")
    count = nbytes // element
    hidden = math.gcd(count, PLAIN_HIDDEN)
    return Problem(mode, ranks, dtype, count // hidden, hidden, topk, experts=experts)


def of_shape(
    mode: str, ranks: int, dtype: str, shape: Shape, tokens: int, routed: bool = False
) -> Problem:
    """A model's combine (or only its collective) with this many tokens per rank.

    routed: its experts are spread over the ranks.
    """
    topk = 1 if mode == "collective" and not routed else shape.topk
    experts = shape.experts if routed else 0
    return Problem(mode, ranks, dtype, tokens, shape.hidden, topk, shape.name, experts)
