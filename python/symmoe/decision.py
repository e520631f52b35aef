"""What `Group.explain` returns: the path a call would take, and why not the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from . import _core
from .plans import ALL_GATHER, Layout, name_of

PULL = "pull"
STAGED = "staged"
ROUTED = "routed"
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
            a window first. "routed": a routing says which rows there are, only those are copied
            (if they are not in a window) and read. "process_group": the collective of
            torch.distributed. On a GPU one of the names in docs/paths.md.
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
    if layout.routed:
        return ROUTED
    return PULL if in_window else STAGED


def decide(
    layout: Layout,
    obstacle: str,
    in_window: bool,
    limit: str,
    masks: _core.Routing | None = None,
) -> Decision:
    """`choose`, with what can be foreseen about windows, and in words.

    Args:
        layout: The call's geometry.
        obstacle: As for `choose`.
        in_window: As for `choose`.
        limit: Why some rank will have no window for this call; empty if all will.
        masks: Of a routed call.
    """
    path = choose(layout, obstacle, in_window)
    if path == PROCESS_GROUP and not obstacle:
        obstacle = f"windows do not know {name_of(layout.dtype)}, only bfloat16, float16, float32"
    reason = obstacle or limit
    if reason:
        others = tuple(Alternative(name, reason) for name in (PULL, STAGED, ROUTED))
        return Decision(PROCESS_GROUP, reason, others)
    group = Alternative(PROCESS_GROUP, "it copies through sockets; only for what windows cannot do")
    if masks is not None:
        return _decide_routed(layout, in_window, masks, group)
    unknown = Alternative(ROUTED, "no routing is given, so any rank may have something for any row")
    if layout.operation == ALL_GATHER:
        unknown = Alternative(ROUTED, "only sums over ranks can be routed")
    if path == PULL:
        return Decision(
            PULL,
            "the input is in a window; peers read it there, nothing is staged",
            (Alternative(STAGED, "the input is in a window already"), unknown, group),
        )
    return Decision(
        STAGED,
        "the input is not in a window and is copied into one first",
        (
            Alternative(PULL, "the input is not in a window: write it where acquire() says"),
            unknown,
            group,
        ),
    )


def _decide_routed(
    layout: Layout, in_window: bool, masks: _core.Routing, group: Alternative
) -> Decision:
    """The decision of a call with a routing that windows can serve."""
    row_bytes = layout.hidden * layout.dtype.itemsize
    own, world = layout.counts[layout.rank], len(layout.counts)
    read = masks.rows_read(layout.begins[layout.rank], own)
    dense = own * world
    reason = (
        f"the routing leaves {read} of {dense} partial rows for this rank to read, "
        f"{read * row_bytes} of {dense * row_bytes} bytes"
    )
    if not in_window:
        written = masks.rows_written(layout.rank)
        reason += f"; the input is not in a window, those of its {written} rows are copied into one"
    why_not = (
        f"it would read all {dense * row_bytes} bytes, and rows that nobody has to have written"
    )
    others = (Alternative(PULL, why_not), Alternative(STAGED, why_not), group)
    return Decision(ROUTED, reason, others)
