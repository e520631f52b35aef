"""Small kernels through nvcc and the interpreter: right as they are, each planted fault seen."""

from __future__ import annotations

import functools
import re
import struct

import numpy as np
import pytest
import torch

import ptx
from ptx.compiler import ARCHITECTURES, CASES, emit

# The first of them waits for nvcc.
pytestmark = pytest.mark.timeout(300)
EVERYWHERE = pytest.mark.parametrize("architecture", ARCHITECTURES)
SEEDS = (None, 1, 2)


@functools.cache
def texts(name: str, *defines: str) -> dict[tuple[str, str], str]:
    return emit([CASES / f"{name}.cu"], defines)


def program(name: str, architecture: str, *defines: str) -> ptx.Program:
    return ptx.load(texts(name, *defines)[name, architecture])[name]


def block_sum(
    architecture: str,
    *defines: str,
    count: int = 150,
    seed: int | None = None,
    dynamic_shared: int = 0,
) -> None:
    data = np.arange(2 * count, dtype=np.int32)
    memory = ptx.GlobalMemory()
    source = memory.add("input", data, writable=False)
    target = memory.add("output", np.full(2, -1, np.int32))
    arguments = struct.pack("<QQi", source.address, target.address, count)
    kernel = program("block_sum", architecture, *defines)
    launch = ptx.Launch(kernel, memory, arguments, (2, 1, 1), (64, 1, 1), dynamic_shared)
    ptx.run(launch, seed=seed)
    assert target.array(np.int32).tolist() == data.reshape(2, count).sum(1).tolist()


@EVERYWHERE
@pytest.mark.parametrize("seed", SEEDS)
def test_block_sum(architecture: str, seed: int | None) -> None:
    block_sum(architecture, seed=seed)


@EVERYWHERE
def test_dynamic_shared_memory_has_the_size_of_the_launch(architecture: str) -> None:
    block_sum(architecture, "DYNAMIC", dynamic_shared=8)
    with pytest.raises(ptx.MemoryAccessError, match=r"at shared\+4 \(4 bytes\)"):
        block_sum(architecture, "DYNAMIC", dynamic_shared=4)


@EVERYWHERE
@pytest.mark.parametrize("seed", SEEDS)
def test_a_missing_barrier_is_seen(architecture: str, seed: int | None) -> None:
    with pytest.raises(ptx.PtxError) as caught:
        block_sum(architecture, "MISSING_BARRIER", seed=seed)
    assert re.search("since the last barrier|unwritten bytes at shared", str(caught.value))


@EVERYWHERE
def test_a_divergent_barrier_is_seen(architecture: str) -> None:
    with pytest.raises(ptx.BarrierError, match="different barriers"):
        block_sum(architecture, "DIVERGENT_BARRIER")


@EVERYWHERE
def test_an_early_return_is_seen(architecture: str) -> None:
    with pytest.raises(ptx.BarrierError, match=r"threads wait for others|has ended"):
        block_sum(architecture, "EARLY_RETURN", count=33)


def vector_copy(architecture: str, *defines: str, count: int = 75, slack: int = 0) -> None:
    data = np.random.default_rng(0).integers(0, 256, count + slack).astype(np.uint8)
    memory = ptx.GlobalMemory()
    source = memory.add("input", data, writable=False)
    target = memory.add("output", np.zeros(count + slack, np.uint8))
    arguments = struct.pack("<QQi", source.address, target.address, count)
    kernel = program("vector_copy", architecture, *defines)
    ptx.run(ptx.Launch(kernel, memory, arguments, (2, 1, 1), (3, 1, 1)))
    assert target.array(np.uint8)[:count].tolist() == data[:count].tolist()


@EVERYWHERE
@pytest.mark.parametrize("count", [0, 1, 15, 16, 75, 160])
def test_vector_copy(architecture: str, count: int) -> None:
    vector_copy(architecture, count=count)


@EVERYWHERE
def test_one_byte_out_of_bounds_is_seen(architecture: str) -> None:
    with pytest.raises(ptx.MemoryAccessError, match=r"out of bounds: read of 1 bytes at input\+75"):
        vector_copy(architecture, "ONE_TOO_MANY")
    vector_copy(architecture, "ONE_TOO_MANY", slack=1)


@EVERYWHERE
def test_a_misaligned_vector_is_seen(architecture: str) -> None:
    with pytest.raises(ptx.MemoryAccessError, match="misaligned read of 16 bytes"):
        vector_copy(architecture, "MISALIGNED", slack=8)


def packed(architecture: str, *defines: str) -> None:
    threads = 5
    values = torch.linspace(-2, 3, 2 * threads)
    memory = ptx.GlobalMemory()
    source = memory.add("input", values.numpy(), writable=False)
    target = memory.add("output", np.zeros(threads, np.uint32))
    positive = memory.add("positive", np.zeros(threads, np.uint32))
    arguments = struct.pack("<QQQ", source.address, target.address, positive.address)
    kernel = program("packed", architecture, *defines)
    ptx.run(ptx.Launch(kernel, memory, arguments, (1, 1, 1), (threads, 1, 1)))
    expected = values.to(torch.bfloat16).view(torch.uint16).tolist()
    assert target.array(np.uint16).tolist() == expected
    signs = (values.reshape(threads, 2) > 0).long() @ torch.tensor([1, 2])
    assert positive.array(np.uint32).tolist() == signs.tolist()


@EVERYWHERE
def test_inline_assembly(architecture: str) -> None:
    packed(architecture)


@EVERYWHERE
def test_swapped_registers_are_seen(architecture: str) -> None:
    with pytest.raises(AssertionError):
        packed(architecture, "SWAPPED")


def flag(architecture: str, *defines: str, seed: int | None) -> None:
    threads = 40
    memory = ptx.GlobalMemory()
    data = memory.add("data", np.full(threads, -1, np.int32), peers_write=True)
    ready = memory.add("ready", np.zeros(1, np.uint32), peers_write=True)
    target = memory.add("output", np.zeros(threads + 1, np.int32))
    arguments = struct.pack("<QQQ", data.address, ready.address, target.address)
    kernel = program("flag", architecture, *defines)
    ptx.run(ptx.Launch(kernel, memory, arguments, (2, 1, 1), (threads, 1, 1)), seed=seed)
    expected = [*range(threads + 39, 39, -1), threads]
    assert target.array(np.int32).tolist() == expected


@EVERYWHERE
@pytest.mark.parametrize("seed", SEEDS)
def test_a_block_waits_for_another(architecture: str, seed: int | None) -> None:
    flag(architecture, seed=seed)


@EVERYWHERE
def test_waiting_for_ever_is_seen(architecture: str) -> None:
    with pytest.raises(ptx.PtxError, match="has not ended"):
        flag(architecture, "NEVER_SET", seed=None)


@EVERYWHERE
def test_local_memory(architecture: str) -> None:
    data = np.arange(16, dtype=np.int32)
    memory = ptx.GlobalMemory()
    source = memory.add("input", data, writable=False)
    target = memory.add("output", np.zeros(8, np.int32))
    arguments = struct.pack("<QQi", source.address, target.address, 7)
    kernel = program("local_array", architecture)
    ptx.run(ptx.Launch(kernel, memory, arguments, (1, 1, 1), (8, 1, 1)))
    table = [3 * i for i in range(8)]
    for i in range(7):
        table[data[8 + i] & 7] += i
    assert target.array(np.int32).tolist() == table
