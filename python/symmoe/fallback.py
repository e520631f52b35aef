"""The collectives of torch.distributed, for what windows cannot serve.

The process group's own reduce-scatter picks its own order of addition; where the order matters, or
the ranks' shares differ, the partial rows are exchanged as bytes and summed here in rank order.

A process group takes its collectives in one order, the same on all ranks. Lanes and roles have no
common order, so only reductions of lane 0 use a collective; everything else is messages with tags.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from . import _core
from .messages import exchange, rows_tag
from .plans import WINDOW_TYPES, Layout

# Newer torch gives it another name and warns of the old one.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

# What process groups can add by themselves.
_REDUCIBLE = frozenset(
    {
        torch.bfloat16,
        torch.float16,
        torch.float32,
        torch.float64,
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.int64,
    }
)


def reduce_scatter(
    process_group: dist.ProcessGroup | None,
    layout: Layout,
    tensor: torch.Tensor,
    out: torch.Tensor,
    in_place: bool,
    deterministic: bool,
    threads: int,
) -> None:
    """Sums the ranks' partial rows.

    Args:
        process_group: None: a world of one.
        layout: The call's geometry.
        tensor: [rows, hidden], contiguous.
        out: [own rows, hidden], contiguous.
        in_place: `out` is the own slice of `tensor`.
        deterministic: Add in rank order.
        threads: Threads to add with.
    """
    if not any(layout.counts):
        return
    if process_group is None or process_group.size() == 1:
        begin = layout.begins[layout.rank]
        if not in_place:
            out.copy_(tensor[begin : begin + layout.out_shape[0]])
        return
    reducible = layout.dtype in _REDUCIBLE and layout.lane == 0
    if layout.even and reducible and not deterministic:
        target = torch.empty_like(out) if in_place else out
        _reduce_scatter(target, tensor, group=process_group)
        if in_place:
            out.copy_(target)
        return

    parts = _exchange_parts(process_group, layout, tensor)
    if layout.dtype in WINDOW_TYPES:
        if out.numel():
            _core.rank_reduce(
                [part.data_ptr() for part in parts],
                out.data_ptr(),
                out.numel(),
                WINDOW_TYPES[layout.dtype],
                threads,
            )
        return
    out.copy_(parts[0])
    for part in parts[1:]:
        out.add_(part)


def dense_of(
    layout: Layout, masks: _core.Routing, tensor: torch.Tensor, threads: int
) -> torch.Tensor:
    """A routed call's input with zeros in the rows for which this rank has nothing.

    Args:
        layout: The call's geometry.
        masks: Its rows' masks.
        tensor: [rows, hidden], contiguous; the other rows may hold anything.
        threads: Threads to copy with.
    """
    dense = torch.zeros_like(tensor)
    if dense.numel():
        row_bytes = layout.hidden * layout.dtype.itemsize
        masks.copy_rows(layout.rank, dense.data_ptr(), tensor.data_ptr(), row_bytes, threads)
    return dense


def _exchange_parts(
    process_group: dist.ProcessGroup, layout: Layout, tensor: torch.Tensor
) -> list[torch.Tensor]:
    """What each rank has for this one, by rank: [own rows, hidden] each."""
    pieces = [
        tensor[begin : begin + count]
        for begin, count in zip(layout.begins, layout.counts, strict=True)
    ]
    own, hidden = layout.out_shape
    received = torch.empty((len(pieces), own, hidden), dtype=layout.dtype, device="cpu")
    exchange(process_group, rows_tag(layout.role, layout.lane), pieces, list(received))
    return list(received)


def all_gather(
    process_group: dist.ProcessGroup | None,
    layout: Layout,
    tensor: torch.Tensor,
    out: torch.Tensor,
    in_place: bool,
) -> None:
    """Collects the ranks' rows.

    Args:
        process_group: None: a world of one.
        layout: The call's geometry.
        tensor: [own rows, hidden], contiguous.
        out: [rows, hidden], contiguous; padding is left alone.
        in_place: `tensor` is the own slice of `out`.
    """
    if not any(layout.counts):
        return
    if process_group is None or process_group.size() == 1:
        begin = layout.begins[layout.rank]
        if not in_place:
            out[begin : begin + layout.in_rows].copy_(tensor)
        return
    pieces = [
        out[begin : begin + count]
        for begin, count in zip(layout.begins, layout.counts, strict=True)
    ]
    exchange(process_group, rows_tag(layout.role, layout.lane), [tensor] * len(pieces), pieces)
