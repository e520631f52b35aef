"""What a module was when it was judged, so that a judgement that has become stale is noticed.

A layer's parameters are replaced, quantised or loaded after it was made, and hooks are put on it.
Each of these may turn a module that commutes with a sum into one that does not.
"""

from __future__ import annotations

import hashlib
import weakref
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from .commuting import DECLARATION
from .plans import name_of

# By the path of a submodule or tensor: all that is compared.
Facts: TypeAlias = "dict[str, PartFacts | TensorFacts]"

_HASHED_AT_ONCE = 1 << 24


class PartFacts(NamedTuple):
    """A submodule: its class, what is declared of it and attached to it, its switches."""

    kind: type
    declared: object
    training: bool
    hooks: tuple[int, ...]
    own_forward: int
    quantised_by: str
    switches: tuple[tuple[str, object], ...]

    def __str__(self) -> str:
        return self.text(True)

    def text(self, numbers: bool) -> str:
        """In words; `numbers`: with whole ones too, which may tell a rank from the others."""
        words = [self.kind.__name__, "training" if self.training else "evaluation"]
        if self.declared is not None:
            words.append(f"{DECLARATION} = {self.declared}")
        if self.hooks:
            words.append(f"{len(self.hooks)} hooks")
        if self.own_forward:
            words.append("a forward of its own")
        if self.quantised_by:
            words.append(f"quantised by {self.quantised_by}")
        shown = [each for each in self.switches if numbers or not _has_whole_number(each[1])]
        return ", ".join(words + [f"{name} = {value}" for name, value in shown])


class TensorFacts(NamedTuple):
    """A parameter or buffer: what it is, where, and how often it was written in place."""

    kind: type
    dtype: torch.dtype
    shape: tuple[int, ...]
    address: int
    version: int

    def __str__(self) -> str:
        text = f"{self.kind.__name__} {name_of(self.dtype)}{list(self.shape)}"
        return f"{text} at {self.address:#x}, written {self.version} times"


class ModuleState:
    """A module as it was.

    Args:
        module: The module; None: nothing, which never changes.
    """

    __slots__ = ("_facts", "_tensors")

    def __init__(self, module: nn.Module | None) -> None:
        self._facts, tensors = _look(module)
        # Weakly: a weight that was replaced must not be kept, and its address may be used again.
        self._tensors = [weakref.ref(tensor) for tensor in tensors]

    def changes(self, module: nn.Module | None) -> str:
        """How a module differs from what it was, in words; empty if it does not."""
        facts, tensors = _look(module)
        if facts == self._facts and all(
            old() is new for old, new in zip(self._tensors, tensors, strict=True)
        ):
            return ""
        found = []
        for path in sorted(self._facts.keys() | facts.keys()):
            was, now = self._facts.get(path), facts.get(path)
            if was != now:
                found.append(f"{path or 'the module'} was {was or 'not there'}, is {now or 'gone'}")
        return "; ".join(found) or "a parameter was replaced by another one of the same form"


def _look(module: nn.Module | None) -> tuple[Facts, list[Tensor]]:
    facts: Facts = {}
    tensors: list[Tensor] = []
    if module is not None:
        _walk("", module, facts, tensors)
    return facts, tensors


def _walk(path: str, module: nn.Module, facts: Facts, tensors: list[Tensor]) -> None:
    own = vars(module)
    facts[path] = PartFacts(
        type(module),
        own.get(DECLARATION, getattr(type(module), DECLARATION, None)),
        module.training,
        (*module._forward_hooks, *module._forward_pre_hooks),  # numbers that are never used again
        id(own["forward"]) if "forward" in own else 0,
        type(own["quant_method"]).__name__ if own.get("quant_method") is not None else "",
        tuple(
            (name, tuple(value) if isinstance(value, list) else value)
            for name, value in own.items()
            if _is_setting(value) and name != "training" and name[0] != "_"
        ),
    )
    begin = f"{path}." if path else ""
    for kind in (module._parameters, module._buffers):
        for name, tensor in kind.items():
            if tensor is not None:
                facts[begin + name] = _tensor_facts(tensor)
                tensors.append(tensor)
    for name, child in module._modules.items():
        if child is not None:
            _walk(begin + name, child, facts, tensors)


def _is_setting(value: object) -> bool:
    """Whether an attribute may decide what a module does: a plain value, or several."""
    if isinstance(value, (tuple, list)):
        return all(type(each) not in (tuple, list) and _is_setting(each) for each in value)
    return value is None or type(value) in (bool, int, float, str, torch.dtype)


def _has_whole_number(value: object) -> bool:
    if isinstance(value, tuple):
        return any(_has_whole_number(each) for each in value)
    return type(value) is int


def _tensor_facts(tensor: Tensor) -> TensorFacts:
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # a subclass without memory of its own
        address = 0
    # Inference tensors count no writes.
    version = -1 if tensor.is_inference() else tensor._version
    return TensorFacts(type(tensor), tensor.dtype, tuple(tensor.shape), address, version)


def form_of(module: nn.Module | None) -> str:
    """A module's structure in words: what has to be equal on all ranks."""
    if module is None:
        return "none"
    parts = []
    for path, fact in _look(module)[0].items():
        if isinstance(fact, TensorFacts):
            parts.append(f"{path} {name_of(fact.dtype)}{list(fact.shape)}")
        else:
            text = fact.text(False)
            parts.append(f"{path}: {text}" if path else text)
    return "; ".join(parts)


def digest_of(module: nn.Module | None) -> str:
    """Stands for all values of a module's parameters and buffers; reads them to the host."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in [] if module is None else _look(module)[1]:
        flat = _bytes_of(tensor.detach())
        for begin in range(0, len(flat), _HASHED_AT_ONCE):
            digest.update(flat[begin : begin + _HASHED_AT_ONCE].cpu().numpy().data)
    return digest.hexdigest()


def _bytes_of(tensor: Any) -> Tensor:
    """A tensor's elements as bytes; none where nobody can read them."""
    if tensor.is_meta or type(tensor) not in (Tensor, nn.Parameter):
        return torch.empty(0, dtype=torch.uint8)
    flat: Tensor = tensor.contiguous().reshape(-1).view(torch.uint8)
    return flat
