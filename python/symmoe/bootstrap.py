"""Sets up a group: ranks get to know each other, compare settings and decide on windows together.

Every decision is taken from what all ranks published, by the same rule on each, so that no group is
ever half set up.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, dataclass
from typing import Literal, overload

import torch
import torch.distributed as dist

from . import _core, cores
from .cards import Card, introduce, look_for_ended, read
from .config import Config
from .device.bootstrap import make_group, tuning_digest
from .device.cuda import CudaPlace
from .device.group import DeviceGroup
from .errors import MismatchError, SymmoeError, UnavailableError
from .exchange import Exchange, open_exchange
from .group import Group
from .places import CPU, DevicePlace


@overload
def init(
    process_group: dist.ProcessGroup | None = None,
    config: Config | None = None,
    *,
    comm_ptr: None = None,
    device: Literal["cpu"],
) -> Group: ...
@overload
def init(
    process_group: dist.ProcessGroup | None = None,
    config: Config | None = None,
    *,
    comm_ptr: int,
    device: torch.device | str | None = None,
) -> DeviceGroup: ...
@overload
def init(
    process_group: dist.ProcessGroup | None = None,
    config: Config | None = None,
    *,
    comm_ptr: int | None = None,
    device: torch.device | str | None = None,
) -> Group | DeviceGroup: ...
def init(
    process_group: dist.ProcessGroup | None = None,
    config: Config | None = None,
    *,
    comm_ptr: int | None = None,
    device: torch.device | str | None = None,
) -> Group | DeviceGroup:
    """Makes a group of the ranks of a process group. Collective.

    Args:
        process_group: A torch.distributed process group. None: the default one, or a world of one
            where torch.distributed is not initialised.
        config: Settings, the same on all ranks. None: those of the SYMMOE_* variables.
        comm_ptr: On GPUs, an ncclComm_t of the same ranks to work with, such as that of vLLM's
            PyNcclCommunicator. It stays the caller's, and has to outlive the group. None: the group
            makes one of its own.
        device: Where the tensors will be: "cpu", "cuda", "cuda:1". None: "cuda" if the process
            group serves CUDA tensors or `comm_ptr` is given, else "cpu".

    Returns:
        The group; also a context manager. On GPUs it is a DeviceGroup, which has Group's methods.
        Where windows cannot work (ranks on several hosts, say) it works without; `explain` gives
        the reason.

    Raises:
        ValueError: This process is not in `process_group`; or a SYMMOE_* variable is malformed, or
            asks for what this machine does not have, on any rank: then on all of them.
        MismatchError: Ranks differ in settings or version; raised on all of them.
        DeadlineError: Ranks did not show up within the timeout; the message names them.
        PeerLostError: A rank ended meanwhile.
        UnavailableError: Tensors will be on a GPU, and some rank has no such device; then on all of
            them. Or torch or this build has no GPU part: then on the ranks that lack it, before
            they meet the others, who wait for them until the timeout.
        SymmoeError: The store or the device failed.

    Warns:
        RuntimeWarning: Windows were wanted and could have been, but something failed. On GPUs also
            where NCCL is missing or too old for them.
    """
    if process_group is None and dist.is_available() and dist.is_initialized():
        process_group = dist.group.WORLD
    if process_group is not None and dist.get_rank(process_group) < 0:
        raise ValueError("init: this process is not a member of process_group")
    place = _place_for(process_group, comm_ptr, device)
    if place is not None:
        return init_device(place, process_group, config, comm_ptr)

    ranks, listener = _meet(process_group, config, CPU.name)
    settings, cards, rank = ranks.settings, ranks.cards, ranks.rank
    neighbours = [other for other, it in enumerate(cards) if it.host == cards[rank].host]
    share = cores.own_share(
        cards[rank].affinity,
        [cards[other].affinity for other in neighbours],
        neighbours.index(rank),
    )
    claim = cores.Claim(share, settings.pin)
    try:
        reason, failed = _obstacle(settings, cards)
        core = None
        if not reason:
            core, reason = _open_windows(settings, rank, cards, listener, ranks.exchange)
            failed = bool(reason)
        ranks.exchange.finish()
        if failed:
            text = f"init on rank {rank}: no windows, calls use the process group: {reason}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return Group(core, process_group, rank, len(cards), settings, claim, reason)
    except BaseException:
        claim.release()
        raise


def _place_for(
    process_group: dist.ProcessGroup | None, comm_ptr: int | None, device: torch.device | str | None
) -> CudaPlace | None:
    """The GPU to work on; None: the CPU."""
    if device is None:
        served = [] if process_group is None else process_group._device_types
        on_gpu = torch.device("cuda") in served and torch.cuda.is_available()
        device = "cuda" if comm_ptr or on_gpu else "cpu"
    chosen = torch.device(device)
    if chosen.type == "cpu":
        if comm_ptr:
            raise ValueError("init: comm_ptr is an NCCL communicator; the device must be a GPU")
        return None
    if chosen.type != "cuda":
        raise ValueError(f"init: device must be cpu or cuda, got {chosen}")
    try:
        return CudaPlace(_current_gpu() if chosen.index is None else chosen.index)
    except UnavailableError as error:
        raise UnavailableError(f'init: device="{chosen}": {error}') from None


def _current_gpu() -> int:
    """Its number; where there is no GPU, one all the same: ranks find that out together."""
    return torch.cuda.current_device() if torch.cuda.is_available() else 0


def init_device(
    place: DevicePlace,
    process_group: dist.ProcessGroup | None,
    config: Config | None,
    comm_ptr: int | None = None,
    nccl: str | None = None,
) -> DeviceGroup:
    """`init` for tensors in `place`; `nccl`: path of the library, None: where it usually is."""
    ranks, _ = _meet(process_group, config, place.kind)
    cards, rank, settings = ranks.cards, ranks.rank, ranks.settings
    no_windows = ""
    if not settings.windows:
        no_windows = "windows are turned off (Config.windows, SYMMOE_WINDOWS)"
    mine = cards[rank]
    seen = [
        it.pid if mine.pid_space and (it.host, it.pid_space) == (mine.host, mine.pid_space) else 0
        for it in cards
    ]
    group = make_group(
        place,
        process_group,
        rank,
        len(cards),
        settings,
        ranks.exchange,
        lambda: look_for_ended(cards, rank),
        seen,
        no_windows,
        comm_ptr,
        nccl,
    )
    ranks.exchange.operation = "group"
    trouble = _trouble(group, settings)
    if trouble:
        # Of whoever has called init, or symmoe.testing.init.
        warnings.warn(f"init on rank {rank}: {trouble}", RuntimeWarning, stacklevel=3)
    return group


def _trouble(group: DeviceGroup, settings: Config) -> str:
    """What a group of devices goes without although it was wanted; empty if nothing."""
    facts = group.describe()
    if group.world_size == 1:
        return ""
    if facts["no_communicator"]:
        if not facts["no_peers"]:  # own kernels reduce; the rest is the process group's
            return f"no NCCL, only reduce_scatter goes without it: {facts['no_communicator']}"
        return f"no NCCL, calls use the process group: {facts['no_communicator']}"
    if settings.windows and facts["no_windows"]:
        return f"no windows, calls use NCCL's ordinary kernels: {facts['no_windows']}"
    return ""


@dataclass(frozen=True)
class _Ranks:
    """What ranks know of each other once they have met."""

    settings: Config
    cards: list[Card]
    rank: int
    exchange: Exchange


def _meet(
    process_group: dist.ProcessGroup | None, config: Config | None, place: str
) -> tuple[_Ranks, _core.Listener | None]:
    """Collects all ranks' cards. Collective."""
    rank = 0 if process_group is None else process_group.rank()
    world = 1 if process_group is None else process_group.size()
    settings, fault = _settings(config)
    tuning = ""
    if place != CPU.name:
        try:
            tuning = tuning_digest(settings.tuning, world, place)
        except ValueError as error:
            fault = fault or str(error)
    exchange = open_exchange(process_group, settings.timeout)
    listener, card = introduce(settings, fault, rank, world, place, tuning)
    texts = exchange.gather("card", json.dumps(asdict(card)))
    try:
        return _Ranks(settings, read(texts, rank), rank, exchange), listener
    except (ValueError, MismatchError):
        exchange.finish()
        raise


def _settings(config: Config | None) -> tuple[Config, str]:
    """The settings, and what is wrong with this process's environment; empty if nothing.

    Nothing is raised yet: the other ranks wait for this one's card.
    """
    settings, fault = config, ""
    if settings is None:
        try:
            settings = Config.from_env()
        except ValueError as error:
            settings, fault = Config(), str(error)
    try:
        _core.isa_name()
    except ValueError as error:
        fault = fault or str(error)
    return settings, fault


def _obstacle(config: Config, cards: list[Card]) -> tuple[str, bool]:
    """Why windows cannot be used, from what all ranks know, and whether that is a failure.

    Empty if they can be tried. No failure: what was asked for, and where the ranks are.
    """
    first = cards[0]
    if not config.windows:
        return "windows are turned off (Config.windows, SYMMOE_WINDOWS)", False
    if len(cards) > _core.MAX_RANKS:
        return f"{len(cards)} ranks, and windows serve at most {_core.MAX_RANKS}", False
    for rank, card in enumerate(cards):
        if card.host != first.host:
            hosts = f"({first.host}, {card.host})"
            return f"ranks 0 and {rank} are on different hosts {hosts}", False
        if card.uid != first.uid:
            users = f"({first.uid}, {card.uid})"
            return f"ranks 0 and {rank} belong to different users {users}", True
        if card.trouble:
            return f"rank {rank} cannot listen for its peers: {card.trouble}", True
    return "", False


def _open_windows(
    config: Config,
    rank: int,
    cards: list[Card],
    listener: _core.Listener | None,
    exchange: Exchange,
) -> tuple[_core.Group | None, str]:
    """The compiled group, or None and the reason: on all ranks or on none."""
    settings = _core.GroupConfig()
    settings.deadline_ns = int(config.timeout * 1e9)
    settings.spin_ns = int(config.spin_us * 1e3)
    settings.granularity_bytes = config.granularity
    settings.max_buffer_bytes = config.max_buffer_bytes or 0
    settings.check = config.check
    core = None
    status = ""
    try:
        core = _core.Group(
            rank,
            len(cards),
            [card.address for card in cards],
            bytes.fromhex(cards[0].token),
            listener,
            settings,
        )
    except (SymmoeError, OSError, ValueError) as error:
        status = f"{type(error).__name__}: {error}"
    try:
        # Another rank may have needed the whole timeout to find out that it cannot connect.
        statuses = exchange.gather(
            "windows", status, lambda: look_for_ended(cards, rank), grace=config.timeout
        )
    except SymmoeError:
        if core is not None:
            core.close()
        raise
    for other, text in enumerate(statuses):
        if text:
            if core is not None:
                core.close()
            return None, f"rank {other} could not set up its windows: {text}"
    return core, ""
