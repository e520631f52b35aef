"""An epilogue alone, on rows that are summed already: as one kernel, or as operations of torch."""

from __future__ import annotations

import math

import torch

from . import cores, tags
from .device import alone
from .epilogue import QUANTIZED, Epilogue, Steps, check_apart, check_epilogue, require_apart
from .errors import UnavailableError
from .observing import watch
from .places import CPU, Place
from .plans import WINDOW_TYPES, check_input, check_output


def apply_epilogue(
    rows: torch.Tensor, epilogue: Epilogue, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Does an epilogue's steps to rows that are there already, such as another library's sum.

    Args:
        rows: [M, H], bfloat16, float16 or float32, contiguous. On a GPU the kernel is queued on
            torch's current stream. For rows that are too long for it, and where this package was
            built without its GPU part, the steps are operations of torch instead.
        epilogue: The steps.
        out: At least [M, H], of rows' dtype or the quantised one; it may be exactly `rows`, if it
            is not quantised. None: a new tensor.

    Returns:
        `out`.

    Raises:
        TypeError: A dtype that does not belong.
        ValueError: Shapes or places that do not fit, or memory that overlaps. Nothing was written.
        LayoutError: A tag says that rows, shared or residual are summands.
    """
    where = "apply_epilogue"
    place = _place_of(rows)
    check_input(where, "rows", rows, place)
    if rows.dim() != 2 or rows.shape[1] < 1:
        raise ValueError(f"{where}: rows must be [M, H], got shape {list(rows.shape)}")
    if watch.tags:
        tags.require_reduced(f"{where}: rows", rows)
    count, hidden = rows.shape
    steps = check_epilogue(where, epilogue, rows.dtype, (count, hidden), place)
    if out is None:
        out = torch.empty((count, hidden), dtype=steps.dtype, device=rows.device)
    else:
        check_output(where, out, steps.dtype, (count, hidden), place)
    given = ("rows", rows.data_ptr(), rows.nbytes)
    target = ("out", out.data_ptr(), count * hidden * out.itemsize)
    in_place = given[1:] == target[1:] and steps.dtype is rows.dtype
    check_apart(where, steps, target, [given])
    if not in_place:
        require_apart(where, given, target)
    if rows.is_cpu:
        steps.apply(rows, out, min(torch.get_num_threads(), cores.thread_limit))
    elif not _by_kernel(rows, steps, out):
        unfused(rows, epilogue, out)
    if watch.tags:
        tags.put(out, tags.find(rows))
    return out


class _Device:
    """Where some tensor is that is not on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.name = str(device)

    def accepts(self, tensor: torch.Tensor) -> bool:
        return tensor.device == self.device


def _place_of(rows: object) -> Place:
    on_device = isinstance(rows, torch.Tensor) and rows.is_cuda
    return _Device(rows.device) if isinstance(rows, torch.Tensor) and on_device else CPU


def _by_kernel(rows: torch.Tensor, steps: Steps, out: torch.Tensor) -> bool:
    """Whether a kernel of this package does it on the rows' GPU."""
    try:
        finish_on(alone.gpu(rows.get_device()), rows, steps, out)
    except UnavailableError:
        return False
    return True


def finish_on(device: alone.Alone, rows: torch.Tensor, steps: Steps, out: torch.Tensor) -> None:
    """Queues the kernel on the device's current stream.

    Raises:
        UnavailableError: The rows are too long for it.
    """
    count, hidden = rows.shape
    source, target, code = rows.data_ptr(), out.data_ptr(), WINDOW_TYPES[rows.dtype]
    stream = device.place.current_stream()
    device.core.apply_epilogue(steps.core, source, target, count, hidden, code, stream)


def unfused(rows: torch.Tensor, epilogue: Epilogue, out: torch.Tensor) -> None:
    """An epilogue's steps as operations of torch, for devices.

    Args:
        rows: [M, H].
        epilogue: Checked.
        out: At least [M, H]; may be `rows`.
    """
    count = rows.shape[0]
    x = rows
    with torch.no_grad():
        if epilogue.scale is not None and not epilogue.scale_shared:
            x = x * epilogue.scale
        if epilogue.shared is not None:
            x = x + epilogue.shared[:count]
        if epilogue.scale is not None and epilogue.scale_shared:
            x = x * epilogue.scale
        if epilogue.residual is not None:
            x = epilogue.residual[:count].add_(x)
        if epilogue.norm_weight is not None:
            wide = x.float()
            mean = wide.square().mean(-1, keepdim=True)
            normed = wide * (1 / (mean + epilogue.eps).sqrt()) * epilogue.norm_weight.float()
            x = normed.to(rows.dtype)
        if epilogue.quantize is None or epilogue.scales is None:
            out[:count].copy_(x)
            return
        dtype, _, largest = QUANTIZED[epilogue.quantize]
        wide = x.float()
        most = wide.abs().amax(-1, keepdim=True)
        scale = (most / largest).clamp(min=2.0**-126)
        scale = torch.where(most.isfinite(), scale, math.nan)
        wide = torch.where(most.isfinite(), wide * (1 / scale), 0.0)
        epilogue.scales[:count].copy_(scale[:, 0])
        out[:count].copy_((wide.round() if dtype is torch.int8 else wide).to(dtype))
