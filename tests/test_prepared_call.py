"""The short way of reduce_scatter from a whole window, and where it gives way to the long one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import symmoe
from device_lab import EmulatedLab, emulated
from ranks import Ranks
from symmoe import testing
from symmoe.device.group import DeviceGroup

pytestmark = pytest.mark.multi
ROWS, HIDDEN, DTYPE = 4, 16, torch.float32


def acquire(group: DeviceGroup, role: str = "combine") -> torch.Tensor:
    window = group.acquire(role, (ROWS * group.world_size, HIDDEN), DTYPE)
    assert window is not None
    return window


def prepared(group: Any, window: torch.Tensor) -> Any:
    return group._views.by_id[id(window)].even_call


def errors(lab: EmulatedLab, rank: int, world: int) -> None:
    """What the core throws is what it is elsewhere."""
    group = lab.init()
    out = torch.empty(ROWS, HIDDEN, dtype=DTYPE)
    window = acquire(group)
    assert prepared(group, window) is None
    group.reduce_scatter(window, out)
    call = prepared(group, window)
    assert call is not None
    with pytest.raises(ValueError, match="reduced already: acquire it again"):
        group.reduce_scatter(window, out)
    assert prepared(group, acquire(group)) is call
    with pytest.raises(TypeError, match="expected 3 arguments, got 2"):
        call(out.data_ptr(), 0)
    with pytest.raises(TypeError):
        call(out.data_ptr(), 0, deterministic=False)
    with pytest.raises(TypeError):
        call("there", 0, False)
    with pytest.raises(OverflowError):
        call(-1, 0, False)
    with pytest.raises(ValueError, match="out overlaps a window for combine"):
        group.reduce_scatter(window, window[:ROWS])
    assert call(out.data_ptr(), 0, False) is True
    testing.synchronize()
    group.close()
    with pytest.raises(symmoe.ClosedError, match="reduce_scatter"):
        call(out.data_ptr(), 0, False)
    del group
    with pytest.raises(symmoe.ClosedError, match="reduce_scatter"):
        call(out.data_ptr(), 0, False)


def test_errors(ranks: Ranks) -> None:
    ranks.run(2, emulated, errors)


def other_arguments(lab: EmulatedLab, rank: int, world: int) -> None:
    """Whatever the short way does not know is checked by the long one."""
    with lab.init() as group:
        window = acquire(group)
        out = torch.empty(ROWS, HIDDEN, dtype=DTYPE)
        group.reduce_scatter(window, out)
        unfit: list[tuple[Any, type[Exception], str]] = [
            (out[:-1], ValueError, "out has shape"),
            (out.view(HIDDEN, ROWS), ValueError, "out has shape"),
            (torch.empty(HIDDEN, ROWS, dtype=DTYPE).t(), ValueError, "contiguous"),
            (out.to(torch.float16), TypeError, "out is float16"),
            (out.to("meta"), ValueError, "out is on meta"),
            (out.tolist(), TypeError, "out must be a tensor"),
        ]
        for wrong, kind, text in unfit:
            acquire(group)
            with pytest.raises(kind, match=text):
                group.reduce_scatter(window, wrong)
            with pytest.raises(kind, match=text):
                group.explain("reduce_scatter", window, wrong)
            with pytest.raises(kind, match=text):
                group.explain("combine", torch.ones(ROWS * world, HIDDEN, dtype=DTYPE), out=wrong)
        with pytest.raises(TypeError, match="stream must be"):
            group.explain("reduce_scatter", window, stream="mine")
        private = torch.ones(ROWS * world, HIDDEN, dtype=DTYPE)
        group.reduce_scatter(private, out, lane=1)
        unfit_lanes: list[Any] = [True, 1.0]  # equal to 1, and refused also where 1 is known
        for lane in unfit_lanes:
            with pytest.raises(TypeError, match="lane must be an integer"):
                group.reduce_scatter(private, out, lane=lane)
        acquire(group)
        window.requires_grad_()
        with pytest.raises(ValueError, match="requires a gradient"):
            group.reduce_scatter(window, out)
        window.requires_grad_(False)
        window.fill_(rank + 1)
        larger = torch.full((ROWS + 1, HIDDEN), -1.0, dtype=DTYPE)
        group.reduce_scatter(window, larger)
        testing.synchronize()
        assert bool((larger[:ROWS] == world * (world + 1) / 2).all())
        assert bool((larger[ROWS:] == -1).all())
        gathered = acquire(group, "dispatch")
        with pytest.raises(ValueError, match="acquired for dispatch"):
            group.reduce_scatter(gathered, out)
        with pytest.raises(ValueError, match="lane -1"):
            group.reduce_scatter(gathered, out, lane=-1)
        window = acquire(group)
        with pytest.raises(ValueError, match="acquired for combine, lane 0"):
            group.reduce_scatter(window, out, lane=1)


def test_other_arguments(ranks: Ranks) -> None:
    ranks.run(2, emulated, other_arguments)


def changed_in_place(lab: EmulatedLab, rank: int, world: int) -> None:
    """A window whose tensor was made to mean something else is not summed as what it was."""
    with lab.init() as group:
        window = acquire(group)
        out = torch.empty(ROWS, HIDDEN, dtype=DTYPE)
        group.reduce_scatter(window, out)
        acquire(group)
        window.resize_(ROWS * world // 2, HIDDEN)
        with pytest.raises(ValueError, match="out has shape"):
            group.reduce_scatter(window, out[:1])
        half = group.reduce_scatter(window)
        assert half.shape == (ROWS // 2, HIDDEN)
        testing.synchronize()


def test_changed_in_place(ranks: Ranks) -> None:
    ranks.run(2, emulated, changed_in_place)
