"""The model: a decoder layer in the manner of GLM-5.2 and a draft head, whole or a share of them.

    x = x + attention(norm(x));  x = x + scale * experts(norm(x)) + shared(norm(x));  norm(x)

and the draft head (MTP), which guesses one token more from that and the next token's embedding:

    x = eh_proj(norm(embedding), norm(hidden));  x = x + ffn(norm(x));  norm(x)

A draft head's block is a decoder layer in the real model, and its attention is a sparse one with
latent keys. Here the block is one small feed-forward network, and attention the ordinary causal
one over all tokens. Nothing here knows of ranks or windows; see `sequence_flow.py`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from layer_parts import DTYPE, drawn, run_experts
from torch import Tensor

EPS = 1e-5
NORMS = ("attention", "experts", "final", "embedding", "previous", "draft", "draft_final")
FIRST_EXPERT_SEED = 1000


def part(count: int, rank: int, world: int) -> slice:
    """A rank's share of so many things; it may be empty."""
    return slice(rank * count // world, (rank + 1) * count // world)


class GatedFfn:
    """silu(gate) * up, and down again: [rows, hidden] -> [rows, hidden].

    Args:
        seed: Of its weights.
        hidden: Width of the rows.
        inner: Width between.
        cut: The part of the inner width that is here. What all parts make adds up to the whole.
        dtype: To compute in.
    """

    def __init__(
        self, seed: int, hidden: int, inner: int, cut: slice, dtype: torch.dtype = DTYPE
    ) -> None:
        gate_up = drawn(seed, 2 * inner, hidden).view(2, inner, hidden)[:, cut]
        self.gate_up = gate_up.reshape(-1, hidden).to(dtype)
        self.down = drawn(seed + 1, hidden, inner)[:, cut].to(dtype)

    def __call__(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """Runs it, and writes `out` if there is one."""
        gate, up = F.linear(rows, self.gate_up).chunk(2, -1)
        return torch.mm(F.silu(gate) * up, self.down.t(), out=out)


class GlmLayer:
    """One rank's share of decoder layer and draft head; all of them with `rank` 0 and `world` 1.

    Heads and experts are split. Norms, router, shared expert, eh_proj and the draft head's network
    work on a rank's own tokens and are whole; of the latter there is also the slice (`draft_slice`)
    that an engine has which splits it instead.

    Args:
        options: The widths.
        rank: Of the ranks' shares, the one to hold.
        world: Number of shares.
        dtype: To compute in; the weights are those of bfloat16 in any case.
    """

    def __init__(
        self, options: argparse.Namespace, rank: int, world: int, dtype: torch.dtype = DTYPE
    ) -> None:
        hidden, inner, width = options.hidden, options.intermediate, options.head_width
        whole = slice(None)
        self.dtype, self.scale, self.top_k = dtype, options.routed_scale, options.top_k
        self.norms = {
            name: (1 + drawn(seed, hidden, 1)[:, 0] / 8).to(dtype)
            for seed, name in enumerate(NORMS)
        }
        heads = part(options.heads, rank, world)
        qkv = drawn(10, 3 * options.heads * width, hidden).view(3, options.heads, width, hidden)
        self.qkv = qkv[:, heads].to(dtype)
        out = drawn(11, hidden, options.heads * width).view(hidden, options.heads, width)
        self.attention_out = out[:, heads].reshape(hidden, -1).to(dtype)
        self.router = drawn(12, options.experts, hidden).double()
        self.experts = range(options.experts)[part(options.experts, rank, world)]
        self.ffns = [
            GatedFfn(FIRST_EXPERT_SEED + 2 * expert, hidden, inner, whole, dtype)
            for expert in self.experts
        ]
        self.shared = GatedFfn(20, hidden, inner, whole, dtype)
        self.eh_proj = drawn(30, hidden, 2 * hidden).to(dtype)
        self.draft = GatedFfn(31, hidden, options.draft_intermediate, whole, dtype)
        cut = part(options.draft_intermediate, rank, world)
        self.draft_slice = GatedFfn(31, hidden, options.draft_intermediate, cut, dtype)

    def attention(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """What the heads here add: [rows, hidden] -> [rows, hidden], a summand. Writes `out`."""
        query, key, value = torch.einsum("rc,shdc->shrd", rows, self.qkv)[:, None].unbind()
        heads = F.scaled_dot_product_attention(query, key, value, is_causal=True)[0]
        joined = heads.transpose(0, 1).reshape(len(rows), -1)
        return torch.mm(joined, self.attention_out.t(), out=out)

    def choose(self, rows: Tensor) -> Tensor:
        """The router's choice of experts: int32, [rows, K].

        In fp64, so that the rounding of a product of another shape breaks no tie another way: the
        choice of a token is the same wherever and among whichever rows it is made.
        """
        return self._scores(rows).topk(self.top_k).indices.int()

    def weights(self, rows: Tensor, ids: Tensor) -> Tensor:
        """The router's weights of the experts chosen: [rows, K], float32 or better."""
        chosen = self._scores(rows).gather(1, ids.long())
        wide = torch.promote_types(self.dtype, torch.float32)
        return (chosen / chosen.sum(1, keepdim=True)).to(wide)

    def routed(self, rows: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """What the experts here make: [pairs, hidden], and an index [rows, K] into it."""
        return run_experts(rows, ids, self.experts, lambda at, chosen: self.ffns[at](chosen))

    def draft_input(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """What the draft head begins with: [rows, hidden] of both -> [rows, hidden]."""
        both = (self.norm("embedding", embedded), self.norm("previous", hidden))
        return F.linear(torch.cat(both, -1), self.eh_proj)

    def norm(self, name: str, rows: Tensor) -> Tensor:
        """RMSNorm by operations of torch."""
        return F.rms_norm(rows, rows.shape[-1:], self.norms[name], EPS)

    def _scores(self, rows: Tensor) -> Tensor:
        return F.linear(rows.double(), self.router).sigmoid()


@dataclass(frozen=True)
class Tokens:
    """What goes in, the same in every process.

    Attributes:
        embedded: [rows, hidden], all ranks' tokens.
        following: [rows, hidden], the tokens behind them, for the draft head.
        sizes: Rows of each rank.
    """

    embedded: Tensor
    following: Tensor
    sizes: list[int]


@dataclass(frozen=True)
class Made:
    """What comes out.

    Attributes:
        attended: [own rows, hidden], the residual behind attention.
        residual: [own rows, hidden], the residual behind the experts.
        hidden: [rows, hidden], the layer's end, normed.
        draft: [rows, hidden], the draft head's end, normed.
        ids: [rows, K], the experts chosen.
    """

    attended: Tensor
    residual: Tensor
    hidden: Tensor
    draft: Tensor
    ids: Tensor


def unsplit(layer: GlmLayer, tokens: Tokens, ids: Tensor) -> Made:
    """The computation on one rank, of a whole layer, by operations of torch.

    Args:
        layer: With `rank` 0 and `world` 1; its dtype is that of the computation.
        tokens: All of them.
        ids: The choice of experts to go by. A router that has slightly other rows in front of it
            may choose others, which is no error of what follows.
    """
    x = tokens.embedded.to(layer.dtype)
    attended = x + layer.attention(layer.norm("attention", x))
    rows = layer.norm("experts", attended)
    weights = layer.weights(rows, ids)
    pairs, index = layer.routed(rows, ids)
    routed = (pairs[index] * weights[..., None]).sum(1).to(layer.dtype)
    residual = attended + (routed * layer.scale + layer.shared(rows))
    hidden = layer.norm("final", residual)
    x = layer.draft_input(hidden, tokens.following.to(layer.dtype))
    x = x + layer.draft(layer.norm("draft", x))
    return Made(attended, residual, hidden, layer.norm("draft_final", x), ids)
