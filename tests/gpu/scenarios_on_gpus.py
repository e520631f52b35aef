"""The scenarios that the other tests run emulated, on real devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpu_device
import pytest
import torch

import device_scenarios as results
import device_scenarios_compiled as compiled
import device_scenarios_epilogue as epilogue
import device_scenarios_gather as gather
import device_scenarios_gather_graphs as gather_graphs
import device_scenarios_graphs as graphs
import device_scenarios_life as life
import device_scenarios_padding as padding
import device_scenarios_peers as peers
import device_scenarios_routed as routed
import device_scenarios_sequence as sequence
import device_scenarios_sizes as on_device
import device_scenarios_windows as windows
from ranks import Ranks
from reference import DTYPES

Case = tuple[Callable[..., Any], list[Any]]

pytest_plugins = ("gpu_fixtures",)
SECONDS = 120.0
# Right on any NCCL.
ANYWHERE: list[Case] = [
    *[(results.in_place, [dtype]) for dtype in DTYPES],
    *[(results.gathers, [dtype]) for dtype in DTYPES],
    *[(results.alone, [dtype]) for dtype in DTYPES],
    (results.alone_refuses, []),
    (results.nothing_to_do, []),
    (results.other_types, []),
    (results.wrong_index, []),
    (epilogue.alone, []),
    (graphs.without_windows, []),
    *[(compiled.combines, [backend]) for backend in ("eager", "aot_eager")],
    (windows.capped, []),
    (life.threads, []),
]
# Only with windows: the direct path.
WITH_WINDOWS: list[Case] = [
    *[(results.sums, [dtype]) for dtype in DTYPES],
    *[(results.combines, [dtype]) for dtype in DTYPES],
    *[(results.special_values, [dtype]) for dtype in DTYPES],
    (results.large_gathers, []),
    (results.alone_into_window, []),
    *[(epilogue.behind, [path]) for path in ("direct", "grouped", "ordered")],
    *[(epilogue.replays, [quantize]) for quantize in (None, "int8")],
    *[(graphs.replays, [deterministic]) for deterministic in (False, True)],
    *[(graphs.refused_growth, [capturing]) for capturing in ([0], [0, 1])],
    (graphs.refused_scratch, []),
    (graphs.outgrown, []),
    (graphs.foreign_writes, []),
    (graphs.freed, []),
    (graphs.two_lanes, []),
    (graphs.work_outside, []),
    (graphs.abandoned, []),
    (windows.staging, []),
    (windows.between, []),
    (windows.pairing, []),
    (windows.parts_of_a_window, []),
    (windows.growth, []),
    (windows.slow_user, []),
    (windows.other_streams, []),
    (windows.lanes, []),
    *[(gather.gathers, [dtype]) for dtype in DTYPES],
    *[(gather.sharded_layers, [deterministic]) for deterministic in (False, True)],
    *[(gather.other_streams, [way]) for way in ("reduce_scatter", "combine", "all_gather")],
    (gather.compared, []),
    (sequence.in_place, []),
    (sequence.refused, []),
    (gather.outgrown, []),
    (gather.refused, []),
    (gather_graphs.replays, [None]),
    (gather_graphs.refused, []),
    (gather.lanes, []),
    (life.sleep, []),
    (life.ends, []),
    (life.several, []),
    (life.different_calls, []),
    (life.same_on_other_devices, []),
]
# Only where own kernels reach the peers' windows.
WITH_PEERS: list[Case] = [
    *[(peers.sums, [dtype, "vmm"]) for dtype in DTYPES],
    *[(peers.combines, [dtype]) for dtype in DTYPES],
    *[(epilogue.pulled, [dtype]) for dtype in DTYPES],
    *[(epilogue.routed, [dtype]) for dtype in DTYPES],
    *[(epilogue.sized_on_the_device, [path]) for path in ("pull", "fused")],
    (epilogue.behind, ["fused"]),
    (epilogue.misused, []),
    (peers.mixed_sources, []),
    (peers.odd_offsets, []),
    (peers.batches, []),
    (peers.threads_and_lanes, []),
    *[(peers.graphs, [path]) for path in ("pull", "fused")],
    (peers.growth, []),
    *[(routed.combines, [dtype, path]) for dtype in DTYPES for path in ("routed", "fused")],
    *[(routed.by_experts, [path]) for path in ("routed", "pull", "ordered")],
    *[(routed.in_graphs, [path]) for path in ("routed", "fused")],
    (routed.wrong_owner, []),
    (routed.refused, []),
    *[(on_device.sums, [dtype]) for dtype in DTYPES],
    (on_device.routed, []),
    *[
        (on_device.changing, [path, padded])
        for path in ("pull", "fused")
        for padded in (True, False)
    ],
    (on_device.wrong, []),
    *[
        (padding.combines, [path, device_sizes])
        for path in ("pull", "routed", "fused")
        for device_sizes in (False, True)
    ],
    *[(padding.other_sizes, [path, True]) for path in ("routed", "fused")],
    *[(padding.replays, [path, padded]) for path in ("routed", "pull") for padded in (False, True)],
    (on_device.refused, []),
    (gather.sharded_layers, [False]),
    (gather.sizes_on_the_device, []),
    (sequence.in_place, []),
    (gather_graphs.replays, [None]),
]


def name_of(case: Case) -> str:
    scenario, arguments = case
    words = [str(word).removeprefix("torch.") for word in arguments]
    return " ".join(
        [scenario.__module__.removeprefix("device_scenarios"), scenario.__name__, *words]
    )


@pytest.mark.parametrize("case", ANYWHERE, ids=name_of)
def test_anywhere(gpu_ranks: Ranks, case: Case) -> None:
    scenario, arguments = case
    gpu_ranks.run(gpu_device.world(), gpu_device.on_device, scenario, *arguments, seconds=SECONDS)


@pytest.mark.parametrize("case", WITH_WINDOWS, ids=name_of)
def test_with_windows(gpu_ranks: Ranks, no_windows: str, case: Case) -> None:
    if no_windows:
        pytest.skip(f"no windows here: {no_windows}")
    scenario, arguments = case
    gpu_ranks.run(gpu_device.world(), gpu_device.on_device, scenario, *arguments, seconds=SECONDS)


@pytest.mark.parametrize("case", WITH_PEERS, ids=name_of)
def test_with_peers(gpu_ranks: Ranks, no_peers: str, case: Case) -> None:
    if no_peers:
        pytest.skip(f"own kernels reach no peers here: {no_peers}")
    scenario, arguments = case
    gpu_ranks.run(gpu_device.world(), gpu_device.with_peers, scenario, *arguments, seconds=SECONDS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_device_alone(gpu_ranks: Ranks, dtype: torch.dtype) -> None:
    """The device kernels, with no NCCL at all: the CPU's bits."""
    for scenario in (results.sums, results.combines):
        gpu_ranks.run(1, gpu_device.on_device, scenario, dtype, seconds=SECONDS)
