"""The windows of a group of devices: getting, keeping and giving back memory, the group's end."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from .. import _core
from ..config import MAX_BYTES, Config
from ..errors import ClosedError
from ..exchange import Exchange
from ..places import DevicePlace
from ..plans import (
    OTHER_TYPES,
    ROLES,
    WINDOW_TYPES,
    Layout,
    as_int,
    check_lane,
    check_tensor,
    name_of,
)
from .views import DeviceViews


class DeviceMemory:
    """The state of one rank's group, and the part of it that has to do with memory.

    Attributes:
        rank: This rank in the group.
        world_size: Number of ranks.
    """

    __slots__ = (
        "__weakref__",
        "_accepts",
        "_always_keeps",
        "_closed",
        "_config",
        "_core",
        "_core_rearm",
        "_current_stream",
        "_exchange",
        "_fallbacks",
        "_layouts",
        "_pid",
        "_place",
        "_process_group",
        "_views",
        "_views_by_id",
        "_where",
        "rank",
        "world_size",
    )

    def __init__(
        self,
        core: _core.DeviceGroup,
        place: DevicePlace,
        process_group: dist.ProcessGroup | None,
        rank: int,
        world: int,
        config: Config,
        exchange: Exchange,
    ) -> None:
        self.rank = rank
        self.world_size = world
        self._core = core
        self._core_rearm = core.rearm
        # What every call asks for, found once.
        self._place = place
        self._accepts = place.accepts
        self._current_stream = place.current_stream
        self._always_keeps = place.always_keeps
        self._process_group = process_group
        self._config = config
        self._exchange = exchange
        self._views = DeviceViews(place)
        self._views_by_id = self._views.by_id
        self._layouts: dict[Any, Layout] = {}
        self._fallbacks = 0
        self._closed = False
        self._pid = os.getpid()
        names = ("reduce_scatter", "all_gather", "combine", "acquire", "reserve", "retain")
        self._where = {name: f"{name} on rank {rank}" for name in names}

    def acquire(
        self,
        role: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        lane: int = 0,
        stream: object | None = None,
    ) -> torch.Tensor | None:
        """A tensor over this rank's window, free to be written until it is reduced.

        Does not wait: what `stream` is given from now on comes behind the lane's last call. The
        tensor is the same one for the same arguments until the window has to grow, which is
        collective and forbidden while a stream is captured: `reserve` first. A window acquired on a
        capturing stream is kept for the graph until `release_graphs`.

        Args:
            role: "combine" for reduce_scatter, "dispatch" for all_gather.
            shape: (rows, hidden); for "combine" the rows of all ranks, for "dispatch" the own ones.
            dtype: bfloat16, float16 or float32; for others there is no window.
            lane: Which microbatch; lanes never share memory.
            stream: A stream of the device; None: the current one.

        Returns:
            [rows, hidden], or None where there can be no window: use memory of your own, the
            collectives take it. `explain` has the reason.

        Raises:
            TypeError: A dtype that cannot be combined at all, or something that is no integer.
            ValueError: Unknown role, lane out of range, negative rows; growth during capture.
            SymmoeError: A peer was lost, the deadline passed, the group is closed or poisoned.
        """
        try:
            view = self._views.by_key.get((role, lane, shape, dtype))  # type: ignore[arg-type]
        except TypeError:  # a list is as good as a tuple, but no key
            view = None
        handle = self._place.stream(stream)
        if view is not None and view.is_intact() and self._core_rearm(view.buffer, handle):
            return view.tensor
        return self._acquire(role, shape, dtype, lane, handle)

    def _acquire(
        self, role: str, shape: Sequence[int], dtype: torch.dtype, lane: int, stream: int
    ) -> torch.Tensor | None:
        where = self._where["acquire"]
        self._require_open("acquire")
        _check_role(where, role)
        lane = check_lane(where, lane)
        _check_dtype(where, dtype)
        try:
            given = tuple(shape)
        except TypeError:
            raise TypeError(f"{where}: shape must be (rows, hidden), got {shape!r}") from None
        if len(given) != 2:
            raise ValueError(f"{where}: shape must be (rows, hidden), got {given}")
        rows, hidden = (as_int(f"{where}: shape", size) for size in given)
        if rows < 0 or hidden < 1:
            raise ValueError(f"{where}: shape must be (rows, hidden), got {(rows, hidden)}")
        if dtype not in WINDOW_TYPES:
            return None
        nbytes = rows * hidden * dtype.itemsize
        if nbytes > MAX_BYTES:
            raise ValueError(f"{where}: {rows} rows of {hidden} are over {MAX_BYTES} bytes")
        buffer = self._core.acquire(ROLES[role], lane, nbytes, stream)
        if buffer is None:
            return None
        key = (role, lane, (rows, hidden), dtype)
        view = self._views.by_key.get(key)
        if view is not None and view.buffer.address == buffer.address and view.is_intact():
            return view.tensor
        return self._views.add(key, buffer)

    def reserve(
        self,
        rows: int,
        hidden: int,
        dtype: torch.dtype,
        *,
        lanes: int = 1,
        roles: Sequence[str] = ("combine",),
        graph: bool = False,
    ) -> bool:
        """Makes windows ahead of their use. Collective; same arguments on all ranks.

        Call it before an engine measures how much memory it may use: windows lie outside of torch's
        allocator. And before a capture, in which none can be made.

        Args:
            rows: Rows of the largest acquire to come.
            hidden: Elements per row.
            dtype: Of the rows.
            lanes: For lanes 0..lanes-1.
            roles: For these roles. All of them get their windows, in all lanes, or none does.
            graph: The windows will be used by captured graphs: keep them until release_graphs.

        Returns:
            True, or False with a RuntimeWarning that gives the reason: then no rank has them.

        Raises:
            TypeError, ValueError: Wrong arguments.
            MismatchError: Ranks gave different arguments; on all of them.
        """
        where = self._where["reserve"]
        self._require_open("reserve")
        roles = (roles,) if isinstance(roles, str) else tuple(roles)
        if not roles:
            raise ValueError(f"{where}: no roles given")
        for role in roles:
            _check_role(where, role)
        _check_dtype(where, dtype)
        rows, hidden = as_int(f"{where}: rows", rows), as_int(f"{where}: hidden", hidden)
        lanes = as_int(f"{where}: lanes", lanes)
        if rows < 0 or hidden < 1 or not 1 <= lanes <= _core.MAX_LANES:
            raise ValueError(
                f"{where}: rows={rows}, hidden={hidden}, lanes={lanes}: rows must not be negative, "
                f"hidden positive and lanes 1..{_core.MAX_LANES}"
            )
        nbytes = rows * hidden * dtype.itemsize
        if nbytes > MAX_BYTES:
            raise ValueError(f"{where}: {rows} rows of {hidden} are over {MAX_BYTES} bytes")
        if dtype in WINDOW_TYPES:
            reason = self._core.reserve([ROLES[role] for role in roles], lanes, nbytes, graph)
        else:
            reason = f"windows do not know {name_of(dtype)}"
        if reason:
            text = f"{where}: no windows of {nbytes} bytes: {reason}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return not reason

    def retain(self, buf: torch.Tensor) -> None:
        """Keeps the window that `buf` lies in until release_graphs: a captured graph writes it.

        For a window acquired before a capture and written inside it by a kernel of yours.

        Raises:
            ValueError: `buf` is not in a window.
        """
        self._require_open("retain")
        check_tensor(self._where["retain"], "buf", buf, self._place)
        found = self._core.find(buf.data_ptr())
        if found is None:
            raise ValueError(f"{self._where['retain']}: buf is not in a window of this group")
        self._core.retain(found[0])

    def release_graphs(self) -> None:
        """No captured graph uses any window any more; trims. Collective."""
        self._require_open("release_graphs")
        self._drop_outgrown()
        self._core.release_graphs()

    def trim(self) -> None:
        """Gives back outgrown windows that no view, graph or queued work holds. Collective."""
        self._require_open("trim")
        self._drop_outgrown()
        self._core.trim()

    def suspend(self) -> None:
        """Gives back all windows until resume, while an engine sleeps. Collective.

        Raises:
            ValueError: On all ranks, if a graph or a tensor still holds a window on any of them.
        """
        self._require_open("suspend")
        self._views.clear()
        self._core.suspend()

    def resume(self) -> None:
        """Makes windows of the old sizes again. Collective, and harmless if not suspended."""
        self._require_open("resume")
        self._core.resume()

    def _drop_outgrown(self) -> None:
        for view in list(self._views.by_key.values()):  # other threads may add to it
            if view.buffer.retired:
                self._views.discard(view)

    def check(self) -> None:
        """Raises if no further call can succeed, or a kernel met a wrong value. Local.

        Raises:
            ValueError: An index given to an earlier call was out of range; once.
            ClosedError: The group was closed, or this process is a fork.
            PoisonedError: An earlier call failed.
            PeerLostError: A peer's process ended.
            NcclError: NCCL noticed a failure.
        """
        self._require_open("check")
        self._core.check()

    def stats(self) -> dict[str, int]:
        """Bytes and counts so far. Local.

        Returns:
            As Group.stats, with calls_direct, calls_plain, ... for each path of docs/paths.md, and
            scratch_bytes: memory of paths that need some of their own. All of it is device memory
            outside of torch's allocator.
        """
        self._require_open("stats")
        return {**self._core.stats(), "calls_process_group": self._fallbacks}

    def describe(self) -> dict[str, Any]:
        """The device, NCCL, and why there are no windows, if so. Local."""
        self._require_open("describe")
        return self._core.describe()

    def close(self) -> None:
        """Ends this rank's part; waits for what it has queued. Harmless a second time.

        End captured graphs first. Memory under tensors that `acquire` gave stays until they go.

        Raises:
            ValueError: A call is running in another thread.
        """
        if self._closed:
            return
        if os.getpid() == self._pid:
            self._core.close()
            self._exchange.finish()
        self._closed = True
        self._views.clear()
        self._layouts.clear()

    def _require_open(self, operation: str) -> None:
        if self._closed:
            raise ClosedError(f"{operation} on rank {self.rank}: the group is closed")


def _check_role(where: str, role: object) -> None:
    if role not in ROLES:
        raise ValueError(f"{where}: role {role!r} is none of {', '.join(ROLES)}")


def _check_dtype(where: str, dtype: object) -> None:
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{where}: dtype must be a torch.dtype, got {dtype!r}")
    if dtype not in WINDOW_TYPES and dtype not in OTHER_TYPES:
        raise TypeError(f"{where}: dtype {name_of(dtype)} is not supported")
