"""The checks in front of every call of a group, and what is remembered of them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from . import _core, topk
from .epilogue import Epilogue, Span, Steps, check_apart, check_epilogue
from .layouts import Layouts
from .names import register
from .plans import (
    ALL_GATHER,
    REDUCE_SCATTER,
    Layout,
    Sizes,
    check_input,
    check_output,
    check_overlap,
    check_stream,
    is_plain,
)
from .routing import Routing, check_routing, check_slots, weights_of
from .views import Slot, ViewCache


class Prepared(NamedTuple):
    """The checked arguments of a call that moves rows.

    Attributes:
        layout: Its geometry.
        in_place: Whether `out` is the own slice of the input.
        masks: Of a routed call, which ranks have anything for which row.
        steps: Of a call with an epilogue.
    """

    layout: Layout
    in_place: bool
    masks: _core.Routing | None
    steps: Steps | None


class Arguments:
    """One rank's checks of its own input.

    Attributes:
        name: Stands for the group in graphs (`symmoe.ops`); no other group of this process has it.
        rank: This rank in the group.
        world_size: Number of ranks.
    """

    __slots__ = (
        "_by_key",
        "_checks",
        "_core",
        "_known",
        "_layouts",
        "_views",
        "_where",
        "name",
        "rank",
        "world_size",
    )

    def __init__(self, core: _core.Group | None, rank: int, world: int, checks: bool) -> None:
        self.name = register(self)
        self.rank = rank
        self.world_size = world
        self._where = {
            name: f"{name} on rank {rank}" for name in (REDUCE_SCATTER, ALL_GATHER, "combine")
        }
        self._core = core
        self._checks = checks
        self._layouts = Layouts(rank, world, self._where)
        self._known = None
        if core is not None:
            tensors = (torch.Tensor, torch.nn.Parameter, torch.is_grad_enabled)
            self._known = _core.KnownCalls(core, Routing, Epilogue, *tensors)
        self._views = ViewCache(core, self._known)
        self._by_key = self._views.by_key

    def _prepare(
        self,
        operation: str,
        tensor: torch.Tensor,
        out: torch.Tensor | None,
        sizes: Sizes,
        padded_to: int | None,
        lane: int,
        stream: object | None,
        routing: Routing | None = None,
        epilogue: Epilogue | None = None,
        core_refuses: bool = True,
    ) -> Prepared:
        """The call's layout, and what else is known of it; raises on any wrong argument."""
        if stream is not None:
            check_stream(self._where[operation], stream)
        if not is_plain(tensor) or tensor.requires_grad:
            check_input(self._where[operation], "input", tensor)
        key = self._layouts.key(operation, sizes)
        layout = self._layouts.of(
            operation, tensor.shape, tensor.dtype, key, padded_to, lane, routing is not None
        )
        masks = None if routing is None else self._masks_of(layout, routing, operation)
        steps, out_bytes = None, layout.out_bytes
        if epilogue is not None:
            inputs = [("input", tensor.data_ptr(), layout.in_bytes)]
            steps = self._check_epilogue(operation, layout, epilogue, out, inputs)
            out_bytes = out_bytes // layout.dtype.itemsize * steps.dtype.itemsize
        elif out is not None:
            self._check_output(layout, out, core_refuses)
        if out is None:
            return Prepared(layout, False, masks, steps)
        address, target = tensor.data_ptr(), out.data_ptr()
        if target + out_bytes <= address or address + layout.in_bytes <= target:
            return Prepared(layout, False, masks, steps)
        self._require_place(layout, out)
        in_place = check_overlap(self._where[operation], tensor, out, layout)
        if in_place and out.dtype is not layout.dtype:
            raise ValueError(
                f"{self._where[operation]}: out overlaps input and is quantised ({layout.text})"
            )
        return Prepared(layout, in_place, masks, steps)

    def _check_epilogue(
        self,
        operation: str,
        layout: Layout,
        epilogue: Epilogue,
        out: torch.Tensor | None,
        inputs: list[Span],
    ) -> Steps:
        """A call's epilogue, with its output; raises on anything wrong about either.

        Args:
            operation: Whose words begin messages.
            layout: The call's geometry.
            epilogue: What the call was given.
            out: The call's output; None: it has none yet.
            inputs: What the call reads.
        """
        where, shape = self._where[operation], layout.out_shape
        steps = check_epilogue(where, epilogue, layout.dtype, shape)
        target: Span = ("out", 0, 0)
        if out is not None:
            check_output(where, out, steps.dtype, shape)
            self._require_place(layout, out)
            target = ("out", out.data_ptr(), shape[0] * shape[1] * steps.dtype.itemsize)
        in_window = None if self._core is None else self._core.overlaps
        check_apart(where, steps, target, inputs, in_window)
        return steps

    def _masks_of(self, layout: Layout, routing: Routing, operation: str) -> _core.Routing:
        """Which ranks have anything for which row of a call.

        Raises:
            TypeError, ValueError: As check_routing; also for an expert on a rank that is none.
        """
        where = self._where[operation]
        check_routing(where, routing, layout.rows)
        ids, experts = routing.topk_ids, routing.expert_to_rank
        try:
            return _core.Routing(
                layout.rows,
                layout.begins,
                layout.counts,
                ids.data_ptr(),
                ids.dtype is torch.int64,
                ids.shape[1],
                experts.data_ptr(),
                experts.shape[0],
            )
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    def _check_output(self, layout: Layout, out: torch.Tensor, core_refuses: bool = True) -> None:
        """Raises unless `out` can take the call's result.

        Nor may it lie in a window that is not for it. If `core_refuses` that is left to the core,
        unless there is a fallback in front of it, or a comparison that it would come too late for.
        """
        core_refuses = core_refuses and layout.plan is not None and not self._checks
        if (
            core_refuses
            and is_plain(out)
            and out.shape == layout.out_shape
            and out.dtype is layout.dtype
        ):
            return
        where = self._where[layout.operation]
        check_output(where, out, layout.dtype, layout.out_shape)
        if not core_refuses:
            self._require_place(layout, out)

    def _require_place(self, layout: Layout, out: torch.Tensor) -> None:
        """Raises ValueError if the call's result would lie in a window that is not for it."""
        if self._core is None or not layout.out_bytes:
            return
        nbytes = layout.out_bytes // layout.dtype.itemsize * out.itemsize
        reason = self._core.why_no_output(out.data_ptr(), nbytes, layout.lane)
        if reason:
            raise ValueError(f"{self._where[layout.operation]}: out {reason} ({layout.text})")

    def _prepare_combine(
        self,
        expert_out: torch.Tensor,
        topk_weights: torch.Tensor | None,
        out: torch.Tensor | None,
        index: torch.Tensor | None,
        scale: float | None,
        sizes: Sizes,
        padded_to: int | None,
        lane: int,
        stream: object | None,
        routing: Routing | None = None,
        epilogue: Epilogue | None = None,
    ) -> tuple[topk.Terms, Layout, _core.Routing | None, Steps | None]:
        """What combine works on; raises on any wrong argument."""
        where = self._where["combine"]
        if stream is not None:
            check_stream(where, stream)
        summed = isinstance(expert_out, torch.Tensor) and expert_out.dim() == 2 and index is None
        if isinstance(routing, Routing):
            topk_weights = weights_of(where, routing, topk_weights, summed)
        terms = topk.check_terms(where, expert_out, topk_weights, index, scale)
        shape = (terms.tokens, terms.hidden)
        key = self._layouts.key("combine", sizes)
        layout = self._layouts.of(
            REDUCE_SCATTER, shape, terms.dtype, key, padded_to, lane, routing is not None
        )
        masks = None
        if routing is not None:
            masks = self._masks_of(layout, routing, "combine")
            check_slots(where, routing, terms.slots, summed)
        if self._checks and index is not None and index.numel():
            # Otherwise only the kernel looks, when the others have begun the collective.
            looked_at = index if routing is None else index[routing.on_rank(self.rank)]
            low, high = looked_at.aminmax() if looked_at.numel() else (0, -1)
            if low < -1 or high >= terms.pairs:
                raise ValueError(f"{where}: index has {low}..{high}, allowed -1..{terms.pairs - 1}")
        steps = None
        if epilogue is not None:
            inputs = [(name, begin, end - begin) for name, begin, end in terms.spans]
            steps = self._check_epilogue("combine", layout, epilogue, out, inputs)
        elif out is not None:
            self._check_output(layout, out, core_refuses=False)  # it would when the sum is written
        if out is not None:
            topk.check_apart(
                where,
                terms,
                out.data_ptr(),
                layout.out_bytes // layout.dtype.itemsize * out.itemsize,
            )
        return terms, layout, masks, steps

    def _window_of(self, layout: Layout, tensor: torch.Tensor) -> tuple[_core.Buffer, int] | None:
        """The window that a call's input lies in, and where in it; None if it is in none."""
        if self._core is None or layout.plan is None:
            return None
        if layout.in_bytes:
            return self._core.find(tensor.data_ptr())
        # Without rows there is no address to go by, only the tensor that acquire gave.
        view = self._views.by_id.get(id(tensor))
        if view is None or view.slot != _slot_of(layout) or not view.is_intact():
            return None
        return view.buffer, 0

    # --- what the core would refuse, for explain ------------------------------------------------

    def _in_window(self, layout: Layout, tensor: torch.Tensor) -> bool:
        """Whether a call with this input finds it in a window.

        Raises:
            ValueError: In one for something else.
        """
        found = self._window_of(layout, tensor)
        if found is None:
            return False
        wanted = _slot_of(layout)
        slot = self._views.slot_of(found[0])
        if slot is not None and slot != wanted:
            raise ValueError(
                f"{self._where[layout.operation]}: the input was acquired for {slot[0]}, lane "
                f"{slot[1]}, and is used for {wanted[0]}, lane {wanted[1]} ({layout.text})"
            )
        return True

    def _require_terms_outside(self, layout: Layout, terms: topk.Terms) -> None:
        """Raises ValueError if combine would overwrite its own input in the window."""
        window = self._views.current("combine", layout.lane)
        if window is not None and not window.retired and window.bytes >= layout.in_bytes:
            topk.check_apart(self._where["combine"], terms, window.address, layout.in_bytes)


def _slot_of(layout: Layout) -> Slot:
    """What a window must have been acquired for to be a call's input."""
    return "combine" if layout.operation == REDUCE_SCATTER else "dispatch", layout.lane
