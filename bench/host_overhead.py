"""What one call of reduce_scatter costs the host: symmoe beside a thin ctypes wrapper.

    python bench/host_overhead.py [--rows 64] [--hidden 7168] [--calls 2000] [--rounds 15]

Two processes; the NCCL is the fake one, told to return at once, so nothing but the way to it is
timed. The wrapper is of the kind that engines put over NCCL by themselves: an object that asserts
the tensor's device, looks up the current stream and NCCL's number of the dtype, and calls through
ctypes. It is given a registered buffer too, by the same NCCL. Both go in turn, in blocks of calls;
what is printed is the median of all calls, less what reading the clock costs.

What torch's CPU build does not have is stood for by something that costs no more than the real
thing: the raw handle of the current stream by a C function that takes and returns a number (symmoe
asks torch for it in each call), and the wrapper's stream object by one that it has kept per thread.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import operator
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from symmoe.bench.device import raw_nccl

WORLD = 2
BAR = 0.5  # symmoe's part of the wrapper's time, at most
AIM_US = 2.0


class StreamOfThread:
    """Stands for a torch.cuda.Stream: an object with the handle as an attribute."""

    cuda_stream = 0


_streams = threading.local()


def current_stream() -> StreamOfThread:
    """The stream that this thread has kept: no question to torch, which would cost more."""
    if not hasattr(_streams, "kept"):
        _streams.kept = StreamOfThread()
    kept: StreamOfThread = _streams.kept
    return kept


def number_of_dtype(dtype: torch.dtype) -> int:
    """NCCL's number of an element type, found as wrappers do: one comparison after the other."""
    if dtype == torch.int8:
        return 0
    if dtype == torch.uint8:
        return 1
    if dtype == torch.int32:
        return 2
    if dtype == torch.int64:
        return 4
    if dtype == torch.float16:
        return 6
    if dtype == torch.float32:
        return 7
    if dtype == torch.float64:
        return 8
    if dtype == torch.bfloat16:
        return 9
    raise ValueError(f"NCCL knows no {dtype}")


def number_of_op(op: dist.ReduceOp.RedOpType) -> int:
    """NCCL's number of a reduction."""
    if op == dist.ReduceOp.SUM:
        return 0
    if op == dist.ReduceOp.PRODUCT:
        return 1
    raise ValueError(f"NCCL knows no {op}")


class Checked:
    """NCCL's functions as methods that raise."""

    def __init__(self, library: raw_nccl.Library) -> None:
        self.functions = library.functions

    def check(self, result: int) -> None:
        """Raises unless the call succeeded."""
        if result != 0:
            raise RuntimeError(f"NCCL: error {result}")

    def reduce_scatter(
        self, send: Any, receive: Any, count: int, dtype: int, op: int, comm: Any, stream: Any
    ) -> None:
        """Calls ncclReduceScatter."""
        self.check(
            self.functions["ncclReduceScatter"](send, receive, count, dtype, op, comm, stream)
        )


class Wrapper:
    """A communicator over ctypes, and one registered buffer of it."""

    def __init__(self, path: str, nbytes: int) -> None:
        self.device = torch.device("cpu")
        self.disabled = False
        self.raw = raw_nccl.RawCommunicator(path)
        self.comm = self.raw.handle
        self.library = Checked(self.raw.library)
        self.memory = raw_nccl.RegisteredMemory(self.raw, nbytes)

    def buffer(self, dtype: torch.dtype, rows: int, hidden: int) -> torch.Tensor:
        """A tensor over the registered buffer."""
        memory = (ctypes.c_byte * (rows * hidden * dtype.itemsize)).from_address(
            self.memory.address
        )
        return torch.frombuffer(memory, dtype=dtype).view(rows, hidden)

    def reduce_scatter(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
        stream: StreamOfThread | None = None,
    ) -> None:
        """The call that is timed."""
        if self.disabled:
            return
        assert input.device == self.device, f"input is on {input.device}, not {self.device}"
        if stream is None:
            stream = current_stream()
        self.library.reduce_scatter(
            ctypes.c_void_p(input.data_ptr()),
            ctypes.c_void_p(output.data_ptr()),
            output.numel(),
            number_of_dtype(input.dtype),
            number_of_op(op),
            self.comm,
            ctypes.c_void_p(stream.cuda_stream),
        )

    def checked_reduce_scatter(self, output: torch.Tensor, input: torch.Tensor) -> None:
        """With what symmoe checks in each call besides: type, shape and layout of both."""
        rows, hidden = input.shape
        if not (
            isinstance(output, torch.Tensor)
            and output.shape == (rows // WORLD, hidden)
            and output.dtype == input.dtype
            and output.device == self.device
            and output.is_contiguous()
            and input.is_contiguous()
            and not output.is_neg()
            and not input.is_neg()
            and not input.requires_grad
        ):
            raise ValueError("output does not fit")
        self.reduce_scatter(output, input)

    def close(self) -> None:
        """Deregisters, frees, destroys."""
        self.memory.free()
        self.raw.close()


def nothing() -> None:
    """What the clock alone costs, with a call that does nothing."""


class Timed:
    """One thing to time: something done before each call, untimed, and the call."""

    def __init__(self, call: Callable[[], Any], before: Callable[[], Any] = nothing) -> None:
        self.call = call
        self.before = before
        self.samples: list[int] = []

    def block(self, calls: int) -> None:
        """Times so many calls, each by itself."""
        call, before, clock, note = (
            self.call,
            self.before,
            time.perf_counter_ns,
            self.samples.append,
        )
        for _ in range(calls):
            before()
            start = clock()
            call()
            note(clock() - start)

    def us(self) -> float:
        """Median of all calls."""
        return statistics.median(self.samples) / 1e3


def as_on_a_gpu(group: Any) -> None:
    """Has the group find the current stream and a tensor's device by as many calls as on CUDA."""
    group._current_stream = functools.partial(operator.index, 0)  # the default stream
    group._accepts = lambda tensor: tensor.is_cpu and tensor.get_device() == -1
    group._always_keeps = False


def measure(rank: int, options: argparse.Namespace) -> dict[str, float]:
    """Sets both up and, on rank 0, times them; microseconds by name."""
    import symmoe.testing
    from symmoe.device import libraries

    rows, hidden, dtype = options.rows * WORLD, options.hidden, torch.bfloat16
    symmoe.testing.nccl()  # loads what the fake NCCL needs
    wrapper = Wrapper(str(libraries.fake_nccl()), rows * hidden * dtype.itemsize)
    registered = wrapper.buffer(dtype, rows, hidden)
    out = torch.zeros(options.rows, hidden, dtype=dtype)
    times: dict[str, float] = {}
    nccl_alone = symmoe.Config(paths=("direct",))  # what the wrapper calls as well
    with symmoe.testing.init(config=nccl_alone) as group:
        window = group.acquire("combine", (rows, hidden), dtype)
        assert window is not None, group.describe()
        assert group.explain("reduce_scatter", window).path == "direct"
        group.reduce_scatter(window, out)
        as_on_a_gpu(group)
        if rank == 0:
            times = _times(group, window, wrapper, registered, out, options)
        dist.barrier()
    wrapper.close()
    return times


def _times(
    group: Any,
    window: torch.Tensor,
    wrapper: Wrapper,
    registered: torch.Tensor,
    out: torch.Tensor,
    options: argparse.Namespace,
) -> dict[str, float]:
    shape, dtype = tuple(window.shape), window.dtype

    def acquire() -> None:
        group.acquire("combine", shape, dtype)

    view = group._views.by_id[id(window)]
    prepared, target = view.even_call, out.data_ptr()
    send, receive, none = (
        ctypes.c_void_p(registered.data_ptr()),
        ctypes.c_void_p(target),
        ctypes.c_void_p(0),
    )
    count = out.numel()
    things = {
        "clock": Timed(nothing),
        "symmoe": Timed(lambda: group.reduce_scatter(window, out), acquire),
        "wrapper": Timed(lambda: wrapper.reduce_scatter(out, registered)),
        "wrapper, same checks": Timed(lambda: wrapper.checked_reduce_scatter(out, registered)),
        "acquire": Timed(acquire),
        "stream query": Timed(lambda: group._current_stream()),
        "core call": Timed(lambda: prepared(target, 0, False), acquire),
        "ctypes call": Timed(
            lambda: wrapper.library.reduce_scatter(send, receive, count, 9, 0, wrapper.comm, none)
        ),
    }
    for _ in range(options.rounds):
        for thing in things.values():
            thing.block(options.calls)
    clock = things["clock"].us()
    return {name: thing.us() - clock for name, thing in things.items() if name != "clock"}


def _rank(rank: int, folder: str, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD
    )
    times = measure(rank, options)
    if rank == 0:
        Path(folder, "times.json").write_text(json.dumps(times))
    dist.destroy_process_group()


def is_met(times: dict[str, float]) -> bool:
    """Whether symmoe keeps to the bar, which is for the wrapper that checks as much."""
    return times["symmoe"] <= BAR * times["wrapper, same checks"]


def report(times: dict[str, float]) -> str:
    """The times in words."""
    own, other = times["symmoe"], times["wrapper"]
    rest = own - times["stream query"] - times["core call"]
    checked = times["wrapper, same checks"]
    met = "met" if is_met(times) else "missed"
    lines = [
        f"{'symmoe reduce_scatter, from a window':44} {own:6.2f} us   aim {AIM_US:.0f} us",
        f"{'  view lookup, validation':44} {rest:6.2f} us",
        f"{'  query of the stream':44} {times['stream query']:6.2f} us",
        f"{'  core call':44} {times['core call']:6.2f} us",
        f"{'  (acquire of the window before it)':44} {times['acquire']:6.2f} us",
        f"{'ctypes wrapper that checks as much':44} {checked:6.2f} us",
        f"{'  without the checks of output and layout':44} {other:6.2f} us",
        f"{'  the call itself through ctypes':44} {times['ctypes call']:6.2f} us",
        f"{'symmoe to wrapper that checks as much':44} {own / checked:6.2f}      bar {BAR}: {met}",
        f"{'symmoe to wrapper that does not':44} {own / other:6.2f}      no bar",
    ]
    return "\n".join(lines)


def main() -> int:
    """Runs both processes; the exit code says whether the bar was met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=64, help="rows of each rank")
    parser.add_argument("--hidden", type=int, default=7168, help="elements per row")
    parser.add_argument("--calls", type=int, default=2000, help="calls per turn")
    parser.add_argument("--rounds", type=int, default=15, help="turns")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the times")
    options = parser.parse_args()
    os.environ["SYMMOE_FAKE_NCCL_INSTANT"] = "1"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (folder, options), nprocs=WORLD)  # type: ignore[attr-defined, no-untyped-call]
        times: dict[str, float] = json.loads(Path(folder, "times.json").read_text())
    print(report(times))
    if options.json:
        options.json.write_text(json.dumps(times, indent=1) + "\n")
    return 0 if is_met(times) else 1


if __name__ == "__main__":
    sys.exit(main())
