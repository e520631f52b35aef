"""Tags of tensors: where they go and where they do not."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

import symmoe
from symmoe import tags
from symmoe.observing import watch
from symmoe.tags import Partial, Replicated, Sharded

SIZES = (3, 5)


@pytest.fixture(autouse=True)
def in_use_here_only() -> Iterator[None]:
    """Tags stay in use once they are: for other tests of this process they are not."""
    yield
    watch.tags = watch.on = False


def test_a_view_has_the_tag_and_what_is_made_anew_has_none() -> None:
    rows = symmoe.tag(torch.zeros(8, 4), Partial())
    gc.collect()
    for view in (rows, rows[2:], rows.view(-1), rows.T, rows.detach(), rows.view(torch.int32)):
        assert symmoe.layout_of(view) == Partial()
    for made in (rows + 1, rows.clone(), rows.to(torch.bfloat16), rows[[0, 1]]):
        assert symmoe.layout_of(made) is None
    rows += 1
    assert symmoe.layout_of(rows) == Partial()


def test_the_newest_tag_of_a_part_counts() -> None:
    memory = torch.zeros(8, 4)
    symmoe.tag(memory, Partial())
    symmoe.tag(memory[:3], Sharded(SIZES))
    assert symmoe.layout_of(memory[:3]) == Sharded(SIZES)
    assert symmoe.layout_of(memory[1:2]) == Sharded(SIZES)
    assert symmoe.layout_of(memory[3:]) == Partial()
    symmoe.tag(memory, Replicated())
    assert symmoe.layout_of(memory[:3]) == Replicated()
    tags.put(memory[:3], None)
    assert symmoe.layout_of(memory[:3]) is None


def test_neighbours_in_one_memory_are_strangers() -> None:
    memory = torch.zeros(8, 4)
    symmoe.tag(memory[:4], Partial())
    assert symmoe.layout_of(memory[4:]) is None
    tags.put(memory[4:], None)
    assert symmoe.layout_of(memory[:4]) == Partial()


def test_a_long_life_does_not_collect_records() -> None:
    memory = torch.zeros(1000)
    for i in range(999):
        symmoe.tag(memory[i : i + 1], Partial())
    assert len(getattr(memory.untyped_storage(), tags._ATTRIBUTE)) <= tags._MOST_RECORDS
    assert symmoe.layout_of(memory[998:999]) == Partial()


def test_empty_tensors_keep_theirs() -> None:
    nothing = symmoe.tag(torch.empty(0, 4), Sharded((0, 5)))
    assert symmoe.layout_of(nothing) == Sharded((0, 5))


def test_words() -> None:
    assert str(Sharded([1, 2])) == "Sharded([1, 2])"
    assert str(Partial()) == "Partial"
    assert Sharded([1, 2]) == Sharded((1, 2)) != Sharded()


@pytest.mark.parametrize("layout", [Sharded(SIZES), Replicated()])
def test_what_was_reduced_is_not_reduced_again(layout: symmoe.Layout) -> None:
    rows = symmoe.tag(torch.zeros(4), layout)
    with pytest.raises(symmoe.LayoutError) as caught:
        tags.require_partial("here", rows, strict=False)
    assert str(layout) in str(caught.value)
    assert "must be Partial" in str(caught.value)


def test_a_summand_is_not_gathered_and_not_normed() -> None:
    rows = symmoe.tag(torch.zeros(4), Partial())
    with pytest.raises(symmoe.LayoutError, match="input is Partial, must be Sharded"):
        tags.require_sharded("here", rows, strict=False)
    with pytest.raises(symmoe.LayoutError, match="is Partial, must be Sharded or Replicated"):
        tags.require_reduced("here", rows)
    with pytest.raises(symmoe.LayoutError, match="input is Replicated, must be Sharded"):
        tags.require_sharded("here", symmoe.tag(rows, Replicated()), strict=False)


def test_no_tag_is_refused_only_if_strict() -> None:
    rows = torch.zeros(4)
    for require in (tags.require_partial, tags.require_sharded, tags.require_reduced):
        require("here", rows, False)
        with pytest.raises(symmoe.LayoutError, match="no tag"):
            require("here", rows, True)


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="expected a tensor, got list"):
        symmoe.tag([], Partial())  # type: ignore[type-var]
    with pytest.raises(TypeError, match="Replicated"):
        symmoe.tag(torch.zeros(1), Partial)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Partial"):
        symmoe.tag(torch.zeros(1), symmoe.Layout())
    with pytest.raises(TypeError, match="expected a tensor"):
        symmoe.layout_of(3)  # type: ignore[arg-type]
