"""What a fused epilogue saves: one call beside a reduce_scatter with the same steps behind it.

    python bench/epilogue.py [--ranks 2,4] [--hidden 6144,4096,1024] [--tokens 64,256,1024]

All begin with partial rows in a window and end with a normed row and an updated residual (bf16,
with a shared expert's rows, RMSNorm):

    fused    reduce_scatter(window, epilogue=...)
    kernel   reduce_scatter(window), then apply_epilogue: the same kernels in two passes
    torch    reduce_scatter(window), then torch: add, add_, rms_norm

Measured as `turns.py` says, the window rewritten last. fused and kernel must give the same
bits, torch the same residual; the exit code says whether they did and whether fused kept to the
bar.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from turns import Row, make_parser, run, write_json

import symmoe
from symmoe._core import measure

BAR = 1.5  # torch's time to fused's, at least
DTYPE = torch.bfloat16
WAYS = ("fused", "kernel", "torch")


class EpilogueCase:
    """One rank's memory for one shape, and the ways to get from the window to the normed rows."""

    slow = ()

    def __init__(self, group: symmoe.Group, tokens: int, hidden: int) -> None:
        generator = torch.Generator().manual_seed(group.rank)

        def noise(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(DTYPE)

        self.group, self.shape = group, (tokens * group.world_size, hidden)
        self.partial = noise(*self.shape)
        self.shared, self.first_residual = noise(tokens, hidden), noise(tokens, hidden)
        self.residual = self.first_residual.clone()
        self.weight = noise(hidden)
        self.out = torch.empty(tokens, hidden, dtype=DTYPE)
        self.epilogue = symmoe.Epilogue(
            shared=self.shared, residual=self.residual, norm_weight=self.weight
        )
        self.ways: dict[str, Callable[[], torch.Tensor]] = {
            "fused": self.fused,
            "kernel": self.kernel,
            "torch": self.by_torch,
        }

    def prepare(self, name: str) -> None:  # noqa: ARG002
        """Makes every line of the inputs dirty here, as the kernels that made them would."""
        window = self.group.acquire("combine", self.shape, DTYPE)
        assert window is not None
        self.window = window
        for tensor in (self.shared, self.residual, window):
            measure.rewrite(tensor.data_ptr(), tensor.nbytes)

    def fused(self) -> torch.Tensor:
        """One pass."""
        return self.group.reduce_scatter(self.window, self.out, epilogue=self.epilogue)

    def kernel(self) -> torch.Tensor:
        """The sum, and the same kernels behind it."""
        self.group.reduce_scatter(self.window, self.out)
        return symmoe.apply_epilogue(self.out, self.epilogue, out=self.out)

    def by_torch(self) -> torch.Tensor:
        """The sum, and torch's operations behind it."""
        self.group.reduce_scatter(self.window, self.out)
        torch.add(self.out, self.shared, out=self.out)
        self.residual.add_(self.out)
        hidden = self.shape[1]
        return torch.nn.functional.rms_norm(self.residual, (hidden,), self.weight, 1e-6)

    def check(self) -> bool:
        """Whether all ways come to the same."""
        results = []
        for name in WAYS:
            self.residual.copy_(self.first_residual)
            self.prepare(name)
            self.window.copy_(self.partial)
            self.out.fill_(torch.nan)
            results.append((self.ways[name]().clone(), self.residual.clone()))
        fused, kernel, unfused = results
        close = torch.allclose(fused[0].float(), unfused[0].float(), rtol=2**-6, atol=1e-3)
        return (
            torch.equal(fused[0], kernel[0])
            and torch.equal(fused[1], kernel[1])
            and torch.equal(fused[1], unfused[1])
            and close
        )


def main() -> int:
    """Runs all shapes; the exit code says whether all was right and the bar was met."""
    options = make_parser(__doc__, calls=60).parse_args()
    print(
        f"{'ranks':>5} {'hidden':>6} {'tokens':>6} {'fused':>9} {'kernel':>9} {'torch':>9}  us;"
        " kernel/fused torch/fused"
    )
    rows: list[Row] = []
    for world in options.ranks:
        for row in run(EpilogueCase, world, options):
            rows.append(row)
            print(
                f"{world:5} {row['hidden']:6} {row['tokens']:6} "
                + " ".join(f"{row[name]:9.1f}" for name in WAYS)
                + f"  {row['kernel'] / row['fused']:7.2f} {row['torch'] / row['fused']:11.2f}"
                + ("" if row["right"] else "  WRONG"),
                flush=True,
            )
    slowest = min(row["torch"] / row["fused"] for row in rows)
    whole = sum(row["torch"] for row in rows) / sum(row["fused"] for row in rows)
    met = whole >= BAR and all(row["right"] for row in rows)
    print(f"torch/fused: least {slowest:.2f}, of the sums of all times {whole:.2f}; bar {BAR}")
    write_json(options.json, rows)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
