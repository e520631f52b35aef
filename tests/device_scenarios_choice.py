"""Scenario of the selector: ranks that differ in all they may differ in take the same path."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist

from device_lab import Lab, barrier
from device_scenarios import check_sum
from reference import noise, own_rows
from symmoe import Config

HIDDEN = 512
OWN = ("pull", "fused", "routed", "grouped", "ordered")
ALL = ("direct", "plain", *OWN)
IN_RANK_ORDER = {"pull", "fused", "routed", "ordered", "local"}
LARGE = 1 << 13  # rows of a rank; only asked about, never moved


def agreed(path: str, world: int) -> str:
    """The path, which is the same on all ranks."""
    paths: list[Any] = [path]
    if world > 1:
        paths = [None] * world
        dist.all_gather_object(paths, path)
    assert paths == [path] * world
    return path


class Noise:
    """What is different on each rank, though the call is the same."""

    def __init__(self, lab: Lab, rank: int) -> None:
        self.lab = lab
        self.chance = random.Random(1000 + rank)
        self.held: list[torch.Tensor] = []

    def before_call(self) -> None:
        """Memory taken, a stream that is busy."""
        self.held.append(torch.empty(self.chance.randrange(1, 1 << 16)))
        if self.chance.random() < 0.3:
            self.lab.slow(0.002)

    def rows(self, values: torch.Tensor) -> torch.Tensor:
        """A copy at some boundary."""
        size, shift = values.numel(), self.chance.choice([0, 1, 3, 8])
        memory = self.lab.tensor(torch.zeros(size + shift, dtype=values.dtype))
        placed = memory[shift:].view(values.shape)
        placed.copy_(self.lab.tensor(values))
        return placed

    def out(self, rows: int, dtype: torch.dtype) -> torch.Tensor | None:
        """None, or memory at some boundary, with room to spare or not."""
        if self.chance.random() < 0.3:
            return None
        spare = self.chance.choice([0, 2])
        return self.rows(torch.zeros(rows + spare, HIDDEN, dtype=dtype))


def same_choice(lab: Lab, rank: int, world: int, own_only: bool) -> None:
    """The same path, whatever a rank's input, output, alignment, streams and load are.

    With NCCL's paths the input lies in a window on all ranks or on none, as they demand; own
    kernels do not care.
    """
    chance = random.Random(7)  # the same on all ranks
    local = Noise(lab, rank)
    taken: set[str] = set()
    with lab.init(Config(paths=OWN if own_only else ALL)) as group:
        # Growth is collective, and ranks take windows here as they like.
        assert group.reserve(64 * world, HIDDEN, torch.float32, lanes=2)
        stream = lab.stream()
        for number in range(8 if world > 4 else 20):
            dtype = chance.choice([torch.bfloat16, torch.float16, torch.float32])
            sizes = chance.choice([[2] * world, [2 * r + 1 for r in range(world)], [64] * world])
            options: dict[str, Any] = {
                "sizes": sizes,
                "padded_to": chance.choice([None, max(sizes)]),
                "deterministic": chance.random() < 0.5,
                "lane": number % 2,
            }
            rows = sum(sizes) if options["padded_to"] is None else max(sizes) * world
            in_window = chance.random() < 0.5
            if own_only:
                in_window = local.chance.random() < 0.5
            given = [noise(100 * number + r, (rows, HIDDEN), dtype) for r in range(world)]
            parts = [part[own_rows(sizes, rank, options["padded_to"])] for part in given]
            reducing = chance.random() < 0.6
            local.before_call()
            with lab.use(stream):
                if reducing and in_window:
                    source = group.acquire("combine", (rows, HIDDEN), dtype, lane=options["lane"])
                    assert source is not None
                    lab.put(source, lab.tensor(given[rank]))
                else:
                    source = local.rows(given[rank])
                operation = "reduce_scatter" if reducing else "combine"
                out = local.out(sizes[rank], dtype)
                path = agreed(group.explain(operation, source, out=out, **options).path, world)
                before = group.stats()[f"calls_{path}"]
                found = getattr(group, operation)(source, out=out, **options)
                assert group.stats()[f"calls_{path}"] == before + 1, path
            check_sum(lab.host(found)[: sizes[rank]], parts, path in IN_RANK_ORDER)
            taken.add(path)
            # As large as no emulator moves: what would be taken is the same everywhere too.
            large = torch.empty(LARGE * world, HIDDEN, dtype=dtype, device=lab.device)
            taken.add(agreed(group.explain("reduce_scatter", large).path, world))
            stats = group.stats()
            agreed(str({name: stats[name] for name in stats if is_path(name)}), world)
        assert world == 1 or {"pull", "fused"} <= taken, taken
        assert world == 1 or own_only or {"direct"} <= taken, taken
    barrier()


def is_path(name: str) -> bool:
    """Whether a statistic counts calls of a path; staging is each rank's own affair."""
    return name.startswith("calls_") and "staged" not in name
