"""What a fused epilogue saves: one call beside a reduce_scatter with the same steps behind it.

    python bench/epilogue.py [--ranks 2,4] [--hidden 6144,4096,1024] [--tokens 64,256,1024]

All begin with partial rows in a window and end with a normed row and an updated residual (bf16,
with a shared expert's rows, RMSNorm):

    fused    reduce_scatter(window, epilogue=...)
    kernel   reduce_scatter(window), then apply_epilogue: the same kernels in two passes
    torch    reduce_scatter(window), then torch: add, add_, rms_norm

They take turns, call by call, in the same processes, one thread and processor each. Before each
call every rank rewrites its inputs, the window last, untimed; a call lasts from the first rank's
start to the last one's end; what is printed is the median. fused and kernel must give the same
bits, torch the same residual; the exit code says whether they did and whether fused kept to the
bar.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import symmoe
from symmoe._core import measure
from symmoe.bench.machine import describe_machine, usable_cpus

BAR = 1.5  # torch's time to fused's, at least
DEADLINE_NS = 60_000_000_000
DTYPE = torch.bfloat16
WAYS = ("fused", "kernel", "torch")


class Case:
    """One rank's memory for one shape, and the ways to get from the window to the normed rows."""

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
            "torch": self.torch,
        }

    def prepare(self) -> None:
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

    def torch(self) -> torch.Tensor:
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
            self.prepare()
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


def times_of(case: Case, line: measure.StartLine, calls: int) -> dict[str, list[tuple[int, int]]]:
    """Start and end of each call on this rank, by way."""
    times: dict[str, list[tuple[int, int]]] = {name: [] for name in WAYS}
    gc.disable()
    for call in range(calls + 2):
        for turn in range(len(WAYS)):
            name = WAYS[(turn + call) % len(WAYS)]  # each comes behind each of the others
            case.prepare()
            start = line.start()
            case.ways[name]()
            end = measure.now_ns()
            if call >= 2:
                times[name].append((start, end))
    gc.enable()
    return times


def _rank(rank: int, world: int, folder: str, options: argparse.Namespace) -> None:
    cpus = usable_cpus()
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
    )
    line = measure.StartLine(f"{folder}/line", world, rank, DEADLINE_NS)
    rows = []
    with symmoe.init() as group, torch.inference_mode():
        for hidden in options.hidden:
            for tokens in options.tokens:
                case = Case(group, tokens, hidden)
                right = case.check()
                times = times_of(case, line, options.calls)
                rows.append({"hidden": hidden, "tokens": tokens, "right": right, "times": times})
    Path(folder, f"times{rank}.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


def run(world: int, options: argparse.Namespace) -> list[dict[str, float]]:
    """Medians in microseconds of each shape on so many ranks."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "line").write_bytes(bytes(measure.StartLine.bytes_for(world)))
        mp.spawn(_rank, (world, folder, options), nprocs=world)  # type: ignore[attr-defined, no-untyped-call]
        ranks = [json.loads(Path(folder, f"times{r}.json").read_text()) for r in range(world)]
    found = []
    for shape in zip(*ranks, strict=True):
        row = {"ranks": world, "tokens": shape[0]["tokens"], "hidden": shape[0]["hidden"]}
        row["right"] = all(rank["right"] for rank in shape)
        for name in WAYS:
            calls = zip(*(rank["times"][name] for rank in shape), strict=True)
            lasted = [
                max(end for _, end in call) - min(start for start, _ in call) for call in calls
            ]
            row[name] = statistics.median(lasted) / 1e3
        found.append(row)
    return found


def integers(text: str) -> list[int]:
    """Numbers with commas between them."""
    return [int(part) for part in text.split(",")]


def main() -> int:
    """Runs all shapes; the exit code says whether all was right and the bar was met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=integers, default=[2, 4])
    parser.add_argument("--hidden", type=integers, default=[6144, 4096, 1024])
    parser.add_argument("--tokens", type=integers, default=[64, 256, 1024], help="of each rank")
    parser.add_argument("--calls", type=int, default=60, help="of each way")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the times")
    options = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    print(
        f"{'ranks':>5} {'hidden':>6} {'tokens':>6} {'fused':>9} {'kernel':>9} {'torch':>9}  us;"
        " kernel/fused torch/fused"
    )
    rows = []
    for world in options.ranks:
        for row in run(world, options):
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
    if options.json:
        result = {"machine": describe_machine(), "rows": rows}
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
