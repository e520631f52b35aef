"""What the end of a draft head costs: one all-gather of H beside all-gather of 2H and all-reduce.

    python bench/mtp.py [--ranks 2,4] [--hidden 6144,4096,1024] [--tokens 64,256,1024]

Each way ends with residual and hidden rows added up and normed, all ranks' rows on all ranks, bf16.
Where the rows were made of each rank's own tokens (own), they are added to the residual and normed
there, and gathered. Where the ranks made summands of all rows (split), hidden rows and residual
were gathered in front of that (2H), the summands are all-reduced, and all rows normed everywhere.

    shard         own: apply_epilogue into the dispatch window, all_gather(H)
    split         split: all_gather(2H), reduce_scatter(H) + all_gather(H), torch: add, rms_norm
    split_kernel  the same with apply_epilogue instead of torch's operations
    gloo_shard    as shard, by torch: add_, rms_norm, all_gather_into_tensor
    gloo_split    as split, by torch: all_gather_into_tensor, all_reduce, add, rms_norm

and with the summands of a layer in front of it, which are reduced first:

    layer         rs_norm_ag(H)
    layer_split   reduce_scatter(H), then as split

What symmoe's ways send lies in windows before, and where it is gathered behind it: nothing is
staged. Measured as `turns.py` says; gloo's ways are timed less often. shard, split_kernel and layer
must give the same bits, all others the same within roundings; the exit code says whether they did
and whether shard kept to the bar in every row.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from turns import Row, make_parser, run, write_json

import symmoe
from symmoe._core import measure

BAR = 2.5  # split's time to shard's, at least
DTYPE = torch.bfloat16
EPS = 1e-6
RATIOS = (
    ("split", "shard"),
    ("split_kernel", "shard"),
    ("gloo_shard", "shard"),
    ("gloo_split", "shard"),
    ("layer_split", "layer"),
)
# torch 2.13 renames it.
gloo_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
SPLIT_LANE = 1  # its windows are others than those of the gather and the layer in front of it


class MtpCase:
    """One rank's memory for one shape, and the ways to all rows' sum and norm."""

    slow = ("gloo_shard", "gloo_split")

    def __init__(self, group: symmoe.Group, tokens: int, hidden: int) -> None:
        generator = torch.Generator().manual_seed(group.rank)

        def noise(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(DTYPE)

        rows = tokens * group.world_size
        self.group, self.own = group, slice(group.rank * tokens, (group.rank + 1) * tokens)
        self.shape, self.wide, self.hidden = (rows, hidden), (rows, 2 * hidden), hidden
        self.partial, self.first_residual = noise(rows, hidden), noise(tokens, hidden)
        self.weight = torch.ones(hidden, dtype=DTYPE)
        self.made = group.reduce_scatter(self.partial)  # what a whole network makes of own rows
        self.residual = self.first_residual.clone()
        self.epilogue = symmoe.Epilogue(residual=self.residual, norm_weight=self.weight, eps=EPS)
        # Private memory, where the ways need any: new tensors would cost page faults.
        self.reduced = torch.empty_like(self.made)
        self.packed = torch.cat((self.made, self.first_residual), 1)
        self.total = torch.empty(self.shape, dtype=DTYPE)
        self.gathered = torch.empty_like(self.total)
        self.epilogue_of_all = symmoe.Epilogue(
            residual=self.total, norm_weight=self.weight, eps=EPS
        )
        self.both = torch.empty(self.wide, dtype=DTYPE)
        self.ways: dict[str, Callable[[], torch.Tensor]] = {
            "shard": self.shard,
            "split": self.split,
            "split_kernel": self.split_kernel,
            "gloo_shard": self.gloo_shard,
            "gloo_split": self.gloo_split,
            "layer": self.layer,
            "layer_split": self.layer_split,
        }

    def window(self, role: str, shape: tuple[int, int], lane: int = 0) -> torch.Tensor:
        """One, which there has to be."""
        window = self.group.acquire(role, shape, DTYPE, lane=lane)
        assert window is not None
        return window

    def prepare(self, name: str) -> None:
        """Makes the inputs' lines dirty, windows last; restores what a way writes in place."""
        inputs = {
            "shard": [self.residual, self.made],
            "gloo_shard": [self.residual, self.made],
            "gloo_split": [self.packed],
        }.get(name, [self.residual])
        if name == "gloo_split":
            self.total.copy_(self.partial)
        if name in ("split", "split_kernel"):
            inputs.append(self.window("dispatch", self.wide)[self.own])
        if name in ("split", "split_kernel", "layer_split"):
            inputs.append(self.window("combine", self.shape, SPLIT_LANE))
        if name in ("layer", "layer_split"):
            inputs.append(self.window("combine", self.shape))
        for tensor in inputs:
            measure.rewrite(tensor.data_ptr(), tensor.nbytes)

    def shard(self) -> torch.Tensor:
        """Own rows summed and normed, straight into the window that is gathered."""
        everybody = self.window("dispatch", self.shape)
        mine = symmoe.apply_epilogue(self.made, self.epilogue, out=everybody[self.own])
        return self.group.all_gather(mine, everybody)

    def split(self) -> torch.Tensor:
        """All rows on all ranks, by torch."""
        both, total = self._gather_and_reduce()
        residual = torch.add(both[:, self.hidden :], total, out=self.total)
        return F.rms_norm(residual, (self.hidden,), self.weight, EPS)

    def split_kernel(self) -> torch.Tensor:
        """All rows on all ranks, by the kernel."""
        both, total = self._gather_and_reduce()
        self.total.copy_(both[:, self.hidden :])
        return symmoe.apply_epilogue(total, self.epilogue_of_all, out=self.gathered)

    def gloo_shard(self) -> torch.Tensor:
        """Without symmoe."""
        self.residual.add_(self.made)
        mine = F.rms_norm(self.residual, (self.hidden,), self.weight, EPS)
        gloo_all_gather(self.gathered, mine)
        return self.gathered

    def gloo_split(self) -> torch.Tensor:
        """Without symmoe."""
        gloo_all_gather(self.both, self.packed)
        dist.all_reduce(self.total)
        self.total.add_(self.both[:, self.hidden :])
        return F.rms_norm(self.total, (self.hidden,), self.weight, EPS)

    def layer(self) -> torch.Tensor:
        """One call."""
        everybody = self.window("dispatch", self.shape)
        summands = self.window("combine", self.shape)
        return self.group.rs_norm_ag(summands, everybody, epilogue=self.epilogue)

    def layer_split(self) -> torch.Tensor:
        """A reduction in front of the long way."""
        mine = self.window("dispatch", self.wide)[self.own]
        summands = self.window("combine", self.shape)
        self.group.reduce_scatter(summands, self.reduced)
        torch.cat((self.reduced, self.residual), 1, out=mine)
        return self.split()

    def check(self) -> bool:
        """Whether all ways come to the same."""
        results, residuals = {}, {}
        for name, way in self.ways.items():
            self.residual.copy_(self.first_residual)
            self.prepare(name)
            self.window("dispatch", self.wide)[self.own].copy_(self.packed)
            for lane in (0, SPLIT_LANE):
                self.window("combine", self.shape, lane).copy_(self.partial)
            results[name] = way().clone()
            residuals[name] = self.residual.clone()
        expected = results["shard"]
        close = all(
            # gloo adds up with a rounding at each step.
            torch.allclose(expected.float(), each.float(), rtol=2**-6, atol=2**-5)
            for each in results.values()
        )
        return (
            close
            and torch.equal(expected, results["layer"])
            and torch.equal(expected, results["split_kernel"])
            and torch.equal(residuals["shard"], residuals["layer"])
            and torch.equal(residuals["shard"], residuals["gloo_shard"])
        )

    def _gather_and_reduce(self) -> tuple[torch.Tensor, torch.Tensor]:
        wide = self.window("dispatch", self.wide)
        both = self.group.all_gather(wide[self.own], wide)
        everybody = self.window("dispatch", self.shape, SPLIT_LANE)
        summands = self.window("combine", self.shape, SPLIT_LANE)
        mine = self.group.reduce_scatter(summands, everybody[self.own], lane=SPLIT_LANE)
        return both, self.group.all_gather(mine, everybody, lane=SPLIT_LANE)


def main() -> int:
    """Runs all shapes; the exit code says whether all was right and the bar was met."""
    options = make_parser(__doc__, calls=60).parse_args()
    names = [name for pair in RATIOS for name in pair]
    names = sorted(set(names), key=names.index)
    print(
        f"{'ranks':>5} {'hidden':>6} {'tokens':>6} "
        + " ".join(f"{name:>12}" for name in names)
        + "  us; "
        + ", ".join(f"{slow}/{fast}" for slow, fast in RATIOS)
        + f"; bar {BAR} for {'/'.join(RATIOS[0])}"
    )
    rows: list[Row] = []
    for world in options.ranks:
        for row in run(MtpCase, world, options):
            ratios = [row[slow] / row[fast] for slow, fast in RATIOS]
            row["met"] = ratios[0] >= BAR
            rows.append(row)
            print(
                f"{world:5} {row['hidden']:6} {row['tokens']:6} "
                + " ".join(f"{row[name]:12.1f}" for name in names)
                + "  "
                + " ".join(f"{ratio:7.2f}" for ratio in ratios)
                + ("  met" if row["met"] else "  MISSED")
                + ("" if row["right"] else "  WRONG"),
                flush=True,
            )
    write_json(options.json, rows)
    return 0 if all(row["met"] and row["right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
