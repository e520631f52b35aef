"""How the ranks of a group agree on something that each of them found out by itself."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from .device.group import DeviceGroup
from .errors import MismatchError
from .exchange import open_exchange
from .group import Group


@dataclass(frozen=True)
class Finding:
    """What one rank has found.

    Attributes:
        text: What has to be equal on all ranks, in words.
        values: Stands for values that have to be equal on all ranks.
        holds: Whether what is asked holds here.
        reason: Why, or why not.
        fault: What this rank raises; empty if nothing.
    """

    text: str = ""
    values: str = ""
    holds: bool = True
    reason: str = ""
    fault: str = ""


def agree(group: Group | DeviceGroup, operation: str, own: Finding) -> tuple[bool, str]:
    """Whether it holds on all ranks, and the reason of the first where it does not. Collective.

    A rank with a fault takes part as well, and raises afterwards; the others raise MismatchError.

    Args:
        group: The ranks.
        operation: Begins messages.
        own: What this rank has found.

    Raises:
        MismatchError: Ranks found different things, or one has a fault; on all ranks but those.
        DeadlineError: Ranks did not come within the group's timeout.
        PeerLostError: A peer's process ended.
    """
    timeout = group._config.timeout if isinstance(group, DeviceGroup) else group._timeout
    exchange = open_exchange(group._process_group, timeout)
    exchange.operation = operation
    texts = exchange.gather("finding", json.dumps(asdict(own)), group.check)
    exchange.finish()
    if own.fault:
        return False, own.fault
    found = [Finding(**json.loads(text)) for text in texts]
    where = f"{operation} on rank {group.rank}"
    for rank, other in enumerate(found):
        if other.fault:
            raise MismatchError(f"{where}: rank {rank} raised {other.fault}")
    for rank, other in enumerate(found):
        if other.text != found[0].text:
            raise MismatchError(
                f"{where}: ranks have different plans. Rank 0: {found[0].text}. "
                f"Rank {rank}: {other.text}"
            )
        if other.values != found[0].values:
            raise MismatchError(
                f"{where}: the transform's weights differ. Rank 0 has values of hash "
                f"{found[0].values}, rank {rank} of {other.values} ({other.text})"
            )
    for rank, other in enumerate(found):
        if not other.holds:
            elsewhere = "" if len(found) == 1 or own == other else f"on rank {rank}: "
            return False, f"{elsewhere}{other.reason}"
    return True, found[0].reason
