"""The group of devices and its collectives."""

from __future__ import annotations

import contextlib
import inspect
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from .. import topk
from ..decision import Decision
from ..epilogue import Epilogue
from ..observing import watch
from ..plans import ALL_GATHER, REDUCE_SCATTER, WINDOW_TYPES, Sizes
from ..routing import Routing
from . import choice
from .sequence import SequenceCalls


class DeviceGroup(SequenceCalls):
    """The ranks of a process group, each with a device and windows in its memory.

    Made by `symmoe.init`; a context manager. The methods are those of `Group`, but none waits for
    the device: work is queued on `stream` (None: torch's current one), and calls of one lane come
    one after the other on the device also where their streams differ. Calls may be captured into
    graphs, as long as no window has to grow meanwhile.

    Where NCCL reads the windows, the input of `reduce_scatter` is in a window on all ranks or on
    none: it reads the same place of the same window everywhere. (Config.check compares that as
    well.) Kernels of symmoe's own tell each other where their rows are.

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

        Args:
            input: [rows, hidden], the same shape on all ranks, contiguous. From a window (from
                `acquire`, or a contiguous part of it) nothing is copied where the path sends from
                there; it must be a "combine" window of this lane.
            out: At least [own rows, hidden]; rows beyond are left alone. Of a window only as in
                `all_gather`; of other inputs it may be exactly the own slice. None: a new tensor.
            sizes: As in `Group.reduce_scatter`; or an int32 tensor on the device, [world_size],
                which no host looks at. The rows are then one rank's after the other's, or with
                `padded_to` rank r's from row r * padded_to on; input says how many there may be.
                Values that do not fit, or differ between ranks, leave `out` alone and make the next
                call, or `check`, raise.
            padded_to: As in `Group.reduce_scatter`.
            routing: An expert kernel wrote only the rows that this rank has an expert for; the
                others are read by nobody. See `Routing`.
            lane: Which microbatch.
            deterministic: Add in rank order, in fp32, with one rounding: the bits of the CPU's.
                Otherwise NCCL chooses the order, by size and version.
            epilogue: Work of this rank's own on its summed rows; `out` is then what comes of it,
                quantised rows in their dtype. In the same kernel where own kernels pull the rows,
                else in one behind. With sizes on the device its tensors have at least as many rows
                as `out`. See `Epilogue`.
            stream: A stream of the device; None: the current one.

        Returns:
            `out`; ready for what `stream` is given next.

        Raises:
            TypeError, ValueError, MismatchError, SymmoeError: As `Group.reduce_scatter`.
            UnavailableError: Rows that are too long for the kernels of an epilogue.
        """
        view = self._views_by_id.get(id(input))
        if (
            view is not None
            and view.reduces_in == lane
            and sizes is None
            and padded_to is None
            and routing is None
            and epilogue is None
            and not watch.on
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
        return self._call(
            REDUCE_SCATTER,
            input,
            out,
            sizes,
            padded_to,
            lane,
            deterministic,
            stream,
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
            input: [own rows, hidden], contiguous. Where rows are padded it may have up to that
                many. In a window it must be a "dispatch" window of this lane.
            out: At least [rows of all ranks, hidden]; padding and rows beyond are left alone. The
                input may be exactly the own slice of it. In a window only of what was acquired for
                "dispatch" in this lane since its last all_gather. None: a new tensor.
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
        routing: Routing | None = None,
        lane: int = 0,
        deterministic: bool = False,
        epilogue: Epilogue | None = None,
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
            routing: Which rank has which token's experts. Only slots of experts here are read, and
                only rows with one of them move. expert_out of [M, H] is taken for rows that the
                experts have summed. See `Routing`.
            lane: Which microbatch; uses (and overwrites) its "combine" window.
            deterministic: See `reduce_scatter`.
            epilogue: See `reduce_scatter`.
            stream: A stream of the device; None: the current one.

        Returns:
            `out`; ready for what `stream` is given next.

        Raises:
            TypeError, ValueError, MismatchError, SymmoeError: As `reduce_scatter`.
        """
        self._require_open("combine")
        terms, layout, summed, steps = self._check_combine(
            expert_out, topk_weights, out, index, scale, sizes, padded_to, lane, routing, epilogue
        )
        if routing is not None and not summed and topk_weights is None:
            topk_weights = routing.topk_weights
        if out is None:
            out = self._new_output(layout, steps)
        handle, code = self._place.stream(stream), WINDOW_TYPES[terms.dtype]
        assert layout.device_plan is not None
        sums = None if steps is None else self._room_for_sums(layout, steps, handle)
        call = self._numbers(
            layout, out, sizes, routing, summed, deterministic, handle, steps, sums
        )
        try:
            done = self._core.combine(layout.device_plan, topk.core_arguments(terms, 0, code), call)
            window = None
            if not done:
                self._require_host_sizes(layout)
                window = self._place.empty((terms.tokens, terms.hidden), terms.dtype, handle)
                terms_in_window = topk.core_arguments(terms, window.data_ptr(), code)
                self._core.fill_out(layout.device_plan, terms_in_window, call)
            for tensor in (expert_out, topk_weights, index):
                if tensor is not None:
                    self._place.keep(handle, tensor)
            if window is None:
                self._made(layout, out, handle)
            else:
                dense = self._numbers(
                    layout, out, sizes, None, False, deterministic, handle, steps, sums
                )
                self._run(layout, window, out, False, dense, sums)
        finally:
            if epilogue is not None:
                self._keep_epilogue(handle, epilogue, sums, expert_out, out)
        return out

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
        routing = given.get("routing")
        slots = 0 if routing is None else routing.slots
        if operation == "combine":
            terms, layout, _, _ = self._check_combine(**given)
            slots = slots or terms.slots
            in_window = True
        else:
            tensor = given.pop("input")
            layout, _, _ = self._check_call(operation, tensor, **given)
            in_window = self._core.find(tensor.data_ptr()) is not None
        if layout.device_plan is None:
            return choice.without_plan(layout)
        candidates = self._core.explain(
            layout.device_plan, deterministic, operation == "combine", routing is not None, slots
        )
        return choice.decide(candidates, in_window)

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
