"""How a group's calls run once their arguments are there: checks, window paths, fallback.

`Group` adds the public methods, and the short cut for tensors that it handed out itself.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch
import torch.distributed as dist

from . import _core, check, fallback, topk
from .config import Config
from .errors import ClosedError, MismatchError, PoisonedError, SymmoeError
from .plans import (
    ALL_GATHER,
    REDUCE_SCATTER,
    Layout,
    Sizes,
    check_input,
    check_lane,
    check_output,
    check_overlap,
    check_stream,
    is_plain,
    make_layout,
    sizes_key,
)
from .views import MAX_LAYOUTS, View, ViewCache


class Calls:
    """The state of one rank's group, and the way of every call.

    Attributes:
        rank: This rank in the group.
        world_size: Number of ranks.
    """

    __slots__ = (
        "__weakref__",
        "_by_key",
        "_cap",
        "_cap_reason",
        "_checks",
        "_closed",
        "_combine_views",
        "_core",
        "_core_gather",
        "_core_rearm",
        "_core_reduce",
        "_cores",
        "_dispatch_views",
        "_failure",
        "_fallbacks",
        "_layouts",
        "_obstacle",
        "_pid",
        "_process_group",
        "_threads",
        "_views",
        "_where",
        "rank",
        "world_size",
    )

    def __init__(
        self,
        core: _core.Group | None,
        process_group: dist.ProcessGroup | None,
        rank: int,
        world: int,
        config: Config,
        cores: int,
        obstacle: str,
    ) -> None:
        self.rank = rank
        self.world_size = world
        self._where = {
            name: f"{name} on rank {rank}" for name in (REDUCE_SCATTER, ALL_GATHER, "combine")
        }
        self._core = core
        self._process_group = process_group
        self._cores = cores
        self._threads = 1 if cores == 1 else 0  # 0: ask torch in every call
        self._obstacle = obstacle  # why there are no windows; empty if there are
        self._cap = config.max_buffer_bytes or 0
        self._cap_reason = "Config.max_buffer_bytes, SYMMOE_MAX_BUFFER_BYTES"
        self._checks = config.check
        self._closed = False
        self._failure = ""  # of the process group, where no core remembers it
        self._fallbacks = 0
        self._pid = os.getpid()
        self._layouts: dict[Any, Layout] = {}
        # With checks on, every call goes the long way.
        self._views = ViewCache(("combine", "dispatch"), find_by_id=not config.check)
        self._by_key = self._views.by_key
        self._combine_views = self._views.by_id["combine"]
        self._dispatch_views = self._views.by_id["dispatch"]
        if core is not None:
            self._core_rearm = core.rearm
            self._core_reduce = core.reduce_scatter
            self._core_gather = core.all_gather

    def _require_usable(self, operation: str) -> None:
        """Raises ClosedError or PoisonedError if no call can be made any more.

        With a core, that notices forks and failures itself.
        """
        if self._core is not None and not self._closed:
            return
        where = f"{operation} on rank {self.rank}"
        if self._closed:
            raise ClosedError(f"{where}: the group is closed")
        if os.getpid() != self._pid:
            raise ClosedError(
                f"{where}: this process is a fork of the one that made the group; make a new group"
            )
        if self._failure:
            raise PoisonedError(f"{where}: an earlier call failed: {self._failure}")

    def _thread_count(self) -> int:
        return min(torch.get_num_threads(), self._cores)

    # --- checks -----------------------------------------------------------------------------------

    def _layout(
        self,
        operation: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        sizes: Sizes,
        padded_to: int | None,
        lane: int,
    ) -> Layout:
        try:
            kind = sizes_key(sizes)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self._where[operation]}: {error}") from None
        key = (operation, shape, dtype, lane, kind, padded_to)
        layout = self._layouts.get(key)
        if layout is None:
            lane = check_lane(self._where[operation], lane)
            layout = make_layout(
                operation, dtype, tuple(shape), kind, padded_to, lane, self.rank, self.world_size
            )
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            self._layouts[key] = layout
        return layout

    def _view_layout(
        self, view: View, operation: str, sizes: Sizes, padded_to: int | None
    ) -> Layout:
        """The layout of a call on a view; remembered there."""
        tensor = view.tensor
        layout = self._layout(operation, tensor.shape, tensor.dtype, sizes, padded_to, view.lane)
        if sizes is None and padded_to is None:
            view.even = layout
        else:
            if len(view.layouts) >= MAX_LAYOUTS:
                view.layouts.clear()
            view.layouts[sizes_key(sizes), padded_to] = layout
        return layout

    def _prepare(
        self,
        operation: str,
        tensor: torch.Tensor,
        out: torch.Tensor | None,
        sizes: Sizes,
        padded_to: int | None,
        lane: int,
        stream: object | None,
    ) -> tuple[Layout, bool]:
        """The call's layout, and whether it works in place; raises on any wrong argument."""
        if stream is not None:
            check_stream(self._where[operation], stream)
        if not is_plain(tensor) or tensor.requires_grad:
            check_input(self._where[operation], "input", tensor)
        layout = self._layout(operation, tensor.shape, tensor.dtype, sizes, padded_to, lane)
        if out is None:
            return layout, False
        self._check_output(layout, out)
        address, target = tensor.data_ptr(), out.data_ptr()
        if target + layout.out_bytes <= address or address + layout.in_bytes <= target:
            return layout, False
        return layout, check_overlap(self._where[operation], tensor, out, layout)

    def _check_output(self, layout: Layout, out: torch.Tensor) -> None:
        """Raises unless `out` can take the call's result.

        It may not lie in a window either; the core refuses that by itself, but not in front of a
        fallback, and too late to be compared.
        """
        core_refuses = layout.plan is not None and not self._checks
        if (
            core_refuses
            and is_plain(out)
            and out.shape == layout.out_shape
            and out.dtype is layout.dtype
        ):
            return
        where = self._where[layout.operation]
        check_output(where, out, layout.dtype, layout.out_shape)
        if core_refuses or self._core is None or not layout.out_bytes:
            return
        if self._core.overlaps(out.data_ptr(), layout.out_bytes):
            raise ValueError(
                f"{where}: out overlaps a window; it must be the caller's memory ({layout.text})"
            )

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
    ) -> tuple[topk.Terms, Layout]:
        """What combine works on; raises on any wrong argument."""
        where = self._where["combine"]
        if stream is not None:
            check_stream(where, stream)
        terms = topk.check_terms(where, expert_out, topk_weights, index, scale)
        shape = (terms.tokens, terms.hidden)
        layout = self._layout(REDUCE_SCATTER, shape, terms.dtype, sizes, padded_to, lane)
        if self._checks and index is not None and index.numel():
            # Otherwise only the kernel looks, when the others have begun the collective.
            low, high = index.aminmax()
            if low < -1 or high >= terms.pairs:
                raise ValueError(f"{where}: index has {low}..{high}, allowed -1..{terms.pairs - 1}")
        if out is not None:
            self._check_output(layout, out)
            topk.check_apart(where, terms, out.data_ptr(), layout.out_bytes)
        return terms, layout

    def _in_window(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in a window of this rank."""
        if self._core is None:
            return False
        if tensor.numel() == 0:
            return id(tensor) in self._combine_views or id(tensor) in self._dispatch_views
        return self._core.find(tensor.data_ptr()) is not None

    def _compare(self, layout: Layout, deterministic: bool) -> None:
        """With checks on: raises MismatchError on all ranks if they do different things."""
        text = f"{layout.text} deterministic" if deterministic else layout.text
        check.compare(self._core, self._process_group, self.rank, layout.lane, text)

    def _report(self, lane: object, error: Exception) -> None:
        """With checks on: lets the others know, in place of _compare, that this rank raises."""
        check.report(self._core, self._process_group, self.rank, lane, error)

    def _report_late(self, layout: Layout, error: ValueError) -> None:
        """With checks on: the same after _compare, when the others are in the call already.

        They wait on the call's channel; a different text there makes them all raise.
        """
        if self._core is not None:
            with contextlib.suppress(MismatchError, ValueError):
                self._core.agree(layout.role, layout.lane, f"raised ValueError: {error}")

    # --- running ----------------------------------------------------------------------------------

    def _collect(
        self,
        layout: Layout,
        tensor: torch.Tensor,
        out: torch.Tensor | None,
        in_place: bool,
        deterministic: bool,
    ) -> torch.Tensor:
        """Runs a checked call on the path that fits `tensor`; returns out."""
        if out is None:
            out = torch.empty(layout.out_shape, dtype=layout.dtype, device="cpu")
        core, plan = self._core, layout.plan
        if core is not None and plan is not None:
            address, target = tensor.data_ptr(), out.data_ptr()
            threads = self._threads or self._thread_count()
            found = core.find(address) if layout.in_bytes else None
            if layout.operation == REDUCE_SCATTER:
                if found is None:
                    done = core.reduce_scatter_staged(plan, address, target, threads)
                else:
                    done = core.reduce_scatter(plan, found[0], found[1], target, threads)
            elif found is None:
                done = core.all_gather_staged(plan, address, target, threads)
            else:
                done = core.all_gather(plan, found[0], found[1], target, threads)
            if done:
                return out
        self._fall_back(layout, tensor, out, in_place, deterministic)
        return out

    def _fall_back(
        self,
        layout: Layout,
        tensor: torch.Tensor,
        out: torch.Tensor,
        in_place: bool,
        deterministic: bool,
    ) -> None:
        """The process group's collective.

        Raises:
            MismatchError: Ranks made different calls; on all of them.
            SymmoeError: The process group failed; this group is poisoned.
        """
        self._fallbacks += 1
        if self._core is not None:
            text = f"{layout.text} deterministic" if deterministic else layout.text
            self._core.agree(layout.role, layout.lane, f"{text} by the process group")
        rows = layout.out_shape[0]
        target = out if out.shape[0] == rows else out[:rows]
        source = tensor if tensor.shape[0] == layout.in_rows else tensor[: layout.in_rows]
        try:
            with torch.no_grad():
                if layout.operation == ALL_GATHER:
                    fallback.all_gather(self._process_group, layout, source, target, in_place)
                else:
                    fallback.reduce_scatter(
                        self._process_group,
                        layout,
                        source,
                        target,
                        in_place,
                        deterministic,
                        self._threads or self._thread_count(),
                    )
        except Exception as error:
            reason = f"{layout.operation} on rank {self.rank}: the process group failed: {error}"
            self._failure = reason
            if self._core is not None:
                self._core.poison(reason)
            raise SymmoeError(f"{reason} ({layout.text})") from error
