"""Which modules commute with a sum: by their structure, or declared and tried."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import symmoe
from symmoe import probing
from symmoe.module_state import ModuleState

WIDTH, OUT = 64, 96


def linear(dtype: torch.dtype = torch.float32, bias: bool = False) -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(WIDTH, OUT, bias=bias, dtype=dtype)


class Declared(nn.Module):
    """A module that says it commutes, around any function of its rows."""

    reduce_commutative = True
    in_features = WIDTH

    def __init__(
        self, function: Callable[[nn.Linear, Tensor], Tensor], dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.inner = linear(dtype)
        self.function = function

    def forward(self, rows: Tensor) -> Tensor:
        return self.function(self.inner, rows)


class OutputNorm(nn.Module):
    """A norm by its name, as engines have their own."""

    reduce_commutative = True

    def forward(self, rows: Tensor) -> Tensor:
        return rows


def quantised_to(levels: float, per_row: bool = True) -> Callable[[nn.Linear, Tensor], Tensor]:
    """A linear layer that first rounds its rows to whole steps, the largest element's by row."""

    def apply(inner: nn.Linear, rows: Tensor) -> Tensor:
        wide = rows.float()
        largest = wide.abs().amax(1, keepdim=True).clamp_min(1e-30) if per_row else torch.ones(1)
        step = largest / levels
        made: Tensor = inner((wide / step).round().mul(step).to(rows.dtype))
        return made

    return apply


def to_fp8(inner: nn.Linear, rows: Tensor) -> Tensor:
    wide = rows.float()
    scale = wide.abs().amax(1, keepdim=True).clamp_min(1e-30) / 448
    made: Tensor = inner(((wide / scale).to(torch.float8_e4m3fn).float() * scale).to(rows.dtype))
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_plain_linear_layers_commute(dtype: torch.dtype) -> None:
    for module in (
        linear(dtype),
        nn.Identity(),
        nn.Sequential(linear(dtype), nn.Linear(OUT, 8, bias=False, dtype=dtype)),
    ):
        verdict = symmoe.commutes_with_sum(module)
        assert verdict, verdict
        assert verdict.commutes
        assert "commutes with a sum" in str(verdict)


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (linear(bias=True), r"Linear has a bias \(bias\)"),
        (nn.Sequential(linear(), nn.Linear(OUT, 8)), r"Linear at 1 has a bias \(1\.bias\)"),
        (nn.LayerNorm(WIDTH), "LayerNorm is a norm"),
        (nn.RMSNorm(WIDTH), "RMSNorm is a norm"),
        (nn.Sequential(nn.RMSNorm(WIDTH), linear()), "RMSNorm at 0 is a norm"),
        (OutputNorm(), "OutputNorm is a norm"),
        (nn.Sequential(nn.Dropout(0.1), linear()), r"Dropout at 0 is switched on: call eval"),
        (nn.Sequential(linear(), nn.ReLU()), "Sequential is no plain linear layer, and it does"),
        (nn.ReLU(), "does not declare reduce_commutative"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, nn.Module) else "",
)
def test_what_does_not_commute_by_its_structure(module: nn.Module, why: str) -> None:
    verdict = symmoe.commutes_with_sum(module)
    assert not verdict
    assert re.search(why, verdict.reason), verdict.reason


def test_a_quantised_layer_does_not_commute() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.backends.quantized.engine = torch.backends.quantized.supported_engines[-1]
        quantised = torch.ao.quantization.quantize_dynamic(  # type: ignore[no-untyped-call]
            nn.Sequential(linear()), {nn.Linear}, dtype=torch.qint8
        )
    assert not symmoe.commutes_with_sum(quantised)
    quantised.reduce_commutative = True  # saying so does not make it so
    verdict = symmoe.commutes_with_sum(quantised, width=WIDTH, dtype=torch.float32)
    assert not verdict
    assert "declares reduce_commutative = True, but" in verdict.reason


def test_a_weight_of_another_type_is_not_plain() -> None:
    class Subclass(Tensor):
        pass

    module = linear()
    module.weight = nn.Parameter(module.weight.detach().as_subclass(Subclass))
    assert "may quantise its input" in symmoe.commutes_with_sum(module).reason
    module = linear()
    module.weight = nn.Parameter(module.weight.detach().to(torch.float8_e4m3fn))
    assert "of float8_e4m3fn, which may quantise" in symmoe.commutes_with_sum(module).reason


def test_what_is_attached_to_a_layer_counts() -> None:
    module = linear()
    handle = module.register_forward_hook(lambda _m, _i, out: out + 1)
    assert "hooks" in symmoe.commutes_with_sum(module).reason
    handle.remove()
    assert symmoe.commutes_with_sum(module)
    module.forward = torch.relu  # type: ignore[method-assign]
    assert not symmoe.commutes_with_sum(module)
    module = linear()
    module.reduce_commutative = False  # type: ignore[assignment]
    assert "declares reduce_commutative = False" in symmoe.commutes_with_sum(module).reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "function",
    [
        lambda inner, rows: inner(rows),
        lambda inner, rows: inner(rows) * 0.37,
        lambda inner, rows: torch.cat([inner(rows), rows], 1),
        lambda inner, rows: inner(rows) @ inner.weight,  # two stages
        lambda inner, rows: inner(rows) * torch.linspace(0, 100, OUT).to(rows.dtype),
        lambda inner, rows: torch.zeros(len(rows), 3, dtype=rows.dtype),
    ],
    ids=["linear", "scaled", "beside", "two", "columns", "zero"],
)
def test_declared_and_linear(function: Callable[..., Tensor], dtype: torch.dtype) -> None:
    for seed in range(8):
        verdict = symmoe.commutes_with_sum(Declared(function, dtype).eval(), seed=seed)
        assert verdict, verdict
        assert probing.PASSED in verdict.reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda inner, rows: inner(rows) + 1e-4, "of 0"),
        (lambda inner, rows: inner(rows) * float("nan"), "makes nan of 0"),
        (lambda inner, rows: torch.relu(inner(rows)), "is off"),
        (lambda inner, rows: inner(rows.clamp(-16, 16)), r"is off .* up to 128"),
        (lambda inner, rows: torch.tanh(inner(rows)), "is off"),
        (quantised_to(64, per_row=False), r"is off .* up to 0\.03"),  # a fixed step of 1/64
        (quantised_to(127), "is off|quantises its input"),
        # In bfloat16 its roundings hide in those of the output: seen beside large elements only.
        (quantised_to(200), "is off|quantises its input by its largest element"),
        (to_fp8, "is off"),
        (lambda inner, rows: inner(rows) * rows.abs().amax(1, keepdim=True), "is off"),
        (lambda inner, rows: inner(rows).cumsum(0).flip(0), "other numbers alone"),
        # One column of many that is not linear.
        (lambda inner, rows: torch.cat([inner(rows), rows[:, :1].abs()], 1), "is off"),
    ],
    ids=[
        "affine",
        "nan",
        "relu",
        "clip",
        "tanh",
        "step",
        "int8",
        "finer",
        "fp8",
        "scale",
        "mixes",
        "column",
    ],
)
def test_declared_but_not_linear(
    function: Callable[..., Tensor], why: str, dtype: torch.dtype
) -> None:
    for seed in range(8):
        verdict = symmoe.commutes_with_sum(Declared(function, dtype).eval(), seed=seed)
        assert not verdict
        assert re.search(why, verdict.reason), verdict.reason


def test_a_bias_of_zero_is_a_bias_all_the_same() -> None:
    module = Declared(lambda inner, rows: inner(rows))
    module.inner = linear(bias=True)
    nn.init.zeros_(module.inner.bias)
    assert "has a bias (inner.bias)" in symmoe.commutes_with_sum(module).reason


def test_engines_layers_return_a_pair() -> None:
    pair = Declared(lambda inner, rows: (inner(rows), None))  # type: ignore[arg-type, return-value]
    assert symmoe.commutes_with_sum(pair)
    pair = Declared(lambda inner, rows: (inner(rows), rows))  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match=r"returned \(Tensor, Tensor\), expected a tensor"):
        symmoe.commutes_with_sum(pair)


def test_the_trial_leaves_no_trace() -> None:
    class Counts(Declared):
        count: Tensor

        def __init__(self) -> None:
            super().__init__(lambda inner, rows: inner(rows))
            self.register_buffer("count", torch.zeros(1))

        def forward(self, rows: Tensor) -> Tensor:
            torch.rand(3)
            assert not torch.is_grad_enabled()
            assert not self.training
            self.count.add_(1)
            return super().forward(rows)

    module = Counts()
    module.inner.eval()
    before = torch.random.get_rng_state()
    verdict = symmoe.commutes_with_sum(module)
    assert "its forward changes its buffer count" in verdict.reason
    assert module.count.item() == 0
    assert module.training
    assert not module.inner.training
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_same_verdict_for_the_same_seed() -> None:
    words = {
        symmoe.commutes_with_sum(Declared(lambda i, r: torch.relu(i(r))), seed=7).reason
        for _ in range(3)
    }
    assert len(words) == 1


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module, got function"):
        symmoe.commutes_with_sum(linear)  # type: ignore[arg-type]

    class Nothing(nn.Module):
        reduce_commutative = True

        def forward(self, rows: Tensor) -> Tensor:
            return rows[:, :5]

    with pytest.raises(ValueError, match="give width="):
        symmoe.commutes_with_sum(Nothing())
    assert symmoe.commutes_with_sum(Nothing(), width=9)
    with pytest.raises(ValueError, match=r"cannot be tried on rows of \[2, 9\]"):
        symmoe.commutes_with_sum(Declared(lambda inner, rows: inner(rows)), width=9)


def replace_weight(module: nn.Module) -> None:
    module.inner.weight = nn.Parameter(module.inner.weight.detach().clone())  # type: ignore


def add_bias(module: nn.Module) -> None:
    module.inner.bias = nn.Parameter(torch.zeros(OUT))  # type: ignore[union-attr]


def load(module: nn.Module) -> None:
    module.load_state_dict(module.state_dict())


def retype(module: nn.Module) -> None:
    module.to(torch.bfloat16)


def quantise(module: nn.Module) -> None:
    module.inner.weight.data = module.inner.weight.data.to(torch.float8_e4m3fn)  # type: ignore


def swap(module: nn.Module) -> None:
    module.inner = nn.Sequential(module.inner)  # type: ignore[arg-type]


def by_a_method(module: nn.Module) -> None:
    module.inner.quant_method = object()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (replace_weight, "inner.weight was|another one of the same form"),
        (add_bias, r"inner\.bias was not there, is Parameter float32\[96\]"),
        (load, r"inner\.weight was .*written \d+ times, is .*written \d+ times"),
        (retype, r"inner\.weight was Parameter float32.*, is Parameter bfloat16"),
        (quantise, r"is Parameter float8_e4m3fn"),
        (swap, r"inner was Linear.*, is Sequential"),
        (by_a_method, "is Linear, training, quantised by object"),
        (lambda m: setattr(m, "reduce_commutative", False), "reduce_commutative = False"),
        (lambda m: setattr(m, "smooth", True), "smooth = True"),
        (lambda m: setattr(m, "limit", None), "limit = None"),
        (lambda m: setattr(m, "scales", [1.0, 2]), r"scales = \(1\.0, 2\)"),
        (lambda m: m.register_forward_pre_hook(lambda *_: None), "1 hooks"),
        (lambda m: m.eval(), "was Declared, training.*, is Declared, evaluation"),
        (lambda m: setattr(m.inner, "forward", torch.relu), "a forward of its own"),
    ],
    ids=[
        "weight", "bias", "load", "dtype", "fp8", "swap", "method", "declared", "switch", "none",
        "numbers", "hook", "eval", "forward",
    ],
)  # fmt: skip
def test_a_change_is_noticed(change: Callable[[nn.Module], object], why: str) -> None:
    module = Declared(lambda inner, rows: inner(rows))
    state = ModuleState(module)
    assert state.changes(module) == ""
    module(torch.zeros(1, WIDTH))
    assert state.changes(module) == ""  # to be used is no change
    change(module)
    assert re.search(why, state.changes(module)), state.changes(module)
    assert ModuleState(module).changes(module) == ""


def test_a_hook_for_another_is_noticed() -> None:
    module = linear()
    hook = module.register_forward_hook(lambda *_: None)
    state = ModuleState(module)
    hook.remove()
    module.register_forward_hook(lambda *_: torch.zeros(1))
    assert state.changes(module) != ""


def test_buffers_of_inference_and_replaced_ones_are_put_back() -> None:
    class Counting(nn.Module):
        reduce_commutative = True

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("written", torch.zeros(1))
            self.register_buffer("replaced", torch.zeros(1))

        def forward(self, rows: Tensor) -> Tensor:
            with torch.inference_mode():
                self.get_buffer("written").add_(1)
            self.replaced = torch.ones(3)
            return rows

    with torch.inference_mode():
        module = Counting()
    before = module.replaced
    verdict = symmoe.commutes_with_sum(module, width=WIDTH, dtype=torch.float32)
    assert "changes its buffer" in verdict.reason
    assert module.replaced is before
    assert module.get_buffer("written").item() == 0


def test_a_state_keeps_no_weights() -> None:
    module = linear()
    state = ModuleState(module)
    address = module.weight.data_ptr()
    module.weight = nn.Parameter(module.weight.detach())  # the same memory, another parameter
    assert module.weight.data_ptr() == address
    assert "another one of the same form" in state.changes(module)
    assert ModuleState(None).changes(None) == ""
