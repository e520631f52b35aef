"""The group: the ranks that combine together, and their collectives."""

from __future__ import annotations

import contextlib
from types import TracebackType

import torch
from torch import Tensor, get_num_threads

from . import sequence, tags, topk
from .calls import text_of
from .epilogue import Epilogue
from .explaining import Explaining
from .observing import watch
from .places import CPU
from .plans import ALL_GATHER, REDUCE_SCATTER, WINDOW_TYPES, Sizes
from .routing import Routing


class Group(Explaining):
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
            out: At least [own rows, hidden]; rows beyond are left alone. It may lie in a "dispatch"
                window of this lane, acquired since its last gather, to be gathered from there; in
                no other one. Of inputs in no window it may be exactly the own slice. None: a new
                tensor.
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
        if not self._shortages and not watch.on:
            known = self._known_reduce_scatter(
                input,
                out,
                sizes,
                padded_to,
                lane,
                stream,
                get_num_threads(),
                self._cores,
                routing,
                epilogue,
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
            out: At least [rows of all ranks, hidden]; padding and rows beyond are left alone. The
                input may be exactly the own slice of it. In a "dispatch" window of this lane,
                acquired since its last gather, the rows are read where they come to lie, until that
                is acquired again; in no other window. None: a new tensor.
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
                input,
                out,
                sizes,
                padded_to,
                lane,
                stream,
                get_num_threads(),
                self._cores,
                None,
                None,
            )
            if isinstance(known, Tensor):
                return known
        return self._call(ALL_GATHER, input, out, sizes, padded_to, lane, False, stream, known)

    def rs_norm_ag(
        self,
        input: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        epilogue: Epilogue,
        sizes: Sizes = None,
        padded_to: int | None = None,
        routing: Routing | None = None,
        lane: int = 0,
        deterministic: bool = False,
        stream: object | None = None,
    ) -> torch.Tensor:
        """Sums partial rows, does an epilogue to the own ones and gathers all ranks'. Collective.

        What stands between two parts of a sequence-parallel layer: the bits of `reduce_scatter`
        with the epilogue and `all_gather` behind it, which it is.

        Args:
            input: As in `reduce_scatter`.
            out: At least [rows of all ranks, hidden]; padding and rows beyond are left alone. In a
                "dispatch" window of this lane that was acquired since its last gather, the own rows
                are made where they are gathered from, and nothing is copied but what comes from the
                peers. Nothing that the call uses may overlap it. None: a new tensor, padding 0.
            epilogue: Of the own rows, not quantised. Its residual is this rank's own and updated.
            sizes: As in `reduce_scatter`.
            padded_to: As in `reduce_scatter`.
            routing: As in `reduce_scatter`.
            lane: Which microbatch; uses its "dispatch" window as well.
            deterministic: As in `reduce_scatter`.
            stream: None; for GPU builds.

        Returns:
            `out`.

        Raises:
            TypeError, ValueError, MismatchError, SymmoeError: As `reduce_scatter`.
        """
        self._require_usable(sequence.RS_NORM_AG)
        routed = routing is not None
        try:
            ends = sequence.prepare(
                self, CPU, input, out, epilogue, sizes, padded_to, routed, lane, stream
            )
        except (TypeError, ValueError) as error:
            if self._checks:
                self._report(lane, error)
            raise
        return sequence.run(
            self, ends, input, epilogue, padded_to, routing, lane, deterministic, stream
        )

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
        if not self._shortages and not watch.on:
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
                epilogue,
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
        try:
            topk.run(terms, address, code, threads, masks, self.rank)
            out = self._collect(layout, window, out, False, deterministic, known, masks, steps)
        except ValueError as error:
            if self._checks:
                self._report_late(layout, error)
            raise
        if watch.on:
            tags.after(layout, out)
        self._remember_combine(
            layout,
            terms,
            out,
            expert_out,
            topk_weights,
            index,
            routing,
            sizes,
            padded_to,
            epilogue,
            steps,
        )
        return out

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
