"""The collectives of torch.distributed, for what the group's own paths cannot serve."""

from __future__ import annotations

import torch
import torch.distributed as dist

from .. import fallback as host
from ..errors import UnavailableError
from ..places import DevicePlace
from ..plans import ALL_GATHER, Layout

# Newer torch gives them other names and warns of the old ones.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def run(
    process_group: dist.ProcessGroup | None,
    layout: Layout,
    tensor: torch.Tensor,
    out: torch.Tensor,
    in_place: bool,
    deterministic: bool,
    place: DevicePlace,
) -> None:
    """Runs a call through the process group, in torch's current stream.

    Args:
        process_group: None: a world of one.
        layout: The call's geometry.
        tensor: What this rank offers, contiguous.
        out: Where the result goes, contiguous.
        in_place: One of the two is exactly a part of the other.
        deterministic: Add in rank order.
        place: Where the tensors are.

    Raises:
        UnavailableError: The process group cannot add in rank order on a device.
    """
    rows = layout.out_shape[0]
    target = out if out.shape[0] == rows else out[:rows]
    source = tensor if tensor.shape[0] == layout.in_rows else tensor[: layout.in_rows]
    with torch.inference_mode():
        if place.device.type == "cpu":  # memory that the CPU's own kernels can read
            if layout.operation == ALL_GATHER:
                host.all_gather(process_group, layout, source, target, in_place)
            else:
                host.reduce_scatter(
                    process_group, layout, source, target, in_place, deterministic, threads=1
                )
            return
        own = slice(layout.begins[layout.rank], layout.begins[layout.rank] + rows)
        if process_group is None:
            target.copy_(source[own] if layout.operation != ALL_GATHER else source)
        elif layout.operation == ALL_GATHER:
            parts = [
                target[begin : begin + count]
                for begin, count in zip(layout.begins, layout.counts, strict=True)
            ]
            dist.all_gather(parts, source.clone() if in_place else source, group=process_group)
        elif deterministic and layout.dtype.is_floating_point:
            raise UnavailableError(
                f"reduce_scatter on rank {layout.rank}: deterministic=True needs NCCL here, or "
                f"rows on the CPU ({layout.text})"
            )
        elif layout.even:
            _reduce_scatter(target, source, group=process_group)
        else:
            parts = [
                source[begin : begin + count]
                for begin, count in zip(layout.begins, layout.counts, strict=True)
            ]
            dist.reduce_scatter(target, parts, group=process_group)
