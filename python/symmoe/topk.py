"""The top-k weighted sum: what is left of a token's experts on this rank, as one row.

Per token, in fp32: acc = the first present term (weight x element, or the element without weights),
then acc = fma(weight, element, acc) over the present slots in order; 0 if none is present; times
scale; one rounding to the output's type. The bits do not depend on processor or threads.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch

from . import _core, cores, tags
from .device import alone
from .observing import watch
from .places import CPU, Place
from .plans import WINDOW_TYPES, check_input, check_stream, check_tensor, is_plain, name_of

_WHERE = "topk_reduce"


class Terms(NamedTuple):
    """The checked arguments of a top-k sum, but for the output.

    Attributes:
        tokens: M.
        slots: K.
        hidden: H.
        pairs: Rows of expert output, where an index says which belongs to what.
        dtype: Of the expert output.
        input_at: Its address.
        weights_at: Address of the weights, 0 without.
        index_at: Address of the index, 0 without.
        weights_type: The core's number.
        index_is_64bit: Whether the index is int64.
        scale: Factor, or None.
        spans: Name, first address and end of each input.
    """

    tokens: int
    slots: int
    hidden: int
    pairs: int
    dtype: torch.dtype
    input_at: int
    weights_at: int
    index_at: int
    weights_type: int
    index_is_64bit: bool
    scale: float | None
    spans: list[tuple[str, int, int]]


def _address(where: str, name: str, tensor: torch.Tensor) -> int:
    """Where a tensor's memory is; some have elements but none, such as one whose storage was freed.

    Raises:
        ValueError: It has none.
    """
    address = tensor.data_ptr()
    if not address and tensor.numel():
        raise ValueError(f"{where}: {name} has no memory (shape {list(tensor.shape)})")
    return address


def check_terms(
    where: str,
    expert_out: torch.Tensor,
    topk_weights: torch.Tensor | None,
    index: torch.Tensor | None,
    scale: float | None,
    place: Place = CPU,
) -> Terms:
    """Checks everything about a top-k sum but its output, and the values in `index`.

    Raises:
        TypeError: A dtype or kind of argument that does not belong.
        ValueError: Shapes that do not fit; the message has them.
    """
    if place is not CPU or not is_plain(expert_out) or expert_out.requires_grad:
        check_input(where, "expert_out", expert_out, place)
    dtype = expert_out.dtype
    code = WINDOW_TYPES.get(dtype)
    if code is None:
        raise TypeError(
            f"{where}: expert_out is {name_of(dtype)}, expected bfloat16, float16 or float32"
        )
    shape = expert_out.shape
    address = _address(where, "expert_out", expert_out)
    spans = [("expert_out", address, address + expert_out.nbytes)]
    pairs = 0
    index_address = 0
    index_is_64bit = False
    if index is not None:
        if place is not CPU or not is_plain(index):
            check_tensor(where, "index", index, place)
        if index.dtype is not torch.int32 and index.dtype is not torch.int64:
            raise TypeError(f"{where}: index is {name_of(index.dtype)}, expected int32 or int64")
        if len(shape) != 2 or index.dim() != 2:
            raise ValueError(
                f"{where}: with an index, expert_out must be [pairs, H] and index [M, K], got "
                f"{list(shape)} and {list(index.shape)}"
            )
        tokens, slots = index.shape
        pairs, hidden = shape
        index_address = _address(where, "index", index)
        spans.append(("index", index_address, index_address + index.nbytes))
        index_is_64bit = index.dtype is torch.int64
    elif len(shape) == 3:
        tokens, slots, hidden = shape
    elif len(shape) == 2:
        tokens, hidden = shape
        slots = 1
    else:
        raise ValueError(f"{where}: expert_out must be [M, K, H] or [M, H], got {list(shape)}")
    if hidden < 1:
        raise ValueError(f"{where}: expert_out has no columns, got {list(shape)}")

    weights_address = 0
    weights_type = _core.FLOAT32
    if topk_weights is not None:
        if place is not CPU or not is_plain(topk_weights) or topk_weights.requires_grad:
            check_input(where, "topk_weights", topk_weights, place)
        if topk_weights.dtype is dtype:
            weights_type = code
        elif topk_weights.dtype is not torch.float32:
            raise TypeError(
                f"{where}: topk_weights is {name_of(topk_weights.dtype)}, expected float32 or "
                f"{name_of(dtype)}"
            )
        if topk_weights.shape != (tokens, slots):
            raise ValueError(
                f"{where}: topk_weights has shape {list(topk_weights.shape)}, expected "
                f"[M, K] = {[tokens, slots]}"
            )
        weights_address = _address(where, "topk_weights", topk_weights)
        spans.append(("topk_weights", weights_address, weights_address + topk_weights.nbytes))
    if scale is not None and type(scale) is not float:
        if isinstance(scale, bool) or not hasattr(scale, "__float__"):
            raise TypeError(f"{where}: scale must be a number, got {scale!r}")
        scale = float(scale)
    return Terms(
        tokens,
        slots,
        hidden,
        pairs,
        dtype,
        address,
        weights_address,
        index_address,
        weights_type,
        index_is_64bit,
        scale,
        spans,
    )


CoreArguments: TypeAlias = (
    "tuple[int, int, int, int, int, int, int, int, float | None, int, int, int, bool]"
)


def core_arguments(terms: Terms, output: int, output_type: int) -> CoreArguments:
    """What the core's topk_reduce functions have in common; `output`: [tokens, hidden]."""
    return (
        terms.input_at,
        terms.weights_at,
        terms.index_at,
        output,
        terms.tokens,
        terms.slots,
        terms.hidden,
        terms.pairs,
        terms.scale,
        WINDOW_TYPES[terms.dtype],
        output_type,
        terms.weights_type,
        terms.index_is_64bit,
    )


def run(
    terms: Terms,
    output: int,
    output_type: int,
    threads: int,
    routing: _core.Routing | None = None,
    rank: int = 0,
) -> None:
    """Computes the sum into the memory at `output`, [tokens, hidden].

    With a routing only the rows and slots of this rank's experts are written and read.

    Raises:
        ValueError: A value in the index is out of range; nothing was written.
    """
    if terms.tokens == 0:
        return
    _core.topk_reduce(*core_arguments(terms, output, output_type), threads, routing, rank)


def topk_reduce(
    expert_out: torch.Tensor,
    topk_weights: torch.Tensor | None = None,
    *,
    out: torch.Tensor,
    index: torch.Tensor | None = None,
    scale: float | None = None,
    stream: object | None = None,
) -> torch.Tensor:
    """Sums each token's expert outputs with its weights, in fp32, with one rounding.

    Args:
        expert_out: [M, K, H] or, with `index`, [pairs, H]; [M, H] counts as K = 1. bfloat16,
            float16 or float32, contiguous. Where it is, on the CPU or a GPU, all others have to be.
        topk_weights: [M, K], float32 or expert_out's dtype. None: a plain sum.
        out: [M, H], bfloat16, float16 or float32, contiguous: a window that `Group.acquire` gave,
            or any other memory.
        index: [M, K], int32 or int64: the row of expert_out for each slot, -1 where the slot's
            expert is not on this rank.
        scale: Factor of the sum, before the rounding.
        stream: With tensors on a GPU, a stream of it; None: torch's current one. With tensors on
            the CPU, None.

    Returns:
        `out`; on a GPU ready for what the stream is given next.

    Raises:
        TypeError: A dtype that does not belong.
        ValueError: Tensors in different places, shapes that do not fit, an index out of range,
            `out` overlapping an input. Nothing was written. But only the kernel sees the values of
            an index on a GPU: there, one out of range counts as -1 and makes the next topk_reduce
            on that GPU raise.
        UnavailableError: Tensors on a GPU, and this build has no GPU part.
    """
    if isinstance(expert_out, torch.Tensor) and expert_out.is_cuda:
        gpu = alone.gpu(expert_out.get_device())
        return reduce_on(gpu, expert_out, topk_weights, out, index, scale, stream)
    if stream is not None:
        check_stream(_WHERE, stream)
    terms = check_terms(_WHERE, expert_out, topk_weights, index, scale)
    output_type = _check_target(terms, out)
    run(terms, out.data_ptr(), output_type, min(torch.get_num_threads(), cores.thread_limit))
    return tags.put(out, tags.PARTIAL) if watch.tags else out


def reduce_on(
    device: alone.Alone,
    expert_out: torch.Tensor,
    topk_weights: torch.Tensor | None,
    out: torch.Tensor,
    index: torch.Tensor | None,
    scale: float | None,
    stream: object | None,
) -> torch.Tensor:
    """`topk_reduce` with tensors on a device; queued on the stream."""
    place = device.place
    terms = check_terms(_WHERE, expert_out, topk_weights, index, scale, place)
    output_type = _check_target(terms, out, place)
    handle = place.stream(stream)
    if terms.tokens:
        device.core.topk_reduce(*core_arguments(terms, out.data_ptr(), output_type), handle)
        for tensor in (expert_out, topk_weights, index, out):
            if tensor is not None:
                place.keep(handle, tensor)
    return tags.put(out, tags.PARTIAL) if watch.tags else out


def _check_target(terms: Terms, out: torch.Tensor, place: Place = CPU) -> int:
    """The core's number for the type of `out`; raises unless it can take the sum."""
    if place is not CPU or not is_plain(out):
        check_tensor(_WHERE, "out", out, place)
    output_type = WINDOW_TYPES.get(out.dtype)
    if output_type is None:
        raise TypeError(
            f"{_WHERE}: out is {name_of(out.dtype)}, expected bfloat16, float16 or float32"
        )
    if out.shape != (terms.tokens, terms.hidden):
        raise ValueError(
            f"{_WHERE}: out has shape {list(out.shape)}, expected "
            f"[M, H] = {[terms.tokens, terms.hidden]}"
        )
    check_apart(_WHERE, terms, out.data_ptr(), out.nbytes)
    return output_type


def check_apart(where: str, terms: Terms, begin: int, nbytes: int) -> None:
    """Raises ValueError if an input lies in the output's memory, `nbytes` at `begin`."""
    end = begin + nbytes
    for name, first, past in terms.spans:
        if first < end and begin < past:
            raise ValueError(
                f"{where}: the output overlaps {name} (output at {begin:#x}, {nbytes} bytes; "
                f"{name} at {first:#x}, {past - first} bytes)"
            )
