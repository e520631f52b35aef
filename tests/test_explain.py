"""explain says what the call then does, or raises what the call would raise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import symmoe
from ranks import Ranks
from symmoe import _core

pytestmark = pytest.mark.multi
HIDDEN = 16
COUNTERS = {
    "pull": ("calls_pull", "calls_gather"),
    "staged": ("calls_staged", "calls_gather_staged"),
    "routed": ("calls_routed", "calls_routed_staged"),
    "process_group": ("calls_process_group",),
}


def path_of(group: symmoe.Group, operation: str, *arguments: Any, **more: Any) -> str:
    """The path that explain names, after the call has taken it."""
    decision = group.explain(operation, *arguments, **more)
    assert {decision.path, *(it.path for it in decision.alternatives)} == set(COUNTERS)
    before = group.stats()
    getattr(group, operation)(*arguments, **more)
    after = group.stats()
    took = [p for p, names in COUNTERS.items() if any(after[n] > before[n] for n in names)]
    assert took == [decision.path], (operation, took, str(decision))
    return decision.path


def window_of(group: symmoe.Group, role: str, rows: int, lane: int = 0) -> torch.Tensor:
    window = group.acquire(role, (rows, HIDDEN), torch.float32, lane=lane)
    assert window is not None
    return window.fill_(1)


def everyone(rows: int, world: int) -> symmoe.Routing:
    """One expert on each rank; the tokens take turns."""
    ids = torch.arange(rows)[:, None] % world
    return symmoe.Routing(ids, expert_to_rank=torch.arange(world, dtype=torch.int32))


def what_is_read(rank: int, world: int) -> None:
    """The reason has the bytes, and that of an input elsewhere what is copied."""
    with symmoe.init(device="cpu") as group:
        rows = 4 * world
        window = window_of(group, "combine", rows)
        decision = group.explain("reduce_scatter", window, routing=everyone(rows, world))
        row_bytes = HIDDEN * 4
        expected = f"4 of {rows} partial rows for this rank to read, {4 * row_bytes} of "
        assert expected + f"{rows * row_bytes} bytes" in decision.reason
        assert "copied" not in decision.reason
        decision = group.explain("reduce_scatter", window.clone(), routing=everyone(rows, world))
        assert "those of its 4 rows are copied" in decision.reason
        dist.barrier()  # a peer that has closed its group would be noticed


def test_what_a_routed_call_reads(ranks: Ranks) -> None:
    ranks.run(2, what_is_read)


def everything(rank: int, world: int, cap: int | None) -> None:
    with symmoe.init(config=symmoe.Config(max_buffer_bytes=cap), device="cpu") as group:
        small, large = torch.ones(4 * world, HIDDEN), torch.ones(400 * world, HIDDEN)
        beyond = "process_group" if cap and world > 1 else None
        for lane in (0, 1):
            for operation in ("reduce_scatter", "all_gather"):
                role = "combine" if operation == "reduce_scatter" else "dispatch"
                window = window_of(group, role, 4 * world, lane)
                assert path_of(group, operation, window, lane=lane) == "pull"
                window = window_of(group, role, 4 * world, lane)
                assert path_of(group, operation, window[world:], lane=lane) == "pull"
                assert path_of(group, operation, small, lane=lane) == "staged"
                assert path_of(group, operation, large, lane=lane) == (beyond or "staged")
                other = small.to(torch.int32)
                assert path_of(group, operation, other, lane=lane) == "process_group"
                window = window_of(group, role, 0, lane)
                assert path_of(group, operation, window, lane=lane) == "pull"
                assert path_of(group, operation, window.clone(), lane=lane) == "staged"
            routing = everyone(4 * world, world)
            window = window_of(group, "combine", 4 * world, lane)
            for rows in (window, small):
                path = path_of(group, "reduce_scatter", rows, lane=lane, routing=routing)
                assert path == "routed"
            wide = everyone(400 * world, world)
            for operation in ("reduce_scatter", "combine"):
                path = path_of(group, operation, large, lane=lane, routing=wide)
                assert path == (beyond or "routed")
            assert path_of(group, "combine", small, lane=lane, routing=routing) == "routed"
            assert path_of(group, "combine", small, lane=lane) == "pull"
            last = "staged" if cap else "pull"
            assert path_of(group, "combine", large, lane=lane) == (beyond or last)
            assert path_of(group, "combine", small[:0], lane=lane) == "staged"


@pytest.mark.parametrize("cap", [None, 64 << 6])
@pytest.mark.parametrize("world", [1, 2])
def test_every_path(ranks: Ranks, world: int, cap: int | None) -> None:
    ranks.run(world, everything, cap)


def uneven(rank: int, world: int) -> None:
    """The rank with the most rows decides for all whether windows are large enough."""
    sizes = [1] * (world - 1) + [200]
    config = symmoe.Config(max_buffer_bytes=100 * HIDDEN * 4)
    with symmoe.init(config=config, device="cpu") as group:
        mine = torch.ones(sizes[rank], HIDDEN)
        assert path_of(group, "all_gather", mine, sizes=sizes) == "process_group"
        decision = group.explain("all_gather", mine, sizes=sizes)
        assert decision.reason.startswith(f"{200 * HIDDEN * 4} bytes of input exceed")
        if rank == 0:
            mine = window_of(group, "dispatch", sizes[rank])
        assert path_of(group, "all_gather", mine, sizes=sizes) == "process_group"
        if rank == 0:
            mine = window_of(group, "dispatch", sizes[rank])
        assert path_of(group, "all_gather", mine[:1], sizes=[1] * world) in ("pull", "staged")


def test_uneven_gather_beyond_the_cap(ranks: Ranks) -> None:
    ranks.run(3, uneven)


class Short:
    """The core of a rank that has no memory for windows of `nbytes` or more."""

    def __init__(self, core: _core.Group, nbytes: int) -> None:
        self.core = core
        self.nbytes = nbytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    def acquire(self, role: int, lane: int, nbytes: int) -> _core.Buffer | None:
        return self.core.acquire(role, lane, nbytes) if nbytes < self.nbytes else None

    def refusal(self) -> str:
        return "no memory, as a test"


def short_of_memory(rank: int, world: int) -> None:
    rows = 8 * world
    with symmoe.init(device="cpu") as group:
        mine = torch.ones(rows, HIDDEN)
        core = group._core
        assert core is not None
        group._core = Short(core, mine.nbytes)  # type: ignore[assignment]
        assert group.explain("reduce_scatter", mine).path == "staged"
        assert group.acquire("combine", (rows, HIDDEN), torch.float32) is None
        for operation in ("reduce_scatter", "combine"):
            decision = group.explain(operation, mine)
            assert decision.path == "process_group", operation
            assert "refused here: no memory, as a test" in decision.reason
        # Smaller ones, other lanes and the other role are not concerned.
        assert group.explain("reduce_scatter", mine[:world]).path == "staged"
        assert group.explain("reduce_scatter", mine, lane=1).path == "staged"
        assert group.explain("all_gather", mine).path == "staged"
        # There is memory again, for this rank as well.
        group._core = core
        assert group.acquire("combine", (rows, HIDDEN), torch.float32) is not None
        assert path_of(group, "reduce_scatter", mine) == "staged"
        assert path_of(group, "combine", mine) == "pull"


def test_after_a_refusal(ranks: Ranks) -> None:
    ranks.run(2, short_of_memory)


def short_peer(rank: int, world: int) -> None:
    """A rank learns in the call that another one has no window; from then on explain says so."""
    rows = 8 * world
    with symmoe.init(device="cpu") as group:
        core = group._core
        assert core is not None
        mine = window_of(group, "combine", rows)

        class Refused(Short):
            def reduce_scatter_staged(self, *arguments: Any) -> bool:
                return False

        assert group.explain("reduce_scatter", mine.clone()).path == "staged"
        group._core = Refused(core, 0)  # type: ignore[assignment]
        assert bool((group.reduce_scatter(mine.clone()) == world).all())
        group._core = core
        decision = group.explain("reduce_scatter", mine.clone())
        assert decision.path == "process_group"
        assert f"no window for {mine.nbytes} bytes in an earlier call" in decision.reason
        group.reduce_scatter(mine)
        assert group.explain("reduce_scatter", mine.clone()).path == "staged"


def test_after_a_fallback(ranks: Ranks) -> None:
    ranks.run(2, short_peer)


def refusals(rank: int, world: int) -> None:
    """What the call refuses because of windows, explain refuses too."""
    rows = 4 * world
    with symmoe.init(device="cpu") as group:
        window = window_of(group, "combine", rows)
        sent = window_of(group, "dispatch", rows)
        out = torch.empty(rows * world, HIDDEN)
        cases: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [
            ("dispatch, lane 0", "reduce_scatter", (sent,), {}),
            ("dispatch, lane 0", "reduce_scatter", (sent[:world],), {}),
            ("combine, lane 0", "all_gather", (window,), {}),
            ("lane 1", "reduce_scatter", (window,), {"lane": 1}),
            ("lane 1", "all_gather", (sent,), {"lane": 1}),
            ("out overlaps a", "reduce_scatter", (window, window[:4]), {}),
            ("out overlaps a", "reduce_scatter", (out, sent), {"lane": 1}),
            ("out overlaps a", "combine", (out[:rows],), {"out": window[:4]}),
            ("overlaps expert_out", "combine", (window,), {}),
        ]
        for text, operation, arguments, more in cases:
            for call in (
                lambda *a, op=operation, **m: group.explain(op, *a, **m),
                getattr(group, operation),
            ):
                with pytest.raises(ValueError, match=text):
                    call(*arguments, **more)
        assert bool((group.reduce_scatter(window) == world).all())
        assert bool((group.all_gather(sent) == 1).all())
        dist.barrier()


def test_refused_by_both(ranks: Ranks) -> None:
    ranks.run(2, refusals)
