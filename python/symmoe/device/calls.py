"""The way of every call of a group of devices behind its checks: queued, or the process group."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .. import tags, topk
from ..epilogue import Epilogue, Steps
from ..errors import SymmoeError, UnavailableError
from ..observing import watch
from ..plans import REDUCE_SCATTER, WINDOW_TYPES, Layout, Sizes
from ..routing import Routing
from . import fallback
from .arguments import CallNumbers, DeviceArguments
from .views import DeviceView


class DeviceCalls(DeviceArguments):
    """One rank's part in the collectives."""

    __slots__ = ()

    def _even_layout(self, view: DeviceView, lane: int) -> Layout:
        return self._layouts.of(REDUCE_SCATTER, view.shape, view.dtype, None, None, lane, False)

    def _prepare(self, view: DeviceView, lane: int) -> Callable[[int, int, bool], bool] | None:
        """The even reduce_scatter of a view; None where windows do not know the dtype."""
        layout = self._even_layout(view, lane)
        view.out_shape = torch.Size(layout.out_shape)
        if layout.device_plan is not None:
            view.even_call = self._core.prepare(layout.device_plan, view.buffer)
        return view.even_call

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
        routing: Routing | None = None,
        epilogue: Epilogue | None = None,
    ) -> torch.Tensor:
        """A collective on any tensor."""
        self._require_open(operation)
        layout, in_place, steps = self._check_call(
            operation, tensor, out, sizes, padded_to, lane, routing, epilogue
        )
        if watch.tags:
            strict = self._config.strict_layout
            tags.before(self._where[operation], operation, tensor, strict)
        if out is None:
            out = self._new_output(layout, steps)
        handle = self._place.stream(stream)
        sums = None if steps is None else self._room_for_sums(layout, steps, handle)
        call = self._numbers(layout, out, sizes, routing, False, deterministic, handle, steps, sums)
        try:
            return self._run(layout, tensor, out, in_place, call, sums)
        finally:
            if epilogue is not None:
                self._keep_epilogue(handle, epilogue, sums, tensor, out)

    def _require_host_sizes(self, layout: Layout) -> None:
        """Raises where only own kernels could have done it, and could not."""
        if layout.device_sizes:
            raise UnavailableError(
                f"{self._where[layout.operation]}: sizes on the device need windows, and there are "
                f"none for this call: {self._core.refusal()} ({layout.text})"
            )

    def _run(
        self,
        layout: Layout,
        tensor: torch.Tensor,
        out: torch.Tensor,
        in_place: bool,
        call: CallNumbers,
        sums: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Queues a checked call. With a routing in `call`, rows may be missing from `tensor`.

        `sums` is what `call` says of memory for them, where `out` has no room.
        """
        plan = layout.device_plan
        routed, deterministic, stream = call[3], call[5], call[6]
        if plan is not None:
            address = tensor.data_ptr()
            found = self._core.find(address) if layout.in_bytes else None
            if found is None:
                done = self._core.run_from(plan, address, call)
            else:
                done = self._core.run(plan, found[0], found[1], call)
            if done:
                if found is None:
                    self._place.keep(stream, tensor)  # windows are the group's to keep
                return self._made(layout, out, stream)
            self._require_host_sizes(layout)
            if routed is not None:
                tensor, in_place = self._filled_out(layout, tensor, call), False
        self._core.check()  # an earlier failure, or a peer that is gone
        group, place = self._process_group, self._place
        target = out if sums is None else sums
        try:
            with self._outside(layout, tensor, out, stream):
                self._fallbacks += 1
                fallback.run(group, layout, tensor, target, in_place, deterministic, place)
                if call[7] is not None:
                    assert plan is not None
                    self._core.finish(plan, call)
        except SymmoeError:
            raise
        except RuntimeError as error:
            reason = f"{layout.operation} on rank {self.rank}: the process group failed: {error}"
            self._core.poison(reason)
            raise SymmoeError(f"{reason} ({layout.text})") from error
        return self._made(layout, out, stream)

    def _made(self, layout: Layout, out: torch.Tensor, stream: int) -> torch.Tensor:
        """The output of a queued call."""
        self._place.keep(stream, out)
        if watch.on:
            tags.after(layout, out)
        return out

    def _filled_out(self, layout: Layout, tensor: torch.Tensor, call: CallNumbers) -> torch.Tensor:
        """A copy of rows, with zeros for those that this rank does not hold."""
        stream, code = call[6], WINDOW_TYPES[layout.dtype]
        whole = self._place.empty((layout.rows, layout.hidden), layout.dtype, stream)
        terms = topk.check_terms(
            self._where[layout.operation], tensor, None, None, None, self._place
        )
        numbers = (*call[:4], True, *call[5:])
        assert layout.device_plan is not None
        numbers_of_sum = topk.core_arguments(terms, whole.data_ptr(), code)
        self._core.fill_out(layout.device_plan, numbers_of_sum, numbers)
        self._place.keep(stream, tensor, whole)
        return whole

    def _room_for_sums(self, layout: Layout, steps: Steps, stream: int) -> torch.Tensor | None:
        """Memory for a path that cannot leave its sums in a quantised output; else None."""
        if steps.dtype is layout.dtype:
            return None
        rows, hidden = layout.out_shape
        return self._place.empty((rows, hidden), layout.dtype, stream)

    def _keep_epilogue(
        self, stream: int, epilogue: Epilogue, sums: torch.Tensor | None, *others: torch.Tensor
    ) -> None:
        """Keeps what a call with an epilogue works on; also one that has failed behind its sum."""
        self._place.keep(stream, *others, *(tensor for _, tensor in epilogue.tensors()))
        if sums is not None:
            self._place.keep(stream, sums)
