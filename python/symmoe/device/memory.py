"""The windows of a group of devices: getting, keeping and giving back memory, the group's end."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from .. import _core, tags
from ..config import Config
from ..errors import ClosedError
from ..exchange import Exchange
from ..layouts import Layouts
from ..names import register
from ..observing import watch
from ..places import DevicePlace
from ..plans import WINDOW_TYPES, check_tensor
from ..window_requests import check_acquire, check_reserve, why_no_type
from .views import DeviceViews


class DeviceMemory:
    """The state of one rank's group, and the part of it that has to do with memory.

    Attributes:
        name: Stands for the group in graphs (`symmoe.ops`); no other group of this process has it.
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
        "name",
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
        self.name = register(self)
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
        if config.strict_layout:
            watch.use_tags()
        self._exchange = exchange
        self._views = DeviceViews(place)
        self._views_by_id = self._views.by_id
        self._fallbacks = 0
        self._closed = False
        self._pid = os.getpid()
        names = ("reduce_scatter", "all_gather", "combine", "acquire", "reserve", "retain")
        self._where = {name: f"{name} on rank {rank}" for name in names}
        self._layouts = Layouts(rank, world, self._where, for_device=True)

    def acquire(
        self,
        role: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        lane: int = 0,
        stream: object | None = None,
    ) -> torch.Tensor | None:
        """A tensor over this rank's window, free to be written until it is reduced or gathered.

        Does not wait: what `stream` is given from now on comes behind the lane's last call. The
        tensor is the same one for the same arguments until the window has to grow, which is
        collective and forbidden while a stream is captured: `reserve` first. A window acquired on a
        capturing stream is kept for the graph until `release_graphs`.

        Args:
            role: "combine" for reduce_scatter, "dispatch" for all_gather.
            shape: (rows, hidden); for "combine" the rows of all ranks, for "dispatch" the own ones,
                or those of all ranks if they are to be gathered there.
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
            return tags.of_window(role, view.tensor) if watch.tags else view.tensor
        tensor = self._acquire(role, shape, dtype, lane, handle)
        return tags.of_window(role, tensor) if watch.tags and tensor is not None else tensor

    def _acquire(
        self, role: str, shape: Sequence[int], dtype: torch.dtype, lane: int, stream: int
    ) -> torch.Tensor | None:
        where = self._where["acquire"]
        self._require_open("acquire")
        request = check_acquire(where, role, shape, dtype, lane)
        if dtype not in WINDOW_TYPES:
            return None
        buffer = self._core.acquire(request.role, request.lane, request.nbytes, stream)
        if buffer is None:
            return None
        key = (role, request.lane, request.shape, dtype)
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
        request = check_reserve(where, rows, hidden, dtype, lanes, roles)
        reason = why_no_type(dtype)
        if not reason:
            reason = self._core.reserve(request.roles, request.lanes, request.nbytes, graph)
        if reason:
            text = f"{where}: no windows of {request.nbytes} bytes: {reason}"
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
            live_bytes, stage_bytes, retired_bytes, view_bytes, pinned_bytes, peak_bytes, growths,
            buffers: as in Group.stats; scratch_bytes: memory that paths need for themselves. All of
            it is device memory outside of torch's allocator. calls_local, calls_direct,
            calls_plain, calls_grouped, calls_ordered: calls by path (docs/paths.md), calls_staged:
            copies in front of them; calls_process_group: calls served by torch.distributed.
        """
        self._require_open("stats")
        return {**self._core.stats(), "calls_process_group": self._fallbacks}

    def describe(self) -> dict[str, Any]:
        """What the group works with. Local.

        Returns:
            kind, name, ordinal, multiprocessors, capability, total_bytes: of the device; nccl and
            nccl_path: NCCL's version and file, "" without one; no_communicator and no_windows: why
            there is none, or are none; "" where there is nothing to say.
        """
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
