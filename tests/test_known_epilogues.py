"""Calls with an epilogue in a known form: the short way, with the long way's bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import symmoe
from long_way import counted, long_way
from ranks import Ranks
from reference import DTYPES, assert_same_bits, noise

pytestmark = pytest.mark.multi
TOKENS, HIDDEN = 4, 136
TYPES = {"int8": torch.int8, "fp8_e4m3": torch.float8_e4m3fn}


def epilogue_of(form: str, seed: int, dtype: torch.dtype) -> symmoe.Epilogue:
    """Every form comes back with other memory and other numbers."""

    def rows(number: int) -> torch.Tensor:
        return noise(10 * seed + number, (TOKENS, HIDDEN), dtype)

    weight = noise(seed, (HIDDEN,), torch.float32)
    return {
        "scale": lambda: symmoe.Epilogue(scale=0.1 + seed),
        "shared": lambda: symmoe.Epilogue(scale=2.5, shared=rows(1)),
        "shared, scaled": lambda: symmoe.Epilogue(scale=2.5, shared=rows(1), scale_shared=True),
        "residual": lambda: symmoe.Epilogue(residual=rows(2)),
        "norm": lambda: symmoe.Epilogue(residual=rows(2), norm_weight=weight, eps=1e-3 * seed),
        "norm of a model": lambda: symmoe.Epilogue(
            shared=rows(1), residual=rows(2), norm_weight=torch.nn.Parameter(weight.to(dtype))
        ),
        "int8": lambda: symmoe.Epilogue(
            norm_weight=weight, quantize="int8", scales=torch.zeros(TOKENS)
        ),
        "fp8_e4m3": lambda: symmoe.Epilogue(
            shared=rows(1), quantize="fp8_e4m3", scales=torch.zeros(TOKENS + 1)
        ),
    }[form]()


FORMS = (
    "scale",
    "shared",
    "shared, scaled",
    "residual",
    "norm",
    "norm of a model",
    "int8",
    "fp8_e4m3",
)


def copy_of(epilogue: symmoe.Epilogue) -> symmoe.Epilogue:
    fields = {f.name: getattr(epilogue, f.name) for f in dataclasses.fields(epilogue)}
    return symmoe.Epilogue(
        **{
            k: v.clone() if k in ("residual", "scales") and v is not None else v
            for k, v in fields.items()
        }
    )


def bytes_of(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach().view(torch.uint8).clone()


def assert_same(found: list[torch.Tensor | None], expected: list[torch.Tensor | None]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert torch.equal(one, other)


def calls_of(
    group: symmoe.Group, seed: int, dtype: torch.dtype
) -> dict[str, Callable[..., torch.Tensor]]:
    rows = noise(seed + group.rank, (TOKENS * group.world_size, HIDDEN), dtype)
    slots = noise(seed + group.rank, (TOKENS * group.world_size, 3, HIDDEN), dtype)
    ids = torch.randint(0, 5, (len(rows), 1), generator=torch.Generator().manual_seed(seed))
    routing = symmoe.Routing(ids, expert_to_rank=torch.arange(5, dtype=torch.int32) % 2)
    if group.world_size == 1:
        routing = symmoe.Routing(ids, expert_to_rank=torch.zeros(5, dtype=torch.int32))

    def from_window(**more: Any) -> torch.Tensor:
        window = group.acquire("combine", tuple(rows.shape), dtype)
        assert window is not None
        return group.reduce_scatter(window.copy_(rows), **more)

    return {
        "window": from_window,
        "staged": lambda **more: group.reduce_scatter(rows, **more),
        "combine": lambda **more: group.combine(slots, **more),
        "routed": lambda **more: group.combine(rows, routing=routing, **more),
    }


def known(rank: int, world: int) -> None:
    with symmoe.init(device="cpu") as group, torch.no_grad():
        for turn in range(3):
            taken: list[str] = []
            for number, form in enumerate(FORMS):
                for dtype in DTYPES:
                    seed = 100 * turn + number + 1
                    for way, call in calls_of(group, seed, dtype).items():
                        given = epilogue_of(form, seed, dtype)
                        again = copy_of(given)
                        more: dict[str, Any] = {}
                        if turn == 2:
                            kind = given.out_type(dtype)
                            more["out"] = torch.empty(TOKENS + 1, HIDDEN, dtype=kind)
                        with counted(group) as now:
                            found = call(epilogue=given, **more)
                        taken += [f"{name} {form} {way} {dtype}" for name in now]
                        assert found.dtype is given.out_type(dtype)
                        with long_way(group):
                            right = call(epilogue=again)
                        assert_same(
                            [
                                bytes_of(found[:TOKENS]),
                                bytes_of(given.residual),
                                bytes_of(given.scales),
                            ],
                            [bytes_of(right), bytes_of(again.residual), bytes_of(again.scales)],
                        )
            # Where torch gives float8 tensors to nobody, those calls stay on the long way.
            if turn:
                assert [name for name in taken if "fp8" not in name] == []


@pytest.mark.parametrize("world", [1, 2])
def test_known(ranks: Ranks, world: int) -> None:
    ranks.run(world, known)


def gradients(rank: int, world: int) -> None:
    """A norm's weight that learns is taken where nothing is recorded, and nowhere else."""
    rows = torch.ones(TOKENS * world, HIDDEN)
    weight = torch.nn.Parameter(torch.full((HIDDEN,), 2.0))
    epilogue = symmoe.Epilogue(norm_weight=weight, eps=0.0)
    with symmoe.init(device="cpu") as group:
        for mode in (torch.no_grad, torch.inference_mode):
            for turn in range(2):
                with mode(), counted(group) as taken:
                    found = group.reduce_scatter(rows, epilogue=epilogue)
                assert_same_bits(found, torch.full((TOKENS, HIDDEN), 2.0).to(found.dtype))
                assert turn == 0 or taken == []
        with pytest.raises(ValueError, match="norm_weight requires a gradient"):
            group.reduce_scatter(rows, epilogue=epilogue)
        assert bool((group.reduce_scatter(rows) == world).all())


@pytest.mark.parametrize("world", [1, 2])
def test_gradients(ranks: Ranks, world: int) -> None:
    ranks.run(world, gradients)


def different_ones(rank: int, world: int) -> None:
    """Each call's own scale, eps and quantising, although all else is alike."""
    rows = torch.full((TOKENS * world, HIDDEN), 1.0)
    with symmoe.init(device="cpu") as group:
        for scale in (1.0, 2.0, -3.5, 2.0):
            found = group.reduce_scatter(rows, epilogue=symmoe.Epilogue(scale=scale))
            assert bool((found == world * scale).all())
        weight = torch.ones(HIDDEN)
        for eps in (1.0, 8.0, 0.0):
            found = group.reduce_scatter(
                rows, epilogue=symmoe.Epilogue(norm_weight=weight, eps=eps)
            )
            torch.testing.assert_close(
                found, torch.full_like(found, world / (world**2 + eps) ** 0.5)
            )
        for _ in range(2):
            for name, dtype in TYPES.items():
                scales = torch.zeros(TOKENS)
                epilogue = symmoe.Epilogue(norm_weight=weight, quantize=name, scales=scales)
                found = group.reduce_scatter(rows, epilogue=epilogue)
                assert found.dtype is dtype
                torch.testing.assert_close(
                    found.float() * scales[:, None], torch.ones(TOKENS, HIDDEN), rtol=0.1, atol=0
                )
            assert bool((group.reduce_scatter(rows) == world).all())
        with pytest.raises(TypeError, match=r"epilogue must be a symmoe.Epilogue, got str"):
            group.reduce_scatter(rows, epilogue="norm")  # type: ignore[arg-type]


@pytest.mark.parametrize("world", [1, 2])
def test_different_ones(ranks: Ranks, world: int) -> None:
    ranks.run(world, different_ones)
