"""The GPU path on a machine without a GPU: for this project's tests, and for an engine's.

    group = symmoe.testing.init(process_group)      # a DeviceGroup, like symmoe.init(device="cuda")

Tensors are CPU tensors, "device memory" is this process's, streams are threads, kernels run in an
emulator, and NCCL is one over host memory that keeps real NCCL's rules. All else is what runs on a
GPU: the same host code, the same kernels, the same order of things. As on a GPU, results are there
after `synchronize`, and work can be captured into a Graph. It says nothing about speed.
"""

from __future__ import annotations

from .faults import (
    FakeNccl,
    NcclCall,
    count,
    fail_device,
    limit_memory,
    live_bytes,
    nccl,
)
from .group import available, init
from .streams import Graph, Stream, capture, current_stream, delay, stream, synchronize
from .topk import topk_reduce

__all__ = [
    "FakeNccl",
    "Graph",
    "NcclCall",
    "Stream",
    "available",
    "capture",
    "count",
    "current_stream",
    "delay",
    "fail_device",
    "init",
    "limit_memory",
    "live_bytes",
    "nccl",
    "stream",
    "synchronize",
    "topk_reduce",
]
