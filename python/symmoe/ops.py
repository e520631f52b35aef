"""The collectives as torch operators, for graphs: torch.compile, torch.export, make_fx.

    torch.ops.symmoe.combine(expert_out, topk_weights, group.name, index=index, sizes=sizes)

Operators return new tensors and write none of their arguments. An `out` argument would not do: what
a graph mutates is first made functional, with a copy wherever the compiler cannot show that none is
needed, and a copy of a window is no window. `combine` acquires its window where it runs.

Compilers keep the order of calls only where one needs what another gave. `after`, any tensor, is
such a need: the call comes behind whatever makes it, and does not look at it.

`device_sizes` is an int32 tensor on the device, in place of `sizes`: the result then has as many
rows as there may be, and those beyond the own ones are not written. `topk_ids` and `expert_to_rank`
are those of a `Routing`; they go together.

What is here runs when an operator is called. Shapes are known to a compiler from `shapes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.node import has_side_effect

from . import names, shapes, topk
from .routing import Routing

_SIZES = "SymInt[]? sizes=None, SymInt? padded_to=None, int lane=0, Tensor? after=None"
_ROWS = "Tensor? device_sizes=None, Tensor? topk_ids=None, Tensor? expert_to_rank=None"
SCHEMAS = {
    "reduce_scatter": f"(Tensor input, str group, *, {_SIZES}, bool deterministic=False, "
    f"{_ROWS}) -> Tensor",
    "all_gather": f"(Tensor input, str group, *, {_SIZES}) -> Tensor",
    "combine": "(Tensor expert_out, Tensor? topk_weights, str group, *, Tensor? index=None, "
    f"float? scale=None, {_SIZES}, bool deterministic=False, {_ROWS}) -> Tensor",
    "topk_reduce": "(Tensor expert_out, Tensor? topk_weights=None, *, Tensor? index=None, "
    "float? scale=None, ScalarType? dtype=None) -> Tensor",
}
_COLLECTIVES = ("reduce_scatter", "all_gather", "combine")
# Inputs have to be contiguous: a compiler may not give them other strides than it said.
TAGS = (
    torch.Tag.pt2_compliant_tag,
    getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order),
)


def _reduce_scatter(
    input: torch.Tensor,
    group: str,
    *,
    sizes: Sequence[int] | None = None,
    padded_to: int | None = None,
    lane: int = 0,
    after: torch.Tensor | None = None,
    deterministic: bool = False,
    device_sizes: torch.Tensor | None = None,
    topk_ids: torch.Tensor | None = None,
    expert_to_rank: torch.Tensor | None = None,
) -> torch.Tensor:
    del after
    found = names.find("reduce_scatter", group)
    return found.reduce_scatter(
        input,
        sizes=sizes if device_sizes is None else device_sizes,
        padded_to=padded_to,
        lane=lane,
        deterministic=deterministic,
        routing=_routing(topk_ids, expert_to_rank),
    )


def _all_gather(
    input: torch.Tensor,
    group: str,
    *,
    sizes: Sequence[int] | None = None,
    padded_to: int | None = None,
    lane: int = 0,
    after: torch.Tensor | None = None,
) -> torch.Tensor:
    del after
    found = names.find("all_gather", group)
    return found.all_gather(input, sizes=sizes, padded_to=padded_to, lane=lane)


def _combine(
    expert_out: torch.Tensor,
    topk_weights: torch.Tensor | None,
    group: str,
    *,
    index: torch.Tensor | None = None,
    scale: float | None = None,
    sizes: Sequence[int] | None = None,
    padded_to: int | None = None,
    lane: int = 0,
    after: torch.Tensor | None = None,
    deterministic: bool = False,
    device_sizes: torch.Tensor | None = None,
    topk_ids: torch.Tensor | None = None,
    expert_to_rank: torch.Tensor | None = None,
) -> torch.Tensor:
    del after
    found = names.find("combine", group)
    return found.combine(
        expert_out,
        topk_weights,
        index=index,
        scale=scale,
        sizes=sizes if device_sizes is None else device_sizes,
        padded_to=padded_to,
        lane=lane,
        deterministic=deterministic,
        routing=_routing(topk_ids, expert_to_rank),
    )


def _routing(topk_ids: torch.Tensor | None, expert_to_rank: torch.Tensor | None) -> Routing | None:
    """A call's routing; one of its own for each call, so that graphs make its masks anew."""
    if topk_ids is None or expert_to_rank is None:
        return None
    return Routing(topk_ids, expert_to_rank=expert_to_rank)


def _topk_reduce(
    expert_out: torch.Tensor,
    topk_weights: torch.Tensor | None = None,
    *,
    index: torch.Tensor | None = None,
    scale: float | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    out = shapes.topk_reduce(expert_out, topk_weights, index=index, scale=scale, dtype=dtype)
    return topk.topk_reduce(expert_out, topk_weights, out=out, index=index, scale=scale)


KERNELS: dict[str, Callable[..., torch.Tensor]] = {
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "combine": _combine,
    "topk_reduce": _topk_reduce,
}
_SHAPES: dict[str, Callable[..., torch.Tensor]] = {
    "reduce_scatter": shapes.reduce_scatter,
    "all_gather": shapes.all_gather,
    "combine": shapes.combine,
    "topk_reduce": shapes.topk_reduce,
}


def _register() -> Any:
    """Makes the operators known to torch, as long as what it returns lives."""
    make: Callable[[str, str], Any] = torch.library.Library
    library = make("symmoe", "DEF")
    for name, schema in SCHEMAS.items():
        library.define(name + schema, tags=TAGS)
        for key in ("CPU", "CUDA"):  # CUDA is torch's name for AMD's GPUs too
            library.impl(name, KERNELS[name], key)
        torch.library.register_fake(f"symmoe::{name}", _SHAPES[name], lib=library)
        if name in _COLLECTIVES:
            # Else a call whose result nobody wants is left out, and the peers wait for it.
            has_side_effect(getattr(torch.ops.symmoe, name).default)
    return library


_LIBRARY = _register()
