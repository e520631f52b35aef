"""What the examples' small layers have in common: weights from seeds, and experts' rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

DTYPE = torch.bfloat16


def drawn(seed: int, *shape: int) -> Tensor:
    """A weight that every process can make again; what it makes is as large as what it takes."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random).div(shape[-1] ** 0.5).to(DTYPE)


def uneven_sizes(rows: int, world: int) -> list[int]:
    """Tokens of each rank: the first has fewer than the others."""
    if world == 1:
        return [rows]
    first = rows // (world + 1)
    sizes = [first] + [(rows - first) // (world - 1)] * (world - 1)
    sizes[-1] += rows - sum(sizes)
    return sizes


def run_experts(
    rows: Tensor, ids: Tensor, experts: range, run: Callable[[int, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """What some of the experts make of the tokens that chose them.

    Args:
        rows: [rows, width], all ranks' tokens.
        ids: [rows, K], the experts chosen.
        experts: Those that are here.
        run: Gives what the expert of a place in `experts` makes of rows.

    Returns:
        [pairs, width], and an index [rows, K] into it, -1 where the expert is not here.
    """
    index = torch.full(ids.shape, -1)
    made = [rows.new_empty(0, rows.shape[1])]
    begin = 0
    for at, expert in enumerate(experts):
        token, slot = (ids == expert).nonzero(as_tuple=True)
        made.append(run(at, rows[token]))
        index[token, slot] = torch.arange(begin, begin + len(token))
        begin += len(token)
    return torch.cat(made), index


def root_mean_square(rows: Tensor) -> float:
    """Of all elements, in fp64; 0 if there are none."""
    return float(rows.double().square().mean().sqrt()) if rows.numel() else 0.0
