"""The communication of a sequence-parallel layer: each rank keeps the residual of its own tokens.

    own rows -> norm -> all_gather ->  all rows
    all rows -> own heads -> summands -> reduce-scatter, + residual, norm, all_gather ->  all rows
    all rows -> own experts -> combine, + shared expert, + residual, norm -> all_gather ->  all rows
    own rows -> draft head, + residual, norm -> all_gather ->  all rows

`FusedFlow` does that; `StepwiseFlow` does the same as engines have it that know neither epilogues
nor a draft head on own rows. Both begin with one rank's share of the weights and its own rows.
"""

from __future__ import annotations

import torch
from glm_layer import EPS, GlmLayer, part
from torch import Tensor

import symmoe


class Flow:
    """What both flows have in common.

    Args:
        group: The ranks.
        layer: This rank's share of the weights.
        sizes: Tokens of each rank, any numbers.
    """

    def __init__(self, group: symmoe.Group, layer: GlmLayer, sizes: list[int]) -> None:
        begin = sum(sizes[: group.rank])
        self.group, self.layer, self.sizes, self.rows = group, layer, sizes, sum(sizes)
        self.own = slice(begin, begin + sizes[group.rank])
        self.hidden = layer.shared.down.shape[0]
        experts = range(len(layer.router))
        shares = [experts[part(len(experts), r, group.world_size)] for r in range(group.world_size)]
        ranks = [rank for rank, share in enumerate(shares) for _ in share]
        self.expert_to_rank = torch.tensor(ranks, dtype=torch.int32)

    def norm(self, name: str, residual: Tensor | None = None) -> symmoe.Epilogue:
        """A norm of the layer's as an epilogue, perhaps with a residual to add in front of it."""
        weight = self.layer.norms[name]
        return symmoe.Epilogue(residual=residual, norm_weight=weight, eps=EPS)

    def window(self, role: str, rows: int, width: int) -> Tensor:
        """Memory for a kernel to write that peers will read."""
        window = self.group.acquire(role, (rows, width), self.layer.dtype)
        # Where there are no windows (ranks on several hosts), any memory will do.
        return torch.empty(rows, width, dtype=self.layer.dtype) if window is None else window


class FusedFlow(Flow):
    """The layer with as few collectives and passes over rows as it takes.

    A method is the part of the layer from one gather of all rows to the next. Each result but the
    layer's and the draft head's own lies in the dispatch window, where the next part reads it.
    """

    def enter(self, own: Tensor) -> Tensor:
        """From own rows in front of the layer, [own rows, H], to all rows normed. Collective."""
        everybody = self.window("dispatch", self.rows, self.hidden)
        mine = symmoe.apply_epilogue(own, self.norm("attention"), out=everybody[self.own])
        return self.group.all_gather(mine, everybody, sizes=self.sizes)

    def attention(self, rows: Tensor, residual: Tensor) -> Tensor:
        """Attention: all rows normed to all rows normed; updates the residual. Collective."""
        summands = self.window("combine", self.rows, self.hidden)
        self.layer.attention(rows, out=summands)
        everybody = self.window("dispatch", self.rows, self.hidden)
        epilogue = self.norm("experts", residual)
        return self.group.rs_norm_ag(summands, everybody, epilogue=epilogue, sizes=self.sizes)

    def experts(self, rows: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The experts: as `attention`; also gives their choice, [rows, K]. Collective.

        All ranks have all rows, so that each knows the router's choice for all of them and nothing
        has to be sent for it; the ranks compare a hash of it in the combine's barrier.
        """
        layer = self.layer
        ids = layer.choose(rows)
        routing = symmoe.Routing(ids, layer.weights(rows, ids), self.expert_to_rank)
        pairs, index = layer.routed(rows, ids)
        epilogue = symmoe.Epilogue(
            scale=layer.scale,
            shared=layer.shared(rows[self.own]),
            residual=residual,
            norm_weight=layer.norms["final"],
            eps=EPS,
        )
        mine = self.window("dispatch", len(residual), self.hidden)
        self.group.combine(
            pairs, routing=routing, index=index, out=mine, epilogue=epilogue, sizes=self.sizes
        )
        return self.group.all_gather(mine, sizes=self.sizes), ids

    def draft(self, hidden: Tensor, following: Tensor) -> Tensor:
        """The draft head: [own rows, H] of both to all rows. Collective: one gather of H."""
        layer = self.layer
        residual = layer.draft_input(hidden, following)
        made = layer.draft(symmoe.apply_epilogue(residual, self.norm("draft")))
        mine = self.window("dispatch", len(residual), self.hidden)
        symmoe.apply_epilogue(made, self.norm("draft_final", residual), out=mine)
        return self.group.all_gather(mine, sizes=self.sizes)


class StepwiseFlow(Flow):
    """The layer step by step, each collective by itself; the router's choice is gathered as well.

    The draft head's network is split over the ranks here. So it needs all ranks' rows and their
    residual (2H), and its summands an all-reduce, which is a reduce-scatter and a gather.
    """

    def enter(self, own: Tensor) -> Tensor:
        """As in FusedFlow, and so are the others."""
        return self._gather(symmoe.apply_epilogue(own, self.norm("attention")))

    def attention(self, rows: Tensor, residual: Tensor) -> Tensor:
        """A reduce-scatter, an addition, a norm, a gather."""
        residual.add_(self._reduce(self.layer.attention(rows)))
        return self._gather(symmoe.apply_epilogue(residual, self.norm("experts")))

    def experts(self, rows: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Each rank routes its own tokens, then all need to know."""
        layer, mine, top_k = self.layer, rows[self.own], self.layer.top_k
        ids = layer.choose(mine)
        # One message for both: the ids' bits travel as floats, which a gather only copies.
        message = torch.cat((layer.weights(mine, ids), ids.view(torch.float32)), -1)
        everybody = self._gather(message)
        weights, ids = everybody[:, :top_k].contiguous(), everybody[:, top_k:].contiguous()
        ids = ids.view(torch.int32)
        pairs, index = layer.routed(rows, ids)
        routed = self.group.combine(pairs, weights, index=index, sizes=self.sizes)
        residual.add_(routed * layer.scale + layer.shared(mine))
        return self._gather(symmoe.apply_epilogue(residual, self.norm("final"))), ids

    def draft(self, hidden: Tensor, following: Tensor) -> Tensor:
        """A gather of 2H, an all-reduce of H, the norm of all rows on all ranks."""
        layer, width = self.layer, self.hidden
        residual = layer.draft_input(hidden, following)
        normed = symmoe.apply_epilogue(residual, self.norm("draft"))
        both = self._gather(torch.cat((normed, residual), -1))
        summands = layer.draft_slice(both[:, :width])
        total = self._gather(self._reduce(summands))
        return symmoe.apply_epilogue(both[:, width:] + total, self.norm("draft_final"))

    def _reduce(self, summands: Tensor) -> Tensor:
        return self.group.reduce_scatter(summands, sizes=self.sizes)

    def _gather(self, own: Tensor) -> Tensor:
        return self.group.all_gather(own, sizes=self.sizes)
