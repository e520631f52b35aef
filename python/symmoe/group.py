"""The group: the ranks that combine together, and their collectives."""

from __future__ import annotations

import contextlib
import inspect
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, get_num_threads

from . import tags, topk
from .calls import text_of
from .decision import Decision, decide
from .epilogue import Epilogue
from .observing import watch
from .plans import ALL_GATHER, REDUCE_SCATTER, WINDOW_TYPES, Layout, Sizes
from .routing import Routing
from .windows import Windows


class Group(Windows):
    """The ranks of a process group, with windows into each other's memory where that can be.

    Made by `symmoe.init`; a context manager. Calls of one lane come one after the other, in the
    same order on all ranks; different lanes may be used from different threads. Wrong input raises
    ValueError or TypeError on the rank that has it, writes nothing and leaves the group usable.
    Ranks that make different calls all get MismatchError and can go on. Whatever else fails in a
    collective poisons the group: later calls raise PoisonedError.

    Attributes:
        rank: This rank in the group.
        world_size: Number of ranks.
    """

    __slots__ = ()

    def reduce_scatter(
        self,
        input: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        sizes: Sizes = None,
        padded_to: int | None = None,
        routing: Routing | None = None,
        lane: int = 0,
        deterministic: bool = False,
        epilogue: Epilogue | None = None,
        stream: object | None = None,
    ) -> torch.Tensor:
        """Sums all ranks' partial rows and gives each rank its own. Collective.

        The sum is in rank order, in fp32, with one rounding, whatever the path; but the process
        group's own collective, which serves what windows cannot, keeps its own order unless
        `deterministic`.

        Args:
            input: [rows, hidden], the same shape on all ranks, contiguous. In a window (from
                `acquire`, or a contiguous part of it) nothing is copied before peers read it; it
                must be a "combine" window of this lane.
            out: At least [own rows, hidden]; rows beyond are left alone. Never in a window; of
                other inputs it may be exactly the own slice. None: a new tensor.
            sizes: None: rows / world_size each. An int R: R each, rank r's from row r * R on. Ints
                by rank: that many each, one after the other, or with `padded_to` from row
                r * padded_to on. Zeros are legal.
            padded_to: See sizes.
            routing: Which ranks have anything for which row. Then a rank must have written only
                the rows for which it has an expert, and a row comes from the ranks that have:
                in rank order, +0 if there is none. Equal on all ranks.
            lane: Which microbatch.
            deterministic: Keep the rank order on the process group's path as well.
            epilogue: Work of this rank's own on its summed rows, in the same pass; `out` is then
                what it makes, see `Epilogue`. Need not be the same on all ranks.
            stream: None; for GPU builds.

        Returns:
            `out`.

        Raises:
            TypeError: A dtype that cannot be reduced, or something that is no integer.
            ValueError: Anything else about the arguments, with the values; also a window of another
                role or lane, or one that was not acquired again since its last reduce.
            MismatchError: Ranks made different calls, or have different routing; on all of them.
            SymmoeError: A peer was lost, the deadline passed, the group is closed or poisoned.
        """
        known = None
        if not self._shortages and epilogue is None and not watch.on:
            known = self._known_reduce_scatter(
                input, out, sizes, padded_to, lane, stream, get_num_threads(), self._cores, routing
            )
            if isinstance(known, Tensor):
                return known
        return self._call(
            REDUCE_SCATTER,
            input,
            out,
            sizes,
            padded_to,
            lane,
            deterministic,
            stream,
            known,
            routing,
            epilogue,
        )

    def all_gather(
        self,
        input: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        sizes: Sizes = None,
        padded_to: int | None = None,
        lane: int = 0,
        stream: object | None = None,
    ) -> torch.Tensor:
        """Gives every rank the rows of all ranks. Collective.

        Args:
            input: [own rows, hidden], contiguous; in a "dispatch" window of this lane nothing is
                copied before peers read it, one of another role or lane is refused. Where rows are
                padded it may have up to that many.
            out: At least [rows of all ranks, hidden]; padding and rows beyond are left alone. Never
                in a window; the input may be exactly the own slice of it. None: a new tensor.
            sizes: None: as many rows on all ranks as here. Otherwise as in `reduce_scatter`.
            padded_to: As in `reduce_scatter`.
            lane: Which microbatch.
            stream: None; for GPU builds.

        Returns:
            `out`.

        Raises:
            TypeError, ValueError, MismatchError, SymmoeError: As `reduce_scatter`.
        """
        known = None
        if not self._shortages and not watch.on:
            known = self._known_all_gather(
                input, out, sizes, padded_to, lane, stream, get_num_threads(), self._cores, None
            )
            if isinstance(known, Tensor):
                return known
        return self._call(ALL_GATHER, input, out, sizes, padded_to, lane, False, stream, known)

    def combine(
        self,
        expert_out: torch.Tensor,
        topk_weights: torch.Tensor | None = None,
        *,
        routing: Routing | None = None,
        out: torch.Tensor | None = None,
        index: torch.Tensor | None = None,
        scale: float | None = None,
        sizes: Sizes = None,
        padded_to: int | None = None,
        lane: int = 0,
        deterministic: bool = False,
        epilogue: Epilogue | None = None,
        stream: object | None = None,
    ) -> torch.Tensor:
        """Top-k weighted sum straight into the window, then reduce_scatter. Collective.

        Args:
            expert_out: [M, K, H] or, with `index`, [pairs, H]; [M, H] counts as K = 1. M is the
                rows of all ranks. bfloat16, float16 or float32.
            topk_weights: [M, K], float32 or expert_out's dtype. None: those of the routing, or a
                plain sum.
            routing: Which expert each slot has, and where experts are; equal on all ranks. Slots
                whose expert is elsewhere are not read, rows without one here not written. With
                [M, H] the rows are sums already, which only those need be that have an expert
                here, and no weights are applied. See `reduce_scatter`.
            out: At least [own rows, H]; see `reduce_scatter`.
            index: [M, K], int32 or int64: row of expert_out, -1: not on this rank.
            scale: Factor of the sum.
            sizes: See `reduce_scatter`.
            padded_to: See `reduce_scatter`.
            lane: Which microbatch; uses (and overwrites) its "combine" window.
            deterministic: See `reduce_scatter`.
            epilogue: See `reduce_scatter`.
            stream: None; for GPU builds.

        Returns:
            `out`.

        Raises:
            TypeError, ValueError, MismatchError, SymmoeError: As `topk_reduce` and
                `reduce_scatter`.
        """
        known = None
        if not self._shortages and epilogue is None and not watch.on:
            known = self._known_combine(
                expert_out,
                topk_weights,
                out,
                index,
                scale,
                sizes,
                padded_to,
                lane,
                stream,
                get_num_threads(),
                self._cores,
                routing,
            )
            if isinstance(known, Tensor):
                return known
        self._require_usable("combine")
        try:
            terms, layout, masks, steps = self._prepare_combine(
                expert_out,
                topk_weights,
                out,
                index,
                scale,
                sizes,
                padded_to,
                lane,
                stream,
                routing,
                epilogue,
            )
            if steps is not None and not self._checks:
                known = self._combine_at_once(layout, masks, terms, out, steps)
                if isinstance(known, Tensor):
                    if watch.on:
                        tags.after(layout, known)
                    return known
            shape = (terms.tokens, terms.hidden)
            window = self.acquire("combine", shape, terms.dtype, lane=layout.lane)
            if window is None or not layout.in_bytes:
                window = torch.empty(shape, dtype=terms.dtype, device="cpu")
            address = window.data_ptr()
            topk.check_apart(self._where["combine"], terms, address, layout.in_bytes)
        except (TypeError, ValueError) as error:
            if self._checks:
                self._report(lane, error)
            raise
        if self._checks:
            self._compare(layout.lane, text_of(layout, deterministic, masks))
        # The short way may have made the sum already, but in the window that was there then.
        code, threads = WINDOW_TYPES[terms.dtype], self._thread_count()
        topk.run(terms, address, code, threads, masks, self.rank)
        out = self._collect(layout, window, out, False, deterministic, known, masks, steps)
        if watch.on:
            tags.after(layout, out)
        if steps is None:
            self._remember_combine(
                layout, terms, expert_out, topk_weights, index, routing, sizes, padded_to
            )
        return out

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
        if operation not in _SIGNATURES:
            raise ValueError(f"explain: {operation!r} is none of {', '.join(_SIGNATURES)}")
        bound = _SIGNATURES[operation].bind(self, *args, **kwargs)
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

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
            return
        # It could not close, say, because a call runs in another thread: that must not hide why
        # the block was left.
        with contextlib.suppress(Exception):
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else self._obstacle or "windows"
        return f"<symmoe.Group rank {self.rank} of {self.world_size}: {state}>"


_SIGNATURES = {
    name: inspect.signature(getattr(Group, name))
    for name in (REDUCE_SCATTER, "combine", ALL_GATHER)
}
