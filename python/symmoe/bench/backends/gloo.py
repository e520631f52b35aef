"""What torch.distributed offers on a CPU."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from ..backend import Place, PrivateMemory, rewrite
from ..problem import Problem

_DEADLINE = timedelta(seconds=300)


def connect(place: Place) -> None:
    """Makes the default process group, over a file in the shared folder."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{place.folder / 'store'}",
        rank=place.rank,
        world_size=place.world,
        timeout=_DEADLINE,
    )


def disconnect() -> None:
    """Ends the default process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


class GlooReduceScatter(PrivateMemory):
    """`torch.distributed.reduce_scatter_tensor`."""

    name = "gloo"
    pinned = False  # its threads move the data; bound beside them, the calling thread waits longer

    def setup(self) -> None:
        """The default process group."""
        connect(self.place)

    def call(self) -> None:
        """The collective, into the output."""
        dist.reduce_scatter_tensor(self._out, self._rows)

    def close(self) -> None:
        """The process group."""
        disconnect()


class GlooAllReduce(GlooReduceScatter):
    """All-reduce in place, of which a rank uses only its own rows."""

    name = "gloo_allreduce"

    def allocate(self, problem: Problem) -> None:
        """The rows, and a copy of them that the call may destroy."""
        super().allocate(problem)
        self._work = torch.zeros_like(self._rows)
        first = self.place.rank * problem.tokens
        self._out = self._work[first : first + problem.tokens]
        self._collective = problem.mode == "collective"

    def partial(self) -> torch.Tensor:
        """The copy in mode combine, where each call sums into it anew."""
        return self._rows if self._collective else self._work

    def prepare(self) -> None:
        """Restores the rows that the last call destroyed."""
        self._work.copy_(self._rows)
        rewrite(self._work)

    def call(self) -> None:
        """The collective; the output is a slice."""
        dist.all_reduce(self._work)

    def release(self) -> None:
        """Drops the copy too."""
        super().release()
        del self._work
