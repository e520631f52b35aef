"""CUDA (and ROCm, which torch also calls cuda) as a place for windows."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .. import _core
from ..errors import UnavailableError
from . import libraries


class WindowBytes:
    """Bytes of a window for whatever reads `__cuda_array_interface__`: torch, CuPy, Numba.

    Keeps the window as long as it lives, and so does whatever was made from it.
    """

    def __init__(self, buffer: _core.Buffer, nbytes: int) -> None:
        self._buffer = buffer
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (buffer.address, False),
            "strides": None,
            "version": 3,
        }


class CudaPlace:
    """One GPU of this process.

    Attributes:
        name: "cuda:1".
        kind: "cuda" or "hip".
        device: torch's device.
        ordinal: Its number.
        back_end: Path of the library that serves it.
        always_keeps: False.
        current_stream: Gives the handle of torch's current stream on this GPU.

    Raises:
        UnavailableError: torch or this package was built without its GPU part.
    """

    def __init__(self, ordinal: int) -> None:
        if not hasattr(torch._C, "_cuda_getCurrentRawStream"):
            raise UnavailableError(
                f"this torch ({torch.__version__}) has no CUDA; symmoe.testing.init() is the same "
                f"group without a GPU"
            )
        kind = "hip" if torch.version.hip else "cuda"
        library = libraries.back_end(kind)
        if library is None:
            raise UnavailableError(
                f"this build of symmoe has no GPU part (libsymmoe_{kind}.so): it is built where "
                f"there is {'hipcc' if kind == 'hip' else 'nvcc'}; see `symmoe doctor`"
            )
        self.kind = kind
        self.always_keeps = False  # torch's allocator reuses memory in the current stream's order
        self.ordinal = ordinal
        self.device = torch.device("cuda", ordinal)
        self.name = str(self.device)
        self.back_end = str(library)
        self.current_stream: Callable[[], int] = functools.partial(
            torch._C._cuda_getCurrentRawStream, ordinal
        )

    def accepts(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is on this GPU."""
        return tensor.is_cuda and tensor.get_device() == self.ordinal

    def view(self, buffer: _core.Buffer, dtype: torch.dtype, count: int) -> torch.Tensor:
        """The first `count` elements of a window as a flat tensor; it keeps the window."""
        owner = WindowBytes(buffer, count * dtype.itemsize)
        return torch.as_tensor(owner, device=self.device).view(dtype)

    def stream(self, given: object | None) -> int:
        """The handle of a torch stream, a number, or anything with `__cuda_stream__`.

        Raises:
            TypeError: `given` is no stream.
            ValueError: It is another GPU's.
        """
        if given is None:
            return self.current_stream()
        if isinstance(given, torch.cuda.Stream):
            if given.device != self.device:
                raise ValueError(f"stream is one of {given.device}, expected {self.device}")
            return int(given.cuda_stream)
        if isinstance(given, int) and not isinstance(given, bool):
            return given
        protocol = getattr(given, "__cuda_stream__", None)
        if protocol is not None:
            return int(protocol()[1])
        raise TypeError(f"stream must be a torch.cuda.Stream or a handle, got {given!r}")

    def keep(self, stream: int, *tensors: torch.Tensor) -> None:
        """Tells torch's allocator that another stream than its current one uses the memory."""
        if stream == self.current_stream():
            return
        external = self._external(stream)
        for tensor in tensors:
            tensor.record_stream(external)

    def empty(self, shape: tuple[int, int], dtype: torch.dtype, stream: int) -> torch.Tensor:
        """New memory of torch's allocator, which takes it back in this stream's order."""
        with torch.cuda.stream(self._external(stream)):
            return torch.empty(shape, dtype=dtype, device=self.device)

    @contextlib.contextmanager
    def in_order(self, stream: int) -> Iterator[None]:
        """Inside, `stream` is torch's current one."""
        with torch.cuda.stream(self._external(stream)):
            yield

    def _external(self, stream: int) -> torch.cuda.Stream:
        make: Callable[..., torch.cuda.Stream] = torch.cuda.ExternalStream
        return make(stream, device=self.device)
