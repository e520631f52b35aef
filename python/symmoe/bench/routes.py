"""Which experts the tokens of a problem chose, and what follows from it: rows and bytes to move.

Experts are spread over the ranks in order; tokens choose at random, each expert as often.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from .problem import Problem

_SEED = 20241


class Route(NamedTuple):
    """A router's choice.

    Attributes:
        ids: [rows, topk] int32.
        expert_to_rank: [experts] int32.
    """

    ids: torch.Tensor
    expert_to_rank: torch.Tensor

    def slots_on(self, rank: int) -> torch.Tensor:
        """Which slots' experts a rank has: bool, [rows, topk]."""
        return self.expert_to_rank[self.ids.long()] == rank

    def index_on(self, rank: int) -> torch.Tensor:
        """[rows, topk] int32: a slot's row in the rank's expert output, -1 for others' slots.

        Rows of an expert lie together, in the order of the tokens, as after a grouped GEMM.
        """
        here = self.slots_on(rank)
        order = torch.argsort(self.ids[here], stable=True)
        place = torch.empty_like(order, dtype=torch.int32)
        place[order] = torch.arange(order.numel(), dtype=torch.int32)
        index = torch.full(self.ids.shape, -1, dtype=torch.int32)
        index[here] = place
        return index


@functools.lru_cache(maxsize=4)
def route_of(problem: Problem) -> Route:
    """The routing of a problem with experts; the same in every process and turn."""
    generator = torch.Generator().manual_seed(_SEED)
    chances = torch.rand(problem.rows, problem.experts, generator=generator)
    ids = chances.topk(problem.topk, dim=1).indices.to(torch.int32).contiguous()
    ranks = torch.arange(problem.experts) * problem.ranks // problem.experts
    return Route(ids, ranks.to(torch.int32))


class Traffic(NamedTuple):
    """Rows that a call moves, all ranks together.

    Attributes:
        expert: Read from expert output.
        written: Written to where peers read them.
        read: Read there.
        output: Written as results.
    """

    expert: int
    written: int
    read: int
    output: int

    @property
    def rows(self) -> int:
        """All of them."""
        return sum(self)


def dense_traffic(problem: Problem) -> Traffic:
    """What every path has to move that knows nothing of the routing.

    Copies of its own that a path makes on the way are not counted.
    """
    ranks, rows = problem.ranks, problem.rows
    exchanged = problem.mode != "topk"
    pairs = rows * problem.topk * (1 if problem.experts else ranks)
    return Traffic(
        expert=0 if problem.mode == "collective" else pairs,
        written=0 if problem.mode == "collective" else rows * ranks,
        read=rows * ranks if exchanged else 0,
        output=rows if exchanged else 0,
    )


def routed_traffic(problem: Problem) -> Traffic:
    """What is left with the routing."""
    route = route_of(problem)
    present = sum(int(route.slots_on(rank).any(1).sum()) for rank in range(problem.ranks))
    dense = dense_traffic(problem)
    written = present if dense.written else 0
    return dense._replace(written=written, read=present if dense.read else 0)
