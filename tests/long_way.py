"""Which calls of a group take the long way through Python, and how to make all of them do so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import symmoe
from symmoe.calls import _unknown


@contextmanager
def long_way(group: symmoe.Group) -> Iterator[None]:
    """Inside, no call of the group is known."""
    names = ("_known_reduce_scatter", "_known_all_gather", "_known_combine")
    known = [getattr(group, name) for name in names]
    for name in names:
        setattr(group, name, _unknown)
    try:
        yield
    finally:
        for name, function in zip(names, known, strict=True):
            setattr(group, name, function)


@contextmanager
def counted(group: symmoe.Group) -> Iterator[list[str]]:
    """Lists the calls that take the long way inside."""
    taken: list[str] = []

    def counting(name: str) -> Callable[..., Any]:
        prepare = getattr(type(group), name)

        def counted_prepare(*arguments: Any) -> Any:
            taken.append(name)
            return prepare(*arguments)

        return counted_prepare

    with pytest.MonkeyPatch.context() as patch:
        for name in ("_prepare", "_prepare_combine"):
            patch.setattr(symmoe.Group, name, counting(name))
        yield taken


def acquired(group: symmoe.Group, role: str, rows: int, hidden: int) -> torch.Tensor:
    """A bfloat16 window, where there is one."""
    window = group.acquire(role, (rows, hidden), torch.bfloat16)
    assert window is not None
    return window
