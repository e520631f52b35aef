"""What scenarios of the GPU path need of a device, so that they run emulated and on real GPUs.

A scenario is a function f(lab, rank, world, ...). `emulated` runs one in a process of the `ranks`
fixture, with NCCL's paths alone; `emulated_peers` with own kernels wherever they serve. Device
tensors are only written with `put` and read with `host`: on a GPU all other work of torch is in
stream order as well, but in the emulation torch writes at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist

import symmoe
from symmoe import testing
from symmoe.apply import finish_on
from symmoe.device.alone import Alone
from symmoe.device.group import DeviceGroup
from symmoe.epilogue import check_epilogue
from symmoe.plans import WINDOW_TYPES
from symmoe.testing import runtime
from symmoe.testing.group import HostPlace

NCCL_PATHS = ("direct", "plain", "grouped", "ordered")
OWN_PATHS = ("pull", "routed", "fused")
# Own kernels do what they can: all but `direct`, which comes before `pull`.
PEER_PATHS = (*OWN_PATHS, *(path for path in NCCL_PATHS if path != "direct"))


class GraphLike(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Queues it on the current stream."""

    def reset(self) -> None:
        """Gives it up."""


class Lab(Protocol):
    """One rank's device.

    Attributes:
        emulated: Whether it is none: then failures can be ordered and calls counted.
        paths: What groups may take unless a scenario says so itself; None: all.
        device: For new tensors.
    """

    emulated: bool
    paths: tuple[str, ...] | None
    device: torch.device

    def init(self, config: symmoe.Config | None = None, **options: Any) -> DeviceGroup:
        """A group of the default process group's ranks."""

    def tensor(self, values: torch.Tensor) -> torch.Tensor:
        """A copy on the device, there at once."""

    def put(self, target: torch.Tensor, values: torch.Tensor) -> None:
        """Writes a contiguous [rows, hidden] tensor in the current stream.

        By a kernel that the group knows nothing of; `values` is on the device and stays as it is.
        """

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy for the host, after all work."""

    def topk_reduce(self, *tensors: Any, **options: Any) -> torch.Tensor:
        """`symmoe.topk_reduce` with tensors of this device."""

    def apply_epilogue(
        self, rows: torch.Tensor, epilogue: symmoe.Epilogue, out: torch.Tensor
    ) -> None:
        """`symmoe.apply_epilogue` with tensors of this device, in the current stream."""

    def stream(self) -> Any:
        """A new stream."""

    def use(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """Makes it the current one."""

    def capture(self, stream: Any) -> contextlib.AbstractContextManager[GraphLike]:
        """Captures what is queued inside; the stream is the current one there."""

    def synchronize(self) -> None:
        """Waits for all work of this rank."""

    def slow(self, seconds: float) -> None:
        """Keeps the current stream busy."""


def with_paths(config: symmoe.Config | None, paths: tuple[str, ...] | None) -> symmoe.Config:
    """The settings, with these paths unless they name some."""
    config = config or symmoe.Config.from_env()
    return config if config.paths else dataclasses.replace(config, paths=paths)


class EmulatedLab:
    """The host back end and the fake NCCL."""

    emulated = True
    device = torch.device("cpu")

    def __init__(self, paths: tuple[str, ...] | None = NCCL_PATHS) -> None:
        self.paths = paths

    def init(self, config: symmoe.Config | None = None, **options: Any) -> DeviceGroup:
        """A group of the default process group's ranks."""
        return testing.init(config=with_paths(config, self.paths), **options)

    def tensor(self, values: torch.Tensor) -> torch.Tensor:
        """A copy."""
        return values.clone()

    def put(self, target: torch.Tensor, values: torch.Tensor) -> None:
        """A sum of one term each."""
        assert target.is_contiguous()
        assert values.is_contiguous()
        rows, hidden = target.shape
        code = WINDOW_TYPES[target.dtype]
        stream = testing.current_stream()
        runtime.device().topk_reduce(
            values.data_ptr(), 0, 0, target.data_ptr(), rows, 1, hidden, 0, None, code, code, code,
            False, stream,
        )  # fmt: skip
        testing.streams.keep(stream, values)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy, after all work."""
        testing.synchronize()
        return tensor.clone()

    def topk_reduce(self, *tensors: Any, **options: Any) -> torch.Tensor:
        """That of symmoe.testing."""
        return testing.topk_reduce(*tensors, **options)

    def apply_epilogue(
        self, rows: torch.Tensor, epilogue: symmoe.Epilogue, out: torch.Tensor
    ) -> None:
        """What the public one does on a GPU."""
        shape = (rows.shape[0], rows.shape[1])
        steps = check_epilogue("apply_epilogue", epilogue, rows.dtype, shape)
        finish_on(Alone(HostPlace(), runtime.device()), rows, steps, out)
        tensors = [tensor for _, tensor in epilogue.tensors()]
        testing.streams.keep(testing.current_stream(), rows, out, *tensors)

    def stream(self) -> testing.Stream:
        """A new stream."""
        return testing.Stream()

    def use(self, stream: testing.Stream) -> contextlib.AbstractContextManager[None]:
        """Makes it the current one."""
        return testing.stream(stream)

    @contextlib.contextmanager
    def capture(self, stream: testing.Stream) -> Iterator[testing.Graph]:
        """Captures what is queued inside."""
        graph = testing.Graph()
        with testing.capture(graph, stream):
            yield graph

    def synchronize(self) -> None:
        """Waits for all work of this rank."""
        testing.synchronize()

    def slow(self, seconds: float) -> None:
        """Keeps the current stream busy."""
        testing.delay(seconds)


class CudaLab:
    """A real GPU: this process's current one."""

    emulated = False

    def __init__(self, paths: tuple[str, ...] | None = NCCL_PATHS) -> None:
        self.paths = paths
        self.device = torch.device("cuda", torch.cuda.current_device())

    def init(self, config: symmoe.Config | None = None, **options: Any) -> DeviceGroup:
        """A group of the default process group's ranks."""
        config = with_paths(config, self.paths)
        group = symmoe.init(config=config, device=self.device, **options)
        assert isinstance(group, DeviceGroup)
        return group

    def tensor(self, values: torch.Tensor) -> torch.Tensor:
        """A copy on the device."""
        return values.to(self.device)

    def put(self, target: torch.Tensor, values: torch.Tensor) -> None:
        """With torch's own kernel."""
        target.copy_(values)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy for the host, after all work."""
        torch.cuda.synchronize()
        return tensor.cpu()

    def topk_reduce(self, *tensors: Any, **options: Any) -> torch.Tensor:
        """The public one."""
        return symmoe.topk_reduce(*tensors, **options)

    def apply_epilogue(
        self, rows: torch.Tensor, epilogue: symmoe.Epilogue, out: torch.Tensor
    ) -> None:
        """The public one."""
        symmoe.apply_epilogue(rows, epilogue, out=out)

    def stream(self) -> torch.cuda.Stream:
        """A new stream."""
        make: Callable[[], torch.cuda.Stream] = torch.cuda.Stream
        return make()

    def use(self, stream: torch.cuda.Stream) -> contextlib.AbstractContextManager[Any]:
        """Makes it the current one."""
        return torch.cuda.stream(stream)

    @contextlib.contextmanager
    def capture(self, stream: torch.cuda.Stream) -> Iterator[torch.cuda.CUDAGraph]:
        """Captures what is queued inside."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            yield graph

    def synchronize(self) -> None:
        """Waits for all work of this rank."""
        torch.cuda.synchronize()

    def slow(self, seconds: float) -> None:
        """Keeps the current stream busy; assumes two billion cycles a second."""
        sleep: Callable[[int], None] = torch.cuda._sleep
        sleep(int(seconds * 2e9))


def emulated(rank: int, world: int, scenario: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a scenario on the emulated device, and looks for what must never be."""
    return _emulated(EmulatedLab(), rank, world, scenario, *arguments)


def emulated_peers(rank: int, world: int, scenario: Callable[..., Any], *arguments: Any) -> Any:
    """The same where own kernels serve whatever they can."""
    return _emulated(EmulatedLab(PEER_PATHS), rank, world, scenario, *arguments)


def _emulated(
    lab: EmulatedLab, rank: int, world: int, scenario: Callable[..., Any], *arguments: Any
) -> Any:
    start_afresh()
    try:
        result = scenario(lab, rank, world, *arguments)
        testing.synchronize()
        assert testing.nccl().misuses() == []
        return result
    finally:
        start_afresh()


def start_afresh(**settings: str) -> None:
    """No ordered failures; the fake NCCL's settings are these (version="22900", ...) alone."""
    for name in [name for name in os.environ if name.startswith("SYMMOE_FAKE_NCCL_")]:
        del os.environ[name]
    for name, value in settings.items():
        os.environ[f"SYMMOE_FAKE_NCCL_{name.upper()}"] = value
    testing.nccl().reset()
    testing.fail_device("")
    testing.limit_memory(0)


def barrier() -> None:
    """Waits for all ranks' hosts."""
    if dist.is_initialized():
        dist.barrier()
