"""The checks in front of every call of a group of devices, and what the core is given."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeAlias

import torch

from .. import _core, topk
from ..epilogue import Epilogue, Span, Steps, check_apart, check_epilogue
from ..plans import (
    REDUCE_SCATTER,
    WINDOW_TYPES,
    Layout,
    Sizes,
    check_input,
    check_output,
    check_overlap,
    name_of,
)
from ..routing import Routing, check_routing, check_slots, weights_of
from .memory import DeviceMemory
from .reserved import check_device_sizes
from .routes import routing_on

# Output, rows of it, sizes, routing, summed, deterministic, stream, epilogue, memory for sums.
CallNumbers: TypeAlias = (
    "tuple[int, int, int, _core.DeviceRouting | None, bool, bool, int, _core.Epilogue | None, int]"
)


class DeviceArguments(DeviceMemory):
    """One rank's checks of its own input."""

    __slots__ = ()

    def _layout_of(
        self,
        operation: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        sizes: Sizes,
        padded_to: int | None,
        lane: int,
        routed: bool,
        name: str = "",
    ) -> Layout:
        """The layout of a call; sizes on the device count as what they may be at most."""
        # Where CPU tensors are the device's, only int32 can be meant so.
        if (
            isinstance(sizes, torch.Tensor)
            and self._place.accepts(sizes)
            and (sizes.dtype is torch.int32 or not sizes.is_cpu)
        ):
            check_device_sizes(self._where[name or operation], sizes, self.world_size)
            return self._layouts.reserved(operation, shape, dtype, padded_to, lane, routed)
        key = self._layouts.key(name or operation, sizes)
        return self._layouts.of(operation, shape, dtype, key, padded_to, lane, routed)

    def _new_output(self, layout: Layout, steps: Steps | None) -> torch.Tensor:
        dtype = layout.dtype if steps is None else steps.dtype
        return torch.empty(layout.out_shape, dtype=dtype, device=self._place.device)

    def _check_epilogue(
        self,
        operation: str,
        layout: Layout,
        epilogue: Epilogue,
        out: torch.Tensor | None,
        sizes: Sizes,
        inputs: list[Span],
    ) -> Steps:
        """A call's epilogue, with its output; raises on anything wrong about either.

        Args:
            operation: Whose words begin messages.
            layout: The call's geometry.
            epilogue: What the call was given.
            out: The call's output; None: it has none yet.
            sizes: What the call was given.
            inputs: What the call reads.
        """
        where, (rows, hidden) = self._where[operation], layout.out_shape
        if layout.device_sizes and isinstance(out, torch.Tensor) and out.dim() == 2:
            rows = min(rows, out.shape[0])  # more there cannot be
        steps = check_epilogue(where, epilogue, layout.dtype, (rows, hidden), self._place)
        target: Span = ("out", 0, 0)
        if out is not None:
            check_output(where, out, steps.dtype, (rows, hidden), self._place)
            target = ("out", out.data_ptr(), self._output_bytes(layout, out))
        if layout.device_sizes and isinstance(sizes, torch.Tensor):
            inputs = [*inputs, ("sizes", sizes.data_ptr(), sizes.nbytes)]
        check_apart(where, steps, target, inputs, self._core.overlaps)
        return steps

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
            rows = 0 if layout.device_sizes else layout.out_shape[0]  # only the kernel knows
            check_output(where, out, layout.dtype, (rows, layout.hidden), self._place)

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
        routing: Routing | None,
        epilogue: Epilogue | None = None,
    ) -> tuple[topk.Terms, Layout, bool, Steps | None]:
        """What combine works on, and whether its rows are summed; raises on any wrong argument."""
        where = self._where["combine"]
        summed = False
        if routing is not None:
            is_tensor = isinstance(expert_out, torch.Tensor)
            summed = is_tensor and expert_out.dim() == 2 and index is None
            given = index if isinstance(index, torch.Tensor) else expert_out
            rows = given.shape[0] if isinstance(given, torch.Tensor) and given.dim() else 0
            check_routing(where, routing, rows, self._place)
            topk_weights = weights_of(where, routing, topk_weights, summed, self._place)
        terms = topk.check_terms(where, expert_out, topk_weights, index, scale, self._place)
        if routing is not None:
            check_slots(where, routing, terms.slots, summed)
        shape = (terms.tokens, terms.hidden)
        layout = self._layout_of(
            REDUCE_SCATTER,
            shape,
            terms.dtype,
            sizes,
            padded_to,
            lane,
            routing is not None,
            name="combine",
        )
        steps = None
        if epilogue is not None:
            inputs = [(name, begin, end - begin) for name, begin, end in terms.spans]
            steps = self._check_epilogue("combine", layout, epilogue, out, sizes, inputs)
        if out is not None:
            if steps is None:
                self._check_output(layout, out)
            nbytes = self._output_bytes(layout, out)
            topk.check_apart(where, terms, out.data_ptr(), nbytes)
            # Here already: the sum would be on its way when the core finds that.
            if nbytes and not out.data_ptr():
                raise ValueError(f"{where}: out has no memory ({layout.text})")
        return terms, layout, summed, steps

    def _check_call(
        self,
        operation: str,
        tensor: torch.Tensor,
        out: torch.Tensor | None,
        sizes: Sizes,
        padded_to: int | None,
        lane: int,
        routing: Routing | None = None,
        epilogue: Epilogue | None = None,
    ) -> tuple[Layout, bool, Steps | None]:
        """A collective's layout, and whether it works in place; raises on any wrong argument."""
        where = self._where[operation]
        check_input(where, "input", tensor, self._place)
        if routing is not None:
            rows = tensor.shape[0] if tensor.dim() else 0
            check_routing(where, routing, rows, self._place)
            if tensor.dtype not in WINDOW_TYPES:
                raise TypeError(
                    f"{where}: a routing goes with bfloat16, float16 and float32, not "
                    f"{name_of(tensor.dtype)}"
                )
        layout = self._layout_of(
            operation, tensor.shape, tensor.dtype, sizes, padded_to, lane, routing is not None
        )
        steps = None
        if epilogue is not None:
            inputs = [("input", tensor.data_ptr(), layout.in_bytes)]
            steps = self._check_epilogue(operation, layout, epilogue, out, sizes, inputs)
        if out is None:
            return layout, False, steps
        if steps is None:
            self._check_output(layout, out)
        begin, target = tensor.data_ptr(), out.data_ptr()
        nbytes = self._output_bytes(layout, out)
        if target + nbytes <= begin or begin + layout.in_bytes <= target:
            return layout, False, steps
        if layout.device_sizes and nbytes and layout.in_bytes:
            raise ValueError(f"{where}: out overlaps input, whose own rows the host cannot know")
        in_place = check_overlap(where, tensor, out, layout)
        if in_place and out.dtype is not layout.dtype:
            raise ValueError(f"{where}: out overlaps input and is quantised ({layout.text})")
        return layout, in_place, steps

    def _output_bytes(self, layout: Layout, out: torch.Tensor) -> int:
        """Bytes of `out` that a call may write."""
        most = layout.out_bytes // layout.dtype.itemsize * out.itemsize
        return min(most, out.nbytes) if layout.device_sizes else most

    @contextlib.contextmanager
    def _outside(
        self, layout: Layout, tensor: torch.Tensor, out: torch.Tensor, stream: int
    ) -> Iterator[None]:
        """Inside, torch.distributed serves a call, in `stream`'s order and that of the windows.

        Raises:
            ValueError: `out` is in a window where it must not be.
        """
        reducing = layout.operation == REDUCE_SCATTER
        kind = _core.REDUCE_SCATTER if reducing else _core.ALL_GATHER
        begin, target = tensor.data_ptr(), out.data_ptr()
        nbytes = self._output_bytes(layout, out)
        call = (kind, layout.lane, begin, target, nbytes, stream)
        self._core.begin_outside(call)
        with self._place.in_order(stream):
            try:
                yield
            finally:
                self._core.end_outside(call)  # a part may be on its way

    def _numbers(
        self,
        layout: Layout,
        out: torch.Tensor,
        sizes: Sizes,
        routing: Routing | None,
        summed: bool,
        deterministic: bool,
        stream: int,
        steps: Steps | None = None,
        sums: torch.Tensor | None = None,
    ) -> CallNumbers:
        """What the core takes beside the plan and the rows; keeps what the stream will read."""
        sizes_at = 0
        if layout.device_sizes:
            assert isinstance(sizes, torch.Tensor)
            sizes_at = sizes.data_ptr()
            self._place.keep(stream, sizes)
        core = None
        if routing is not None:
            core = routing_on(self._core, self.name, self._place, routing, stream)
        return (
            out.data_ptr(),
            out.shape[0],
            sizes_at,
            core,
            summed,
            deterministic,
            stream,
            None if steps is None else steps.core,
            0 if sums is None else sums.data_ptr(),
        )
