"""Which rows are whose, as property tests draw it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st


@dataclass
class Shares:
    """Rows of one collective.

    Attributes:
        dtype: Of the rows.
        sizes: Rows by rank.
        padding: Rows by which the largest share is padded; None: packed.
        hidden: Elements per row.
    """

    dtype: torch.dtype
    sizes: list[int]
    padding: int | None
    hidden: int

    @property
    def stride(self) -> int | None:
        return None if self.padding is None else max(self.sizes) + self.padding

    @property
    def rows(self) -> int:
        return sum(self.sizes) if self.stride is None else self.stride * len(self.sizes)


def sizes_of(world: int) -> st.SearchStrategy[list[int]]:
    """Few rows for each rank, often none."""
    size = st.one_of(st.just(0), st.integers(0, 9))
    return st.lists(size, min_size=world, max_size=world)


def paddings() -> st.SearchStrategy[int | None]:
    """None, or few rows."""
    return st.one_of(st.none(), st.integers(0, 3))
