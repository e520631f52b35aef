"""Expert ids with an even load."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import symmoe


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 80),
    experts=st.integers(1, 40),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
def test_every_load_is_even_and_no_token_has_an_expert_twice(
    tokens: int, experts: int, seed: int, data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, experts))
    ids = symmoe.balanced_topk_ids(tokens, k, experts, seed=seed)
    assert ids.shape == (tokens, k)
    assert ids.dtype is torch.int32
    loads = torch.bincount(ids.flatten().long(), minlength=experts)
    assert len(loads) == experts
    assert int(loads.max() - loads.min()) <= 1
    assert all(len(set(row)) == k for row in ids.tolist())


@settings(max_examples=40, deadline=None)
@given(copies=st.lists(st.integers(0, 11), max_size=6), seed=st.integers(0, 1000))
def test_copies_get_their_share_and_count_as_the_same_expert(copies: list[int], seed: int) -> None:
    experts, k, tokens = 12, 2, 60
    ids = symmoe.balanced_topk_ids(tokens, k, experts, redundant=copies, seed=seed)
    loads = torch.bincount(ids.flatten().long(), minlength=experts + len(copies))
    assert len(loads) == experts + len(copies)
    assert int(loads.max() - loads.min()) <= 1
    logical = [*range(experts), *copies]
    assert all(len({logical[i] for i in row}) == k for row in ids.tolist())


def test_copies_get_nothing_unless_asked_for() -> None:
    assert int(symmoe.balanced_topk_ids(100, 2, 8).max()) == 7


def test_the_seed_decides_and_the_order_is_not_the_experts() -> None:
    one, same, other = (symmoe.balanced_topk_ids(256, 8, 128, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    sets = {tuple(sorted(row)) for row in one.tolist()}
    assert len(sets) > 200  # tokens do not choose in company


def test_empty_and_types() -> None:
    assert symmoe.balanced_topk_ids(0, 2, 8).shape == (0, 2)
    assert symmoe.balanced_topk_ids(3, 0, 8, dtype=torch.int64).shape == (3, 0)
    with pytest.raises(TypeError, match="float32"):
        symmoe.balanced_topk_ids(1, 1, 1, dtype=torch.float32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((4, 9, 8), "k is 9, more than the 8 experts"),
        ((-1, 1, 8), "negative size: tokens -1"),
        ((4, 1, -8), "negative size"),
    ],
)
def test_wrong_sizes(arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        symmoe.balanced_topk_ids(*arguments)


def test_wrong_copies() -> None:
    with pytest.raises(ValueError, match=r"redundant\[1\] is 8, no expert"):
        symmoe.balanced_topk_ids(4, 1, 8, redundant=[0, 8])
    with pytest.raises(ValueError, match="too many copies"):
        symmoe.balanced_topk_ids(4, 2, 2, redundant=[0, 0, 0])
