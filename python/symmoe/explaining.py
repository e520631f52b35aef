"""Which path a call of a group would take, and why."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from .decision import Decision, decide
from .plans import ALL_GATHER, REDUCE_SCATTER, Layout
from .windows import Windows

_OPERATIONS = (REDUCE_SCATTER, "combine", ALL_GATHER)


@functools.cache
def _signature_of(group_type: Any, operation: str) -> inspect.Signature:
    return inspect.signature(getattr(group_type, operation))


class Explaining(Windows):
    """The part of a group that foresees paths."""

    __slots__ = ()

    def explain(self, operation: str, *args: Any, **kwargs: Any) -> Decision:
        """The path a call would take here, and why. No communication, no effect.

        A rank that lacks memory for a window is foreseen only if a call has met with that before.

        Args:
            operation: "reduce_scatter", "combine" or "all_gather".
            *args: As for that method.
            **kwargs: As for that method.

        Raises:
            TypeError, ValueError: What the method would raise for its arguments; but values in an
                index, and whether a window was reduced already, are for the call itself to see.
        """
        self._require_usable("explain")
        if operation not in _OPERATIONS:
            raise ValueError(f"explain: {operation!r} is none of {', '.join(_OPERATIONS)}")
        group_type: Any = type(self)
        bound = _signature_of(group_type, operation).bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        del given["self"]
        given.pop("deterministic", None)
        if operation == "combine":
            terms, layout, masks, _ = self._prepare_combine(**given)
            self._require_terms_outside(layout, terms)
            in_window = layout.in_bytes > 0 and not self._refusal(layout, layout.in_bytes)
        else:
            given["tensor"] = given.pop("input")
            layout, _, masks, _ = self._prepare(operation, **given, core_refuses=False)
            in_window = self._in_window(layout, given["tensor"])
        limit = self._limit(layout, in_window)
        return decide(layout, self._obstacle, in_window, limit, masks)

    def _refusal(self, layout: Layout, nbytes: int) -> str:
        """Why this rank would get no window of `nbytes` for a call, as far as is known."""
        if self._cap is not None and nbytes > self._cap:
            return f"{nbytes} bytes of input exceed a window's {self._cap} ({self._cap_reason})"
        shortage = self._shortages.get((layout.role, layout.lane))
        return shortage.reason if shortage is not None and nbytes >= shortage.nbytes else ""

    def _limit(self, layout: Layout, in_window: bool) -> str:
        """Why some rank will have no window for a call, as far as is known; empty if all will."""
        if self.world_size == 1:
            return ""  # nobody else reads it
        if in_window and layout.in_bytes == layout.most_bytes and not self._shortages:
            return ""  # it is there, whatever the cap is by now
        return self._refusal(layout, layout.most_bytes) if layout.most_bytes else ""
