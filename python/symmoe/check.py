"""SYMMOE_CHECK: ranks compare what they are about to do before they do it.

Without it, ranks that make different calls in different places wait for each other until the
deadline, and so do ranks whose peer has refused its own input. With it all of them raise.
"""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist

from . import _core
from .errors import MismatchError, SymmoeError
from .fallback import exchange

TEXT_BYTES = 2048
FIRST_TAG = _core.MAX_LANES  # lower tags carry rows


def compare(
    core: _core.Group | None,
    process_group: dist.ProcessGroup | None,
    rank: int,
    lane: int,
    text: str,
) -> None:
    """Returns if all ranks are about to do the same. Collective.

    Raises:
        MismatchError: They are not; on every rank, naming both sides.
    """
    text = f"{text} lane={lane}"
    if core is not None:
        core.check_call(lane, text)
        return
    if process_group is None:
        return
    texts = _exchange_texts(process_group, lane, text)
    for other, other_text in enumerate(texts):
        if other_text != texts[0]:
            raise MismatchError(
                f"check (lane {lane}), rank {rank}: ranks made different calls. "
                f"Rank 0: {texts[0]}. Rank {other}: {other_text}"
            )


def _exchange_texts(process_group: dist.ProcessGroup, lane: int, text: str) -> list[str]:
    """Every rank's text, cut at TEXT_BYTES; lanes do not disturb each other."""
    own = torch.zeros(TEXT_BYTES, dtype=torch.uint8, device="cpu")
    encoded = text.encode()[:TEXT_BYTES]
    own[: len(encoded)] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
    everyone = [torch.empty_like(own) for _ in range(process_group.size())]
    try:
        exchange(process_group, FIRST_TAG + lane, [own] * len(everyone), everyone)
    except RuntimeError as error:
        raise SymmoeError(
            f"check on rank {process_group.rank()}: the process group failed: {error}"
        ) from error
    return [bytes(it.tolist()).rstrip(b"\0").decode(errors="replace") for it in everyone]


def report(
    core: _core.Group | None,
    process_group: dist.ProcessGroup | None,
    rank: int,
    lane: object,
    error: Exception,
) -> None:
    """Tells the others that this rank refuses its input, in place of `compare`. Collective.

    The caller raises `error` afterwards; the others raise MismatchError with its text.
    """
    if isinstance(lane, bool) or not isinstance(lane, int) or not 0 <= lane < _core.MAX_LANES:
        lane = 0  # most likely where the others are
    with contextlib.suppress(MismatchError):
        compare(core, process_group, rank, lane, f"raised {type(error).__name__}: {error}")
