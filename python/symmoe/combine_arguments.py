"""The checks of a plan's arguments, and of each combine's before anything is written or sent."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from . import _core, tags
from .combine_order import Conditions
from .combine_run import Call
from .commuting import width_of
from .device.group import DeviceGroup
from .errors import LayoutError
from .group import Group
from .places import CPU, Place
from .plans import (
    REDUCE_SCATTER,
    Layout,
    Sizes,
    check_input,
    check_output,
    check_tensor,
    name_of,
    sizes_key,
)
from .probing import output_of, untouched
from .routing import Routing, check_routing, check_slots, weights_of


def widths_of(
    where: str,
    group: Group | DeviceGroup,
    module: nn.Module | None,
    latent: int | None,
    hidden: int | None,
    dtype: torch.dtype,
) -> tuple[int, int]:
    """What a transform takes and makes: latent and hidden width; None was not given.

    Raises:
        TypeError: No module.
        ValueError: A width cannot be told, or the module makes something else.
    """
    if module is None:
        width = hidden if latent is None else latent
        if width is None or hidden not in (None, width):
            raise ValueError(
                f"{where}: without a transform there is one width, got latent {latent}, hidden "
                f"{hidden}"
            )
        return width, width
    name = type(module).__name__
    if not isinstance(module, nn.Module):
        raise TypeError(f"{where}: transform must be a torch.nn.Module, got {name}")
    latent = width_of(module) if latent is None else latent
    if latent is None:
        raise ValueError(f"{where}: no linear layer in {name} tells what it takes: give latent=")
    device = group._place.device if isinstance(group, DeviceGroup) else CPU.device
    rows = f"[1, {latent}] of {name_of(dtype)} on {device}"
    try:
        with untouched(module):
            made = output_of(module, torch.zeros(1, latent, dtype=dtype, device=device))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise ValueError(f"{where}: {name} cannot be applied to {rows}: {error}") from error
    fits = made.dim() == 2 and len(made) == 1 and hidden in (None, made.shape[1])
    if not fits or made.dtype is not dtype:
        raise ValueError(
            f"{where}: {name} makes {list(made.shape)} of {name_of(made.dtype)} from {rows}, "
            f"expected [1, {'any' if hidden is None else hidden}]"
        )
    return latent, made.shape[1]


def prepare(
    where: str,
    group: Group | DeviceGroup,
    conditions: Conditions,
    transform: nn.Module | None,
    widths: tuple[int, int],
    dtype: torch.dtype,
    expert_out: Tensor,
    topk_weights: Tensor | None,
    shared: Tensor | None,
    routing: Routing | None,
    out: Tensor | None,
    index: Tensor | None,
    scale: float | None,
    sizes: Sizes,
    padded_to: int | None,
    lane: int,
    deterministic: bool,
) -> Call:
    """The checked call; raises on any wrong argument that can be seen without the values.

    Raises:
        LayoutError: A tag says something else than the plan.
        TypeError, ValueError: The message has the values.
    """
    place = group._place if isinstance(group, DeviceGroup) else CPU
    latent, hidden = widths
    _check_rows(where, "expert_out", expert_out, dtype, latent, (2, 3), place)
    if topk_weights is not None:
        check_input(where, "topk_weights", topk_weights, place)
    if index is not None:
        check_tensor(where, "index", index, place)
        if index.dim() != 2:
            raise ValueError(f"{where}: index must be [M, K], got {list(index.shape)}")
    if (shared is None) != (conditions.shared is None):
        raise ValueError(
            f"{where}: shared is {'missing' if shared is None else 'given'}, and the plan was made "
            f"for {conditions.shared or 'no'} shared rows"
        )
    if shared is not None:
        _check_rows(where, "shared", shared, dtype, hidden, (2,), place)
    for name, given in (("topk_weights", topk_weights), ("index", index), ("scale", scale)):
        if conditions.reduced_already and (given is not None or expert_out.dim() == 3):
            raise ValueError(
                f"{where}: the plan's rows are {conditions.routed}, reduced already: they must be "
                f"[rows, {latent}], got {list(expert_out.shape)}, and take no {name}"
            )

    if routing is not None and conditions.reduced_already:
        raise ValueError(
            f"{where}: the plan's rows are {conditions.routed}, reduced already: they take no "
            f"routing"
        )
    kept_sizes = _kept(sizes, group)
    layout = _layout_of(
        group, conditions, expert_out, shared, index, hidden, kept_sizes, padded_to, lane
    )
    _check_counts(where, conditions, expert_out, shared, layout)
    masks = None
    if routing is not None:
        assert layout is not None
        masks = _masks_of(where, group, layout, routing, expert_out, topk_weights, index, place)
    for name, rows in (("expert_out", expert_out), ("shared", shared)):
        if rows is not None:
            _check_armed(where, group, name, rows)
    _check_tags(where, group, conditions, expert_out, index, shared)

    if layout is None:
        result = (len(expert_out), hidden)
    else:
        own = layout.counts[group.rank]
        result = (layout.rows if conditions.skip_final else own, hidden)
    if out is None:
        out = torch.empty(result, dtype=dtype, device=expert_out.device)
    else:
        check_output(where, out, dtype, result, place)
        _check_apart(where, group, out, expert_out, shared)
    return Call(
        where=where,
        group=group,
        transform=transform,
        hidden=hidden,
        expert_out=expert_out,
        topk_weights=topk_weights,
        index=index,
        scale=scale,
        routing=routing,
        shared=shared,
        shared_is_partial=conditions.shared_is_partial,
        layout=layout,
        sizes=kept_sizes,
        padded_to=padded_to,
        lane=lane,
        deterministic=deterministic,
        out=out,
        masks=masks,
    )


def _masks_of(
    where: str,
    group: Group | DeviceGroup,
    layout: Layout,
    routing: Routing,
    expert_out: Tensor,
    topk_weights: Tensor | None,
    index: Tensor | None,
    place: Place,
) -> _core.Routing | None:
    """Checks a routing as the group's own combine does, also where the plan makes the sum itself.

    Raises:
        TypeError, ValueError: As `Group.combine`; experts' ranks on devices are the device's to
            look at.
    """
    check_routing(where, routing, layout.rows, place)
    summed = expert_out.dim() == 2 and index is None
    weights_of(where, routing, topk_weights, summed, place)
    slots = expert_out.shape[1] if index is None else index.shape[1]
    check_slots(where, routing, slots, summed)
    return group._masks_of(layout, routing, "combine") if isinstance(group, Group) else None


def _kept(sizes: Sizes, group: Group | DeviceGroup) -> int | tuple[int, ...] | Tensor | None:
    """Sizes that can be read more than once; on a device, as they are."""
    if isinstance(sizes, Tensor) and isinstance(group, DeviceGroup):
        on_device = sizes.dtype is torch.int32 or not sizes.is_cpu
        if on_device and group._place.accepts(sizes):
            return sizes
    return sizes_key(sizes)


def _check_rows(
    where: str,
    name: str,
    tensor: Tensor,
    dtype: torch.dtype,
    width: int,
    dims: tuple[int, ...],
    place: Place,
) -> None:
    check_input(where, name, tensor, place)
    if tensor.dtype is not dtype:
        raise TypeError(
            f"{where}: {name} is {name_of(tensor.dtype)}, the plan was made for {name_of(dtype)}"
        )
    if tensor.dim() not in dims or tensor.shape[-1] != width:
        raise ValueError(
            f"{where}: {name} has shape {list(tensor.shape)}, expected rows of {width}"
        )


def _layout_of(
    group: Group | DeviceGroup,
    conditions: Conditions,
    expert_out: Tensor,
    shared: Tensor | None,
    index: Tensor | None,
    hidden: int,
    sizes: int | tuple[int, ...] | Tensor | None,
    padded_to: int | None,
    lane: int,
) -> Layout | None:
    """Which rows belong to whom; None where only this rank's rows are known."""
    rows = len(expert_out if index is None else index)
    if conditions.reduced_already and not isinstance(conditions.routed, tags.Replicated):
        if shared is not None and conditions.shared_is_partial:
            rows = len(shared)
        elif sizes is None or isinstance(sizes, Tensor):
            return None
        else:
            world = group.world_size
            stride = sizes if isinstance(sizes, int) else padded_to
            rows = (
                sum(sizes) if isinstance(sizes, tuple) and stride is None else (stride or 0) * world
            )
    shape, dtype = (rows, hidden), expert_out.dtype
    if isinstance(group, DeviceGroup):
        return group._layout_of(
            REDUCE_SCATTER, shape, dtype, sizes, padded_to, lane, False, "combine"
        )
    key = group._layouts.key("combine", sizes)
    return group._layouts.of(REDUCE_SCATTER, shape, dtype, key, padded_to, lane)


def _check_counts(
    where: str,
    conditions: Conditions,
    expert_out: Tensor,
    shared: Tensor | None,
    layout: Layout | None,
) -> None:
    """Raises ValueError unless tensors have the rows that their layouts say."""
    if layout is None:
        if shared is not None and len(shared) != len(expert_out):
            raise ValueError(
                f"{where}: shared has {len(shared)} rows, expert_out {len(expert_out)}"
            )
        return
    if layout.device_sizes and conditions.reduced_already:
        raise ValueError(
            f"{where}: {conditions.routed} rows go by sizes that the host knows, and these are on "
            f"the device"
        )
    own = layout.counts[layout.rank]
    expected = own
    if isinstance(conditions.routed, tags.Replicated):
        expected = layout.rows
    if conditions.reduced_already and len(expert_out) != expected:
        raise ValueError(
            f"{where}: expert_out has {len(expert_out)} rows, expected {expected} "
            f"({conditions.routed} rows; sizes = {layout.counts})"
        )
    if shared is not None:
        expected = layout.rows if conditions.shared_is_partial else own
        if len(shared) != expected:
            raise ValueError(
                f"{where}: shared has {len(shared)} rows, expected {expected} "
                f"({conditions.shared} rows; sizes = {layout.counts})"
            )


def _check_armed(where: str, group: Group | DeviceGroup, name: str, tensor: Tensor) -> None:
    """Raises ValueError for rows in a window that peers may still read, or have read already."""
    found = None
    if group._core is not None and tensor.nbytes:
        found = group._core.find(tensor.data_ptr())
    if found is not None and not found[0].armed:
        raise ValueError(
            f"{where}: {name} is in a window that was reduced already: ask for it again "
            f"(shared_window, acquire) before it is written"
        )


def _check_tags(
    where: str,
    group: Group | DeviceGroup,
    conditions: Conditions,
    expert_out: Tensor,
    index: Tensor | None,
    shared: Tensor | None,
) -> None:
    strict = group._config.strict_layout if isinstance(group, DeviceGroup) else group._strict_layout
    rows_of_tokens = expert_out.dim() == 2 and index is None
    _require(where, "expert_out", expert_out, conditions.routed, strict and rows_of_tokens)
    if shared is not None and conditions.shared is not None:
        _require(where, "shared", shared, conditions.shared, strict)


def _require(where: str, name: str, tensor: Tensor, planned: tags.Layout, strict: bool) -> None:
    """Raises LayoutError if a tensor's tag is another one than the plan was made for."""
    found = tags.find(tensor)
    if found is None and strict:
        raise LayoutError(f"{where}: {name} has no tag, must be {planned} (strict_layout)")
    if found is None or type(found) is type(planned):
        return
    if isinstance(planned, tags.Partial):
        why = "its rows were reduced already, and would be again"
    elif isinstance(found, tags.Partial):
        why = "it is a summand, and would never be reduced"
    else:
        why = "other rows would be taken"
    raise LayoutError(f"{where}: {name} is {found}, the plan was made for {planned}: {why}")


def _check_apart(
    where: str, group: Group | DeviceGroup, out: Tensor, expert_out: Tensor, shared: Tensor | None
) -> None:
    begin, end = out.data_ptr(), out.data_ptr() + out.nbytes
    for name, other in (("expert_out", expert_out), ("shared", shared)):
        if other is not None and other.data_ptr() < end and begin < other.data_ptr() + other.nbytes:
            raise ValueError(
                f"{where}: out overlaps {name}, which is still read when it is written"
            )
    if group._core is not None and out.nbytes and group._core.overlaps(begin, out.nbytes):
        raise ValueError(f"{where}: out overlaps a window; it must be the caller's memory")
