"""What a path must offer to be timed, and how paths are found by name."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from symmoe._core import measure

from .errors import BenchError
from .pattern import DTYPES
from .problem import Problem
from .routes import dense_traffic


@dataclass(frozen=True)
class Place:
    """Where a backend runs.

    Attributes:
        rank: This process's rank.
        world: Number of ranks.
        folder: An empty folder that all ranks of the backend see, for meeting each other.
        run_id: A name that no other run on this machine has.
    """

    rank: int
    world: int
    folder: Path
    run_id: str


class Backend:
    """A way to reduce and scatter partial rows, in one process per rank.

    The calls come in this order: setup; then, for each problem, allocate, the calls that are
    timed, release; at the end close. All ranks make the same calls. Your own collective is timed
    beside the others if you put a subclass into a file and give `--backend-file FILE`.

    Attributes:
        name: The name of the path, for `--paths` and in results.
        spins_idle: Set it if threads of this backend use the processor between calls: its
            processes are then stopped while others have their turn.
        pinned: Whether its ranks are bound to processors. Not where the library's own threads do
            the work and it is faster unbound.
        exchanges: Whether the output is summed over ranks.
        routes: Whether it knows the problem's experts, so that rows for which a rank has none may
            hold anything.
    """

    name = ""
    spins_idle = False
    pinned = True
    exchanges = True
    routes = False

    def __init__(self, place: Place) -> None:
        self.place = place

    def setup(self) -> None:
        """Connects the ranks."""

    def unsupported(self, problem: Problem) -> str:
        """Why this path cannot do the problem, or "". The same on every rank."""
        del problem
        return ""

    def allocate(self, problem: Problem) -> None:
        """Gets memory for a problem: partial rows [rows, hidden] and own rows [tokens, hidden]."""
        raise NotImplementedError

    def partial(self) -> torch.Tensor:
        """Where the partial rows are to be written. Untimed; called before every call."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Untimed, before every call of mode collective: the partial rows are written anew.

        Every cache line becomes dirty in this rank's processor, as if an expert kernel had just
        written the rows; the values stay. Override it where a call destroys its input.
        """
        rewrite(self.partial())

    def call(self) -> None:
        """Timed in mode collective: partial rows to own rows."""
        raise NotImplementedError

    def combine(
        self, experts: torch.Tensor, weights: torch.Tensor, index: torch.Tensor | None = None
    ) -> None:
        """Timed in mode combine: expert output to own rows.

        That is [rows, topk, hidden] or, where experts are spread over the ranks, [pairs, hidden]
        with an index [rows, topk].
        """
        import symmoe

        symmoe.topk_reduce(experts, weights, index=index, out=self.partial())
        self.call()

    def moved(self, problem: Problem) -> int:
        """Bytes of rows that this rank reads and writes in a call, as `routes.Traffic` counts."""
        rows = dense_traffic(problem).rows
        return rows * problem.hidden * problem.element_bytes // problem.ranks

    def output(self) -> torch.Tensor:
        """The own rows of the last call, [tokens, hidden]."""
        raise NotImplementedError

    def release(self) -> None:
        """Gives back what allocate took."""

    def close(self) -> None:
        """Ends the connection."""


class PrivateMemory(Backend):
    """Base of backends whose partial rows and output are ordinary tensors."""

    def allocate(self, problem: Problem) -> None:
        """Both tensors, fully populated."""
        dtype = DTYPES[problem.dtype]
        self._rows = torch.zeros(problem.rows, problem.hidden, dtype=dtype)
        self._out = torch.zeros(problem.tokens, problem.hidden, dtype=dtype)

    def partial(self) -> torch.Tensor:
        """The ordinary tensor."""
        return self._rows

    def output(self) -> torch.Tensor:
        """The ordinary tensor."""
        return self._out

    def release(self) -> None:
        """Drops both."""
        del self._rows, self._out


def rewrite(tensor: torch.Tensor) -> None:
    """Makes every cache line of a contiguous tensor dirty here; values stay."""
    measure.rewrite(tensor.data_ptr(), tensor.numel() * tensor.element_size())


# Where the built-in paths live: module and class. Loaded only in the worker that runs them.
BUILT_IN = {
    "pull": ("symmoe_paths", "Pull"),
    "staged": ("symmoe_paths", "Staged"),
    "routed": ("symmoe_paths", "Routed"),
    "topk": ("symmoe_paths", "TopkAlone"),
    "gloo": ("gloo", "GlooReduceScatter"),
    "gloo_allreduce": ("gloo", "GlooAllReduce"),
    "intel_mpi": ("mpi", "IntelMpi"),
    "mpich": ("mpi", "Mpich"),
    "openmpi": ("mpi", "OpenMpi"),
    "oneccl": ("oneccl", "OneCcl"),
}

# Those that need a problem whose experts are spread over the ranks.
ROUTED_PATHS = frozenset({"routed"})


def load(name: str, files: list[Path]) -> Callable[[Place], Backend]:
    """The backend class of that name, from the given files or the built-in ones.

    Raises:
        BenchError: There is none.
    """
    for file in files:
        for candidate in load_file(file):
            if candidate.name == name:
                return candidate
    if name not in BUILT_IN:
        raise BenchError(f"no path '{name}'; known: {', '.join(BUILT_IN)}")
    module, cls = BUILT_IN[name]
    found: type[Backend] = getattr(importlib.import_module(f"{__package__}.backends.{module}"), cls)
    return found


def load_file(file: Path) -> list[type[Backend]]:
    """The backend classes that a file defines.

    Raises:
        BenchError: The file cannot be loaded or has none.
    """
    spec = importlib.util.spec_from_file_location(f"bench_backend_{file.stem}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise BenchError(f"{file}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Backend)
        and value.__module__ == module.__name__
        and value.name
    ]
    if not found:
        raise BenchError(f"{file}: defines no subclass of symmoe.bench.Backend with a name")
    return found
