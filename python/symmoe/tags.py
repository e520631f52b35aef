"""Tags that say what the ranks' tensors are of each other: summands, parts, or copies.

Reducing rows twice, or never, gives wrong numbers and no error; a tag makes it one. Tags are off
until something uses them: `tag`, `layout_of`, a plan, or a group with strict_layout. From then on
the group's calls check the tags of what they are given and tag what they give back.

A tag belongs to memory, not to a tensor object: every view of it has the tag, whatever an operation
makes anew has none. Where parts of one memory were tagged at different times, the newest tag counts
for what it covers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch

from .errors import LayoutError
from .observing import watch
from .plans import REDUCE_SCATTER
from .plans import Layout as Geometry


@dataclass(frozen=True)
class Layout:
    """What a tensor is, seen over all ranks: one of Partial, Sharded, Replicated."""

    def __str__(self) -> str:
        return type(self).__name__


@dataclass(frozen=True)
class Partial(Layout):
    """Every rank has a summand of the same rows; the rows are their sum."""


@dataclass(frozen=True)
class Sharded(Layout):
    """Every rank has rows of its own.

    Attributes:
        sizes: Rows by rank; None: not known here.
    """

    sizes: tuple[int, ...] | None = None

    def __init__(self, sizes: Iterable[int] | None = None) -> None:
        object.__setattr__(self, "sizes", None if sizes is None else tuple(sizes))

    def __str__(self) -> str:
        return "Sharded" if self.sizes is None else f"Sharded({list(self.sizes)})"


@dataclass(frozen=True)
class Replicated(Layout):
    """Every rank has the same rows."""


PARTIAL, REPLICATED = Partial(), Replicated()


@dataclass(frozen=True)
class _Record:
    """A tag of the bytes begin..end-1 of a storage."""

    begin: int
    end: int
    layout: Layout


_ATTRIBUTE = "_symmoe_layouts"  # of a storage: records, the newest first
_MOST_RECORDS = 64  # of one storage; the oldest are forgotten

Tensor = TypeVar("Tensor", bound=torch.Tensor)


def tag(tensor: Tensor, layout: Layout) -> Tensor:
    """Says what a tensor is; returns it.

    Args:
        tensor: Any tensor with memory. Views of it have the tag as well.
        layout: A `Partial()`, `Sharded(sizes)` or `Replicated()`.

    Raises:
        TypeError: No tensor, or no layout.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tag: expected a tensor, got {type(tensor).__name__}")
    if not isinstance(layout, Layout) or type(layout) is Layout:
        raise TypeError(f"tag: expected Partial(), Sharded(sizes) or Replicated(), got {layout!r}")
    watch.use_tags()
    return put(tensor, layout)


def layout_of(tensor: torch.Tensor) -> Layout | None:
    """What a tensor was tagged as, by `tag` or by the call that made it; None: nothing is known.

    Raises:
        TypeError: No tensor.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"layout_of: expected a tensor, got {type(tensor).__name__}")
    watch.use_tags()
    return find(tensor)


def _bytes_of(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage that a tensor reaches: first, and behind the last."""
    begin = int(tensor.storage_offset()) * tensor.element_size()
    if tensor.numel() == 0:
        return begin, begin
    reach = sum(
        int(n - 1) * int(step) for n, step in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return begin, begin + (reach + 1) * tensor.element_size()


def put(tensor: Tensor, layout: Layout | None) -> Tensor:
    """Tags a tensor's memory and returns it; a layout of None takes the tag away."""
    begin, end = _bytes_of(tensor)
    storage = tensor.untyped_storage()
    old: tuple[_Record, ...] = getattr(storage, _ATTRIBUTE, ())
    kept = [each for each in old if not (begin <= each.begin and each.end <= end)]
    if layout is not None:
        kept.insert(0, _Record(begin, end, layout))
    elif any(each.begin < end and begin < each.end for each in kept):
        kept = [each for each in kept if each.end <= begin or end <= each.begin]
    setattr(storage, _ATTRIBUTE, tuple(kept[:_MOST_RECORDS]))
    return tensor


def find(tensor: torch.Tensor) -> Layout | None:
    """The newest tag of memory that a tensor reaches."""
    records: tuple[_Record, ...] = getattr(tensor.untyped_storage(), _ATTRIBUTE, ())
    if not records:
        return None
    begin, end = _bytes_of(tensor)
    for each in records:
        if (each.begin < end and begin < each.end) or (each.begin, each.end) == (begin, end):
            return each.layout
    return None


def of_window(role: str, window: Tensor) -> Tensor:
    """Tags a window as what is written there for its role; returns it."""
    return put(window, PARTIAL if role == "combine" else Sharded())


def before(where: str, operation: str, tensor: torch.Tensor, strict: bool) -> None:
    """Raises LayoutError unless a group's call may take `tensor`."""
    (require_partial if operation == REDUCE_SCATTER else require_sharded)(where, tensor, strict)


def after(layout: Geometry, out: torch.Tensor) -> None:
    """Tags what a group's call has made, and tells those that count."""
    if watch.tags:
        reduced = layout.operation == REDUCE_SCATTER
        sizes = None if layout.device_sizes else layout.counts
        put(out, Sharded(sizes) if reduced else REPLICATED)
    watch.tell(layout.operation, layout.rows * layout.hidden * layout.dtype.itemsize)


def require_partial(where: str, tensor: torch.Tensor, strict: bool) -> None:
    """Raises LayoutError unless `tensor` may be reduced.

    Args:
        where: Begins the message.
        tensor: What is about to be summed over the ranks.
        strict: Whether a tensor without a tag is refused.
    """
    _require(
        where, tensor, Partial, "its rows were reduced already, or never were summands", strict
    )


def require_sharded(where: str, tensor: torch.Tensor, strict: bool) -> None:
    """Raises LayoutError unless `tensor` is a rank's own rows: what an all-gather takes."""
    found = find(tensor)
    why = (
        "it is a summand: reduce it first"
        if isinstance(found, Partial)
        else "every rank has all of its rows already"
    )
    _require(where, tensor, Sharded, why, strict)


def require_reduced(where: str, tensor: torch.Tensor, strict: bool = False) -> None:
    """Raises LayoutError if `tensor` still has to be summed over the ranks.

    For what is not linear in its input (a norm, an activation), which would be wrong on a summand.
    """
    found = find(tensor)
    if isinstance(found, Partial):
        raise LayoutError(
            f"{where}: the tensor is Partial, must be Sharded or Replicated: reduce it first"
        )
    if found is None and strict:
        raise LayoutError(f"{where}: the tensor has no tag, must be Sharded or Replicated")


def _require(
    where: str, tensor: torch.Tensor, wanted: type[Layout], why: str, strict: bool
) -> None:
    found = find(tensor)
    if isinstance(found, wanted) or (found is None and not strict):
        return
    name = wanted.__name__
    if found is None:
        raise LayoutError(
            f"{where}: input has no tag, must be {name} (strict_layout): tag it first"
        )
    raise LayoutError(f"{where}: input is {found}, must be {name}: {why}")
