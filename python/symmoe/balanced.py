"""Router choices with an even load, for benchmarks and profiling runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# Rounds of swaps after which columns stay in order: far more than any shape has been seen to need.
_REPAIRS = 64


def balanced_topk_ids(
    tokens: int,
    k: int,
    experts: int,
    *,
    redundant: Sequence[int] = (),
    seed: int = 0,
    dtype: torch.dtype = torch.int32,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Expert ids that load all experts alike: what a profiling run without a real router needs.

    The experts of a token differ, also where an expert has copies, and the loads of any two
    physical experts differ by at most one token. The same seed gives the same ids everywhere.

    Args:
        tokens: Number of tokens.
        k: Experts per token.
        experts: Experts without copies; ids 0 to experts - 1.
        redundant: The expert that each redundant copy is one of; copy i has the id experts + i.
            Left out, copies get no tokens.
        seed: For the order.
        dtype: int32 or int64.
        device: Of the result; None: the CPU.

    Returns:
        [tokens, k] physical ids.

    Raises:
        TypeError: A dtype that ids do not have.
        ValueError: Sizes that cannot be: k beyond experts, negative sizes, copies of no expert, or
            an expert with so many copies that an even load would give a token two of them.
    """
    where = "balanced_topk_ids"
    if dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{where}: dtype is {dtype}, expected torch.int32 or torch.int64")
    if tokens < 0 or k < 0 or experts < 0:
        raise ValueError(f"{where}: negative size: tokens {tokens}, k {k}, experts {experts}")
    if k > experts:
        raise ValueError(
            f"{where}: k is {k}, more than the {experts} experts: a token has each once"
        )
    for copy, original in enumerate(redundant):
        if not 0 <= original < experts:
            raise ValueError(
                f"{where}: redundant[{copy}] is {original}, no expert (0 to {experts - 1})"
            )
    if tokens == 0 or k == 0:
        return torch.empty((tokens, k), dtype=dtype, device=device)

    generator = torch.Generator().manual_seed(seed)
    logical = torch.cat((torch.arange(experts), torch.tensor(list(redundant), dtype=torch.int64)))
    loads = _even_loads(tokens * k, len(logical), generator)
    by_expert = torch.zeros(experts, dtype=torch.int64).index_add_(0, logical, loads)
    if int(by_expert.max()) > tokens:
        worst = int(by_expert.argmax())
        raise ValueError(
            f"{where}: an even load gives expert {worst} with its copies {int(by_expert[worst])} "
            f"places, more than the {tokens} tokens: it has too many copies for k = {k}"
        )
    # Dealt out like cards, one place of every token after the other. All places of an expert stand
    # together, no more of them than there are tokens, so that none gets two.
    order = torch.argsort(torch.randperm(experts, generator=generator)[logical], stable=True)
    dealt = order.repeat_interleave(loads[order]).view(k, tokens)
    ids = _shuffled(dealt, logical, generator).T
    ids = ids.gather(1, torch.rand((tokens, k), generator=generator).argsort(dim=1))
    return ids.to(device=device, dtype=dtype).contiguous()


def _even_loads(places: int, experts: int, generator: torch.Generator) -> torch.Tensor:
    """How many places each of the experts gets: [experts]."""
    loads = torch.full((experts,), places // experts)
    loads[torch.randperm(experts, generator=generator)[: places % experts]] += 1
    return loads


def _shuffled(
    dealt: torch.Tensor, logical: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """`dealt` [k, tokens] with each row in an order of its own, still no expert twice in a column.

    Only an expert whose places reach from one row into the next can come twice; such places are
    swapped with others of their row until there are none.
    """
    shuffle = torch.rand(dealt.shape, generator=generator).argsort(dim=1)
    ids = dealt.gather(1, shuffle)
    tokens = ids.shape[1]
    for _ in range(_REPAIRS):
        twice = _comes_again(logical[ids])
        rows, columns = twice.nonzero(as_tuple=True)
        if not len(rows):
            return ids
        others = torch.randint(tokens, (len(rows),), generator=generator)
        for row, column, other in zip(
            rows.tolist(), columns.tolist(), others.tolist(), strict=True
        ):
            ids[row, [column, other]] = ids[row, [other, column]]
    return dealt


def _comes_again(experts: torch.Tensor) -> torch.Tensor:
    """Where a row has an expert that an earlier row has in the same column: bool, [k, tokens]."""
    ordered, places = experts.sort(dim=0, stable=True)
    again = torch.zeros_like(experts, dtype=torch.bool)
    again[1:] = ordered[1:] == ordered[:-1]
    return torch.zeros_like(again).scatter(0, places, again)
