"""What ranks tell each other about themselves before they are a group."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from . import _core, cores
from ._version import __version__
from .config import Config
from .errors import MismatchError, PeerLostError, SymmoeError
from .places import CPU

TOKEN_BYTES = 32


@dataclass(frozen=True)
class Card:
    """What a rank tells the others about itself."""

    version: str
    config: str
    host: str
    uid: int
    pid: int
    pid_space: str  # in which that number means something; empty if unknown
    affinity: list[int]
    address: str  # of its listener; empty if it has none
    trouble: str  # why it has none
    fault: str  # what is wrong with its settings; empty if nothing
    token: str  # rank 0's counts
    place: str  # the kind of memory that the tensors will be in
    tuning: str  # stands for the tuning table's lines


def introduce(
    config: Config, fault: str, rank: int, world: int, place: str, tuning: str
) -> tuple[_core.Listener | None, Card]:
    """This rank's card, and the listener whose address is on it; None if it needs none."""
    listener = None
    trouble = ""
    if place == CPU.name and config.windows and 1 < world <= _core.MAX_RANKS:
        try:
            listener = _core.Listener()
        except SymmoeError as error:
            trouble = str(error)
    card = Card(
        version=__version__,
        config=config.fingerprint(),
        host=_core.host_identity(),
        uid=os.getuid(),
        pid=os.getpid(),
        pid_space=_pid_space(),
        affinity=cores.affinity(),
        address=listener.address if listener else "",
        trouble=trouble,
        fault=fault,
        token=secrets.token_hex(TOKEN_BYTES) if rank == 0 else "",
        place=place,
        tuning=tuning,
    )
    return listener, card


def _pid_space() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def look_for_ended(cards: list[Card], rank: int) -> None:
    """Raises PeerLostError if the process of another rank can be seen to have ended."""
    mine = cards[rank]
    for other, card in enumerate(cards):
        if not mine.pid_space or (card.host, card.pid_space) != (mine.host, mine.pid_space):
            continue
        try:
            state = Path(f"/proc/{card.pid}/stat").read_text().rpartition(") ")[2][:1]
        except (FileNotFoundError, ProcessLookupError):
            state = "X"
        except OSError:
            continue  # hidden from this process
        if state in "XZ":  # dead, or waiting for its parent to take note
            raise PeerLostError(f"rank {other} (pid {card.pid}) ended")


def read(texts: list[str], rank: int) -> list[Card]:
    """The cards of all ranks, which speak for a group.

    Raises:
        MismatchError: Something must be equal on all ranks and is not.
        ValueError: A setting of some rank is wrong.
    """
    where = f"init on rank {rank}"
    fields = [json.loads(text) for text in texts]
    first = fields[0]
    for other, it in enumerate(fields):
        if it["version"] != first["version"]:  # such cards may have other fields altogether
            raise MismatchError(
                f"{where}: rank 0 runs symmoe {first['version']}, rank {other} runs {it['version']}"
            )
    for other, it in enumerate(fields):
        if it["fault"]:
            raise ValueError(f"{where}: wrong setting on rank {other}: {it['fault']}")
    for other, it in enumerate(fields):
        if it["config"] != first["config"]:
            raise MismatchError(
                f"{where}: settings differ: rank 0 has {first['config']}; "
                f"rank {other} has {it['config']}"
            )
        for name in ("place", "tuning"):
            if it[name] != first[name]:
                raise MismatchError(
                    f"{where}: {name} differs: rank 0 has {first[name]}, rank {other} {it[name]}"
                )
    return [Card(**it) for it in fields]
