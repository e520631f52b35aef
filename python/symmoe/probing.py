"""Tries out whether a module is linear in its rows, with numbers.

With a and b made so that a + b is exact, T(a + b) and T(a) + T(b) differ by roundings alone if T is
linear. What that finds: an affine part, an activation, clipping, a fixed step of quantisation (rows
of several magnitudes), and steps that follow the largest element of a row, which a rounding of the
output could hide (rows with one large element beside small ones, which such steps make zero).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor, nn

Apply: TypeAlias = "Callable[[Tensor], Tensor]"  # in fp64 on the CPU, whatever the module has

SEED = 0x5EED
PASSED = "it was additive on rows of a seed and kept 0"

ROWS = 16  # of each magnitude
MAGNITUDES = (2.0**-6, 1.0, 2.0**6)
OUTLIER = 512.0  # more than twice the 127 steps that eight bits have to either side
MOST_OUTLIER_ERROR = 0.5  # of what the small elements give; all of it where they were made zero

# Relative errors, root mean square over a column. One rounding to bfloat16 makes 0.0016, quantising
# to eight bits with a sign 0.0075 and to four bits of fraction 0.025. Others than bfloat16: above
# float16's own rounding and that of TF32, in which GPUs may multiply float32.
MOST_ERROR = {torch.bfloat16: 2.0**-7}
MOST_ERROR_OF_OTHERS = 2.0**-9


def output_of(module: nn.Module, rows: Tensor) -> Tensor:
    """What a module makes of rows; also of one that returns (output, None), as engines' layers do.

    Raises:
        TypeError: It returns something else, such as a bias that the caller is to add.
    """
    made = module(rows)
    if isinstance(made, tuple) and made and all(other is None for other in made[1:]):
        made = made[0]
    if not isinstance(made, Tensor):
        given = type(made).__name__
        if isinstance(made, tuple):
            given = f"({', '.join(type(each).__name__ for each in made)})"
        raise TypeError(f"{type(module).__name__} returned {given}, expected a tensor")
    return made


@contextlib.contextmanager
def untouched(module: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Evaluation mode and no gradients within; modes, buffers and random state are put back.

    Yields:
        Copies of the buffers as they were, by name.
    """
    modes = [(part, part.training) for part in module.modules()]
    owners = [(part, dict(part._buffers)) for part in module.modules()]
    originals = dict(module.named_buffers())
    buffers = {name: buffer.detach().clone() for name, buffer in originals.items()}
    used = {tensor.device for tensor in (*module.parameters(), *originals.values())}
    devices = [device for device in used if device.type == "cuda"]
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        try:
            module.eval()
            yield buffers
        finally:
            for part, mode in modes:
                part.training = mode
            for part, own in owners:  # a buffer may have been replaced by another one
                part._buffers.clear()
                part._buffers.update(own)
            for name, buffer in originals.items():
                if not _same(buffer, buffers[name]):
                    with torch.inference_mode(buffer.is_inference()):
                        buffer.copy_(buffers[name])


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(one, other))


def fault_of(
    module: nn.Module, width: int, dtype: torch.dtype, device: torch.device, seed: int
) -> str:
    """What a module does that a linear one would not; empty if nothing was found.

    Raises:
        ValueError: It cannot be applied to [rows, width].
    """
    random = torch.Generator().manual_seed(seed)
    with untouched(module) as buffers:

        def apply(rows: Tensor) -> Tensor:
            try:
                made = output_of(module, rows.to(device=device, dtype=dtype))
            except (RuntimeError, TypeError, ValueError, AssertionError) as error:
                raise ValueError(
                    f"{type(module).__name__} cannot be tried on rows of [{len(rows)}, {width}], "
                    f"{dtype}: {error}"
                ) from error
            if made.dim() != 2 or made.shape[0] != rows.shape[0]:
                raise ValueError(
                    f"{type(module).__name__} makes {list(made.shape)} of {list(rows.shape)}, "
                    f"expected [{len(rows)}, any width]"
                )
            return made.double().cpu()

        zero = apply(torch.zeros(2, width))
        if zero.count_nonzero():  # a NaN is no zero either
            return f"it makes {float(zero.flatten()[zero.flatten().nonzero()[0, 0]]):.3g} of 0"
        most = MOST_ERROR.get(dtype, MOST_ERROR_OF_OTHERS)
        fault = _additive(apply, width, random, most) or _with_outliers(apply, width, random)
        for name, buffer in module.named_buffers():
            if not fault and name in buffers and not _same(buffer, buffers[name]):
                fault = f"its forward changes its buffer {name}"
    return fault


def _additive(apply: Apply, width: int, random: torch.Generator, most: float) -> str:
    """T(a) + T(b) against T(a + b), and rows one by one against rows together."""
    for magnitude in MAGNITUDES:
        # Whole multiples of few bits: exact in any floating type, and so is their sum.
        a, b = (
            torch.randint(-8, 8, (ROWS, width), generator=random) * (magnitude / 4)
            for _ in range(2)
        )
        of_a, of_b, of_sum = apply(a), apply(b), apply(a + b)
        error = _worst(of_a + of_b - of_sum, of_a, of_b, of_sum)
        if not error <= most:
            return (
                f"T(a) + T(b) is off T(a + b) by {error:.2g} of it, {most:.2g} allowed, for "
                f"elements up to {2 * magnitude:g}"
            )
        alone = apply(a[:1])
        error = _worst(alone - of_a[:1], of_a)
        if not error <= 2 * most:  # of single elements, which may be rounded to either side
            return f"a row gives other numbers alone than among others, off by {error:.2g}"
    return ""


def _worst(error: Tensor, *outputs: Tensor) -> float:
    """The largest relative error of a column, root mean squares over rows; NaN if there is one.

    Relative to the column's output, but at least to a twentieth of all columns' together: few rows
    may happen to give little in one column.
    """
    size = sum((output.square().mean(0) for output in outputs), torch.zeros(()).double())
    whole = float(size.mean()) if size.numel() else 0.0
    if whole == 0.0:
        return float(error.abs().max()) if error.numel() else 0.0
    return float((error.square().mean(0) / size.clamp_min(whole / 400)).sqrt().max())


def _with_outliers(apply: Apply, width: int, random: torch.Generator) -> str:
    """Whether small elements count beside a large one."""
    if width < ROWS:
        return ""  # they would be lost in the roundings of the output
    places = torch.randperm(width, generator=random)[:ROWS]
    large = torch.zeros(ROWS, width)
    large[torch.arange(ROWS), places] = OUTLIER
    small = torch.randint(0, 2, (ROWS, width), generator=random) * 2.0 - 1.0
    small[torch.arange(ROWS), places] = 0.0
    of_small = apply(small)
    error = apply(large + small) - apply(large) - of_small
    sizes = of_small.square().mean(1).sqrt()
    # The least of the rows: in some the large element meets a weight whose rounding is large.
    relative = (error.square().mean(1).sqrt() / sizes)[sizes > 0]
    if relative.numel() and not float(relative.min()) <= MOST_OUTLIER_ERROR:
        return (
            f"small elements lose {float(relative.min()):.0%} of what they give beside one that is "
            f"{OUTLIER:g} times as large: it quantises its input by its largest element"
        )
    return ""
