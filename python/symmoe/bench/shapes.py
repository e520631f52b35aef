"""Shapes of Mixture-of-Experts models whose combine is worth timing."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import BenchError


@dataclass(frozen=True)
class Shape:
    """What a model's combine looks like.

    Attributes:
        name: The name for `--shape`.
        hidden: Elements per row that the ranks reduce: the latent width where the model has one.
        topk: Experts per token.
        experts: Routed experts of a layer.
    """

    name: str
    hidden: int
    topk: int
    experts: int


SHAPES: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape("deepseek-v3", 7168, 8, 256),
        Shape("kimi-k2", 7168, 8, 384),
        Shape("kimi-k3", 3584, 16, 896),
        Shape("glm-4.5", 5120, 8, 160),
        Shape("glm-5", 6144, 8, 256),
        Shape("qwen3-235b", 4096, 8, 128),
        Shape("qwen3-30b", 2048, 8, 128),
        Shape("nemotron-3-super", 1024, 22, 512),
        Shape("nemotron-3-ultra", 2048, 22, 512),
        Shape("mixtral-8x7b", 4096, 2, 8),
        Shape("mixtral-8x22b", 6144, 2, 8),
        Shape("gpt-oss-120b", 2880, 4, 128),
        Shape("llama-4-maverick", 5120, 1, 128),
        Shape("minimax-m2", 3072, 8, 256),
    )
}


# Other spellings.
_ALIASES = {"llama4-maverick": "llama-4-maverick"}


def find_shape(name: str) -> Shape:
    """The shape of that name.

    Raises:
        BenchError: There is none.
    """
    try:
        return SHAPES[_ALIASES.get(name, name)]
    except KeyError:
        raise BenchError(f"no shape '{name}'; known: {', '.join(SHAPES)}") from None
