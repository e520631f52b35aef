"""The group: the ranks that combine together, and their collectives."""

from __future__ import annotations

import inspect
from types import TracebackType
from typing import Any

import torch

from . import topk
from .decision import Decision, decide
from .plans import ALL_GATHER, REDUCE_SCATTER, WINDOW_TYPES, Sizes
from .windows import Windows


class Group(Windows):
    """The ranks of a process group, with windows into each other's memory where that can be.

    Made by `symmoe.init`; a context manager. Calls of one lane come one after the other, in the
    same order on all ranks; different lanes may be used from different threads. Wrong input raises
    ValueError or TypeError on the rank that has it, writes nothing and leaves the group usable.
    Whatever else fails in a collective poisons the group: later calls raise PoisonedError.

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
        lane: int = 0,
        deterministic: bool = False,
        stream: object | None = None,
    ) -> torch.Tensor:
        """Sums all ranks' partial rows and gives each rank its own. Collective.

        The sum is in rank order, in fp32, with one rounding, whatever the path; but the process
        group's own collective, which serves what windows cannot, keeps its own order unless
        `deterministic`.

        Args:
            input: [rows, hidden], the same shape on all ranks, contiguous. In a window (from
                `acquire`, or a contiguous part of it) nothing is copied before peers read it.
            out: At least [own rows, hidden]; rows beyond are left alone. Never in a window; of
                other inputs it may be exactly the own slice. None: a new tensor.
            sizes: None: rows / world_size each. An int R: R each, rank r's from row r * R on. Ints
                by rank: that many each, one after the other, or with `padded_to` from row
                r * padded_to on. Zeros are legal.
            padded_to: See sizes.
            lane: Which microbatch.
            deterministic: Keep the rank order on the process group's path as well.
            stream: None; for GPU builds.

        Returns:
            `out`.

        Raises:
            TypeError: A dtype that cannot be reduced, or something that is no integer.
            ValueError: Anything else about the arguments, with the values; also a window that was
                not acquired again since its last reduce.
            MismatchError: Ranks made different calls; on all of them.
            SymmoeError: A peer was lost, the deadline passed, the group is closed or poisoned.
        """
        view = self._combine_views.get(id(input))
        if (
            view is None
            or view.lane != lane
            or stream is not None
            or input.requires_grad
            or not (out is None or isinstance(out, torch.Tensor))
        ):
            return self._call(
                REDUCE_SCATTER, input, out, sizes, padded_to, lane, deterministic, stream
            )
        if sizes is None and padded_to is None:
            layout = view.even
        elif type(sizes) is list or type(sizes) is tuple:
            layout = view.layouts.get((tuple(sizes), padded_to))
        else:
            layout = None
        if layout is None:
            layout = self._view_layout(view, REDUCE_SCATTER, sizes, padded_to)
        if out is None:
            out = torch.empty(layout.out_shape, dtype=layout.dtype, device="cpu")
        elif not (
            # What nearly every call looks like; the core itself sees that windows stay untouched.
            out.shape == layout.out_shape
            and out.dtype is layout.dtype
            and out.is_cpu
            and out.is_contiguous()
        ):
            self._check_output(layout, out)
        if not self._core_reduce(
            layout.plan,  # type: ignore[arg-type]  # windows have only types with a plan
            view.buffer,
            0,
            out.data_ptr(),
            self._threads or self._thread_count(),
        ):
            self._fall_back(layout, input, out, False, deterministic)
        return out

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
            input: [own rows, hidden], contiguous; in a "dispatch" window nothing is copied before
                peers read it. Where rows are padded it may have up to that many.
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
        view = self._dispatch_views.get(id(input))
        if view is None or view.lane != lane or stream is not None or input.requires_grad:
            return self._call(ALL_GATHER, input, out, sizes, padded_to, lane, False, stream)
        if sizes is None and padded_to is None:
            layout = view.even
        elif type(sizes) is list or type(sizes) is tuple:
            layout = view.layouts.get((tuple(sizes), padded_to))
        else:
            layout = None
        if layout is None:
            layout = self._view_layout(view, ALL_GATHER, sizes, padded_to)
        if out is None:
            out = torch.empty(layout.out_shape, dtype=layout.dtype, device="cpu")
        elif not (
            out.shape == layout.out_shape
            and out.dtype is layout.dtype
            and out.is_cpu
            and out.is_contiguous()
        ):
            self._check_output(layout, out)
        if not self._core_gather(
            layout.plan,  # type: ignore[arg-type]
            view.buffer,
            0,
            out.data_ptr(),
            self._threads or self._thread_count(),
        ):
            self._fall_back(layout, input, out, False, False)
        return out

    def _call(
        self,
        operation: str,
        tensor: torch.Tensor,
        out: torch.Tensor | None,
        sizes: Sizes,
        padded_to: int | None,
        lane: int,
        deterministic: bool,
        stream: object | None,
    ) -> torch.Tensor:
        """A collective on any tensor."""
        if self._core is None or self._closed:
            self._require_usable(operation)
        try:
            layout, in_place = self._prepare(operation, tensor, out, sizes, padded_to, lane, stream)
        except (TypeError, ValueError) as error:
            if self._checks:
                self._report(lane, error)
            raise
        if not self._checks:
            return self._collect(layout, tensor, out, in_place, deterministic)
        self._compare(layout, deterministic)
        try:
            return self._collect(layout, tensor, out, in_place, deterministic)
        except ValueError as error:
            self._report_late(layout, error)
            raise

    def combine(
        self,
        expert_out: torch.Tensor,
        topk_weights: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
        index: torch.Tensor | None = None,
        scale: float | None = None,
        sizes: Sizes = None,
        padded_to: int | None = None,
        lane: int = 0,
        deterministic: bool = False,
        stream: object | None = None,
    ) -> torch.Tensor:
        """Top-k weighted sum straight into the window, then reduce_scatter. Collective.

        Args:
            expert_out: [M, K, H] or, with `index`, [pairs, H]; [M, H] counts as K = 1. M is the
                rows of all ranks. bfloat16, float16 or float32.
            topk_weights: [M, K], float32 or expert_out's dtype. None: a plain sum.
            out: At least [own rows, H]; see `reduce_scatter`.
            index: [M, K], int32 or int64: row of expert_out, -1: not on this rank.
            scale: Factor of the sum.
            sizes: See `reduce_scatter`.
            padded_to: See `reduce_scatter`.
            lane: Which microbatch; uses (and overwrites) its "combine" window.
            deterministic: See `reduce_scatter`.
            stream: None; for GPU builds.

        Returns:
            `out`.

        Raises:
            TypeError, ValueError, MismatchError, SymmoeError: As `topk_reduce` and
                `reduce_scatter`.
        """
        self._require_usable("combine")
        try:
            terms, layout = self._prepare_combine(
                expert_out, topk_weights, out, index, scale, sizes, padded_to, lane, stream
            )
            shape = (terms.tokens, terms.hidden)
            window = self.acquire("combine", shape, terms.dtype, lane=layout.lane)
            if window is None:
                window = torch.empty(shape, dtype=terms.dtype, device="cpu")
            address = window.data_ptr()
            topk.check_apart(self._where["combine"], terms, address, layout.in_bytes)
        except (TypeError, ValueError) as error:
            if self._checks:
                self._report(lane, error)
            raise
        if self._checks:
            self._compare(layout, deterministic)
        topk.run(terms, address, WINDOW_TYPES[terms.dtype], self._threads or self._thread_count())
        return self._collect(layout, window, out, False, deterministic)

    def explain(self, operation: str, *args: Any, **kwargs: Any) -> Decision:
        """The path a call would take here, and why. No communication, no effect.

        Args:
            operation: "reduce_scatter", "combine" or "all_gather".
            *args: As for that method.
            **kwargs: As for that method.

        Raises:
            TypeError, ValueError: What the method would raise for its arguments.
        """
        self._require_usable("explain")
        if operation not in _SIGNATURES:
            raise ValueError(f"explain: {operation!r} is none of {', '.join(_SIGNATURES)}")
        bound = _SIGNATURES[operation].bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if operation == "combine":
            given.pop("deterministic")
            given.pop("self")
            _, layout = self._prepare_combine(**given)
            in_window = self._cap == 0 or layout.in_bytes <= self._cap
        else:
            tensor = given["input"]
            layout, _ = self._prepare(
                operation,
                tensor,
                given["out"],
                given["sizes"],
                given["padded_to"],
                given["lane"],
                given["stream"],
            )
            in_window = self._in_window(tensor)
        return decide(layout, in_window, self._obstacle, self._cap, self._cap_reason)

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else self._obstacle or "windows"
        return f"<symmoe.Group rank {self.rank} of {self.world_size}: {state}>"


_SIGNATURES = {
    name: inspect.signature(getattr(Group, name))
    for name in (REDUCE_SCATTER, "combine", ALL_GATHER)
}
