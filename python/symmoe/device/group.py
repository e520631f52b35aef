"""The group of devices and its collectives."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from .. import topk
from ..decision import Decision
from ..errors import SymmoeError
from ..plans import (
    ALL_GATHER,
    REDUCE_SCATTER,
    WINDOW_TYPES,
    Layout,
    Sizes,
    check_input,
    check_output,
    check_overlap,
)
from . import choice, fallback
from .memory import DeviceMemory
from .views import DeviceView


class DeviceGroup(DeviceMemory):
    """The ranks of a process group, each with a device and windows in its memory.

    Made by `symmoe.init`; a context manager. The methods are those of `Group`, but none waits for
    the device: work is queued on `stream` (None: torch's current one), and calls of one lane come
    one after the other on the device also where their streams differ. Calls may be captured into
    graphs, as long as no window has to grow meanwhile.

    The input of `reduce_scatter` is in a window on all ranks or on none: NCCL reads the same place
    of the same window everywhere. (Config.check compares that as well.)

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

        Args:
            input: [rows, hidden], the same shape on all ranks, contiguous. From a window (from
                `acquire`, or a contiguous part of it) nothing is copied where the path sends from
                there; it must be a "combine" window of this lane.
            out: At least [own rows, hidden]; rows beyond are left alone. Never in a window; of
                other inputs it may be exactly the own slice. None: a new tensor.
            sizes: As in `Group.reduce_scatter`.
            padded_to: As in `Group.reduce_scatter`.
            lane: Which microbatch.
            deterministic: Add in rank order, in fp32, with one rounding: the bits of the CPU's.
                Otherwise NCCL chooses the order, by size and version.
            stream: A stream of the device; None: the current one.

        Returns:
            `out`; ready for what `stream` is given next.

        Raises:
            TypeError, ValueError, MismatchError, SymmoeError: As `Group.reduce_scatter`.
        """
        view = self._views_by_id.get(id(input))
        if (
            view is not None
            and view.reduces_in == lane
            and sizes is None
            and padded_to is None
            and input.data_ptr() == view.address  # as is_intact, whose call would cost more
            and input.shape == view.shape
            and input.dtype is view.dtype
            and input.is_contiguous()
            and not input.is_neg()
            and not input.requires_grad
        ):
            prepared = view.even_call
            if prepared is None:
                prepared = self._prepare(view, lane)
            if prepared is not None:
                if not (
                    type(out) is Tensor
                    and out.shape == view.out_shape
                    and out.dtype is view.dtype
                    and self._accepts(out)
                    and out.is_contiguous()
                    and not out.is_neg()
                ):
                    if out is None:
                        shape, device = view.out_shape, self._place.device
                        out = torch.empty(shape, dtype=view.dtype, device=device)
                    else:
                        self._check_output(self._even_layout(view, lane), out)
                handle = self._current_stream() if stream is None else self._place.stream(stream)
                if prepared(out.data_ptr(), handle, deterministic):
                    if stream is not None or self._always_keeps:
                        self._place.keep(handle, out)
                    return out
        return self._call(REDUCE_SCATTER, input, out, sizes, padded_to, lane, deterministic, stream)

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
            input: [own rows, hidden], contiguous. Where rows are padded it may have up to that
                many. In a window it must be a "dispatch" window of this lane.
            out: At least [rows of all ranks, hidden]; padding and rows beyond are left alone. Never
                in a window; the input may be exactly the own slice of it. None: a new tensor.
            sizes: None: as many rows on all ranks as here. Otherwise as in `reduce_scatter`.
            padded_to: As in `reduce_scatter`.
            lane: Which microbatch.
            stream: A stream of the device; None: the current one.

        Returns:
            `out`; ready for what `stream` is given next.

        Raises:
            TypeError, ValueError, MismatchError, SymmoeError: As `reduce_scatter`.
        """
        return self._call(ALL_GATHER, input, out, sizes, padded_to, lane, False, stream)

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
            expert_out: As in `Group.combine`.
            topk_weights: As in `Group.combine`.
            out: At least [own rows, H]; see `reduce_scatter`.
            index: [M, K], int32 or int64: row of expert_out, -1: not on this rank. A value beyond
                that counts as -1 and makes the next call, or `check`, raise ValueError.
            scale: Factor of the sum.
            sizes: See `reduce_scatter`.
            padded_to: See `reduce_scatter`.
            lane: Which microbatch; uses (and overwrites) its "combine" window.
            deterministic: See `reduce_scatter`.
            stream: A stream of the device; None: the current one.

        Returns:
            `out`; ready for what `stream` is given next.

        Raises:
            TypeError, ValueError, MismatchError, SymmoeError: As `reduce_scatter`.
        """
        terms, layout = self._check_combine(
            expert_out, topk_weights, out, index, scale, sizes, padded_to, lane
        )
        if out is None:
            out = self._new_output(layout)
        shape = (terms.tokens, terms.hidden)
        handle = self._place.stream(stream)
        window = self.acquire("combine", shape, terms.dtype, lane=lane, stream=handle)
        if window is None:
            window = self._place.empty(shape, terms.dtype, handle)
        target = window.data_ptr()
        topk.check_apart(self._where["combine"], terms, target, layout.in_bytes)
        if terms.tokens:
            code = WINDOW_TYPES[terms.dtype]
            self._core.topk_reduce(*topk.core_arguments(terms, target, code), handle)
            for tensor in (expert_out, topk_weights, index):
                if tensor is not None:
                    self._place.keep(handle, tensor)
        return self._run(layout, window, out, False, deterministic, handle)

    def explain(self, operation: str, *args: Any, **kwargs: Any) -> Decision:
        """The path a call would take here, and why. No communication, no effect.

        Args:
            operation: "reduce_scatter", "combine" or "all_gather".
            *args: As for that method.
            **kwargs: As for that method.

        Raises:
            TypeError, ValueError: What the method would raise for its arguments; but values in an
                index, and whether a window fits the call (role, lane, acquired since its last
                reduce, `out` in one), are for the call itself to see.
        """
        self._require_open("explain")
        if operation not in _SIGNATURES:
            raise ValueError(f"explain: {operation!r} is none of {', '.join(_SIGNATURES)}")
        bound = _SIGNATURES[operation].bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        deterministic = given.pop("deterministic", False)
        self._place.stream(given.pop("stream"))
        del given["self"]
        if operation == "combine":
            _, layout = self._check_combine(**given)
            in_window = True
        else:
            tensor = given.pop("input")
            layout, _ = self._check_call(operation, tensor, **given)
            in_window = self._core.find(tensor.data_ptr()) is not None
        if layout.device_plan is None:
            return choice.without_plan(layout)
        candidates = self._core.explain(layout.device_plan, deterministic)
        return choice.decide(candidates, in_window)

    # --- the way of every call --------------------------------------------------------------------

    def _even_layout(self, view: DeviceView, lane: int) -> Layout:
        return self._layouts.of(REDUCE_SCATTER, view.shape, view.dtype, None, None, lane)

    def _prepare(self, view: DeviceView, lane: int) -> Callable[[int, int, bool], bool] | None:
        """The even reduce_scatter of a view; None where windows do not know the dtype."""
        layout = self._even_layout(view, lane)
        view.out_shape = torch.Size(layout.out_shape)
        if layout.device_plan is not None:
            view.even_call = self._core.prepare(layout.device_plan, view.buffer)
        return view.even_call

    def _new_output(self, layout: Layout) -> torch.Tensor:
        return torch.empty(layout.out_shape, dtype=layout.dtype, device=self._place.device)

    def _check_output(self, layout: Layout, out: torch.Tensor) -> None:
        """Raises unless `out` can take the call's result; the core sees whether it is in a window.

        The usual case is told apart in few steps.
        """
        if not (
            isinstance(out, torch.Tensor)
            and out.shape == layout.out_shape
            and out.dtype is layout.dtype
            and self._place.accepts(out)
            and out.is_contiguous()
            and not out.is_neg()
        ):
            where = self._where[layout.operation]
            check_output(where, out, layout.dtype, layout.out_shape, self._place)

    def _check_combine(
        self,
        expert_out: torch.Tensor,
        topk_weights: torch.Tensor | None,
        out: torch.Tensor | None,
        index: torch.Tensor | None,
        scale: float | None,
        sizes: Sizes,
        padded_to: int | None,
        lane: int,
    ) -> tuple[topk.Terms, Layout]:
        """What combine works on; raises on any wrong argument."""
        where = self._where["combine"]
        terms = topk.check_terms(where, expert_out, topk_weights, index, scale, self._place)
        key = self._layouts.key("combine", sizes)
        shape = (terms.tokens, terms.hidden)
        layout = self._layouts.of(REDUCE_SCATTER, shape, terms.dtype, key, padded_to, lane)
        if out is not None:
            self._check_output(layout, out)
            topk.check_apart(where, terms, out.data_ptr(), layout.out_bytes)
            # Here already: the sum would be on its way when the core finds that.
            if layout.out_bytes and not out.data_ptr():
                raise ValueError(f"{where}: out has no memory ({layout.text})")
            if layout.out_bytes and self._core.overlaps(out.data_ptr(), layout.out_bytes):
                raise ValueError(
                    f"{where}: out overlaps a buffer of the pool; it must be the caller's memory "
                    f"({layout.text})"
                )
        return terms, layout

    def _check_call(
        self,
        operation: str,
        tensor: torch.Tensor,
        out: torch.Tensor | None,
        sizes: Sizes,
        padded_to: int | None,
        lane: int,
    ) -> tuple[Layout, bool]:
        """A collective's layout, and whether it works in place; raises on any wrong argument."""
        where = self._where[operation]
        check_input(where, "input", tensor, self._place)
        key = self._layouts.key(operation, sizes)
        layout = self._layouts.of(operation, tensor.shape, tensor.dtype, key, padded_to, lane)
        if out is None:
            return layout, False
        self._check_output(layout, out)
        begin, target = tensor.data_ptr(), out.data_ptr()
        if target + layout.out_bytes <= begin or begin + layout.in_bytes <= target:
            return layout, False
        return layout, check_overlap(where, tensor, out, layout)

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
        self._require_open(operation)
        layout, in_place = self._check_call(operation, tensor, out, sizes, padded_to, lane)
        if out is None:
            out = self._new_output(layout)
        return self._run(layout, tensor, out, in_place, deterministic, self._place.stream(stream))

    def _run(
        self,
        layout: Layout,
        tensor: torch.Tensor,
        out: torch.Tensor,
        in_place: bool,
        deterministic: bool,
        stream: int,
    ) -> torch.Tensor:
        plan = layout.device_plan
        if plan is not None:
            address, target = tensor.data_ptr(), out.data_ptr()
            found = self._core.find(address) if layout.in_bytes else None
            if found is None:
                done = self._core.run_from(plan, address, target, stream, deterministic)
            else:
                done = self._core.run(plan, found[0], found[1], target, stream, deterministic)
            if done:
                if found is None:
                    self._place.keep(stream, tensor)  # windows are the group's to keep
                self._place.keep(stream, out)
                return out
        self._core.check()  # an earlier failure, or a peer that is gone
        self._fallbacks += 1
        group, place = self._process_group, self._place
        try:
            with place.in_order(stream):
                fallback.run(group, layout, tensor, out, in_place, deterministic, place)
        except SymmoeError:
            raise
        except RuntimeError as error:
            reason = f"{layout.operation} on rank {self.rank}: the process group failed: {error}"
            self._core.poison(reason)
            raise SymmoeError(f"{reason} ({layout.text})") from error
        return out

    def __enter__(self) -> DeviceGroup:
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
        with contextlib.suppress(Exception):  # it must not hide why the block was left
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else self._place.name
        return f"<symmoe.DeviceGroup rank {self.rank} of {self.world_size}: {state}>"


_SIGNATURES = {
    name: inspect.signature(getattr(DeviceGroup, name))
    for name in (REDUCE_SCATTER, "combine", ALL_GATHER)
}
