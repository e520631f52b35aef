"""Which sums over ranks a combine needs, and whether they come before an output transform or after.

Only facts that are equal on all ranks go in, so all ranks decide alike. A call of the plan makes
exactly the reductions that are listed here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .combine_costs import Times
from .commuting import Verdict
from .tags import Layout, Partial

When: TypeAlias = Literal["early", "late", "none"]

ROUTED = "routed"  # the experts' rows, in the latent width
SHARED = "shared"  # the shared experts' rows, in the hidden width
SUM = "sum"  # both added up, or the experts' rows alone, in the hidden width


@dataclass(frozen=True)
class Order:
    """When a combine reduces the routed experts' rows, and why.

    Attributes:
        when: "early": before the output transform. "late": behind it, together with shared experts'
            rows. "none": not at all here.
        reason: Why.
        reductions: The collectives, in the order of their calls: "routed" (latent width), "shared"
            and "sum" (hidden width).
        by_cost: Whether both would be right, and the cheaper one was taken.
    """

    when: When
    reason: str
    reductions: tuple[str, ...]
    by_cost: bool = False

    def __str__(self) -> str:
        return f"{self.when}: {self.reason}"


@dataclass(frozen=True)
class Conditions:
    """All that the order depends on but for the token count.

    Attributes:
        ranks: World size of the group: 1 where tp = 1 and ep = 1.
        commutes: Of the transform; None: there is none.
        routed: What the expert kernel's rows are.
        shared: What the shared experts' rows are; None: there are none.
        sequence_parallel: Whether tokens were split over the ranks before the layer, and the
            kernel's own exchange gives each rank its rows.
        skip_final: Whether the caller reduces.
        prefer: The order to take where both are right; None: the cheaper one.
    """

    ranks: int
    commutes: Verdict | None
    routed: Layout
    shared: Layout | None
    sequence_parallel: bool = False
    skip_final: bool = False
    prefer: Literal["early", "late"] | None = None

    @property
    def reduced_already(self) -> bool:
        """Whether the experts' rows need no sum over ranks."""
        return self.sequence_parallel or not isinstance(self.routed, Partial)

    @property
    def shared_is_partial(self) -> bool:
        """Whether the shared experts' rows need one."""
        return isinstance(self.shared, Partial)

    def check(self, where: str) -> None:
        """Raises ValueError where conditions contradict each other; `where` begins the message."""
        if self.prefer not in (None, "early", "late"):
            raise ValueError(f"{where}: prefer must be 'early', 'late' or None, got {self.prefer}")
        if self.sequence_parallel:
            for name, layout in (("routed", self.routed), ("shared", self.shared)):
                if isinstance(layout, Partial):
                    raise ValueError(
                        f"{where}: {name} rows are Partial, but with sequence_parallel each rank "
                        f"computes its own tokens' rows whole"
                    )
        if not self.skip_final:
            return
        if self.reduced_already:
            raise ValueError(
                f"{where}: skip_final leaves the sum over ranks to the caller, but the kernel's "
                f"rows are {self.routed}, reduced already: the caller would do it again"
            )
        if self.shared is not None and not self.shared_is_partial:
            raise ValueError(
                f"{where}: skip_final leaves the sum over ranks to the caller, but the shared "
                f"rows are {self.shared}, reduced already: the caller would do it again"
            )
        if self.ranks > 1 and self.commutes is not None and not self.commutes:
            raise ValueError(
                f"{where}: skip_final leaves the sum over ranks to the caller, but the transform "
                f"needs it before ({self.commutes})"
            )


def decide(conditions: Conditions, times: Callable[[], Times]) -> Order:
    """The order of one call.

    Args:
        conditions: Checked.
        times: What both orders are expected to take; asked only where both are right.
    """
    it = conditions
    shared = (SHARED,) if it.shared_is_partial and it.ranks > 1 else ()
    if it.sequence_parallel:
        return Order("none", "sequence parallel: the kernel gives each rank its own rows", ())
    if it.ranks == 1:
        return Order("none", "one rank: its rows are the sum", ())
    if it.reduced_already:
        beside = "; the shared experts' rows are reduced by themselves" if shared else ""
        return Order("none", f"the kernel's rows are {it.routed}, reduced already{beside}", shared)
    if it.skip_final:
        return Order("none", "skip_final: the caller reduces the summands that come out", ())
    if it.commutes is None:
        return Order("late", "there is no transform to wait for", (SUM,))
    if not it.commutes:
        return Order("early", f"the transform {it.commutes}", (ROUTED, *shared))
    if it.prefer is not None:
        why, by_cost = "both are right, this one was asked for", False
        late = it.prefer == "late"
    else:
        expected = times()
        late = expected.late_us < expected.early_us
        one, other = (expected.late_us, expected.early_us)[:: 1 if late else -1]
        why, by_cost = f"both are right, {one:.1f} us expected instead of {other:.1f}", True
    if late:
        return Order("late", why, (SUM,), by_cost)
    return Order("early", why, (ROUTED, *shared), by_cost)
