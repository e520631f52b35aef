"""Checks the arguments of collectives and turns them into layouts: which rows belong to whom.

A layout is made once per shape, type and sizes, and then reused. What differs from call to call
(memory, contiguity, device) is checked by the functions at the end.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import ClassVar, TypeAlias

import torch

from . import _core
from .config import MAX_BYTES
from .places import CPU, Place

WINDOW_TYPES = {
    torch.bfloat16: _core.BFLOAT16,
    torch.float16: _core.FLOAT16,
    torch.float32: _core.FLOAT32,
}
OTHER_TYPES = frozenset(
    {torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float64}
)
ROLES = {"combine": _core.COMBINE, "dispatch": _core.DISPATCH}
REDUCE_SCATTER = "reduce_scatter"
ALL_GATHER = "all_gather"

# None: even. An int R: R rows per rank. Otherwise rows by rank.
Sizes: TypeAlias = "int | Iterable[int] | torch.Tensor | None"


class Layout:
    """One call's geometry, checked.

    Attributes:
        plan: For the compiled core; None if windows do not know the dtype.
        device_plan: The same for a group of devices; None until one has asked for it.
        operation: "reduce_scatter" or "all_gather".
        dtype: Of input and output.
        role: The core's number of the role whose windows the call uses.
        lane: Lane of the call.
        rank: This rank.
        routed: Whether each call brings a routing.
        rows: Rows of all ranks together, padding included.
        hidden: Elements per row.
        begins: First row of each rank.
        counts: Rows of each rank.
        even: Whether all ranks have equally many rows and there is no other padding.
        text: The call in words; ranks compare it.
        in_rows: Rows that this rank offers.
        out_shape: The exact shape of this rank's output.
        in_bytes: Bytes this rank offers.
        most_bytes: The same of the rank that offers most.
        out_bytes: Bytes this rank gets.
    """

    __slots__ = (
        "begins",
        "counts",
        "device_plan",
        "dtype",
        "even",
        "hidden",
        "in_bytes",
        "in_rows",
        "lane",
        "most_bytes",
        "operation",
        "out_bytes",
        "out_shape",
        "plan",
        "rank",
        "role",
        "routed",
        "rows",
        "text",
    )

    device_sizes: ClassVar[bool] = False  # counts are limits; see device/reserved.py

    def __init__(
        self,
        operation: str,
        dtype: torch.dtype,
        hidden: int,
        begins: list[int],
        counts: list[int],
        rows: int,
        lane: int,
        rank: int,
        routed: bool = False,
    ) -> None:
        self.operation = operation
        self.dtype = dtype
        self.hidden = hidden
        self.begins = begins
        self.counts = counts
        self.rows = rows
        self.lane = lane
        self.rank = rank
        self.routed = routed
        self.even = len(set(counts)) == 1 and rows == counts[0] * len(counts)
        self.text = f"{operation} {name_of(dtype)} hidden={hidden} {self._sizes_text()}"
        if routed:
            self.text += " routed"
        own = counts[rank]
        reducing = operation == REDUCE_SCATTER
        self.role = _core.COMBINE if reducing else _core.DISPATCH
        self.in_rows = rows if reducing else own
        self.out_shape = (own if reducing else rows, hidden)
        row_bytes = hidden * dtype.itemsize
        self.in_bytes = self.in_rows * row_bytes
        self.most_bytes = (rows if reducing else max(counts)) * row_bytes
        self.out_bytes = self.out_shape[0] * row_bytes
        self.plan = None
        self.device_plan: _core.DevicePlan | None = None
        if dtype in WINDOW_TYPES:
            self.plan = _core.Plan(
                _core.REDUCE_SCATTER if reducing else _core.ALL_GATHER,
                self.role,
                lane,
                WINDOW_TYPES[dtype],
                hidden,
                rows,
                begins,
                counts,
                rank,
                self.text,
                routed,
            )

    def _sizes_text(self) -> str:
        if self.even:
            return f"rows={self.rows} ({self.counts[0]} each)"
        padded = sum(self.counts) != self.rows
        padding = f" padded to {self.rows // len(self.counts)}" if padded else ""
        return f"rows={self.rows} sizes={self.counts}{padding}"


def name_of(dtype: torch.dtype) -> str:
    """The dtype's name without "torch."."""
    return str(dtype).removeprefix("torch.")


def sizes_key(sizes: Sizes) -> int | tuple[int, ...] | None:
    """Something hashable that stands for `sizes`; equal sizes give equal keys.

    Raises:
        TypeError: `sizes` is nothing of the kind.
        ValueError: `sizes` is a tensor on a GPU.
    """
    if sizes is None or type(sizes) is int:
        return sizes
    if isinstance(sizes, torch.Tensor):
        if not sizes.is_cpu:
            raise ValueError(f"sizes is on {sizes.device}: it must be on the CPU here")
        if sizes.dim() != 1 or sizes.is_floating_point() or sizes.dtype is torch.bool:
            raise TypeError(
                f"sizes must be a vector of integers, got shape {tuple(sizes.shape)} of "
                f"{name_of(sizes.dtype)}"
            )
        return tuple(sizes.tolist())
    if isinstance(sizes, Iterable):
        return tuple(
            size if type(size) is int else as_int(f"sizes[{r}]", size)
            for r, size in enumerate(sizes)
        )
    return as_int("sizes", sizes)


def as_int(name: str, value: object) -> int:
    """`value` as an int; numpy's integers count, bool and float do not.

    Raises:
        TypeError: It is not an integer.
    """
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None


def check_lane(where: str, lane: object) -> int:
    """The lane as an int.

    Raises:
        TypeError: Not an integer.
        ValueError: Out of range.
    """
    number = as_int(f"{where}: lane", lane)
    if not 0 <= number < _core.MAX_LANES:
        raise ValueError(f"{where}: lane {number} is not in 0..{_core.MAX_LANES - 1}")
    return number


def make_layout(
    operation: str,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    key: int | tuple[int, ...] | None,
    padded_to: object,
    lane: int,
    rank: int,
    world: int,
    routed: bool = False,
) -> Layout:
    """The layout of a call whose input has `shape` [rows, hidden].

    Args:
        operation: "reduce_scatter" or "all_gather".
        dtype: Of the input.
        shape: Of the input.
        key: What sizes_key gave.
        padded_to: Rows between the beginnings of two ranks' rows, or None: packed.
        lane: Lane, checked already.
        rank: This rank.
        world: Number of ranks.
        routed: Whether each call brings a routing.

    Raises:
        TypeError: A dtype that cannot be reduced, or something that is not an integer.
        ValueError: Numbers that do not fit together.
    """
    where = f"{operation} on rank {rank}"
    if dtype not in WINDOW_TYPES and dtype not in OTHER_TYPES:
        raise TypeError(
            f"{where}: dtype {name_of(dtype)} is not supported: bfloat16, float16, float32; "
            f"through the process group also float64 and integers"
        )
    if len(shape) != 2 or shape[1] < 1:
        raise ValueError(f"{where}: input must be [rows, hidden], got shape {list(shape)}")
    given, hidden = shape
    if isinstance(key, tuple):
        counts, stride = _explicit(where, key, padded_to, world)
    else:
        counts, stride = _equal(where, operation, key, padded_to, given, world)
    begins = [r * stride if stride is not None else sum(counts[:r]) for r in range(world)]
    rows = sum(counts) if stride is None else stride * world
    if rows * hidden * dtype.itemsize > MAX_BYTES:
        raise ValueError(f"{where}: {rows} rows of {hidden} are over {MAX_BYTES} bytes")
    if operation == REDUCE_SCATTER and given != rows:
        raise ValueError(
            f"{where}: input has {given} rows, but "
            + (f"sum(sizes) = {rows}" if stride is None else f"{world} ranks of {stride} = {rows}")
            + f" (sizes = {counts})"
        )
    own = counts[rank]
    if operation == ALL_GATHER and not own <= given <= max(own, stride or 0):
        raise ValueError(
            f"{where}: input has {given} rows, but sizes[{rank}] = {own} (sizes = {counts})"
        )
    return Layout(operation, dtype, hidden, begins, counts, rows, lane, rank, routed)


def _explicit(
    where: str, key: tuple[int, ...], padded_to: object, world: int
) -> tuple[list[int], int | None]:
    counts = list(key)
    if len(counts) != world:
        raise ValueError(f"{where}: {len(counts)} sizes for {world} ranks (sizes = {counts})")
    for r, count in enumerate(counts):
        if count < 0:
            raise ValueError(f"{where}: sizes[{r}] = {count} is negative (sizes = {counts})")
    if padded_to is None:
        return counts, None
    stride = as_int(f"{where}: padded_to", padded_to)
    for r, count in enumerate(counts):
        if count > stride:
            raise ValueError(
                f"{where}: sizes[{r}] = {count} is more than padded_to = {stride} "
                f"(sizes = {counts})"
            )
    return counts, stride


def _equal(
    where: str, operation: str, key: int | None, padded_to: object, given: int, world: int
) -> tuple[list[int], int | None]:
    if padded_to is not None:
        raise ValueError(f"{where}: padded_to = {padded_to} needs sizes by rank, got {key}")
    if key is not None:
        if key < 0:
            raise ValueError(f"{where}: sizes = {key} is negative")
        return [key] * world, key
    if operation == ALL_GATHER:
        return [given] * world, None
    if given % world:
        raise ValueError(
            f"{where}: input has {given} rows, which {world} ranks cannot share evenly; "
            f"give sizes by rank"
        )
    return [given // world] * world, None


# --- what is checked in every call ----------------------------------------------------------------


def is_plain(tensor: object) -> bool:
    """Whether `tensor` is contiguous CPU memory."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.is_cpu
        and tensor.is_contiguous()
        and tensor.layout is torch.strided
        and not tensor.is_neg()
    )


def check_tensor(where: str, name: str, tensor: object, place: Place = CPU) -> None:
    """Raises unless `tensor` is dense, contiguous memory of `place`.

    Raises:
        TypeError: Not a tensor.
        ValueError: Anything else; the message gives the value.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{where}: {name} must be a tensor, got {type(tensor).__name__}")
    if not place.accepts(tensor):
        raise ValueError(f"{where}: {name} is on {tensor.device}, expected {place.name}")
    if tensor.layout is not torch.strided:
        raise ValueError(f"{where}: {name} must be dense, got layout {tensor.layout}")
    if not tensor.is_contiguous():
        raise ValueError(
            f"{where}: {name} must be contiguous, got strides {tensor.stride()} for shape "
            f"{list(tensor.shape)}"
        )
    if tensor.is_neg():
        raise ValueError(f"{where}: {name} is a lazy negative; call resolve_neg() first")


def check_input(where: str, name: str, tensor: object, place: Place = CPU) -> None:
    """As check_tensor, and no gradient may be wanted for it.

    Raises:
        TypeError: Not a tensor.
        ValueError: Anything else; the message gives the value.
    """
    check_tensor(where, name, tensor, place)
    assert isinstance(tensor, torch.Tensor)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{where}: {name} requires a gradient, and there is none here: use torch.no_grad() or "
            f"detach()"
        )


def check_output(
    where: str, out: object, dtype: torch.dtype, shape: tuple[int, int], place: Place = CPU
) -> None:
    """Raises unless `out` can take `shape`; it may have more rows.

    Raises:
        TypeError: Not a tensor, or of another dtype.
        ValueError: Anything else; the message gives the value.
    """
    check_tensor(where, "out", out, place)
    assert isinstance(out, torch.Tensor)
    if out.dtype is not dtype:
        raise TypeError(f"{where}: out is {name_of(out.dtype)}, expected {name_of(dtype)}")
    if out.dim() != 2 or out.shape[1] != shape[1] or out.shape[0] < shape[0]:
        raise ValueError(
            f"{where}: out has shape {list(out.shape)}, expected at least {list(shape)}"
        )


def check_stream(where: str, stream: object) -> None:
    """Raises ValueError unless `stream` is None: CPU calls have no stream."""
    if stream is not None:
        raise ValueError(f"{where}: stream={stream!r} given with CPU tensors")


def check_overlap(where: str, tensor: torch.Tensor, out: torch.Tensor, layout: Layout) -> bool:
    """Whether `out` is exactly this rank's slice of `tensor` (or the reverse, for all_gather).

    Only for a pair that may overlap: False means that one of them is empty.

    Raises:
        ValueError: They overlap in any other way.
    """
    row_bytes = layout.hidden * layout.dtype.itemsize
    begin, out_begin = tensor.data_ptr(), out.data_ptr()
    if not layout.in_bytes or not layout.out_bytes:
        return False
    own = layout.begins[layout.rank] * row_bytes
    if layout.operation == REDUCE_SCATTER:
        whole, slice_begin, part = begin, out_begin, out
    else:
        whole, slice_begin, part = out_begin, begin, tensor
    if slice_begin == whole + own and part.shape[0] == layout.counts[layout.rank]:
        return True
    raise ValueError(
        f"{where}: out overlaps input (out at {out_begin:#x}, {out.nbytes} bytes; input at "
        f"{begin:#x}, {tensor.nbytes} bytes): it may only be exactly the own rows"
    )
