"""What `Group.explain` returns: the path a call would take, and why not the others."""

from __future__ import annotations

from dataclasses import dataclass

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
    """

    path: str
    reason: str


@dataclass(frozen=True)
class Decision:
    """The path a call would take.

    Attributes:
        path: "pull": the rows are in a window, nothing is staged. "staged": they are copied into
            a window first. "process_group": the collective of torch.distributed.
        reason: Why this path.
        alternatives: The other paths, each with the reason against it.
    """

    path: str
    reason: str
    alternatives: tuple[Alternative, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.reason}"]
        lines += [f"  not {other.path}: {other.reason}" for other in self.alternatives]
        return "\n".join(lines)


def decide(layout: Layout, in_window: bool, obstacle: str, cap: int, cap_reason: str) -> Decision:
    """The path of a call, from facts that are equal on all ranks but for `in_window`.

    Args:
        layout: The call's geometry.
        in_window: Whether the input lies in a window, or will.
        obstacle: Why the group has no windows; empty if it has.
        cap: Largest window in bytes; 0: any.
        cap_reason: Where the cap comes from.
    """
    if not obstacle and layout.plan is None:
        obstacle = f"windows do not know {name_of(layout.dtype)}, only bfloat16, float16, float32"
    if not obstacle and not in_window and 0 < cap < layout.in_bytes:
        obstacle = f"{layout.in_bytes} bytes of input exceed a window's {cap} ({cap_reason})"
    if obstacle:
        return Decision(
            PROCESS_GROUP,
            obstacle,
            (Alternative(PULL, obstacle), Alternative(STAGED, obstacle)),
        )
    group = Alternative(PROCESS_GROUP, "it copies through sockets; only for what windows cannot do")
    if in_window:
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
