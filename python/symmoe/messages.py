"""Messages between ranks through the process group, and the tags that keep them apart.

A tag per purpose, role and lane: these run at the same time, in no common order. The process group
is the caller's, so its own messages must have other tags; MPI allows none above 32767. Groups of
one process group share tags: their calls without windows come in one order, the same on all ranks.
"""

from __future__ import annotations

import hashlib

import torch
import torch.distributed as dist

from . import _core
from .errors import MismatchError

FIRST_TAG = 0x7E00
_ROLES = 2
_ROWS, _AGREEMENTS, _CHECKS = (FIRST_TAG + part * _ROLES * _core.MAX_LANES for part in range(3))

SIGNATURE_BYTES = 8
TEXT_BYTES = 2048


def rows_tag(role: int, lane: int) -> int:
    """Of the rows of a call."""
    return _ROWS + role * _core.MAX_LANES + lane


def agreement_tag(role: int, lane: int) -> int:
    """Of what ranks tell each other before a call."""
    return _AGREEMENTS + role * _core.MAX_LANES + lane


def check_tag(lane: int) -> int:
    """Of what ranks tell each other with checks on, whatever the role."""
    return _CHECKS + lane


def exchange(
    process_group: dist.ProcessGroup,
    tag: int,
    outgoing: list[torch.Tensor],
    incoming: list[torch.Tensor],
) -> None:
    """Sends outgoing[r] to each rank r and takes incoming[r] from it; both know their sizes.

    As bytes: process groups do not know every dtype.
    """
    me = process_group.rank()
    works = []
    for rank, tensor in enumerate(incoming):
        if rank != me and tensor.numel():
            peer = dist.get_global_rank(process_group, rank)
            works.append(dist.irecv(tensor.view(torch.uint8), peer, group=process_group, tag=tag))
    for rank, tensor in enumerate(outgoing):
        if rank != me and tensor.numel():
            peer = dist.get_global_rank(process_group, rank)
            works.append(dist.isend(tensor.view(torch.uint8), peer, group=process_group, tag=tag))
    if incoming[me].data_ptr() != outgoing[me].data_ptr():
        incoming[me].copy_(outgoing[me])
    for work in works:
        if work is not None:
            work.wait()


def agree(process_group: dist.ProcessGroup, tag: int, what: str, text: str) -> None:
    """Returns if every rank gives the same text. Collective.

    Eight bytes of hash travel; the texts themselves, cut at TEXT_BYTES, only if hashes differ.

    Raises:
        MismatchError: Texts differ; on every rank, naming both sides.
        RuntimeError: The process group failed.
    """
    encoded = text.encode()
    signature = hashlib.blake2b(encoded, digest_size=SIGNATURE_BYTES).digest()
    signatures = _gather(process_group, tag, signature)
    for rank, other in enumerate(signatures):
        if other != signatures[0]:
            texts = _gather(process_group, tag, encoded[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0"))
            first, second = (
                texts[each].rstrip(b"\0").decode(errors="replace") for each in (0, rank)
            )
            raise MismatchError(
                f"{what}, rank {process_group.rank()}: ranks made different calls. "
                f"Rank 0: {first}. Rank {rank}: {second}"
            )


def _gather(process_group: dist.ProcessGroup, tag: int, data: bytes) -> list[bytes]:
    """Every rank's `data`, equally long on all."""
    own = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    everyone = [torch.empty_like(own) for _ in range(process_group.size())]
    exchange(process_group, tag, [own] * len(everyone), everyone)
    return [bytes(each.tolist()) for each in everyone]
