"""Whether a module may be applied to summands: whether sum_r T(x_r) is T(sum_r x_r).

Judged on the layer as it was constructed, never on a model's configuration: whether a layer has a
bias, or quantises its input, is decided where it is made.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import nn

from . import probing
from .plans import name_of

DECLARATION = "reduce_commutative"
_PLAIN_TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm, nn.CrossMapLRN2d)
_BATCH_NORM = nn.modules.batchnorm._NormBase
_DROPOUT = nn.modules.dropout._DropoutNd


@dataclass(frozen=True)
class Verdict:
    """Whether a module commutes with a sum over ranks. True and false as a condition.

    Attributes:
        commutes: Whether it does.
        reason: Why, or why not.
    """

    commutes: bool
    reason: str

    def __bool__(self) -> bool:
        return self.commutes

    def __str__(self) -> str:
        return f"{'commutes' if self.commutes else 'does not commute'} with a sum: {self.reason}"


def commutes_with_sum(
    module: nn.Module,
    *,
    width: int | None = None,
    dtype: torch.dtype | None = None,
    seed: int = probing.SEED,
) -> Verdict:
    """Whether a module gives the same whether summands are summed before it or behind it. Local.

    A plain linear layer (`torch.nn.Linear` as torch made it, or several in a `Sequential`) commutes
    if it has no bias and its weight is of an ordinary floating type. A norm, a bias, and dropout
    that is switched on never do. Any other module has to say so itself, by an attribute
    `reduce_commutative = True`, and is then tried: on rows made from a seed, T(a) + T(b) must be
    T(a + b) up to the roundings of its type, T(0) must be 0, and a row's output must not depend on
    the rows beside it. Such a trial can refute what was declared; it proves nothing, so without the
    attribute none is made.

    The trial runs without gradients and with the module in evaluation mode. Its modes, its buffers
    and torch's random state are afterwards what they were.

    Args:
        module: What is applied to rows of [rows, width], and gives [rows, any width].
        width: Elements of its input rows. None: as its first linear layer says.
        dtype: Of its input rows. None: that of its first floating parameter, or float32.
        seed: Of the rows it is tried on.

    Raises:
        TypeError: No module.
        ValueError: It has to be tried and its width is not known, or it fails on such rows.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"commutes_with_sum: expected a torch.nn.Module, got {type(module).__name__}"
        )
    declared = getattr(module, DECLARATION, None)
    name = type(module).__name__
    if declared is False:
        return Verdict(False, f"{name} declares {DECLARATION} = False")
    if is_plain(module):
        return Verdict(True, f"{name} is linear, has no bias and is not quantised")
    obstacle = obstacle_of(module)
    if obstacle:
        return Verdict(False, obstacle)
    if declared is not True:
        return Verdict(False, _why_not_plain(module))
    return _try(module, name, width, dtype, seed)


def is_plain(module: nn.Module) -> bool:
    """Whether a module is linear by its structure alone: torch's own classes, nothing attached."""
    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return False
    if type(module) is nn.Identity:
        return True
    if type(module) is nn.Sequential:
        return all(is_plain(child) for child in module)
    bias = module._parameters.get("bias")
    return type(module) is nn.Linear and bias is None and _is_plain_weight(module.weight)


def _is_plain_weight(weight: torch.Tensor) -> bool:
    # A subclass may do with its input what it likes, such as quantise it.
    ordinary = type(weight) in (nn.Parameter, torch.Tensor) and type(weight.data) is torch.Tensor
    return ordinary and weight.dtype in _PLAIN_TYPES


def obstacle_of(module: nn.Module) -> str:
    """What in a module never commutes, whatever it declares; empty if there is nothing."""
    for path, part in module.named_modules():
        name = type(part).__name__
        where = f"{name} at {path}" if path else name
        if isinstance(part, (*_NORMS, _BATCH_NORM)) or "norm" in name.lower():
            return f"{where} is a norm"
        if part.training and isinstance(part, _DROPOUT) and part.p > 0:
            return f"{where} is switched on: call eval()"
        for kind in (part._parameters, part._buffers):
            for key, tensor in kind.items():
                # One that is zero now gets its values when weights are loaded.
                if tensor is not None and (key == "bias" or key.endswith("_bias")):
                    return f"{where} has a bias ({f'{path}.{key}' if path else key})"
    return ""


def _why_not_plain(module: nn.Module) -> str:
    name = type(module).__name__
    undeclared = f"and it does not declare {DECLARATION}"
    if isinstance(module, nn.Linear) and not _is_plain_weight(module.weight):
        weight = module.weight
        return (
            f"the weight of {name} is a {type(weight.data).__name__} of {name_of(weight.dtype)}, "
            f"which may quantise its input, {undeclared}"
        )
    if type(module) is nn.Linear:
        return f"{name} has hooks or another forward, {undeclared}"
    return f"{name} is no plain linear layer, {undeclared}"


def width_of(module: nn.Module) -> int | None:
    """Elements of a module's input rows, as its first linear layer says; None if none does."""
    for part in module.modules():
        for attribute in ("in_features", "input_size"):
            value = getattr(part, attribute, None)
            if type(value) is int:
                return value
    return None


def _try(
    module: nn.Module, name: str, width: int | None, dtype: torch.dtype | None, seed: int
) -> Verdict:
    """The verdict over a module that declares itself commutative."""
    width = width_of(module) if width is None else width
    if width is None:
        raise ValueError(
            f"commutes_with_sum: {name} has to be tried, and no linear layer in it tells its "
            f"width: give width="
        )
    first = next((p for p in module.parameters() if p.is_floating_point()), None)
    device = torch.device("cpu") if first is None else first.device
    if dtype is None:
        dtype = torch.float32 if first is None else first.dtype
    if device.type == "meta":
        return Verdict(False, f"{name} declares {DECLARATION}, but its weights have no memory yet")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fault = probing.fault_of(module, width, dtype, device, seed)
    if fault:
        return Verdict(False, f"{name} declares {DECLARATION} = True, but {fault}")
    return Verdict(True, f"{name} declares it, and {probing.PASSED}")
