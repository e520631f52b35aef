"""Calls with an epilogue: any steps, dtype, sizes and path, and the bits of torch's operations.

What is compared with: the call without an epilogue, then the steps one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import symmoe
from ranks import Ranks, fresh
from reference import DTYPES, assert_same_bits, noise, own_rows
from shares import Shares, paddings, sizes_of

pytestmark = [pytest.mark.multi, pytest.mark.timeout(300)]
BOUNDED = settings(
    max_examples=16,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
LARGEST = {"int8": 127.0, "fp8_e4m3": 448.0}
TYPES = {"int8": torch.int8, "fp8_e4m3": torch.float8_e4m3fn}
FORMS = ("window", "memory", "combine", "routed window", "routed memory", "routed combine")


@dataclass
class Case(Shares):
    """One call with an epilogue.

    Attributes:
        form: Where the rows come from.
        scale: Factor, or None.
        shared: Whether there are shared rows.
        scale_shared: Whether the factor is theirs as well.
        residual: Whether there is one.
        weight: Of the norm: "", "same" or "float32".
        quantize: Name, or None.
        own_out: Whether the caller gives the output.
        alike: Whether all ranks have this epilogue; otherwise odd ones have none.
        seed: Of all values.
    """

    form: str
    scale: float | None
    shared: bool
    scale_shared: bool
    residual: bool
    weight: str
    quantize: str | None
    own_out: bool
    alike: bool
    seed: int

    @property
    def is_empty(self) -> bool:
        return not (self.scale or self.shared or self.residual or self.weight or self.quantize)


@st.composite
def cases(draw: st.DrawFn, world: int) -> Case:
    scale, shared = draw(st.sampled_from([None, 2.5, 0.3])), draw(st.booleans())
    return Case(
        dtype=draw(st.sampled_from(DTYPES)),
        sizes=draw(sizes_of(world)),
        padding=draw(paddings()),
        hidden=draw(st.one_of(st.integers(1, 150), st.sampled_from([1024, 2880]))),
        form=draw(st.sampled_from(FORMS)),
        scale=scale,
        shared=shared,
        scale_shared=draw(st.booleans()) and shared and scale is not None,
        residual=draw(st.booleans()),
        weight=draw(st.sampled_from(["", "same", "float32"])),
        quantize=draw(st.sampled_from([None, None, "int8", "fp8_e4m3"])),
        own_out=draw(st.booleans()),
        alike=draw(st.booleans()),
        seed=draw(st.integers(0, 1 << 20)),
    )


@st.composite
def runs(draw: st.DrawFn, worlds: list[int]) -> tuple[int, list[Case]]:
    world = draw(st.sampled_from(worlds))
    chosen = draw(st.lists(cases(world), min_size=1, max_size=8))
    return world, [case for case in chosen if not case.is_empty]


class Parts:
    """A rank's tensors for an epilogue; rows beyond the own ones hold 7."""

    def __init__(self, case: Case, rank: int) -> None:
        own, hidden, seed = case.sizes[rank], case.hidden, case.seed * 64 + rank
        self.own = own

        def rows(number: int) -> torch.Tensor:
            made = torch.full((own + 1, hidden), 7, dtype=case.dtype)
            made[:own] = noise(seed + 8 * number, (own, hidden), case.dtype)
            return made

        self.shared = rows(1) if case.shared else None
        self.residual = rows(2) if case.residual else None
        self.weight = None
        if case.weight:
            dtype = case.dtype if case.weight == "same" else torch.float32
            self.weight = noise(case.seed, (hidden,), dtype)
        self.scales = torch.full((own + 1,), 7.0) if case.quantize else None

    def epilogue(self, case: Case) -> symmoe.Epilogue:
        return symmoe.Epilogue(
            scale=case.scale,
            shared=self.shared,
            scale_shared=case.scale_shared,
            residual=self.residual,
            norm_weight=self.weight,
            quantize=case.quantize,
            scales=self.scales,
        )


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """The formula of docs/epilogue.md, in fp32, by numpy."""
    rows, hidden = x.shape
    wide = x.float().numpy()
    lanes = np.zeros((rows, 64), dtype=np.float32)
    for begin in range(0, hidden, 64):
        block = wide[:, begin : begin + 64]
        lanes[:, : block.shape[1]] += block * block
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    mean = lanes / np.float32(hidden)
    factor = np.float32(1) / np.sqrt(mean + np.float32(eps))
    return torch.from_numpy(wide * factor * weight.float().numpy()).to(x.dtype)


def quantized(x: torch.Tensor, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    wide = x.float()
    scales = (wide.abs().amax(1) / LARGEST[name]).clamp(min=2.0**-126)
    scaled = wide * (1 / scales)[:, None]
    return (scaled.round() if name == "int8" else scaled).to(TYPES[name]), scales


def unfused(case: Case, rows: torch.Tensor, parts: Parts) -> torch.Tensor:
    """The steps as operations of torch; what is in place is."""
    own, x = parts.own, rows
    if case.scale is not None and not case.scale_shared:
        x = x * case.scale
    if parts.shared is not None:
        x = x + parts.shared[:own]
    if case.scale is not None and case.scale_shared:
        x = x * case.scale
    if parts.residual is not None:
        parts.residual[:own] = parts.residual[:own] + x
        x = parts.residual[:own]
    if parts.weight is not None:
        x = norm(x, parts.weight)
    if parts.scales is not None and case.quantize is not None:
        x, parts.scales[:own] = quantized(x, case.quantize)
    return x


def assert_bytes_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    if found.dtype.itemsize > 1:
        assert_same_bits(found, expected)
    else:
        assert found.dtype is expected.dtype
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


def call(group: symmoe.Group, case: Case, lane: int, **more: Any) -> torch.Tensor:
    """The call on its form's way."""
    rows = noise(case.seed + group.rank, (case.rows, case.hidden), case.dtype)
    more |= {"sizes": case.sizes, "padded_to": case.stride, "lane": lane, "deterministic": True}
    if case.form.startswith("routed"):
        generator = torch.Generator().manual_seed(case.seed)
        ids = torch.randint(-1, 5, (case.rows, 1), generator=generator)
        placed = torch.arange(5, dtype=torch.int32) % group.world_size
        more["routing"] = symmoe.Routing(ids, expert_to_rank=placed)
    if case.form.endswith("combine"):
        return group.combine(rows, **more)
    if case.form.endswith("window"):
        window = group.acquire("combine", (case.rows, case.hidden), case.dtype, lane=lane)
        rows = rows if window is None else window.copy_(rows)
    return group.reduce_scatter(rows, **more)


def run_cases(rank: int, world: int, chosen: list[Case], config: symmoe.Config) -> None:
    """Each twice, with other numbers: the second time its form is known."""
    twice = [replace(case, seed=case.seed + turn) for case in chosen for turn in range(2)]
    with symmoe.init(config=config, device="cpu") as group:
        for number, case in enumerate(twice):
            lane = number // 2 % 3
            plain = call(group, case, lane)
            assert own_rows(case.sizes, rank).stop - own_rows(case.sizes, rank).start == len(plain)
            if not case.alike and rank % 2:
                assert_same_bits(call(group, case, lane), plain)
                continue
            fused, separate, alone = (Parts(case, rank) for _ in range(3))
            expected = unfused(case, plain, separate)
            out = None
            if case.own_out:
                out = torch.full((fused.own + 1, case.hidden), 7, dtype=torch.float32)
                out = out.to(expected.dtype)
            found = call(group, case, lane, out=out, epilogue=fused.epilogue(case))
            if out is not None:
                assert found is out
                assert bool((out[fused.own].float() == 7).all())
                found = out[: fused.own]
            assert_bytes_equal(found, expected)
            kernel = symmoe.apply_epilogue(plain, alone.epilogue(case))
            assert_bytes_equal(kernel, expected)
            for parts in (fused, alone):
                for name in ("shared", "residual", "weight", "scales"):
                    got, want = getattr(parts, name), getattr(separate, name)
                    assert (got is None) == (want is None)
                    if got is not None:
                        assert_same_bits(got, want)


@BOUNDED
@given(run=runs([1, 2, 3, 4]))
def test_windows(ranks: Ranks, run: tuple[int, list[Case]]) -> None:
    ranks.run(run[0], run_cases, run[1], symmoe.Config())


@settings(BOUNDED, max_examples=6)
@given(run=runs([1, 2, 3]))
def test_process_group(ranks: Ranks, run: tuple[int, list[Case]]) -> None:
    ranks.run(run[0], run_cases, run[1], symmoe.Config(windows=False))


@settings(BOUNDED, max_examples=4)
@given(run=runs([2]))
def test_checked_and_without_memory(ranks: Ranks, run: tuple[int, list[Case]]) -> None:
    ranks.run(run[0], run_cases, run[1], symmoe.Config(check=True))
    ranks.run(run[0], run_cases, run[1], symmoe.Config(max_buffer_bytes=4096))


def in_place(rank: int, world: int) -> None:
    """`out` may be the own slice of an input that is in no window."""
    with symmoe.init(device="cpu") as group:
        for dtype in DTYPES:
            rows = noise(rank, (6 * world, 70), dtype)
            residual, again = noise(9, (6, 70), dtype), noise(9, (6, 70), dtype)
            plain = group.reduce_scatter(rows.clone())
            own = rows[6 * rank : 6 * rank + 6]
            epilogue = symmoe.Epilogue(residual=residual)
            assert group.reduce_scatter(rows, own, epilogue=epilogue) is own
            assert_same_bits(own, again + plain)
            assert_same_bits(residual, own)
            alone = symmoe.apply_epilogue(plain, symmoe.Epilogue(residual=again), out=plain)
            assert alone is plain
            assert_same_bits(alone, own)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_in_place(ranks: Ranks, world: int) -> None:
    ranks.run(world, in_place)


def explained(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group:
        window = group.acquire("combine", (4, 8), torch.float32)
        assert window is not None
        epilogue = symmoe.Epilogue(residual=torch.zeros(4 // world, 8))
        assert group.explain("reduce_scatter", window, epilogue=epilogue).path == "pull"
        rows = torch.zeros(4, 8)
        assert group.explain("reduce_scatter", rows, epilogue=epilogue).path == "staged"
        assert group.explain("combine", rows, epilogue=epilogue).path == "pull"
        with pytest.raises(TypeError, match=r"epilogue must be a symmoe.Epilogue, got int"):
            group.explain("combine", rows, epilogue=3)
        group.reduce_scatter(window, epilogue=epilogue)  # none closes before all are here


def test_explain(ranks: Ranks) -> None:
    ranks.run(2, explained)


def tagged(rank: int, world: int) -> None:
    """The result is Sharded as without; summands are no shared rows."""
    with symmoe.init(device="cpu") as group:
        shared = symmoe.tag(torch.zeros(2, 8), symmoe.Partial())
        rows = symmoe.tag(torch.ones(2 * world, 8), symmoe.Partial())
        with pytest.raises(symmoe.LayoutError, match=r"epilogue.shared: the tensor is Partial"):
            group.reduce_scatter(rows, epilogue=symmoe.Epilogue(shared=shared))
        symmoe.tag(shared, symmoe.Sharded())
        found = group.reduce_scatter(rows, epilogue=symmoe.Epilogue(shared=shared))
        assert symmoe.layout_of(found) == symmoe.Sharded([2] * world)
        assert bool((found == world).all())
        twice = symmoe.Epilogue(scale=2)
        assert symmoe.layout_of(symmoe.apply_epilogue(found, twice)) == symmoe.layout_of(found)
        with pytest.raises(symmoe.LayoutError, match=r"rows: the tensor is Partial, must be"):
            symmoe.apply_epilogue(rows, twice)


def test_tags() -> None:
    with fresh() as ranks:  # tags stay in use in a process
        ranks.run(2, tagged)
