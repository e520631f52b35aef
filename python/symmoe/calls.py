"""How a group's calls run once their arguments are there: checks, window paths, fallback.

Calls that were made before in the same form take the core's short way (`_core.KnownCalls`), which
looks at the arguments itself; all others, and all wrong ones, come here.
"""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import get_num_threads

from . import _core, fallback, messages, tags
from .arguments import Arguments
from .config import Config
from .cores import Claim
from .decision import PROCESS_GROUP, Shortage, choose
from .epilogue import Epilogue, Steps
from .errors import ClosedError, MismatchError, PoisonedError, SymmoeError
from .observing import watch
from .plans import ALL_GATHER, REDUCE_SCATTER, Layout, Sizes
from .routing import Routing
from .topk import Terms

# A call's output; None: not a known call, nothing was done; False: some rank has no window.
Known: TypeAlias = "torch.Tensor | bool | None"


def _unknown(*_given: object) -> None:
    """In place of the core's known calls, where there can be none."""


class Calls(Arguments):
    """The state of one rank's group, and the way of every call.

    Attributes:
        rank: This rank in the group.
        world_size: Number of ranks.
    """

    __slots__ = (
        "__weakref__",
        "_cap",
        "_cap_reason",
        "_closed",
        "_cores",
        "_failure",
        "_fallbacks",
        "_known_all_gather",
        "_known_combine",
        "_known_reduce_scatter",
        "_obstacle",
        "_pid",
        "_process_group",
        "_release_processors",
        "_shortages",
        "_strict_layout",
        "_timeout",
    )

    def __init__(
        self,
        core: _core.Group | None,
        process_group: dist.ProcessGroup | None,
        rank: int,
        world: int,
        config: Config,
        claim: Claim,
        obstacle: str,
    ) -> None:
        super().__init__(core, rank, world, config.check)
        self._process_group = process_group
        self._cores = len(claim.processors)
        self._release_processors = weakref.finalize(self, claim.release)
        self._release_processors.atexit = False
        self._obstacle = obstacle  # why there are no windows; empty if there are
        self._cap = config.max_buffer_bytes
        self._cap_reason = "Config.max_buffer_bytes, SYMMOE_MAX_BUFFER_BYTES"
        self._shortages: dict[tuple[int, int], Shortage] = {}  # by role and lane
        self._timeout = config.timeout
        self._strict_layout = config.strict_layout
        if config.strict_layout:
            watch.use_tags()
        self._closed = False
        self._failure = ""  # of the process group, where no core remembers it
        self._fallbacks = 0
        self._pid = os.getpid()
        self._known_reduce_scatter: Callable[..., Known] = _unknown
        self._known_all_gather: Callable[..., Known] = _unknown
        self._known_combine: Callable[..., Known] = _unknown
        if self._known is not None and not self._checks:  # with checks, ranks compare them first
            self._known_reduce_scatter = self._known.reduce_scatter
            self._known_all_gather = self._known.all_gather
            self._known_combine = self._known.combine

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
        return min(get_num_threads(), self._cores)

    # --- SYMMOE_CHECK: ranks compare what they are about to do before they do it ------------------
    #
    # Without it, ranks that make different calls in different places wait for each other until the
    # deadline, and so do ranks whose peer has refused its own input. With it all of them raise.

    def _compare(self, lane: int, text: str) -> None:
        """Raises MismatchError on all ranks if they do not all give the same text."""
        text = f"{text} lane={lane}"
        if self._core is not None:
            self._core.check_call(lane, text)
        elif self._process_group is not None:
            with self._poisoning(f"check (lane {lane})"):
                tag = messages.check_tag(lane)
                messages.agree(self._process_group, tag, f"check (lane {lane})", text)

    def _report(self, lane: object, error: Exception) -> None:
        """In place of _compare: the others raise MismatchError, as this rank raises `error`."""
        if isinstance(lane, bool) or not isinstance(lane, int) or not 0 <= lane < _core.MAX_LANES:
            lane = 0  # most likely where the others are
        with contextlib.suppress(MismatchError):
            self._compare(lane, f"raised {type(error).__name__}: {error}")

    def _report_late(self, layout: Layout, error: ValueError) -> None:
        """The same after _compare, when the others are in the call already.

        They wait on the call's channel; a different text there makes them all raise.
        """
        if self._core is not None:
            with contextlib.suppress(MismatchError, ValueError):
                self._core.agree(layout.role, layout.lane, f"raised ValueError: {error}")

    # --- running ----------------------------------------------------------------------------------

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
        known: Known,
        routing: Routing | None = None,
        epilogue: Epilogue | None = None,
    ) -> torch.Tensor:
        """A collective the long way; `known` is what the short way gave, if not its output."""
        if self._core is None or self._closed:
            self._require_usable(operation)
        try:
            layout, in_place, masks, steps = self._prepare(
                operation, tensor, out, sizes, padded_to, lane, stream, routing, epilogue
            )
            if watch.tags:
                tags.before(self._where[operation], operation, tensor, self._strict_layout)
        except (TypeError, ValueError) as error:
            if self._checks:
                self._report(lane, error)
            raise
        if self._checks:
            self._compare(layout.lane, text_of(layout, deterministic, masks))
        try:
            out = self._collect(layout, tensor, out, in_place, deterministic, known, masks, steps)
        except ValueError as error:
            if self._checks:
                self._report_late(layout, error)
            raise
        if watch.on:
            tags.after(layout, out)
        if self._known and not self._checks and layout.plan and layout.in_bytes:
            maker, core = _maker_of(layout, steps), None if steps is None else steps.core
            self._known.remember(
                layout.plan, tensor, out, routing, sizes, padded_to, epilogue, core, maker
            )
        return out

    def _remember_combine(
        self,
        layout: Layout,
        terms: Terms,
        out: torch.Tensor,
        expert_out: torch.Tensor,
        topk_weights: torch.Tensor | None,
        index: torch.Tensor | None,
        routing: Routing | None,
        sizes: Sizes,
        padded_to: int | None,
        epilogue: Epilogue | None,
        steps: Steps | None,
    ) -> None:
        """Lets the next combine of this form go the short way."""
        if routing is not None and terms.weights_at:
            topk_weights = topk_weights if routing.topk_weights is None else routing.topk_weights
        if self._known and not self._checks and layout.plan and layout.in_bytes:
            self._known.remember_combine(
                layout.plan,
                expert_out,
                out,
                topk_weights,
                index,
                routing,
                terms.slots,
                terms.pairs,
                terms.weights_type,
                terms.index_is_64bit,
                sizes,
                padded_to,
                epilogue,
                None if steps is None else steps.core,
                _maker_of(layout, steps),
            )

    def _collect(
        self,
        layout: Layout,
        tensor: torch.Tensor,
        out: torch.Tensor | None,
        in_place: bool,
        deterministic: bool,
        known: Known,
        masks: _core.Routing | None = None,
        steps: Steps | None = None,
    ) -> torch.Tensor:
        """Runs a checked call on the path that fits `tensor`; returns out."""
        if out is None:
            out = _maker_of(layout, steps)()
        core, plan = self._core, layout.plan
        found = self._window_of(layout, tensor)
        path = choose(layout, self._obstacle, found is not None)
        if path == PROCESS_GROUP or core is None or plan is None or known is False:
            self._fall_back(layout, tensor, out, in_place, deterministic, masks, steps)
            return out
        target, threads = out.data_ptr(), self._thread_count()
        reducing = layout.operation == REDUCE_SCATTER
        epilogue = None if steps is None else steps.core
        if found is None:
            source = tensor.data_ptr()
            if reducing:
                done = core.reduce_scatter_staged(plan, source, target, threads, masks, epilogue)
            else:
                done = core.all_gather_staged(plan, source, target, threads)
        elif reducing:
            done = core.reduce_scatter(plan, *found, target, threads, masks, epilogue)
        else:
            done = core.all_gather(plan, *found, target, threads)
        if not done:
            self._fall_back(layout, tensor, out, in_place, deterministic, masks, steps)
        elif self._shortages:
            self._note_success(layout)
        return out

    def _note_success(self, layout: Layout) -> None:
        """Forgets a shortage that a call has shown to be over."""
        shortage = self._shortages.get((layout.role, layout.lane))
        if shortage is not None and shortage.nbytes <= layout.most_bytes:
            del self._shortages[layout.role, layout.lane]

    def _fall_back(
        self,
        layout: Layout,
        tensor: torch.Tensor,
        out: torch.Tensor,
        in_place: bool,
        deterministic: bool,
        masks: _core.Routing | None,
        steps: Steps | None,
    ) -> None:
        """The process group's collective; of a routed call, with zeros where there is nothing.

        The epilogue comes behind it.

        Raises:
            MismatchError: Ranks made different calls; on all of them.
            SymmoeError: The process group failed; this group is poisoned.
        """
        self._fallbacks += 1
        core, process_group = self._core, self._process_group
        text = text_of(layout, deterministic, masks)
        if core is not None:
            if layout.plan is not None:
                own = core.refusal()
                self._shortages[layout.role, layout.lane] = Shortage(
                    layout.most_bytes,
                    f"a rank had no window for {layout.most_bytes} bytes in an earlier call"
                    + (f" (the last refusal here: {own})" if own else ""),
                )
            core.agree(layout.role, layout.lane, f"{text} by the process group")
        rows = layout.out_shape[0]
        target = out if out.shape[0] == rows else out[:rows]
        if steps is not None and steps.dtype is not layout.dtype:
            target = torch.empty(layout.out_shape, dtype=layout.dtype, device="cpu")
        source = tensor if tensor.shape[0] == layout.in_rows else tensor[: layout.in_rows]
        if masks is not None:
            source, in_place = fallback.dense_of(layout, masks, source, self._thread_count()), False
        with self._poisoning(layout.operation, layout.text), torch.inference_mode():
            if core is None and process_group is not None and not self._checks:
                tag = messages.agreement_tag(layout.role, layout.lane)
                what = f"{layout.operation} (lane {layout.lane})"
                messages.agree(process_group, tag, what, text)
            if layout.operation == ALL_GATHER:
                fallback.all_gather(process_group, layout, source, target, in_place)
            else:
                threads = self._thread_count()
                fallback.reduce_scatter(
                    process_group, layout, source, target, in_place, deterministic, threads
                )
        if steps is not None:
            steps.apply(target, out, self._thread_count())

    @contextlib.contextmanager
    def _poisoning(self, operation: str, text: str = "") -> Iterator[None]:
        """Around what the process group does: if that fails, so does this group, for good."""
        try:
            yield
        except MismatchError:
            raise  # every rank saw it in the same place
        except BaseException as error:
            name = str(error) or type(error).__name__
            reason = f"{operation} on rank {self.rank}: the process group failed: {name}"
            self._failure = reason
            if self._core is not None:
                self._core.poison(reason)
            if not isinstance(error, Exception):
                raise
            raise SymmoeError(f"{reason} ({text})" if text else reason) from error


def text_of(layout: Layout, deterministic: bool, masks: _core.Routing | None = None) -> str:
    """What ranks compare of a call that may go through the process group."""
    text = f"{layout.text} deterministic" if deterministic else layout.text
    return text if masks is None else f"{text} (routing {masks.hash:016x})"


def _maker_of(layout: Layout, steps: Steps | None = None) -> Callable[[], torch.Tensor]:
    """What makes an output for a call without one."""
    dtype = layout.dtype if steps is None else steps.dtype
    return functools.partial(torch.empty, layout.out_shape, dtype=dtype, device="cpu")
