"""The module-level topk_reduce on a device, emulated, and which device it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import device_scenarios as scenarios
import symmoe
from device_lab import emulated
from ranks import Ranks
from reference import DTYPES
from symmoe import _core, testing
from symmoe.device import alone, libraries
from symmoe.device.cuda import CudaPlace
from symmoe.testing.group import HostPlace


@pytest.mark.multi
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sum(ranks: Ranks, dtype: torch.dtype) -> None:
    ranks.run(1, emulated, scenarios.alone, dtype)


@pytest.mark.multi
def test_refusals(ranks: Ranks) -> None:
    ranks.run(1, emulated, scenarios.alone_refuses)


@pytest.mark.multi
@pytest.mark.parametrize("world", [1, 2])
def test_into_a_window(ranks: Ranks, world: int) -> None:
    ranks.run(world, emulated, scenarios.alone_into_window)


class OnGpu(torch.Tensor):
    """A CPU tensor that says it is on GPU 3."""

    is_cuda = property(lambda self: True)

    def get_device(self) -> int:
        return 3


def on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(OnGpu)


def test_tensors_on_a_gpu_take_that_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def gpu(ordinal: int) -> Any:
        taken.append(ordinal)
        return alone.Alone(HostPlace(), testing.runtime.device())

    monkeypatch.setattr(alone, "gpu", gpu)
    out = torch.zeros(2, 8)
    before = testing.count("topk_reduce")
    assert symmoe.topk_reduce(on_gpu(torch.ones(2, 3, 8)), out=out) is out
    testing.synchronize()
    assert taken == [3]
    assert testing.count("topk_reduce") == before + 1
    assert bool((out == 3).all())
    symmoe.topk_reduce(torch.ones(2, 3, 8), out=out)
    assert taken == [3]
    with pytest.raises(ValueError, match="stream="):
        symmoe.topk_reduce(torch.ones(2, 3, 8), out=out, stream=testing.Stream())


def test_without_the_gpu_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "back_end", lambda kind: None)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda gpu: 0, raising=False)
    alone.gpu.cache_clear()
    with pytest.raises(symmoe.UnavailableError, match="no GPU part"):
        symmoe.topk_reduce(on_gpu(torch.ones(2, 3, 8)), out=torch.zeros(2, 8))


def test_streams_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands for a stream of this GPU; one of another GPU is refused."""

    class Stream:
        def __init__(self, ordinal: int) -> None:
            self.device = torch.device("cuda", ordinal)
            self.cuda_stream = 70 + ordinal

    class Foreign:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 90

    monkeypatch.setattr(libraries, "back_end", lambda kind: Path("libsymmoe_cuda.so"))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda gpu: 80 + gpu, raising=False)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    place = CudaPlace(3)
    assert [place.stream(it) for it in (None, Stream(3), 5, Foreign())] == [83, 73, 5, 90]
    with pytest.raises(ValueError, match="stream is one of cuda:2, expected cuda:3"):
        place.stream(Stream(2))
    for wrong in (True, "mine", 1.0):
        with pytest.raises(TypeError, match="stream must be"):
            place.stream(wrong)


def test_device_is_opened_inside_of_a_capture() -> None:
    graph, stream = testing.Graph(), testing.Stream()
    with testing.capture(graph, stream):
        device = _core.Device(str(libraries.back_end("host")), 0)  # takes pinned memory
    assert device.properties["kind"] == "host"
    graph.replay()
    testing.synchronize()
