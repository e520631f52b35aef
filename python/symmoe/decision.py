"""What `Group.explain` returns: the path a call would take, and why not the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .plans import Layout, name_of

PULL = "pull"
STAGED = "staged"
PROCESS_GROUP = "process_group"


@dataclass(frozen=True)
class Alternative:
    """A path that was not chosen.

    Attributes:
        path: Its name.
        reason: Why not.
        expected_us: Microseconds it would take, measured or predicted; None if unknown.
    """

    path: str
    reason: str
    expected_us: float | None = None


@dataclass(frozen=True)
class Decision:
    """The path a call would take.

    Attributes:
        path: "pull": the rows are in a window, nothing is staged. "staged": they are copied into
            a window first. "process_group": the collective of torch.distributed. On a GPU one of
            the names in docs/paths.md.
        reason: Why this path.
        alternatives: The other paths, each with the reason against it.
        expected_us: Microseconds it will take, measured or predicted; None if unknown.
    """

    path: str
    reason: str
    alternatives: tuple[Alternative, ...] = ()
    expected_us: float | None = None

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.reason}"]
        lines += [f"  not {other.path}: {other.reason}" for other in self.alternatives]
        return "\n".join(lines)


class Shortage(NamedTuple):
    """What a slot could not have when it was last asked for.

    Attributes:
        nbytes: How much.
        reason: Why not.
    """

    nbytes: int
    reason: str


def choose(layout: Layout, obstacle: str, in_window: bool) -> str:
    """The path that a call takes on this rank, unless some rank turns out to have no window.

    Args:
        layout: The call's geometry.
        obstacle: Why the group has no windows; empty if it has.
        in_window: Whether the input lies in a window.
    """
    if obstacle or layout.plan is None:
        return PROCESS_GROUP
    return PULL if in_window else STAGED


def decide(layout: Layout, obstacle: str, in_window: bool, limit: str) -> Decision:
    """`choose`, with what can be foreseen about windows, and in words.

    Args:
        layout: The call's geometry.
        obstacle: As for `choose`.
        in_window: As for `choose`.
        limit: Why some rank will have no window for this call; empty if all will.
    """
    path = choose(layout, obstacle, in_window)
    if path == PROCESS_GROUP and not obstacle:
        obstacle = f"windows do not know {name_of(layout.dtype)}, only bfloat16, float16, float32"
    reason = obstacle or limit
    if reason:
        others = (Alternative(PULL, reason), Alternative(STAGED, reason))
        return Decision(PROCESS_GROUP, reason, others)
    group = Alternative(PROCESS_GROUP, "it copies through sockets; only for what windows cannot do")
    if path == PULL:
        return Decision(
            PULL,
            "the input is in a window; peers read it there, nothing is staged",
            (Alternative(STAGED, "the input is in a window already"), group),
        )
    return Decision(
        STAGED,
        "the input is not in a window and is copied into one first",
        (Alternative(PULL, "the input is not in a window: write it where acquire() says"), group),
    )
