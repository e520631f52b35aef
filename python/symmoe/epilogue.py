"""Work of a rank's own on its rows, in the same pass as their sum over the ranks.

What follows a combine in a model, row by row: scaling, the shared expert, the residual, a norm,
quantising. Without an epilogue each is a pass over memory of its own; with one, a row is summed and
goes through all of them while it is in the processor's first cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, SupportsFloat

import torch

from . import _core, tags
from .observing import watch
from .places import CPU, Place
from .plans import WINDOW_TYPES, check_input, name_of

QUANTIZED = {
    "int8": (torch.int8, _core.INT8, 127.0),
    "fp8_e4m3": (torch.float8_e4m3fn, _core.FLOAT8_E4M3, 448.0),
}

LARGEST_EPS = torch.finfo(torch.float32).max

# Name, address and bytes of memory that a call uses.
Span = tuple[str, int, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class Epilogue:
    """Steps behind the sum of a rank's own rows. Refers to its tensors; may be used again.

    With x, the summed row rounded to its dtype, in this order, each only if it is given:

        x = x * scale                    both the other way round with scale_shared:
        x = x + shared                   x = (x + shared) * scale
        x = residual = residual + x      written in place
        x = x * f * norm_weight          f = 1 / sqrt(sum(x * x) / H + eps), in fp32
        x = x / scales                   written in place, one per row

    and then x is what the call returns. After each step but the two products of the norm x is
    rounded to the rows' dtype, so sum and residual have the bits that the same steps have as
    operations of torch. The sum of squares has one order, whatever the processor: 64 partial sums,
    of the columns j, j + 64, j + 128, ..., then partial sum j plus j + 32, plus j + 16, ..., plus
    j + 1, in fp32. Quantised, a row's scale is its largest magnitude / 127 (int8) or / 448
    (float8), at least 2^-126, and x * (1 / scale) is rounded to the nearest, ties to even. A row
    that is not finite becomes zeros with a scale of NaN.

    An epilogue is its rank's own affair: ranks do not compare it, and it may differ between them.

    Args:
        scale: Factor of the rows, such as a model's routed_scaling_factor.
        shared: At least [own rows, H]: the shared experts' rows, reduced already if they have to
            be.
        scale_shared: Whether `scale` is that of the sum of both.
        residual: At least [own rows, H], updated. Rows beyond the own ones are left alone.
        norm_weight: [H], in the rows' dtype or float32: RMSNorm.
        eps: Of the norm.
        quantize: "int8" or "fp8_e4m3": the result is torch.int8 or torch.float8_e4m3fn, with a
            scale for each row.
        scales: At least [own rows], float32, written; what a row has to be multiplied with.

    Raises:
        TypeError: Something that is no tensor, or no number.
        ValueError: Nothing to do, or steps that do not fit together.
    """

    scale: float | None = None
    shared: torch.Tensor | None = None
    scale_shared: bool = False
    residual: torch.Tensor | None = None
    norm_weight: torch.Tensor | None = None
    eps: float = 1e-6
    quantize: str | None = None
    scales: torch.Tensor | None = None

    def __post_init__(self) -> None:
        """Checks what can be checked without rows."""
        given = self.tensors()
        for name, tensor in given:
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"Epilogue: {name} must be a tensor, got {type(tensor).__name__}")
        if self.scale is not None and type(self.scale) is not float:
            self._make_float("scale", self.scale)
        if type(self.eps) is not float:
            self._make_float("eps", self.eps)
        if not 0 <= self.eps <= LARGEST_EPS:
            raise ValueError(
                f"Epilogue: eps = {self.eps} must be finite in float32 and not negative"
            )
        if not isinstance(self.scale_shared, bool):
            raise TypeError(
                f"Epilogue: scale_shared must be True or False, got {self.scale_shared!r}"
            )
        if self.scale_shared and (self.scale is None or self.shared is None):
            raise ValueError("Epilogue: scale_shared needs scale and shared")
        if self.quantize is not None and self.quantize not in QUANTIZED:
            raise ValueError(
                f"Epilogue: quantize = {self.quantize!r} is none of {', '.join(QUANTIZED)}"
            )
        if (self.quantize is None) != (self.scales is None):
            raise ValueError("Epilogue: quantize and scales go together")
        if self.scale is None and not given:
            raise ValueError("Epilogue: nothing to do")

    def _make_float(self, name: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, SupportsFloat):
            raise TypeError(f"Epilogue: {name} must be a number, got {value!r}")
        try:
            object.__setattr__(self, name, float(value))
        except OverflowError:
            raise ValueError(f"Epilogue: {name} = {value!r} is more than a float holds") from None

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Those that are given, with their names."""
        named = (
            ("shared", self.shared),
            ("residual", self.residual),
            ("norm_weight", self.norm_weight),
            ("scales", self.scales),
        )
        return [(name, tensor) for name, tensor in named if tensor is not None]

    def out_type(self, dtype: torch.dtype) -> torch.dtype:
        """What becomes of rows of `dtype`."""
        return dtype if self.quantize is None else QUANTIZED[self.quantize][0]


class Steps(NamedTuple):
    """A checked epilogue of a call.

    Attributes:
        core: For the compiled core.
        dtype: Of the result.
        spans: All memory of the epilogue's tensors that the call uses.
        writes: How many of the spans, the first ones, are written.
    """

    core: _core.Epilogue
    dtype: torch.dtype
    spans: list[Span]
    writes: int

    def apply(self, rows: torch.Tensor, out: torch.Tensor, threads: int) -> None:
        """Does the steps to rows on the CPU, which `out` may be as well, if not quantised."""
        count, hidden = rows.shape
        source, target, code = rows.data_ptr(), out.data_ptr(), WINDOW_TYPES[rows.dtype]
        self.core.apply(source, target, count, hidden, code, threads)


def check_epilogue(
    where: str,
    epilogue: object,
    dtype: torch.dtype,
    shape: tuple[int, int],
    place: Place = CPU,
) -> Steps:
    """What is to be done to rows of `shape`; memory that overlaps is for `check_apart` to find.

    Raises:
        TypeError: Not an Epilogue, or a dtype that does not belong.
        ValueError: Tensors of another shape, in other places or not contiguous.
        LayoutError: A tag says that shared or residual are summands of rows.
    """
    if not isinstance(epilogue, Epilogue):
        raise TypeError(
            f"{where}: epilogue must be a symmoe.Epilogue, got {type(epilogue).__name__}"
        )
    if dtype not in WINDOW_TYPES:
        raise TypeError(
            f"{where}: an epilogue goes with bfloat16, float16 and float32, not {name_of(dtype)}"
        )
    rows, hidden = shape
    addresses = {}
    written: list[Span] = []
    read: list[Span] = []
    for name, tensor in epilogue.tensors():
        words = f"epilogue.{name}"
        check_input(where, words, tensor, place)
        if name == "norm_weight":
            _check_weight(where, tensor, dtype, hidden)
            used = tensor.nbytes
        elif name == "scales":
            _check_scales(where, tensor, rows)
            used = rows * tensor.itemsize
        else:
            _check_rows(where, words, tensor, dtype, shape)
            if watch.tags:
                tags.require_reduced(f"{where}: {words}", tensor)
            used = rows * hidden * tensor.itemsize
        addresses[name] = tensor.data_ptr()
        if used and not addresses[name]:
            raise ValueError(f"{where}: {words} has no memory (shape {list(tensor.shape)})")
        spans = written if name in ("residual", "scales") else read
        spans.append((words, addresses[name], used))
    weight = epilogue.norm_weight
    core = _core.Epilogue(
        addresses.get("shared", 0),
        epilogue.scale,
        epilogue.scale_shared,
        addresses.get("residual", 0),
        addresses.get("norm_weight", 0),
        WINDOW_TYPES[dtype if weight is None else weight.dtype],
        epilogue.eps,
        0 if epilogue.quantize is None else QUANTIZED[epilogue.quantize][1],
        addresses.get("scales", 0),
    )
    return Steps(core, epilogue.out_type(dtype), written + read, len(written))


def _check_rows(
    where: str, words: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    if tensor.dtype is not dtype:
        raise TypeError(f"{where}: {words} is {name_of(tensor.dtype)}, expected {name_of(dtype)}")
    if tensor.dim() != 2 or tensor.shape[1] != shape[1] or tensor.shape[0] < shape[0]:
        raise ValueError(
            f"{where}: {words} has shape {list(tensor.shape)}, expected at least {list(shape)}"
        )


def _check_weight(where: str, weight: torch.Tensor, dtype: torch.dtype, hidden: int) -> None:
    if weight.dtype is not dtype and weight.dtype is not torch.float32:
        raise TypeError(
            f"{where}: epilogue.norm_weight is {name_of(weight.dtype)}, expected {name_of(dtype)} "
            f"or float32"
        )
    if weight.shape != (hidden,):
        raise ValueError(
            f"{where}: epilogue.norm_weight has shape {list(weight.shape)}, expected {[hidden]}"
        )


def _check_scales(where: str, scales: torch.Tensor, rows: int) -> None:
    if scales.dtype is not torch.float32:
        raise TypeError(f"{where}: epilogue.scales is {name_of(scales.dtype)}, expected float32")
    if scales.dim() != 1 or scales.shape[0] < rows:
        raise ValueError(
            f"{where}: epilogue.scales has shape {list(scales.shape)}, expected at least {[rows]}"
        )


def check_apart(
    where: str,
    steps: Steps,
    out: Span,
    inputs: Iterable[Span],
    in_window: Callable[[int, int], bool] | None = None,
) -> None:
    """Raises ValueError if a call would write memory of an epilogue that it uses otherwise.

    Args:
        where: Begins the message.
        steps: The epilogue.
        out: Where the result goes.
        inputs: What else the call reads; whether `out` may be there is not looked at.
        in_window: Whether an address and bytes behind it touch a window, where none may be.
    """
    for name, begin, nbytes in steps.spans if in_window is not None else ():
        if nbytes and in_window is not None and in_window(begin, nbytes):
            raise ValueError(f"{where}: {name} overlaps a window; it must be the caller's memory")
    written = steps.spans[: steps.writes]
    pairs = [(one, out) for one in steps.spans]
    pairs += [(one, two) for at, one in enumerate(written) for two in steps.spans[at + 1 :]]
    pairs += [(one, two) for two in inputs for one in written]
    for one, two in pairs:
        require_apart(where, one, two)


def require_apart(where: str, one: Span, two: Span) -> None:
    """Raises ValueError if both have bytes in common."""
    if one[2] and two[2] and one[1] < two[1] + two[2] and two[1] < one[1] + one[2]:
        raise ValueError(
            f"{where}: {two[0]} overlaps {one[0]} ({two[0]} at {two[1]:#x}, {two[2]} bytes; "
            f"{one[0]} at {one[1]:#x}, {one[2]} bytes)"
        )
