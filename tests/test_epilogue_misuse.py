"""Wrong epilogues: each is refused before anything is written, and the group goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import symmoe
import symmoe.testing
from long_way import counted
from ranks import Ranks
from reference import assert_same_bits, noise

TOKENS, HIDDEN, TYPE = 4, 24, torch.bfloat16

ROWS = torch.zeros(TOKENS, HIDDEN)
MAKING: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (ValueError, "nothing to do", {}),
    (ValueError, "nothing to do", {"eps": 1e-5}),
    (TypeError, "shared must be a tensor, got list", {"shared": [1.0]}),
    (TypeError, "norm_weight must be a tensor, got float", {"norm_weight": 1.0}),
    (TypeError, "scale must be a number, got '2'", {"scale": "2"}),
    (TypeError, "scale must be a number, got True", {"scale": True}),
    (TypeError, "eps must be a number, got None", {"norm_weight": ROWS[0], "eps": None}),
    (ValueError, "scale = 1000.* is more than a float holds", {"scale": 10**400}),
    (ValueError, "eps = -1.0 must be finite", {"norm_weight": ROWS[0], "eps": -1}),
    (ValueError, "eps = nan", {"norm_weight": ROWS[0], "eps": float("nan")}),
    (ValueError, r"eps = 1e\+39 must be finite in float32", {"norm_weight": ROWS[0], "eps": 1e39}),
    (
        TypeError,
        "scale_shared must be True or False, got 'no'",
        {"scale": 2.0, "shared": ROWS, "scale_shared": "no"},
    ),
    (ValueError, "scale_shared needs scale and shared", {"scale": 2.0, "scale_shared": True}),
    (ValueError, "scale_shared needs", {"shared": ROWS, "scale_shared": True}),
    (ValueError, "quantize = 'int4' is none of int8, fp8_e4m3", {"quantize": "int4"}),
    (ValueError, "quantize and scales go together", {"quantize": "int8"}),
    (ValueError, "quantize and scales go together", {"scale": 2.0, "scales": ROWS[:, 0]}),
]


@pytest.mark.parametrize(("kind", "words", "given"), MAKING)
def test_making(kind: type[Exception], words: str, given: dict[str, Any]) -> None:
    with pytest.raises(kind, match=words):
        symmoe.Epilogue(**given)


def test_cannot_be_changed() -> None:
    epilogue = symmoe.Epilogue(scale=2)
    assert epilogue.scale == 2.0
    with pytest.raises(AttributeError):
        epilogue.scale = 3.0  # type: ignore[misc]


class Given:
    """Right arguments of a call of rank 0 of 2, for a case to spoil."""

    def __init__(self, window: torch.Tensor | None) -> None:
        self.window = window
        self.rows = noise(1, (2 * TOKENS, HIDDEN), TYPE)
        self.out = torch.full((TOKENS, HIDDEN), 7, dtype=TYPE)
        self.shared = noise(2, (TOKENS, HIDDEN), TYPE)
        self.residual = noise(3, (TOKENS, HIDDEN), TYPE)
        self.weight = noise(4, (HIDDEN,), TYPE)
        self.scales = torch.full((TOKENS,), 7.0)
        self.quantize: str | None = None

    def epilogue(self) -> symmoe.Epilogue:
        return symmoe.Epilogue(
            shared=self.shared,
            residual=self.residual,
            norm_weight=self.weight,
            quantize=self.quantize,
            scales=self.scales if self.quantize else None,
        )

    def tensors(self) -> list[torch.Tensor]:
        return [self.rows, self.out, self.shared, self.residual, self.weight, self.scales]


def quantise(given: Given) -> None:
    given.quantize = "int8"
    given.out = torch.full((TOKENS, HIDDEN), 7, dtype=torch.int8)


def set_to(name: str, value: Callable[[Given], torch.Tensor]) -> Callable[[Given], None]:
    return lambda given: setattr(given, name, value(given))


def both(first: Callable[[Given], None], then: Callable[[Given], None]) -> Callable[[Given], None]:
    def change(given: Given) -> None:
        first(given)
        then(given)

    return change


def windowed(given: Given) -> torch.Tensor:
    assert given.window is not None
    return given.window[:TOKENS]


CALLS: list[tuple[type[Exception], str, Callable[[Given], None]]] = [
    (
        TypeError,
        "shared is float32, expected bfloat16",
        set_to("shared", lambda g: g.shared.float()),
    ),
    (TypeError, "residual is float16", set_to("residual", lambda g: g.residual.half())),
    (
        TypeError,
        "norm_weight is float16, expected bfloat16 or float32",
        set_to("weight", lambda g: g.weight.half()),
    ),
    (
        ValueError,
        r"shared has shape \[3, 24\], expected at least \[4, 24\]",
        set_to("shared", lambda g: g.shared[:3]),
    ),
    (ValueError, "residual has shape", set_to("residual", lambda g: g.residual[:, :23].clone())),
    (ValueError, "residual must be contiguous", set_to("residual", lambda g: g.rows[::2])),
    (
        ValueError,
        r"norm_weight has shape \[23\], expected \[24\]",
        set_to("weight", lambda g: g.weight[:23]),
    ),
    (ValueError, "norm_weight is on meta", set_to("weight", lambda g: g.weight.to("meta"))),
    (
        ValueError,
        "residual overlaps|overlaps epilogue.residual",
        set_to("residual", lambda g: g.out),
    ),
    (ValueError, "overlaps epilogue", set_to("shared", lambda g: g.residual)),
    (ValueError, "overlaps epilogue", set_to("shared", lambda g: g.out)),
    (ValueError, "overlaps epilogue", set_to("weight", lambda g: g.residual[1])),
    (ValueError, "input overlaps epilogue.residual", set_to("residual", lambda g: g.rows[:TOKENS])),
    (ValueError, "residual overlaps a window", set_to("residual", windowed)),
    (ValueError, "shared overlaps a window", set_to("shared", windowed)),
    (ValueError, "norm_weight overlaps a window", set_to("weight", lambda g: windowed(g)[0])),
    (ValueError, "out overlaps a window", set_to("out", windowed)),
    (TypeError, "out is bfloat16, expected int8", lambda g: setattr(g, "quantize", "int8")),
    (TypeError, "out is int8, expected bfloat16", set_to("out", lambda g: g.out.to(torch.int8))),
    (
        TypeError,
        "scales is float64, expected float32",
        both(quantise, set_to("scales", lambda g: g.scales.double())),
    ),
    (
        ValueError,
        r"scales has shape \[3\], expected at least \[4\]",
        both(quantise, set_to("scales", lambda g: g.scales[:3])),
    ),
    (
        ValueError,
        "scales overlaps|overlaps epilogue.scales",
        both(
            quantise, set_to("scales", lambda g: g.residual.view(torch.float32).view(-1)[:TOKENS])
        ),
    ),
    (
        ValueError,
        "out overlaps input",
        both(
            quantise,
            set_to("out", lambda g: g.rows.view(torch.int8).view(-1, HIDDEN)[:TOKENS]),
        ),
    ),
]


def misused(rank: int, world: int, windows: bool) -> None:
    with symmoe.init(config=symmoe.Config(windows=windows), device="cpu") as group:

        def right_calls() -> None:
            for change in (lambda given: None, quantise):
                given = Given(None)
                change(given)
                group.reduce_scatter(given.rows, given.out, epilogue=given.epilogue())
                group.combine(given.rows, out=given.out, epilogue=given.epilogue())

        right_calls()
        for kind, words, change in CALLS:
            if not windows and words.endswith("overlaps a window"):
                continue
            with counted(group) as taken:
                right_calls()
            assert not windows or taken == []  # so what is wrong is known but for one thing
            window = group.acquire("combine", (2 * TOKENS, HIDDEN), TYPE)
            given = Given(window)
            change(given)
            before = [each.clone() for each in given.tensors() if not each.is_meta]
            with pytest.raises(kind, match=words):
                group.reduce_scatter(given.rows, given.out, epilogue=given.epilogue())
            if "input" not in words:
                with pytest.raises(kind, match=words):
                    group.combine(given.rows, out=given.out, epilogue=given.epilogue())
            after = [each for each in given.tensors() if not each.is_meta]
            for one, other in zip(before, after, strict=True):
                assert torch.equal(one.nan_to_num(), other.nan_to_num())
        for dtype in (torch.float64, torch.int32):
            rows = torch.ones(2 * TOKENS, HIDDEN, dtype=dtype)
            epilogue = symmoe.Epilogue(scale=2)
            with pytest.raises(TypeError, match="an epilogue goes with bfloat16, float16 and"):
                group.reduce_scatter(rows, epilogue=epilogue)
        # And it still works, with and without.
        rows = noise(rank, (2 * TOKENS, HIDDEN), TYPE)
        plain = group.reduce_scatter(rows)
        found = group.reduce_scatter(rows, epilogue=symmoe.Epilogue(scale=2))
        assert_same_bits(found, plain * 2)


@pytest.mark.multi
@pytest.mark.parametrize("windows", [True, False])
def test_misuse(ranks: Ranks, windows: bool) -> None:
    ranks.run(2, misused, windows)


def test_alone() -> None:
    rows = noise(5, (TOKENS, HIDDEN), TYPE)
    epilogue = symmoe.Epilogue(scale=2)
    with pytest.raises(TypeError, match=r"epilogue must be a symmoe.Epilogue"):
        symmoe.apply_epilogue(rows, 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"rows must be \[M, H\]"):
        symmoe.apply_epilogue(rows[0], epilogue)
    with pytest.raises(TypeError, match="goes with bfloat16, float16 and float32, not float64"):
        symmoe.apply_epilogue(rows.double(), epilogue)
    with pytest.raises(ValueError, match="out overlaps rows"):
        symmoe.apply_epilogue(rows[:2], epilogue, out=rows[1:3])
    quantized = symmoe.Epilogue(quantize="int8", scales=torch.zeros(TOKENS))
    with pytest.raises(ValueError, match="out overlaps rows"):
        symmoe.apply_epilogue(rows, quantized, out=rows.view(torch.int8).view(-1, HIDDEN)[:TOKENS])
    with pytest.raises(ValueError, match=r"rows overlaps epilogue.residual"):
        symmoe.apply_epilogue(rows, symmoe.Epilogue(residual=rows))
    assert symmoe.apply_epilogue(rows[:0], epilogue).shape == (0, HIDDEN)
