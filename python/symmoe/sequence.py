"""The end of a sequence-parallel layer as one call: reduce-scatter, epilogue, all-gather."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from . import tags
from .epilogue import Epilogue, Span, require_apart
from .observing import watch
from .places import CPU, Place
from .plans import REDUCE_SCATTER, Sizes, check_input, check_output
from .routing import Routing

if TYPE_CHECKING:
    from .device.group import DeviceGroup
    from .group import Group

RS_NORM_AG = "rs_norm_ag"


class Ends(NamedTuple):
    """Where the two halves of a call meet.

    Attributes:
        own: This rank's rows, written by the first one and gathered by the second one.
        out: All ranks' rows.
        sizes: As both take them.
    """

    own: torch.Tensor
    out: torch.Tensor
    sizes: int | tuple[int, ...] | None


def prepare(
    group: Group | DeviceGroup,
    place: Place,
    input: torch.Tensor,
    out: torch.Tensor | None,
    epilogue: Epilogue,
    sizes: Sizes,
    padded_to: int | None,
    routed: bool,
    lane: int,
    stream: object | None,
) -> Ends:
    """Looks at what the second half could refuse, before the first one begins.

    The own rows are to be made where the peers will read them: in their place of `out`, if that is
    in a window for dispatch, else in such a window of their own. Devices send from any memory.
    """
    where = f"{RS_NORM_AG} on rank {group.rank}"
    if not isinstance(epilogue, Epilogue):
        raise TypeError(
            f"{where}: epilogue must be a symmoe.Epilogue, got {type(epilogue).__name__}"
        )
    if epilogue.quantize is not None:
        raise ValueError(
            f"{where}: rows quantised to {epilogue.quantize} are not gathered; quantise the "
            f"gathered ones"
        )
    if place is not CPU and isinstance(sizes, torch.Tensor):
        raise ValueError(f"{where}: sizes must be known on the host, got a tensor")
    check_input(where, "input", input, place)
    key = group._layouts.key(REDUCE_SCATTER, sizes)
    layout = group._layouts.of(
        REDUCE_SCATTER, input.shape, input.dtype, key, padded_to, lane, routed
    )
    if watch.tags:
        tags.require_partial(where, input, strict=False)  # the window below is tagged anew
    nbytes, shape = layout.in_bytes, (layout.rows, layout.hidden)
    if out is None:
        # Padding is nobody's row, and is not to be what was in memory before.
        make = torch.empty if sum(layout.counts) == layout.rows else torch.zeros
        out = make(shape, dtype=layout.dtype, device=input.device)
    else:
        check_output(where, out, layout.dtype, shape, place)
    begin = layout.begins[group.rank]
    own = out[begin : begin + layout.counts[group.rank]]
    core = group._core
    if core is not None and core.overlaps(out.data_ptr(), nbytes):
        reason = core.why_no_output(out.data_ptr(), nbytes, layout.lane)
        if reason:
            raise ValueError(f"{where}: out {reason} ({layout.text})")
        return Ends(own, out, key)  # where nothing else that the first half takes may be
    _check_apart(where, out, nbytes, input, epilogue)
    if place is not CPU:
        return Ends(own, out, key)  # whose peers do not read it, but are sent it
    window = group.acquire(
        "dispatch", (own.shape[0], layout.hidden), layout.dtype, lane=lane, stream=stream
    )
    return Ends(own if window is None else window, out, key)


def run(
    group: Group | DeviceGroup,
    ends: Ends,
    input: torch.Tensor,
    epilogue: Epilogue,
    padded_to: int | None,
    routing: Routing | None,
    lane: int,
    deterministic: bool,
    stream: object | None,
) -> torch.Tensor:
    """Both halves, one behind the other; gives all ranks' rows."""
    group.reduce_scatter(
        input,
        ends.own,
        sizes=ends.sizes,
        padded_to=padded_to,
        routing=routing,
        lane=lane,
        deterministic=deterministic,
        epilogue=epilogue,
        stream=stream,
    )
    return group.all_gather(
        ends.own, ends.out, sizes=ends.sizes, padded_to=padded_to, lane=lane, stream=stream
    )


def _check_apart(
    where: str, out: torch.Tensor, nbytes: int, input: torch.Tensor, epilogue: Epilogue
) -> None:
    """Raises ValueError if the gathered rows would be written over anything that the call uses."""
    target: Span = ("out", out.data_ptr(), nbytes)
    require_apart(where, ("input", input.data_ptr(), nbytes), target)
    for name, tensor in epilogue.tensors():
        used: Span = (f"epilogue.{name}", tensor.data_ptr(), tensor.nbytes)
        require_apart(where, used, target)
