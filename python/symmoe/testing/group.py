"""Groups whose devices are emulated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist

from .. import _core
from ..bootstrap import init_device
from ..config import Config
from ..device import libraries
from ..device.group import DeviceGroup
from ..errors import UnavailableError
from . import runtime, streams


class HostPlace:
    """This process's memory in the part of a device. See `symmoe.places.DevicePlace`."""

    name = "the emulated device (CPU tensors)"
    kind = "host"
    device = torch.device("cpu")
    ordinal = 0
    always_keeps = True  # torch frees CPU memory at once, whatever streams do
    current_stream = staticmethod(streams.current_stream)

    def __init__(self) -> None:
        runtime.host()
        self.back_end = str(libraries.back_end("host"))

    def accepts(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is a CPU tensor."""
        return tensor.is_cpu

    def view(self, buffer: _core.Buffer, dtype: torch.dtype, count: int) -> torch.Tensor:
        """The first `count` elements of a window as a flat tensor; it keeps the window."""
        return torch.frombuffer(buffer, dtype=dtype, count=count)

    def stream(self, given: object | None) -> int:
        """The handle of a `symmoe.testing.Stream`, or a number."""
        if given is None:
            return streams.current_stream()
        if isinstance(given, streams.Stream):
            return given.handle
        if isinstance(given, int) and not isinstance(given, bool):
            return given
        raise TypeError(f"stream must be a symmoe.testing.Stream or a handle, got {given!r}")

    def keep(self, stream: int, *tensors: torch.Tensor) -> None:
        """Keeps the tensors until the stream has been waited for."""
        streams.keep(stream, *tensors)

    def empty(self, shape: tuple[int, int], dtype: torch.dtype, stream: int) -> torch.Tensor:
        """A new tensor, kept until the stream has been waited for."""
        tensor = torch.empty(shape, dtype=dtype)
        streams.keep(stream, tensor)
        return tensor

    @contextlib.contextmanager
    def in_order(self, stream: int) -> Iterator[None]:
        """Waits for the stream first: what torch does on the CPU is done at once."""
        runtime.device().synchronize(stream)
        yield


def available() -> bool:
    """Whether this build has what `init` needs."""
    return libraries.back_end("host") is not None and libraries.fake_nccl() is not None


def init(
    process_group: dist.ProcessGroup | None = None,
    config: Config | None = None,
    *,
    comm_ptr: int | None = None,
    nccl: str | None = None,
) -> DeviceGroup:
    """A group of emulated devices; arguments as `symmoe.init`. Collective.

    Args:
        process_group: A gloo process group; None: the default one, or a world of one.
        config: Settings, the same on all ranks.
        comm_ptr: A communicator of the fake NCCL.
        nccl: Path of another NCCL to use; None: the fake one.

    Raises:
        UnavailableError: This build leaves the emulation out.
    """
    fake = libraries.fake_nccl()
    if fake is None:
        raise UnavailableError("symmoe.testing needs libsymmoe_fake_nccl.so, which was not built")
    if process_group is None and dist.is_available() and dist.is_initialized():
        process_group = dist.group.WORLD
    return init_device(HostPlace(), process_group, config, comm_ptr, nccl or str(fake))
