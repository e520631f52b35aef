"""What the operators give, but for the numbers: an empty tensor of the right shape and dtype.

Compilers call these with tensors that have no memory, on devices that need not be here, and with
sizes that are symbols. A check of a symbol becomes a condition of the graph, so the checks of
`plans` and `topk` stand here once more, as conditions. What shapes and dtypes do not show is left
to the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import names
from .plans import ALL_GATHER, OTHER_TYPES, REDUCE_SCATTER, WINDOW_TYPES, check_lane, name_of

_check_value: Callable[[object, Callable[[], str]], None] = torch._check_value
_FLOATS = "expected bfloat16, float16 or float32"


def reduce_scatter(
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
    """[own rows, hidden] for `torch.ops.symmoe.reduce_scatter`."""
    del after, deterministic  # say nothing of shapes
    found = names.find(REDUCE_SCATTER, group)
    where = f"{REDUCE_SCATTER} on rank {found.rank}"
    _check_rows(where, input)
    rows, hidden = input.shape
    _check_routing(where, rows, topk_ids, expert_to_rank)
    own = _own_rows(where, rows, sizes, padded_to, lane, found.rank, found.world_size, device_sizes)
    return input.new_empty((own, hidden))


def all_gather(
    input: torch.Tensor,
    group: str,
    *,
    sizes: Sequence[int] | None = None,
    padded_to: int | None = None,
    lane: int = 0,
    after: torch.Tensor | None = None,
) -> torch.Tensor:
    """[rows of all ranks, hidden] for `torch.ops.symmoe.all_gather`."""
    del after
    found = names.find(ALL_GATHER, group)
    rank, world = found.rank, found.world_size
    where = f"{ALL_GATHER} on rank {rank}"
    _check_rows(where, input)
    check_lane(where, lane)
    given, hidden = input.shape
    if sizes is None:
        _check_even(where, padded_to)
        return input.new_empty((given * world, hidden))
    _check_sizes(where, sizes, padded_to, world)
    own = sizes[rank]
    fits = (given == own,) if padded_to is None else (own <= given, given <= padded_to)
    for condition in fits:
        _require(
            condition,
            lambda: f"{where}: input has {given} rows, but sizes[{rank}] = {own} (sizes = {sizes})",
        )
    return input.new_empty((sum(sizes) if padded_to is None else padded_to * world, hidden))


def combine(
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
    """[own rows, hidden] for `torch.ops.symmoe.combine`."""
    del scale, after, deterministic  # say nothing of shapes
    found = names.find("combine", group)
    where = f"combine on rank {found.rank}"
    tokens, hidden = _check_terms(where, expert_out, topk_weights, index)
    _check_routing(where, tokens, topk_ids, expert_to_rank)
    own = _own_rows(
        where, tokens, sizes, padded_to, lane, found.rank, found.world_size, device_sizes
    )
    return expert_out.new_empty((own, hidden))


def topk_reduce(
    expert_out: torch.Tensor,
    topk_weights: torch.Tensor | None = None,
    *,
    index: torch.Tensor | None = None,
    scale: float | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """[M, H] for `torch.ops.symmoe.topk_reduce`."""
    del scale  # says nothing of shapes
    if dtype is not None and dtype not in WINDOW_TYPES:
        raise TypeError(f"topk_reduce: out is {name_of(dtype)}, {_FLOATS}")
    tokens, hidden = _check_terms("topk_reduce", expert_out, topk_weights, index)
    return expert_out.new_empty((tokens, hidden), dtype=dtype)


def _own_rows(
    where: str,
    rows: int,
    sizes: Sequence[int] | None,
    padded_to: int | None,
    lane: int,
    rank: int,
    world: int,
    device_sizes: torch.Tensor | None = None,
) -> int:
    """This rank's rows of a sum of `rows`; with sizes on the device as many as there may be."""
    check_lane(where, lane)
    if device_sizes is not None:
        return _reserved_rows(where, rows, sizes, padded_to, world, device_sizes)
    if sizes is None:
        _check_even(where, padded_to)
        _require(
            rows % world == 0,
            lambda: (
                f"{where}: input has {rows} rows, which {world} ranks cannot share evenly; "
                f"give sizes by rank"
            ),
        )
        return rows // world
    _check_sizes(where, sizes, padded_to, world)
    wanted = sum(sizes) if padded_to is None else padded_to * world
    _require(
        rows == wanted,
        lambda: (
            f"{where}: input has {rows} rows, but sizes = {list(sizes)} and padded_to = "
            f"{padded_to} make {wanted}"
        ),
    )
    return sizes[rank]


def _reserved_rows(
    where: str,
    rows: int,
    sizes: Sequence[int] | None,
    padded_to: int | None,
    world: int,
    device_sizes: torch.Tensor,
) -> int:
    if sizes is not None:
        raise ValueError(f"{where}: both sizes and device_sizes are given")
    if device_sizes.dtype is not torch.int32:
        raise TypeError(f"{where}: device_sizes is {name_of(device_sizes.dtype)}, expected int32")
    if device_sizes.dim() != 1:
        raise ValueError(
            f"{where}: device_sizes has shape {list(device_sizes.shape)}, expected [{world}]"
        )
    _require(
        device_sizes.shape[0] == world,
        lambda: f"{where}: {device_sizes.shape[0]} sizes on the device for {world} ranks",
    )
    if padded_to is None:
        return rows
    _require(
        rows == padded_to * world,
        lambda: (
            f"{where}: input has {rows} rows, but padded_to = {padded_to} makes {padded_to * world}"
        ),
    )
    return padded_to


def _check_routing(
    where: str, rows: int, topk_ids: torch.Tensor | None, expert_to_rank: torch.Tensor | None
) -> None:
    if topk_ids is None and expert_to_rank is None:
        return
    if topk_ids is None or expert_to_rank is None:
        raise ValueError(f"{where}: topk_ids and expert_to_rank go together")
    if topk_ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{where}: topk_ids is {name_of(topk_ids.dtype)}, expected int32 or int64")
    if expert_to_rank.dtype is not torch.int32:
        raise TypeError(
            f"{where}: expert_to_rank is {name_of(expert_to_rank.dtype)}, expected int32"
        )
    if topk_ids.dim() != 2 or expert_to_rank.dim() != 1:
        raise ValueError(
            f"{where}: topk_ids must be [rows, K] and expert_to_rank [experts], got "
            f"{list(topk_ids.shape)} and {list(expert_to_rank.shape)}"
        )
    _require(
        topk_ids.shape[0] == rows,
        lambda: f"{where}: topk_ids has {topk_ids.shape[0]} rows, the call {rows}",
    )


def _require(condition: bool | torch.SymBool, message: Callable[[], str]) -> None:
    """Raises ValueError unless the condition holds; of symbols it becomes one of the graph.

    What only the running graph can know, such as sizes read from a tensor, the call checks itself:
    a compiler would take the condition for granted, and put one number in the place of the other.
    """
    if not isinstance(condition, bool):
        from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols  # takes a second

        if free_unbacked_symbols(condition):
            return
    _check_value(condition, message)


def _check_even(where: str, padded_to: int | None) -> None:
    if padded_to is not None:
        raise ValueError(f"{where}: padded_to = {padded_to} needs sizes by rank, got None")


def _check_sizes(where: str, sizes: Sequence[int], padded_to: int | None, world: int) -> None:
    if len(sizes) != world:
        raise ValueError(f"{where}: {len(sizes)} sizes for {world} ranks (sizes = {list(sizes)})")
    for rank in range(world):
        _check_size(where, sizes, padded_to, rank)


def _check_size(where: str, sizes: Sequence[int], padded_to: int | None, rank: int) -> None:
    size = sizes[rank]
    _check_value(size >= 0, lambda: f"{where}: sizes[{rank}] = {size} is negative")
    if padded_to is not None:
        _require(
            size <= padded_to,
            lambda: f"{where}: sizes[{rank}] = {size} is more than padded_to = {padded_to}",
        )


def _check_rows(where: str, input: torch.Tensor) -> None:
    if input.dtype not in WINDOW_TYPES and input.dtype not in OTHER_TYPES:
        raise TypeError(f"{where}: dtype {name_of(input.dtype)} is not supported")
    if input.dim() != 2:
        raise ValueError(f"{where}: input must be [rows, hidden], got shape {list(input.shape)}")
    _check_hidden(where, "input", input)
    _check_no_gradient(where, "input", input)


def _check_hidden(where: str, name: str, tensor: torch.Tensor) -> None:
    _require(
        tensor.shape[-1] >= 1, lambda: f"{where}: {name} has no columns, got {list(tensor.shape)}"
    )


def _check_no_gradient(where: str, name: str, tensor: torch.Tensor) -> None:
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{where}: {name} requires a gradient, and there is none here")


def _check_terms(
    where: str,
    expert_out: torch.Tensor,
    topk_weights: torch.Tensor | None,
    index: torch.Tensor | None,
) -> tuple[int, int]:
    """Tokens and hidden size of a top-k sum."""
    _check_no_gradient(where, "expert_out", expert_out)
    if expert_out.dtype not in WINDOW_TYPES:
        raise TypeError(f"{where}: expert_out is {name_of(expert_out.dtype)}, {_FLOATS}")
    slots: Any = 1
    if index is not None:
        if index.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{where}: index is {name_of(index.dtype)}, expected int32 or int64")
        if expert_out.dim() != 2 or index.dim() != 2:
            raise ValueError(
                f"{where}: with an index, expert_out must be [pairs, H] and index [M, K], got "
                f"{list(expert_out.shape)} and {list(index.shape)}"
            )
        tokens, slots = index.shape
    elif expert_out.dim() == 3:
        tokens, slots = expert_out.shape[:2]
    elif expert_out.dim() == 2:
        tokens = expert_out.shape[0]
    else:
        raise ValueError(
            f"{where}: expert_out must be [M, K, H] or [M, H], got {list(expert_out.shape)}"
        )
    _check_hidden(where, "expert_out", expert_out)
    if topk_weights is not None:
        _check_no_gradient(where, "topk_weights", topk_weights)
        if topk_weights.dtype not in (torch.float32, expert_out.dtype):
            raise TypeError(
                f"{where}: topk_weights is {name_of(topk_weights.dtype)}, expected float32 or "
                f"{name_of(expert_out.dtype)}"
            )
        if topk_weights.dim() != 2:
            raise ValueError(
                f"{where}: topk_weights has shape {list(topk_weights.shape)}, expected [M, K]"
            )
        for given, wanted in zip(topk_weights.shape, (tokens, slots), strict=True):
            _require(
                given == wanted,
                lambda: (
                    f"{where}: topk_weights has shape {list(topk_weights.shape)}, expected "
                    f"[M, K] = {[tokens, slots]}"
                ),
            )
    for name, tensor in (("index", index), ("topk_weights", topk_weights)):
        if tensor is not None and tensor.device != expert_out.device:
            raise ValueError(
                f"{where}: {name} is on {tensor.device}, expert_out on {expert_out.device}"
            )
    return tokens, expert_out.shape[-1]
