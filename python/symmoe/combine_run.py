"""A plan's call, step by step: the top-k sum, the transform, the reductions, in the decided order.

Whatever is summed over ranks next is written to the window where there is one: the transform of
summands writes there itself, and adds the shared experts' rows on the way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from . import _core, tags
from .commuting import is_plain
from .device.group import DeviceGroup
from .group import Group
from .places import CPU, Place
from .plans import Layout
from .probing import output_of
from .routing import Routing, check_slots, weights_of
from .topk import topk_reduce


@dataclass(frozen=True)
class Call:
    """The checked arguments of one combine by a plan.

    Attributes:
        where: Begins messages.
        group: The ranks.
        transform: What is applied; None: nothing.
        expert_out: The routed experts' rows, as `Group.combine` takes them.
        topk_weights: Of them.
        index: Of them.
        scale: Factor of their sum.
        routing: Which ranks have anything for which row.
        shared: The shared experts' rows; None: there are none.
        shared_is_partial: Whether those are summands.
        layout: Which rows belong to whom, in the hidden width; None: this rank's rows only.
        sizes: As the group's calls take them.
        padded_to: Likewise.
        lane: Likewise.
        deterministic: Likewise.
        out: Where the result goes, to its first rows.
        masks: What the core makes of the routing, on a CPU.
    """

    where: str
    group: Group | DeviceGroup
    transform: nn.Module | None
    hidden: int
    expert_out: Tensor
    topk_weights: Tensor | None
    index: Tensor | None
    scale: float | None
    routing: Routing | None
    shared: Tensor | None
    shared_is_partial: bool
    layout: Layout | None
    sizes: int | tuple[int, ...] | Tensor | None
    padded_to: int | None
    lane: int
    deterministic: bool
    out: Tensor
    masks: _core.Routing | None

    @property
    def place(self) -> Place:
        """Where tensors are."""
        return self.group._place if isinstance(self.group, DeviceGroup) else CPU

    @property
    def summed(self) -> bool:
        """Whether the kernel has summed over experts and nothing is left to do before a reduce."""
        plain = self.topk_weights is None and self.index is None and self.scale is None
        return plain and self.expert_out.dim() == 2

    def in_order(self) -> contextlib.AbstractContextManager[None]:
        """Inside, what torch does comes behind the group's calls, and theirs behind that.

        As it does anyway where both use torch's current stream; an emulated device has its own.
        """
        if isinstance(self.group, DeviceGroup) and self.expert_out.is_cpu:
            return self.group._place.in_order(self.group._current_stream())
        return contextlib.nullcontext()

    def reduced(self, rows: Tensor, out: Tensor | None, routing: Routing | None = None) -> Tensor:
        """This rank's rows of the sum over ranks. A collective."""
        return self.group.reduce_scatter(
            rows,
            out,
            sizes=self.sizes,
            padded_to=self.padded_to,
            routing=routing,
            lane=self.lane,
            deterministic=self.deterministic,
        )

    def combined(self, out: Tensor | None) -> Tensor:
        """This rank's rows of the routed experts' sum over slots and ranks. A collective."""
        if self.summed:  # perhaps in the window already, where a combine would not take it
            return self.reduced(self.expert_out, out, self.routing)
        return self.group.combine(
            self.expert_out,
            self.topk_weights,
            routing=self.routing,
            out=out,
            index=self.index,
            scale=self.scale,
            sizes=self.sizes,
            padded_to=self.padded_to,
            lane=self.lane,
            deterministic=self.deterministic,
        )

    def own(self, rows: Tensor) -> Tensor:
        """This rank's part of all ranks' rows."""
        assert self.layout is not None
        begin = self.layout.begins[self.group.rank]
        return rows[begin : begin + self.layout.counts[self.group.rank]]


@contextlib.contextmanager
def reporting(group: Group | DeviceGroup, lane: int, awaited: bool = True) -> Iterator[None]:
    """Around what fails on one rank alone: with Config.check the others raise as well.

    `awaited`: whether they wait, in a collective that the call would have made.
    """
    try:
        yield
    except Exception as error:
        if awaited and isinstance(group, Group) and group._checks:
            with contextlib.suppress(Exception):  # such as a closed group: `error` is what counts
                group._report(lane, error)
        raise


def early(call: Call) -> None:
    """Reduces in the latent width, and shared experts' summands by themselves; then transforms."""
    shared = call.shared
    if shared is not None and call.shared_is_partial:
        # First, on all ranks: they may lie in the window that a combine overwrites.
        shared = call.reduced(shared, None)
    rows = call.combined(None)
    shared = None if shared is None else shared[: len(rows)]
    with call.in_order():
        _transformed(call, rows, shared, call.out[: len(rows)])


def late(call: Call) -> None:
    """Transforms summands, adds those of the shared experts, and reduces once in hidden width."""
    partial = call.shared if call.shared_is_partial else None
    if call.transform is None and partial is None:
        call.combined(call.out)
    else:
        with reporting(call.group, call.lane):
            window = _window(call, partial)
            with call.in_order():
                _summands(call, partial, window)
        # Shared experts have something for every row, so the reduce knows nothing of the routing.
        if partial is not None:
            _compare_routing(call)
        call.reduced(window, call.out, call.routing if partial is None else None)
    if call.shared is not None and partial is None:
        with call.in_order():
            call.out[: len(call.shared)] += call.shared


def kept(call: Call, only_own: bool) -> None:
    """Transforms summands and adds the shared experts' rows: nothing is summed over ranks.

    Args:
        call: The call.
        only_own: Whether this rank's rows are wanted, of its own alone: a world of one. Otherwise
            the summands of all.
    """
    shared = call.shared
    with call.in_order():
        rows = _sum_of_slots(call)
        if only_own:
            rows = call.own(rows)
            shared = call.own(shared) if shared is not None and call.shared_is_partial else shared
        _transformed(call, rows, shared, call.out[: len(rows)])


def reduced_already(call: Call, replicated: bool) -> None:
    """Transforms rows that the kernel has reduced; shared experts' summands are reduced here.

    Args:
        call: The call.
        replicated: Whether the kernel gave every rank all rows.
    """
    rows, shared = call.expert_out, call.shared
    if replicated:
        rows = call.own(rows)
    if shared is not None and call.shared_is_partial:
        alone = call.group.world_size == 1
        shared = call.own(shared) if alone else call.reduced(shared, None)
    with call.in_order():
        _transformed(call, rows, shared, call.out[: len(rows)])


def _window(call: Call, shared: Tensor | None) -> Tensor:
    """Memory for all ranks' rows in hidden width: the window, where shared rows may be already."""
    core = call.group._core
    if shared is not None and core is not None and core.find(shared.data_ptr()) is not None:
        return shared
    shape, dtype = (_rows_of(call), call.hidden), call.expert_out.dtype
    window = call.group.acquire("combine", shape, dtype, lane=call.lane)
    if window is None:
        window = torch.empty(shape, dtype=dtype, device=call.expert_out.device)
        tags.put(window, tags.PARTIAL)
    return window


def _compare_routing(call: Call) -> None:
    """Raises MismatchError on all ranks if theirs differ. On devices nothing is compared."""
    group, layout = call.group, call.layout
    if call.masks is None or layout is None or not isinstance(group, Group) or group._core is None:
        return
    text = f"plan, {layout.text} (routing {call.masks.hash:016x})"
    group._core.agree(layout.role, layout.lane, text)


def _rows_of(call: Call) -> int:
    return int(call.expert_out.shape[0] if call.index is None else call.index.shape[0])


def _summands(call: Call, shared: Tensor | None, window: Tensor) -> None:
    """Writes this rank's summands of all rows to the window; the experts' rows may be in it."""
    if call.transform is not None:
        rows = _sum_of_slots(call)
        _transformed(call, rows.clone() if _overlap(rows, window) else rows, shared, window)
        return
    assert shared is not None
    if shared is window:
        window += _sum_of_slots(call)
    elif call.summed and call.routing is None:
        torch.add(call.expert_out, shared, out=window)
    else:
        if _overlap(call.expert_out, window):
            window.copy_(_sum_of_slots(call))
        else:
            _sum_of_slots(call, window)
        window += shared


def _sum_of_slots(call: Call, out: Tensor | None = None) -> Tensor:
    """This rank's part of each token's sum over experts: [rows, latent], in `out` if given.

    With a routing, rows for which this rank has no expert come out as zeros. Rows that the kernel
    has summed are given back as they are, wherever they are.
    """
    if call.summed and call.routing is None:
        return call.expert_out
    expert_out, weights, index = _terms(call)
    if out is None:
        shape = (_rows_of(call), expert_out.shape[-1])
        out = torch.empty(shape, dtype=expert_out.dtype, device=expert_out.device)
    return topk_reduce(expert_out, weights, out=out, index=index, scale=call.scale)


def _terms(call: Call) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Expert output, weights and index of a top-k sum that knows of no routing."""
    expert_out, weights, index, routing = (
        call.expert_out,
        call.topk_weights,
        call.index,
        call.routing,
    )
    if routing is None:
        if index is not None:
            index = torch.where(_owned(call, index), index, -1)
        return expert_out, weights, index
    summed = expert_out.dim() == 2 and index is None
    weights = weights_of(call.where, routing, weights, summed, call.place)
    here = routing.on_rank(call.group.rank)
    if summed:
        here = here.any(1, keepdim=True)
    else:
        slots = expert_out.shape[1] if index is None else index.shape[1]
        check_slots(call.where, routing, slots, summed)
    if index is None:
        index = torch.arange(here.numel(), device=here.device).view(here.shape)
        expert_out = expert_out.reshape(here.numel(), expert_out.shape[-1])
    return expert_out, weights, torch.where(here & _owned(call, here), index, -1)


def _owned(call: Call, like: Tensor) -> Tensor:
    """Which rows are some rank's, [rows, 1]; the others are padding, of which nothing counts.

    Of sizes on a device the host knows nothing: all.
    """
    layout = call.layout
    if layout is None or layout.device_sizes:
        return torch.ones(len(like), 1, dtype=torch.bool, device=like.device)
    owned = torch.zeros(len(like), 1, dtype=torch.bool)
    for begin, count in zip(layout.begins, layout.counts, strict=True):
        owned[begin : begin + count] = True
    return owned.to(like.device)


def _transformed(call: Call, rows: Tensor, added: Tensor | None, target: Tensor) -> None:
    """Writes T(rows) + added to `target`, which may be `added`."""
    module = call.transform
    if type(module) is nn.Linear and is_plain(module):  # in one go, with one rounding
        weight = module.weight.t()
        if added is None:
            torch.mm(rows, weight, out=target)
        else:
            torch.addmm(added, rows, weight, out=target)
        return
    made = rows if module is None else output_of(module, rows)
    if added is None:
        target.copy_(made)
    else:
        torch.add(made, added, out=target)


def _overlap(one: Tensor, other: Tensor) -> bool:
    begin, end = other.data_ptr(), other.data_ptr() + other.nbytes
    return one.data_ptr() < end and begin < one.data_ptr() + one.nbytes
