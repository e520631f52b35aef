"""Plans whose module changes, and ranks that find different things about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import symmoe
from planned import HIDDEN, LATENT, SIZES, close, linear, make_plan, summands, whole
from ranks import Ranks
from reference import own_rows

pytestmark = pytest.mark.multi

SECONDS = 20.0


def stale(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        module: Any = nn.Sequential(linear())
        plan = make_plan(group, module, prefer="late")
        rows, shared = summands(rank, LATENT), summands(rank, HIDDEN)
        close(
            plan.combine(rows, shared=shared, sizes=SIZES),
            whole(module, world)[own_rows(SIZES, rank)],
        )
        assert plan.when == "late"
        assert plan.commutes

        module[0] = linear(bias=True)
        with pytest.raises(
            symmoe.StalePlanError, match=r"0\.bias was not there, is Parameter .* call refresh\(\)"
        ) as caught:
            plan.combine(rows, shared=shared, sizes=SIZES)
        assert isinstance(caught.value, RuntimeError)
        plan.refresh()
        assert plan.when == "early"
        assert "has a bias (0.bias)" in plan.reason
        with symmoe.count_collectives() as count:
            found = plan.combine(rows, shared=shared, sizes=SIZES)
        close(found, whole(module, world)[own_rows(SIZES, rank)])
        assert count.calls == 2

        with torch.no_grad():
            module[0].weight.mul_(2)
        with pytest.raises(symmoe.StalePlanError, match=r"0\.weight was .* written"):
            plan.combine(rows, shared=shared, sizes=SIZES)
        module[0] = linear()
        plan.refresh()
        assert plan.when == "late"
        module.to(torch.bfloat16)
        with pytest.raises(symmoe.StalePlanError, match=r"was Parameter float32.*is Parameter bfl"):
            plan.combine(rows, shared=shared, sizes=SIZES)
        with pytest.raises(ValueError, match=r"cannot be applied to \[1, 32\] of float32"):
            plan.refresh()
        with pytest.raises(symmoe.StalePlanError):
            plan.combine(rows, shared=shared, sizes=SIZES)


def changed_on_one_rank(rank: int, world: int) -> None:
    """Whatever became of the one, nobody goes on with a plan that the others do not have."""
    with symmoe.init(device="cpu") as group:
        module: Any = nn.Sequential(linear())
        plan = make_plan(group, module, prefer="late")
        if rank == 1:
            module[0] = linear(bias=True)
        with pytest.raises(symmoe.MismatchError) as caught:
            plan.refresh()
        text = str(caught.value)
        assert "Rank 0: " in text
        assert "Rank 1: " in text
        assert text.count("0.weight float32[64, 32]") == 2
        assert text.count("0.bias") == 1
        if rank == 1:
            module[0] = linear()
        plan.refresh()
        if rank == 1:
            with torch.no_grad():
                module[0].weight[5, 5] += 1e-3
        with pytest.raises(symmoe.MismatchError, match=r"weights differ\. Rank 0 has values of"):
            plan.refresh()


def stale_with_checks(rank: int, world: int) -> None:
    """With SYMMOE_CHECK the others need not wait for the rank whose plan is stale."""
    with symmoe.init(device="cpu", config=symmoe.Config(check=True, timeout=SECONDS)) as group:
        module = linear()
        plan = make_plan(group, module, prefer="late")
        rows, shared = summands(rank, LATENT), summands(rank, HIDDEN)
        if rank == 1:
            module.eval()
        expected = symmoe.StalePlanError if rank == 1 else symmoe.MismatchError
        with pytest.raises(expected, match="the transform changed since"):
            plan.combine(rows, shared=shared, sizes=SIZES)
        module.eval()
        plan.refresh()
        close(
            plan.combine(rows, shared=shared, sizes=SIZES),
            whole(module, world)[own_rows(SIZES, rank)],
        )


def wrong_with_checks(rank: int, world: int) -> None:
    """The same for what only the late order's own steps see."""
    with symmoe.init(device="cpu", config=symmoe.Config(check=True, timeout=SECONDS)) as group:
        plan = make_plan(group, linear(), prefer="late")
        rows, shared = summands(rank, LATENT), summands(rank, HIDDEN)
        index = torch.arange(len(rows))[:, None]
        wrong = index + 1 if rank == 1 else index
        expected = ValueError if rank == 1 else symmoe.MismatchError
        with pytest.raises(expected, match="index"):
            plan.combine(rows, index=wrong, shared=shared, sizes=SIZES)
        # Where there is no collective nobody waits, and one rank's fault is its own affair.
        done = make_plan(group, linear(), routed=symmoe.Sharded(), shared=None)
        if rank == 1:
            begin = time.monotonic()
            with pytest.raises(ValueError, match="shared is given"):
                done.combine(rows, shared=shared)
            assert time.monotonic() - begin < SECONDS / 2
        close(
            plan.combine(rows, index=index, shared=shared, sizes=SIZES),
            whole(linear(), world)[own_rows(SIZES, rank)],
        )


class Fickle(nn.Module):
    """Linear on all ranks but one; nothing about it tells which."""

    reduce_commutative = True

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.inner = linear()
        self.rank = rank

    def forward(self, rows: Tensor) -> Tensor:
        made: Tensor = self.inner(rows)
        return made if self.rank == 0 else made.abs()


def one_verdict_for_all(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        plan = make_plan(group, Fickle(rank).eval(), prefer="late")
        assert plan.when == "early"
        assert plan.commutes is not None
        assert not plan.commutes
        assert "T(a) + T(b) is off" in plan.reason
        assert ("on rank 1: " in plan.reason) == (rank == 0)


def different_plans(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        with pytest.raises(symmoe.MismatchError, match=r"Rank 0: .* Linear, .* Rank 1: .* Sequen"):
            make_plan(group, linear() if rank == 0 else nn.Sequential(linear()))
        with pytest.raises(symmoe.MismatchError, match=r"Rank 0: .*prefer None.*prefer late"):
            make_plan(group, linear(), prefer=None if rank == 0 else "late")
        # One rank's own fault is its error, and the others hear of it.
        expected = (
            (ValueError, "cannot be applied") if rank else (symmoe.MismatchError, "rank 1 ra")
        )
        with pytest.raises(expected[0], match=expected[1]):
            make_plan(group, linear(), latent=LATENT + rank)
        group.check()
        make_plan(group, linear())


# Tags stay in use once they are.
@pytest.mark.parametrize(
    "scenario",
    [
        stale,
        changed_on_one_rank,
        stale_with_checks,
        wrong_with_checks,
        one_verdict_for_all,
        different_plans,
    ],
    ids=lambda each: each.__name__,
)
def test_in_a_group(own_ranks: Ranks, scenario: Callable[[int, int], None]) -> None:
    own_ranks.run(2, scenario)
