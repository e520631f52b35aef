"""The communication: an MoE layer whose experts are split over the ranks of a symmoe group.

    own tokens -> norm -> dispatch window -> all_gather ->  every token, on every rank
    every token -> the experts here -> pairs -> top-k sum -> combine window -> reduce-scatter -> own

No step copies rows between a window and other memory: the norm writes the one window, the top-k
sum the other, and peers read both where they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from moe_layer import ExpertShare, make_norm, make_router, norm_into
from torch import Tensor
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig

import symmoe


@dataclass(frozen=True)
class Dispatched:
    """What every rank knows after the dispatch.

    Attributes:
        hidden: [M, hidden], the normed tokens of all ranks.
        weights: [M, K] fp32, the router's.
        ids: [M, K] int32, the experts chosen.
    """

    hidden: Tensor
    weights: Tensor
    ids: Tensor


class SplitLayer:
    """One rank's part of the layer.

    Args:
        config: The layer's.
        group: The ranks; rank r holds the r-th even share of the experts.
        sizes: Tokens of each rank, any numbers.
    """

    def __init__(self, config: Qwen3MoeConfig, group: symmoe.Group, sizes: list[int]) -> None:
        share = config.num_experts // group.world_size
        begin = sum(sizes[: group.rank])
        self.config = config
        self.group = group
        self.sizes = sizes
        self.own_rows = slice(begin, begin + sizes[group.rank])
        self.norm = make_norm(config)
        self.router = make_router(config)
        self.share = ExpertShare(config, range(group.rank * share, (group.rank + 1) * share))

    def dispatch(self, own: Tensor, lane: int = 0) -> Dispatched:
        """Norms and routes the own tokens, [own, hidden], and gathers everybody's. Collective."""
        rows, top_k = len(own), self.config.num_experts_per_tok
        window = self._window((rows, self.config.hidden_size), own.dtype, lane)
        norm_into(self.norm, own, window)
        _, weights, ids = self.router(window)
        hidden = self.group.all_gather(window, sizes=self.sizes, lane=lane)

        # One small message for both: the ids' bits travel as floats, which a gather only copies.
        window = self._window((rows, 2 * top_k), torch.float32, lane)
        window[:, :top_k] = weights
        window[:, top_k:] = ids.to(torch.int32).view(torch.float32)
        routing = self.group.all_gather(window, sizes=self.sizes, lane=lane)
        bits = routing[:, top_k:].contiguous()
        return Dispatched(hidden, routing[:, :top_k].contiguous(), bits.view(torch.int32))

    def combine(
        self, dispatched: Dispatched, pairs: Tensor, index: Tensor, lane: int = 0
    ) -> Tensor:
        """Weighs and adds up the experts' rows of all ranks: [own, hidden]. Collective."""
        return self.group.combine(
            pairs, dispatched.weights, index=index, sizes=self.sizes, lane=lane
        )

    def forward(self, own: Tensor, lane: int = 0) -> Tensor:
        """The layer: [own, hidden] -> [own, hidden]. Collective."""
        dispatched = self.dispatch(own, lane)
        pairs, index = self.share.forward(dispatched.hidden, dispatched.ids)
        return self.combine(dispatched, pairs, index, lane)

    def _window(self, shape: tuple[int, int], dtype: torch.dtype, lane: int) -> Tensor:
        window = self.group.acquire("dispatch", shape, dtype, lane=lane)
        # Where there are no windows (ranks on several hosts), any memory will do.
        return torch.empty(shape, dtype=dtype) if window is None else window
