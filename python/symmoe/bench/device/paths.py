"""What is timed: the ways from expert output, or from partial rows, to own rows."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

import symmoe
from symmoe import topk
from symmoe.device.group import DeviceGroup
from symmoe.plans import WINDOW_TYPES

from ..pattern import DTYPES, has_rows
from ..problem import Problem
from ..routes import route_of
from . import raw_nccl
from .machine import Machine

NCCL_PATHS = ("direct", "plain", "grouped", "ordered")
OWN_PATHS = ("pull", "fused", "routed")
WAYS = ("direct", *OWN_PATHS, "staged", "plain", "double")
_READER = {"direct": "no_direct"}  # where a group says why a path cannot read its windows


class Inputs:
    """A problem's tensors on the device, the same for all ways.

    Attributes:
        problem: What they are of.
        rows: Partial rows [rows, hidden], never written by a call; None in mode combine.
        experts: Expert output [rows, topk, hidden]; None in mode collective.
        weights: [rows, topk]; None in mode collective.
        index: [rows, topk] where the problem's experts are spread over the ranks: then `experts` is
            [pairs, hidden], and -1 are slots of other ranks.
    """

    def __init__(
        self,
        problem: Problem,
        rows: torch.Tensor | None,
        experts: torch.Tensor | None,
        weights: torch.Tensor | None,
        index: torch.Tensor | None = None,
    ) -> None:
        self.problem = problem
        self.rows = rows
        self.experts = experts
        self.weights = weights
        self.index = index


class Way(ABC):
    """One way. The calls come in this order: allocate; rewrite and call, many times; release.

    Attributes:
        name: For results.
        out: Own rows [tokens, hidden] of the last call.
    """

    name = ""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def unsupported(self) -> str:
        """Why this way cannot be gone here, or ""."""
        return ""

    def serves(self, problem: Problem) -> bool:
        """Whether the way is one for this problem."""
        del problem  # most serve all
        return True

    def allocate(self, inputs: Inputs) -> None:
        """Gets memory for a problem. Collective."""
        self.inputs = inputs
        problem = inputs.problem
        self.shape, self.dtype = (problem.rows, problem.hidden), DTYPES[problem.dtype]
        self.out = torch.zeros(
            problem.tokens, problem.hidden, dtype=self.dtype, device=self.machine.device
        )

    @abstractmethod
    def rewrite(self) -> None:
        """Before a call of mode collective: writes the partial rows where the call wants them."""

    @abstractmethod
    def call(self) -> None:
        """What is timed."""

    def release(self) -> None:
        """Gives the memory back."""
        del self.out, self.inputs

    def close(self) -> None:  # noqa: B027 - most have nothing of their own
        """Ends what the way had for itself."""


class FromWindow(Way):
    """Zero staging: the top-k sum, or whoever makes partial rows, writes the window.

    Args:
        machine: The device.
        group: One that takes no other path than this one.
        name: Of the path.
    """

    def __init__(self, machine: Machine, group: DeviceGroup, name: str = "direct") -> None:
        super().__init__(machine)
        self.name = name
        self._group = group

    def unsupported(self) -> str:
        """Where there are no windows, or nobody to read them like this."""
        facts = self._group.describe()
        return str(facts["no_windows"] or facts[_READER.get(self.name, "no_peers")])

    def serves(self, problem: Problem) -> bool:
        """Without a sum there is nothing to fuse."""
        return self.name != "fused" or problem.mode == "combine"

    def _window(self) -> torch.Tensor:
        window = self._group.acquire("combine", self.shape, self.dtype)
        if window is None:
            raise RuntimeError(f"no window of {self.shape}: {self._group.describe()}")
        return window

    def allocate(self, inputs: Inputs) -> None:
        """The window, by acquiring it."""
        super().allocate(inputs)
        self._window()

    def rewrite(self) -> None:
        """Into the window."""
        assert self.inputs.rows is not None
        self.machine.copy(self._window(), self.inputs.rows)

    def call(self) -> None:
        """Two launches of combine, or one of reduce_scatter."""
        inputs = self.inputs
        if inputs.experts is None:
            self._group.reduce_scatter(self._window(), self.out)
        else:
            self._group.combine(inputs.experts, inputs.weights, index=inputs.index, out=self.out)


class Routed(FromWindow):
    """The same with a routing: rows without an expert here are neither written nor read.

    Each call brings a routing of its own, as each layer of a model does: the kernel that makes its
    masks belongs to what is timed.
    """

    def __init__(self, machine: Machine, group: DeviceGroup) -> None:
        super().__init__(machine, group, "routed")

    def serves(self, problem: Problem) -> bool:
        """Needs experts that are spread over the ranks."""
        return bool(problem.experts)

    def allocate(self, inputs: Inputs) -> None:
        """The window, and ids on the device; rows that nobody may read are NaN."""
        super().allocate(inputs)
        route = route_of(inputs.problem)
        self._ids = route.ids.to(self.machine.device)
        self._ranks = route.expert_to_rank.to(self.machine.device)
        if inputs.rows is not None:
            self._rows = inputs.rows.clone()
            missing = ~has_rows(inputs.problem, self.machine.seat.rank)
            self._rows[missing.to(self._rows.device)] = float("nan")

    def rewrite(self) -> None:
        """Into the window."""
        self.machine.copy(self._window(), self._rows)

    def call(self) -> None:
        """One launch more, for the masks."""
        inputs, routing = self.inputs, symmoe.Routing(self._ids, expert_to_rank=self._ranks)
        if inputs.experts is None:
            self._group.reduce_scatter(self._window(), self.out, routing=routing)
        else:
            self._group.combine(
                inputs.experts, inputs.weights, index=inputs.index, out=self.out, routing=routing
            )


class FromPrivateMemory(Way):
    """Partial rows in ordinary memory: staged by a group with windows, else ordinary NCCL."""

    def __init__(self, machine: Machine, group: DeviceGroup, name: str) -> None:
        super().__init__(machine)
        self.name = name
        self._group = group

    def unsupported(self) -> str:
        """Staging needs a window to copy into."""
        facts = self._group.describe()
        return str(facts["no_windows"] or facts["no_direct"]) if self.name == "staged" else ""

    def allocate(self, inputs: Inputs) -> None:
        """An ordinary tensor; a call makes the window that it is staged in."""
        super().allocate(inputs)
        self.private = torch.zeros(self.shape, dtype=self.dtype, device=self.machine.device)
        self._group.reduce_scatter(self.private, self.out)

    def rewrite(self) -> None:
        """Into the ordinary tensor."""
        assert self.inputs.rows is not None
        self.machine.copy(self.private, self.inputs.rows)

    def call(self) -> None:
        """The top-k sum where asked for, then reduce_scatter."""
        topk_sum(self._group, self.inputs, self.private, self.machine.stream())
        self._group.reduce_scatter(self.private, self.out)

    def release(self) -> None:
        """Both tensors."""
        super().release()
        del self.private


class DoublyStaged(Way):
    """As older engines do it: private memory, a copy in, from window to window, a copy out.

    Four launches with the top-k sum. Both buffers are registered, so that NCCL is at its best.
    """

    name = "double"

    def __init__(self, machine: Machine, group: DeviceGroup) -> None:
        super().__init__(machine)
        self._group = group
        described = group.describe()
        self._refusal = str(described["no_windows"] or described["no_direct"])
        if not self._refusal:
            self._comm = raw_nccl.RawCommunicator(str(described["nccl_path"]))

    def unsupported(self) -> str:
        """Where NCCL registers nothing."""
        return self._refusal

    def allocate(self, inputs: Inputs) -> None:
        """Ordinary rows, and both registered buffers."""
        super().allocate(inputs)
        self.private = torch.zeros(self.shape, dtype=self.dtype, device=self.machine.device)
        self._send = raw_nccl.RegisteredMemory(self._comm, self.private.nbytes)
        self._receive = raw_nccl.RegisteredMemory(self._comm, self.out.nbytes)
        self._sent = self._tensor(self._send, self.private)
        self._received = self._tensor(self._receive, self.out)

    def _tensor(self, memory: raw_nccl.RegisteredMemory, like: torch.Tensor) -> torch.Tensor:
        flat = self.machine.at(memory.address, memory.nbytes)
        return flat.view(like.dtype).view(like.shape)

    def rewrite(self) -> None:
        """Into the ordinary tensor."""
        assert self.inputs.rows is not None
        self.machine.copy(self.private, self.inputs.rows)

    def call(self) -> None:
        """Top-k sum, copy, reduce-scatter, copy."""
        stream = self.machine.stream()
        topk_sum(self._group, self.inputs, self.private, stream)
        self.machine.copy(self._sent, self.private)
        self._comm.reduce_scatter(
            self._send.address,
            self._receive.address,
            self.out.numel(),
            raw_nccl.DTYPES[self.inputs.problem.dtype],
            stream,
        )
        self.machine.copy(self.out, self._received)

    def release(self) -> None:
        """All of it, once the device is done. Collective."""
        self.machine.synchronize()
        del self._sent, self._received
        self._send.free()
        self._receive.free()
        super().release()
        del self.private

    def close(self) -> None:
        """The communicator."""
        if not self._refusal:
            self._comm.close()


def topk_sum(group: DeviceGroup, inputs: Inputs, target: torch.Tensor, stream: int) -> None:
    """Queues the top-k sum of the expert output into `target`; nothing in mode collective."""
    if inputs.experts is None:
        return
    terms = topk.check_terms(
        "bench", inputs.experts, inputs.weights, inputs.index, None, group._place
    )
    code = WINDOW_TYPES[target.dtype]
    group._core.topk_reduce(*topk.core_arguments(terms, target.data_ptr(), code), stream)


def all_ways(
    machine: Machine, group: DeviceGroup, plain: DeviceGroup, own: dict[str, DeviceGroup]
) -> list[Way]:
    """Every way. Collective.

    Args:
        machine: The device.
        group: With windows that NCCL reads.
        plain: Without windows.
        own: By path, groups that take only that one, by an own kernel.
    """
    return [
        FromWindow(machine, group),
        *(
            Routed(machine, each) if path == "routed" else FromWindow(machine, each, path)
            for path, each in own.items()
        ),
        FromPrivateMemory(machine, group, "staged"),
        FromPrivateMemory(machine, plain, "plain"),
        DoublyStaged(machine, group),
    ]
