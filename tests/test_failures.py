"""Ranks that die, stop or stay away: the others raise in time and say who, where and when."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import symmoe
from ranks import Ranks, fresh
from symmoe import _core

pytestmark = pytest.mark.multi
VICTIM = 1
SECONDS_TO_NOTICE = 1.0
# Where a victim can die; it writes the time just before.
Phase = Callable[[symmoe.Group], None]


def one_call(group: symmoe.Group, lane: int = 0) -> None:
    window = group.acquire("combine", (2 * group.world_size, 8), torch.float32, lane=lane)
    assert window is not None
    window.fill_(1)
    assert bool((group.reduce_scatter(window, lane=lane) == group.world_size).all())


def idle(_group: symmoe.Group) -> None:
    """Between two calls."""


def acquired(group: symmoe.Group) -> None:
    """With a window half written."""
    window = group.acquire("combine", (2 * group.world_size, 8), torch.float32)
    assert window is not None
    window[0].fill_(9)


def other_lane(group: symmoe.Group) -> None:
    """After a call on another lane that the others do not make."""
    group.acquire("combine", (2 * group.world_size, 8), torch.float32, lane=3)


def grown(group: symmoe.Group) -> None:
    """After growth that the others do not know of."""
    group.acquire("combine", (1 << 20, 8), torch.float32)


PHASES = {phase.__name__: phase for phase in (idle, acquired, other_lane, grown)}
CALLS: dict[str, Callable[[symmoe.Group], object]] = {
    "reduce_scatter": one_call,
    "staged": lambda group: group.reduce_scatter(torch.ones(group.world_size, 8)),
    "all_gather": lambda group: group.all_gather(torch.ones(1, 8)),
    "combine": lambda group: group.combine(torch.ones(group.world_size, 2, 8)),
    "reserve": lambda group: group.reserve(1 << 18, 8, torch.float32),
    "trim": lambda group: group.trim(),
    "fallback": lambda group: group.reduce_scatter(torch.ones(group.world_size, 8).int()),
}


def killed(rank: int, world: int, phase: str, call: str, folder: str) -> tuple[float, str, str]:
    """The victim dies in `phase`; the others make `call`, and tell when and how it ended."""
    group = symmoe.init(config=symmoe.Config(timeout=30), device="cpu")
    for _ in range(3):
        one_call(group)
    dist.barrier()
    if rank == VICTIM:
        PHASES[phase](group)
        time.sleep(0.3)  # the others wait in their call by now
        Path(folder, "time").write_text(repr(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(symmoe.SymmoeError) as caught:
        CALLS[call](group)
    ended = time.monotonic()
    with pytest.raises(symmoe.PoisonedError) as later:
        one_call(group)
    assert world == group.world_size
    group.close()
    return ended, f"{type(caught.value).__name__}: {caught.value}", str(later.value)


@pytest.mark.parametrize(
    ("phase", "call"),
    [
        ("idle", "reduce_scatter"),
        ("acquired", "reduce_scatter"),
        ("grown", "reduce_scatter"),
        ("other_lane", "staged"),
        ("idle", "all_gather"),
        ("acquired", "combine"),
        ("idle", "reserve"),
        ("idle", "trim"),
        ("idle", "fallback"),
    ],
)
def test_killed_peer(tmp_path: Path, phase: str, call: str) -> None:
    with fresh() as workers:
        outcomes = workers.outcomes(3, killed, phase, call, str(tmp_path))
    assert outcomes[VICTIM].exit_code == -signal.SIGKILL
    died = float((tmp_path / "time").read_text())
    for rank in (0, 2):
        assert not outcomes[rank].trace, outcomes[rank].trace
        ended, text, later = outcomes[rank].value
        assert ended - died < SECONDS_TO_NOTICE, (rank, text)
        assert text.startswith("PeerLostError"), text
        assert re.search(rf"rank {VICTIM} \(pid \d+\) ended", text), text
        assert re.search(r"epoch \d+", text), text
        assert "an earlier call failed" in later


def killed_while_reading(rank: int, world: int, folder: str) -> str:
    """The victim has published its rows and dies before it has read the others'."""
    group = symmoe.init(config=symmoe.Config(timeout=30), device="cpu")
    one_call(group)
    dist.barrier()
    rows = 1 << 20
    with contextlib.suppress(symmoe.SymmoeError):
        for _ in range(1000):
            window = group.acquire("combine", (rows, 8), torch.float32)
            assert window is not None
            if rank == VICTIM:
                Path(folder, "busy").touch()
            group.reduce_scatter(
                window, sizes=[rows // world] * (world - 1) + [rows - rows // world]
            )
    with pytest.raises(symmoe.PoisonedError) as caught:
        group.check()
    return str(caught.value)


def test_killed_in_the_middle(tmp_path: Path) -> None:
    with fresh() as workers:
        workers.start(2, killed_while_reading, str(tmp_path))
        while not (tmp_path / "busy").exists():
            time.sleep(0.01)
        time.sleep(0.3)
        workers.kill(VICTIM)
        outcomes = workers.collect()
    assert not outcomes[0].trace, outcomes[0].trace
    assert re.search(r"rank 1 \(pid \d+\) ended", outcomes[0].value), outcomes[0].value


def stays_away(rank: int, world: int) -> tuple[float, str]:
    """One rank never makes the call: DeadlineError after the timeout, not before."""
    group = symmoe.init(config=symmoe.Config(timeout=1.5), device="cpu")
    one_call(group)
    if rank == VICTIM:
        time.sleep(3)
        with pytest.raises(symmoe.SymmoeError):
            one_call(group)
        return 0.0, ""
    start = time.monotonic()
    with pytest.raises(symmoe.DeadlineError) as caught:
        group.reduce_scatter(torch.ones(world, 8), lane=2)
    return time.monotonic() - start, str(caught.value)


def test_deadline() -> None:
    with fresh() as workers:
        results = workers.run(3, stays_away)
    for rank in (0, 2):
        waited, text = results[rank]
        assert 1.4 < waited < 3, (waited, text)
        assert f"rank {rank}" in text
        assert "rank 1" in text
        assert "reduce_scatter (combine, lane 2)" in text
        assert "epoch 1" in text


def stopped(rank: int, world: int, folder: str) -> str:
    group = symmoe.init(config=symmoe.Config(timeout=1.5), device="cpu")
    one_call(group)
    dist.barrier()
    Path(folder, str(rank)).touch()
    if rank == VICTIM:
        while True:
            time.sleep(0.01)
    time.sleep(0.5)
    with pytest.raises(symmoe.DeadlineError) as caught:
        one_call(group)
    assert world == group.world_size
    return str(caught.value)


def test_stopped_peer(tmp_path: Path) -> None:
    with fresh() as workers:
        workers.start(2, stopped, str(tmp_path))
        while not (tmp_path / str(VICTIM)).exists():
            time.sleep(0.01)
        workers.kill(VICTIM, signal.SIGSTOP)
        try:
            outcome = None
            assert workers._workers[0].pipe.poll(20)
            outcome = workers._workers[0].pipe.recv()
        finally:
            workers.kill(VICTIM, signal.SIGKILL)
    assert outcome is not None
    assert not outcome.trace, outcome.trace
    assert "rank 1" in outcome.value


def gives_up(rank: int, world: int) -> str:
    """A rank that failed by itself does not leave the others waiting."""
    group = symmoe.init(config=symmoe.Config(timeout=30), device="cpu")
    one_call(group)
    if rank == VICTIM:
        time.sleep(0.3)
        assert group._core is not None
        group._core.poison("something else broke")
        with pytest.raises(symmoe.PoisonedError, match="something else broke"):
            one_call(group)
        time.sleep(1.5)
        return ""
    start = time.monotonic()
    with pytest.raises(symmoe.PoisonedError) as caught:
        one_call(group)
    assert time.monotonic() - start < 0.3 + SECONDS_TO_NOTICE
    assert world == group.world_size
    return str(caught.value)


def test_poison_spreads(ranks: Ranks) -> None:
    texts = ranks.run(3, gives_up)
    assert "rank 1 gave up: something else broke" in texts[0]


def interrupted(rank: int, world: int) -> str:
    """Ctrl-C ends a wait; the others learn of it."""
    group = symmoe.init(config=symmoe.Config(timeout=30), device="cpu")
    one_call(group)
    start = time.monotonic()
    if rank == VICTIM:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            one_call(group)
        assert time.monotonic() - start < 0.3 + SECONDS_TO_NOTICE
        dist.barrier()
        dist.barrier()  # the group stays until the other has looked
        return ""
    dist.barrier()
    one_call(group)  # the other's rows were there when it was interrupted
    with pytest.raises(symmoe.PoisonedError) as caught:
        one_call(group)
    dist.barrier()
    assert world == group.world_size
    return str(caught.value)


def test_interrupt_ends_a_wait(ranks: Ranks) -> None:
    texts = ranks.run(2, interrupted)
    assert "rank 1 gave up: interrupted by a signal" in texts[0]


def interrupted_as_the_peer_comes(rank: int, world: int) -> None:
    """The peer arrives while the signal's handler runs: the handler's error still counts."""
    group = symmoe.init(config=symmoe.Config(timeout=30), device="cpu")
    one_call(group)
    dist.barrier()
    if rank == VICTIM:

        def slow(_number: int, _frame: object) -> None:
            time.sleep(0.8)
            raise RuntimeError("handled")

        before = signal.signal(signal.SIGUSR1, slow)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        try:
            with pytest.raises(RuntimeError, match="handled"):
                one_call(group)
        finally:
            signal.signal(signal.SIGUSR1, before)
        return
    time.sleep(0.7)
    one_call(group)
    assert world == group.world_size


def test_interrupt_as_the_peer_comes(ranks: Ranks) -> None:
    ranks.run(2, interrupted_as_the_peer_comes)


def leaves(rank: int, world: int) -> None:
    """A peer that closed its group is told from one that died."""
    group = symmoe.init(device="cpu")
    one_call(group)
    dist.barrier()
    if rank == VICTIM:
        group.close()
        return
    with pytest.raises(symmoe.PeerLostError, match=r"rank 1 \(pid \d+\) closed the group"):
        one_call(group)
    assert world == group.world_size


def test_peer_that_closed(ranks: Ranks) -> None:
    ranks.run(2, leaves)


def dies_in_init(rank: int, world: int, moment: str) -> tuple[float, str]:
    if rank == VICTIM and moment == "first":
        os.kill(os.getpid(), signal.SIGKILL)
    real = _core.Group

    def connect(*arguments: Any) -> _core.Group:
        if rank == VICTIM and moment == "before connecting":
            os.kill(os.getpid(), signal.SIGKILL)
        group = real(*arguments)
        if rank == VICTIM and moment == "connected":
            os.kill(os.getpid(), signal.SIGKILL)
        return group

    start = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_core, "Group", connect)
        with pytest.raises(symmoe.SymmoeError) as caught:
            symmoe.init(config=symmoe.Config(timeout=5), device="cpu")
    assert world == 3
    return time.monotonic() - start, f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize("moment", ["first", "before connecting", "connected"])
def test_killed_in_init(moment: str) -> None:
    with fresh() as workers:
        outcomes = workers.outcomes(3, dies_in_init, moment)
    for rank in (0, 2):
        assert not outcomes[rank].trace, outcomes[rank].trace
        took, text = outcomes[rank].value
        if moment == "first":  # nobody knows of it yet: only the deadline helps
            assert "rank(s) [1] of 3" in text
        else:
            assert took < 3, text
            assert "rank 1" in text
