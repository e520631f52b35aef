"""The model: one MoE layer of Qwen3-30B-A3B as transformers has it, whole or a share of it.

Nothing is downloaded. Weights and tokens are made from seeds, the same ones in every process, with
the standard deviation that transformers initialises with. Nothing here knows of ranks or windows.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import (
    Qwen3MoeRMSNorm,
    Qwen3MoeSparseMoeBlock,
    Qwen3MoeTopKRouter,
)

DTYPE = torch.bfloat16
ROUTER_SEED = 1
TOKEN_SEED = 2
FIRST_EXPERT_SEED = 1000


def layer_config(hidden: int, intermediate: int, experts: int, top_k: int) -> Qwen3MoeConfig:
    """The layer's configuration; all but the widths is Qwen3-30B-A3B's."""
    config = Qwen3MoeConfig(
        hidden_size=hidden,
        moe_intermediate_size=intermediate,
        num_experts=experts,
        num_experts_per_tok=top_k,
        norm_topk_prob=True,
    )
    config._experts_implementation = "eager"  # a standalone layer has no model to choose for it
    return config


def embeddings(config: Qwen3MoeConfig, tokens: int) -> Tensor:
    """Tokens as a layer might see them, before its norm: [tokens, hidden].

    Each is the centre of one of a few topics plus noise of its own, and the topics' frequencies
    follow Zipf's law: related tokens choose related experts, so that some experts get many times
    more tokens than others, as with text.
    """
    random = torch.Generator().manual_seed(TOKEN_SEED)
    topics = max(2, config.num_experts // 4)
    centres = torch.randn(topics, config.hidden_size, generator=random)
    frequencies = 1 / torch.arange(1, topics + 1)
    topic = torch.multinomial(frequencies, tokens, replacement=True, generator=random)
    noise = torch.randn(tokens, config.hidden_size, generator=random)
    return (centres[topic] + noise).to(DTYPE)


def make_norm(config: Qwen3MoeConfig) -> Qwen3MoeRMSNorm:
    """The norm in front of the MoE block."""
    norm: Qwen3MoeRMSNorm = Qwen3MoeRMSNorm(config.hidden_size, eps=config.rms_norm_eps).to(DTYPE)
    return norm


def norm_into(norm: Qwen3MoeRMSNorm, x: Tensor, out: Tensor) -> None:
    """What the norm does, its last multiplication writing `out`: [tokens, hidden] both."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
    torch.mul(wide.to(x.dtype), norm.weight, out=out)


def empty_block(config: Qwen3MoeConfig) -> Qwen3MoeSparseMoeBlock:
    """The unsplit layer of transformers, without memory for its weights."""
    with torch.device("meta"):
        block: Qwen3MoeSparseMoeBlock = Qwen3MoeSparseMoeBlock(config).to(DTYPE)
    return block


def make_router(config: Qwen3MoeConfig) -> Qwen3MoeTopKRouter:
    """The router; like every rank of an expert-parallel engine, each process has all of it."""
    router: Qwen3MoeTopKRouter = empty_block(config).gate.to_empty(device="cpu")
    random = torch.Generator().manual_seed(ROUTER_SEED)
    router.weight.data.normal_(0, config.initializer_range, generator=random)
    return router


def fill_expert(config: Qwen3MoeConfig, expert: int, gate_up: Tensor, down: Tensor) -> None:
    """Writes one expert's weights: [2 * intermediate, hidden] and [hidden, intermediate]."""
    random = torch.Generator().manual_seed(FIRST_EXPERT_SEED + expert)
    for weight in (gate_up, down):
        values = torch.empty(weight.shape)  # fp32: drawn faster than bfloat16
        weight.copy_(values.normal_(0, config.initializer_range, generator=random))


def whole_layer(config: Qwen3MoeConfig, experts: Iterable[int]) -> Qwen3MoeSparseMoeBlock:
    """The unsplit layer of transformers, with all weights.

    Args:
        config: The layer's.
        experts: range(config.num_experts), perhaps wrapped in a progress bar.
    """
    whole: Qwen3MoeSparseMoeBlock = empty_block(config).to_empty(device="cpu")
    whole.gate = make_router(config)
    for expert in experts:
        gate_up, down = whole.experts.gate_up_proj.data, whole.experts.down_proj.data
        fill_expert(config, expert, gate_up[expert], down[expert])
    return whole


class ExpertShare:
    """The experts that one process holds.

    Args:
        config: The layer's.
        experts: Their numbers, one after the other.
    """

    def __init__(self, config: Qwen3MoeConfig, experts: range) -> None:
        inner, hidden = config.moe_intermediate_size, config.hidden_size
        self.experts = experts
        self.gate_up = torch.empty(len(experts), 2 * inner, hidden, dtype=DTYPE)
        self.down = torch.empty(len(experts), hidden, inner, dtype=DTYPE)
        for at, expert in enumerate(experts):
            fill_expert(config, expert, self.gate_up[at], self.down[at])

    def forward(self, hidden: Tensor, topk_ids: Tensor) -> tuple[Tensor, Tensor]:
        """What the experts here make of the tokens that chose them.

        Args:
            hidden: [M, hidden], all tokens.
            topk_ids: [M, K], the experts each of them chose.

        Returns:
            pairs: [P, hidden], one row per (token, expert here), not weighted.
            index: [M, K] int32, the row of `pairs` for each choice; -1: another process has it.
        """
        first, last = self.experts[0], self.experts[-1]
        count = int(((topk_ids >= first) & (topk_ids <= last)).sum())
        pairs = torch.empty(count, hidden.shape[1], dtype=hidden.dtype)
        index = torch.full(topk_ids.shape, -1, dtype=torch.int32)
        begin = 0
        for at, expert in enumerate(self.experts):
            slot, token = topk_ids.T.eq(expert).nonzero(as_tuple=True)
            end = begin + len(token)
            gate, up = F.linear(hidden[token], self.gate_up[at]).chunk(2, dim=-1)
            pairs[begin:end] = F.linear(F.silu(gate) * up, self.down[at])
            index[token, slot] = torch.arange(begin, end, dtype=torch.int32)
            begin = end
        return pairs, index

    def exact(self, hidden: Tensor, topk_weights: Tensor, topk_ids: Tensor) -> Tensor:
        """The experts' part of the layer's output in fp64, nothing rounded: [M, hidden]."""
        total = torch.zeros(hidden.shape, dtype=torch.float64)
        for at, expert in enumerate(self.experts):
            slot, token = topk_ids.T.eq(expert).nonzero(as_tuple=True)
            gate, up = F.linear(hidden[token].double(), self.gate_up[at].double()).chunk(2, dim=-1)
            output = F.linear(F.silu(gate) * up, self.down[at].double())
            total.index_add_(0, token, output * topk_weights[token, slot, None].double())
        return total
