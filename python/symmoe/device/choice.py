"""`DeviceGroup.explain` in words: what the core's selector says about the paths."""

from __future__ import annotations

from ..decision import PROCESS_GROUP, Alternative, Decision
from ..plans import Layout, name_of

# Name, why it cannot, expected microseconds, whether they were measured.
Candidate = tuple[str, str, float, bool]

_WHAT = {
    "local": "there is nobody to exchange rows with: a copy",
    "direct": "NCCL reads the windows and writes out",
    "plain": "NCCL's ordinary kernels, from and to ordinary memory",
    "grouped": "one NCCL operation per rank, started together",
    "ordered": "rows travel unreduced and are added here, in rank order",
    "pull": "one kernel reads all ranks' rows in their windows and adds them in rank order",
    "routed": "one kernel reads the rows of the ranks that hold one of a token's experts",
    "fused": "one kernel makes the sum, waits for the peers and reads their rows",
}
_FROM_WINDOWS = ("direct", "pull", "routed", "fused")


def decide(candidates: list[Candidate], in_window: bool) -> Decision:
    """The decision that follows from the selector's list.

    Args:
        candidates: Every path, the chosen one first.
        in_window: Whether the input is in a window.
    """
    best, *others = candidates
    if best[1]:
        return Decision(
            PROCESS_GROUP,
            best[1],
            tuple(Alternative(name, refusal) for name, refusal, _, _ in candidates),
        )
    alternatives = [
        Alternative(name, refusal)
        if refusal
        else Alternative(
            name, f"{_time(us, measured)} instead of {_time(best[2], best[3])}", expected_us=us
        )
        for name, refusal, us, measured in others
    ]
    reason = f"{_WHAT[best[0]]}; {_time(best[2], best[3])}"
    if best[0] in _FROM_WINDOWS:
        reason += (
            "; nothing is staged" if in_window else "; the input is copied into a window first"
        )
    return Decision(best[0], reason, tuple(alternatives), best[2])


def without_plan(layout: Layout) -> Decision:
    """The decision for elements that only the process group knows."""
    return Decision(
        PROCESS_GROUP,
        f"windows do not know {name_of(layout.dtype)}, only bfloat16, float16, float32",
    )


def _time(us: float, measured: bool) -> str:
    return f"{us:.1f} us {'measured' if measured else 'predicted'}"
