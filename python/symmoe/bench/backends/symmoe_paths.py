"""symmoe itself, through its public Python API."""

from __future__ import annotations

import torch

import symmoe
from symmoe import _core

from ..backend import Backend, Place, PrivateMemory
from ..errors import BenchError
from ..pattern import DTYPES
from ..problem import Problem
from ..routes import route_of
from .gloo import connect, disconnect


class _Symmoe(PrivateMemory):
    """Owns the group; the partial rows are in ordinary memory unless a subclass says otherwise."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._group: symmoe.Group | None = None

    @property
    def group(self) -> symmoe.Group:
        """The group, once setup was called."""
        assert self._group is not None
        return self._group

    def setup(self) -> None:
        """A gloo process group, and symmoe's group from it."""
        connect(self.place)
        self._group = symmoe.init(device="cpu")

    def _insist(self, path: str, rows: torch.Tensor) -> None:
        """Raises unless this path would be taken: a fallback must not be timed under its name."""
        decision = self.group.explain("reduce_scatter", rows, self._out)
        if decision.path != path:
            raise BenchError(f"path {decision.path} instead of {path}: {decision.reason}")

    def close(self) -> None:
        """Both groups."""
        if self._group is not None:
            self._group.close()
        disconnect()


class Pull(_Symmoe):
    """Zero staging: the partial rows are written into the window."""

    name = "pull"

    def allocate(self, problem: Problem) -> None:
        """The window, sized once, and the output."""
        self._shape = (problem.rows, problem.hidden)
        self._dtype = DTYPES[problem.dtype]
        self._out = torch.zeros(problem.tokens, problem.hidden, dtype=self._dtype)
        self._insist("pull", self.partial())

    def partial(self) -> torch.Tensor:
        """The window."""
        window = self.group.acquire("combine", self._shape, self._dtype)
        if window is None:
            raise BenchError(f"no window of {self._shape} {self._dtype}")
        return window

    def call(self) -> None:
        """Acquires again (the window was acquired to be written, so this is the cached view)."""
        window = self.group.acquire("combine", self._shape, self._dtype)
        assert window is not None
        self.group.reduce_scatter(window, self._out)

    def combine(
        self, experts: torch.Tensor, weights: torch.Tensor, index: torch.Tensor | None = None
    ) -> None:
        """The one call that a model makes."""
        self.group.combine(experts, weights, index=index, out=self._out)

    def release(self) -> None:
        """Drops the output; the window stays in the pool, as in a model."""
        del self._out


class Routed(Pull):
    """The same, and the routing says which rows there are: only those are written and read."""

    name = "routed"
    routes = True

    def unsupported(self, problem: Problem) -> str:
        """Needs experts that are spread over the ranks."""
        return "" if problem.experts else "the experts of this problem are on all ranks"

    def allocate(self, problem: Problem) -> None:
        """The window, the output and the routing."""
        route = route_of(problem)
        self._routing = symmoe.Routing(route.ids, expert_to_rank=route.expert_to_rank)
        self._shape = (problem.rows, problem.hidden)
        self._dtype = DTYPES[problem.dtype]
        self._out = torch.zeros(problem.tokens, problem.hidden, dtype=self._dtype)
        decision = self.group.explain("reduce_scatter", self.partial(), routing=self._routing)
        if decision.path != "routed":
            raise BenchError(f"path {decision.path} instead of routed: {decision.reason}")

    def call(self) -> None:
        """As pull's, with the routing."""
        window = self.group.acquire("combine", self._shape, self._dtype)
        assert window is not None
        self.group.reduce_scatter(window, self._out, routing=self._routing)

    def combine(
        self, experts: torch.Tensor, weights: torch.Tensor, index: torch.Tensor | None = None
    ) -> None:
        """The one call that a model makes."""
        self.group.combine(experts, weights, index=index, out=self._out, routing=self._routing)

    def moved(self, problem: Problem) -> int:
        """Counted from the masks by which the calls go."""
        rank, rows = self.place.rank, self._shape[0]
        begins = [r * problem.tokens for r in range(problem.ranks)]
        counts = [problem.tokens] * problem.ranks
        ids, experts = self._routing.topk_ids, self._routing.expert_to_rank
        masks = _core.Routing(
            *(rows, begins, counts, ids.data_ptr(), False, ids.shape[1]),
            *(experts.data_ptr(), experts.shape[0]),
        )
        moved = masks.rows_read(begins[rank], problem.tokens) + problem.tokens
        if problem.mode == "combine":
            moved += int(route_of(problem).slots_on(rank).sum()) + masks.rows_written(rank)
        return moved * problem.hidden * problem.element_bytes

    def release(self) -> None:
        """Drops the routing too."""
        super().release()
        del self._routing


class Staged(_Symmoe):
    """What a caller gets who does not acquire: the rows are copied into a window first."""

    name = "staged"

    def allocate(self, problem: Problem) -> None:
        """Ordinary tensors."""
        super().allocate(problem)
        self._insist("staged", self._rows)

    def call(self) -> None:
        """An unregistered tensor, reduced."""
        self.group.reduce_scatter(self._rows, self._out)


class TopkAlone(Backend):
    """The top-k sum into ordinary memory: what combine spends before anything is exchanged."""

    name = "topk"
    exchanges = False

    def unsupported(self, problem: Problem) -> str:
        """There is no top-k sum in mode collective."""
        return "it sums experts, not ranks" if problem.mode == "collective" else ""

    def allocate(self, problem: Problem) -> None:
        """The result, [rows, hidden]."""
        self._problem = problem
        self._rows = torch.zeros(problem.rows, problem.hidden, dtype=DTYPES[problem.dtype])

    def partial(self) -> torch.Tensor:
        """The result."""
        return self._rows

    def combine(
        self, experts: torch.Tensor, weights: torch.Tensor, index: torch.Tensor | None = None
    ) -> None:
        """Only the sum."""
        symmoe.topk_reduce(experts, weights, index=index, out=self._rows)

    def output(self) -> torch.Tensor:
        """All rows that this rank summed."""
        return self._rows

    def release(self) -> None:
        """Drops the result."""
        del self._rows
