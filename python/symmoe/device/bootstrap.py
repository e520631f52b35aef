"""Sets up a group of devices, after its ranks have got to know each other."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from .. import _core
from ..config import PATHS as CHOSEN_PATHS
from ..config import WINDOW_SOURCES, Config
from ..errors import DeadlineError, SymmoeError
from ..exchange import Exchange
from ..places import DevicePlace
from ..plans import WINDOW_TYPES, name_of
from . import libraries
from .group import DeviceGroup

PATHS = ("local", *CHOSEN_PATHS)  # the core's numbers
LOOK_SECONDS = 0.25
_DTYPES = {name_of(dtype): code for dtype, code in WINDOW_TYPES.items()}


def make_group(
    place: DevicePlace,
    process_group: dist.ProcessGroup | None,
    rank: int,
    world: int,
    config: Config,
    exchange: Exchange,
    look: Callable[[], None],
    pids: list[int],
    no_windows: str,
    comm_ptr: int | None,
    nccl: str | None = None,
) -> DeviceGroup:
    """Makes the group. Collective.

    Args:
        place: Where the tensors will be.
        process_group: For what the group's own paths cannot serve; None: a world of one.
        rank: This rank.
        world: Number of ranks.
        config: Settings, compared already.
        exchange: Stays in use for the group's life.
        look: Raises PeerLostError if a peer has ended.
        pids: Processes of the ranks as seen from here, 0 if not seen.
        no_windows: Why none are to be tried; empty: try.
        comm_ptr: An ncclComm_t of the same ranks, or None.
        nccl: Path of the NCCL to use; None: where it usually is.

    Raises:
        UnavailableError: Some rank has no device; on all of them.
    """
    settings = _core.DeviceGroupConfig()
    settings.back_end = place.back_end
    settings.ordinal = place.ordinal
    settings.allow_unsafe_nccl = config.allow_unsafe_nccl
    settings.no_windows = no_windows
    settings.pids = pids
    settings.set_borrowed(comm_ptr or 0)
    settings.set_nccl(nccl or config.nccl_lib or "", libraries.nccl_wheels())
    settings.set_pool(config.granularity, config.max_buffer_bytes or 0)
    settings.set_waits(int(config.timeout * 1e9), int(LOOK_SECONDS * 1e9))
    settings.set_check(config.check)
    settings.set_paths([PATHS.index(path) for path in config.paths or CHOSEN_PATHS])
    settings.set_windows(WINDOW_SOURCES.index(config.window_source))
    settings.set_tuning(read_tuning(config.tuning, world, place.kind))

    turns = itertools.count()

    def gather(topic: str, text: str) -> list[str]:
        # Ranks that mean different things must meet all the same, to find that out.
        try:
            return exchange.gather(f"agreement {next(turns)}", text, look)
        except DeadlineError as error:
            raise DeadlineError(f"{topic}: {error}") from error

    try:
        core = _core.DeviceGroup(rank, world, settings, gather)
    except SymmoeError:
        exchange.finish()
        raise
    return DeviceGroup(core, place, process_group, rank, world, config, exchange)


def read_tuning(path: str | None, world: int, kind: str) -> list[tuple[int, int, int, float]]:
    """The lines of a table that `symmoe tune` wrote, as the core takes them; none without a path.

    Args:
        path: The table, or None.
        world: Ranks of the group. One alone has nothing to choose, so any table is as good as none.
        kind: Of its devices: "cuda", "hip" or "host".

    Raises:
        ValueError: The file is no such table, or one of another number of ranks or kind of device.
    """
    if path is None or world == 1:
        return []
    lines, *measured = parse_tuning(path)
    if measured != [world, kind]:
        raise ValueError(
            f"SYMMOE_TUNING, Config.tuning: {path} was measured with {measured[0]} ranks on "
            f"{measured[1]}; this group has {world} ranks on {kind}: run `symmoe tune` for it"
        )
    return lines


def parse_tuning(path: str) -> tuple[list[tuple[int, int, int, float]], int, str]:
    """A table's lines, and the number of ranks and the kind of device that it is for.

    Raises:
        ValueError: The file is no such table, or there is none.
    """
    try:
        table: dict[str, Any] = json.loads(Path(path).read_text())
        lines = [_line_of(row) for row in table["rows"]]
        return lines, int(table["world"]), str(table["machine"]["kind"])
    except FileNotFoundError:
        raise ValueError(f"SYMMOE_TUNING, Config.tuning: there is no file {path}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"SYMMOE_TUNING, Config.tuning: {path} is no tuning table: "
            f"{type(error).__name__}: {error}"
        ) from None


def _line_of(row: dict[str, Any]) -> tuple[int, int, int, float]:
    nbytes, us = int(row["bytes"]), float(row["time_us"])
    if nbytes < 1 or not 0 < us < math.inf:
        raise ValueError(f"bytes = {nbytes} and time_us = {us} must be positive")
    return PATHS.index(row["path"]), _DTYPES[row["dtype"]], nbytes, us


def tuning_digest(path: str | None, world: int, kind: str) -> str:
    """Stands for a table's lines when ranks compare them.

    Raises:
        ValueError: As read_tuning.
    """
    lines = json.dumps(sorted(read_tuning(path, world, kind)))
    return hashlib.blake2b(lines.encode(), digest_size=8).hexdigest()
