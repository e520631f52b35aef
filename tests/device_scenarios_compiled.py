"""Scenarios of the GPU path: calls inside of compiled functions."""

from __future__ import annotations

import torch

from device_lab import Lab
from reference import assert_same_bits, noise

HIDDEN, SLOTS = 24, 3


def combines(lab: Lab, rank: int, world: int, backend: str) -> None:
    """One graph for all sizes, with the bits of the plain call."""
    torch.compiler.reset()
    with lab.init() as group, torch.no_grad():

        @torch.compile(fullgraph=True, backend=backend, dynamic=True)
        def run(expert_out: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = torch.ops.symmoe.combine(
                expert_out, weights, group.name, deterministic=True
            )
            return result

        for per_rank in (2, 4, 5):
            tokens = per_rank * world
            expert_out = lab.tensor(noise(tokens + rank, (tokens, SLOTS, HIDDEN), torch.bfloat16))
            weights = lab.tensor(noise(tokens - rank, (tokens, SLOTS), torch.float32))
            right = lab.host(group.combine(expert_out, weights, deterministic=True))
            found = lab.host(run(expert_out, weights))
            assert found.shape == (per_rank, HIDDEN)
            assert_same_bits(found, right)
        path = "calls_local" if world == 1 else "calls_ordered"
        assert group.stats()[path] == 6
