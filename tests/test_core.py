"""The compiled core by itself: what it refuses, and that it lets other threads run."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import pytest

import symmoe
from symmoe import _core, errors

MIB = 1 << 20


def test_all_errors_are_public() -> None:
    classes = [it for it in vars(errors).values() if isinstance(it, type)]
    assert symmoe.SymmoeError in classes
    for error in classes:
        assert getattr(symmoe, error.__name__) is error
        assert error.__name__ in symmoe.__all__


@pytest.fixture
def group() -> Iterator[_core.Group]:
    """A world of one."""
    made = _core.Group(0, 1, [""], bytes(32), None, _core.GroupConfig())
    yield made
    made.close()


def plan(**changes: object) -> _core.Plan:
    arguments: dict[str, object] = {
        "kind": _core.REDUCE_SCATTER,
        "role": _core.COMBINE,
        "lane": 0,
        "dtype": _core.BFLOAT16,
        "hidden": 8,
        "rows": 2,
        "begins": [0],
        "counts": [2],
        "rank": 0,
        "text": "a test",
    }
    return _core.Plan(**(arguments | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [-1, 3, 1 << 20])
@pytest.mark.parametrize(
    ("name", "what"), [("kind", "kind of call"), ("role", "role"), ("dtype", "element type")]
)
def test_numbers_that_name_nothing(name: str, what: str, number: int) -> None:
    with pytest.raises(ValueError, match=f"there is no {what} number {number} "):
        plan(**{name: number})


def test_reserve_of_several_roles(group: _core.Group) -> None:
    roles = [_core.COMBINE, _core.DISPATCH]
    assert group.reserve(roles, 2, 1000, True) == ""
    assert group.stats()["buffers"] == 4
    assert group.stats()["pinned_bytes"] == group.stats()["live_bytes"] > 0
    with pytest.raises(ValueError, match="rank 0: no role is given"):
        group.reserve([], 1, 1000, False)
    with pytest.raises(ValueError, match="there is no role number 2"):
        group.reserve([2], 1, 1000, False)


def test_the_limit_of_check_mode() -> None:
    config = _core.GroupConfig()
    assert config.stall_ns == 30 * 10**9
    config.stall_ns = 0
    assert config.stall_ns == 0
    with pytest.raises(ValueError, match="stall_ns"):
        config.stall_ns = -1


def test_what_is_counted(group: _core.Group) -> None:
    calls = {name for name in group.stats() if name.startswith("calls_")}
    assert calls == {
        "calls_pull",
        "calls_staged",
        "calls_routed",
        "calls_routed_staged",
        "calls_gather",
        "calls_gather_staged",
    }


def longest_silence(body: object) -> tuple[float, float]:
    """Seconds that `body` takes, and the longest time that another thread did not run in it."""
    ticks: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0002)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        begin = time.perf_counter()
        body()  # type: ignore[operator]
        end = time.perf_counter()
    finally:
        stop.set()
        thread.join()
    inside = [begin, *(at for at in ticks if begin < at < end), end]
    return end - begin, max(b - a for a, b in itertools.pairwise(inside))


@pytest.mark.parametrize("ending", ["close", "forget"])
def test_other_threads_run_while_memory_is_given_back(ending: str) -> None:
    seen = []
    # The machine may be busy with something else once, but not always.
    for _ in range(5):
        group = _core.Group(0, 1, [""], bytes(32), None, _core.GroupConfig())
        assert group.acquire(_core.COMBINE, 0, 384 * MIB) is not None
        groups = [group]
        del group
        took, silent = longest_silence(groups[0].close if ending == "close" else groups.clear)
        seen.append((took, silent))
        if silent < 0.5 * took:
            return
    pytest.fail(f"no other thread ran (seconds in all, of silence): {seen}")
