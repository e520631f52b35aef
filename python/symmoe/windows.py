"""The windows of a group: getting, keeping and giving back memory, and the group's end."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence

import torch

from . import tags
from .calls import Calls
from .decision import Shortage
from .observing import watch
from .plans import WINDOW_TYPES, check_stream, check_tensor
from .window_requests import check_acquire, check_reserve, why_no_type

_CORE_STATS = (
    "live_bytes",
    "retired_bytes",
    "view_bytes",
    "pinned_bytes",
    "stage_bytes",
    "peer_bytes",
    "peak_bytes",
    "growths",
    "buffers",
    "calls_pull",
    "calls_staged",
    "calls_routed",
    "calls_routed_staged",
    "calls_gather",
    "calls_gather_staged",
)


class Windows(Calls):
    """The part of a group that has to do with memory and with the group's life."""

    __slots__ = ()

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

        Waits until the peers have read what the window held before. The tensor is the same one for
        the same arguments until the window has to grow. Every reduce or gather of a window needs
        an acquire before it.

        Args:
            role: "combine" for reduce_scatter, "dispatch" for all_gather.
            shape: (rows, hidden); for "combine" the rows of all ranks, for "dispatch" the own ones.
            dtype: bfloat16, float16 or float32; for others there is no window.
            lane: Which microbatch; lanes never share memory.
            stream: None; for GPU builds.

        Returns:
            [rows, hidden], or None where there can be no window: use memory of your own, the
            collectives take it. `explain` has the reason.

        Raises:
            TypeError: A dtype that cannot be combined at all, or something that is no integer.
            ValueError: Unknown role, lane out of range, negative rows.
            SymmoeError: A peer was lost, the deadline passed, the group is closed or poisoned.
        """
        try:
            view = self._by_key.get((role, lane, shape, dtype))  # type: ignore[arg-type]
        except TypeError:  # a list is as good as a tuple, but no key
            view = None
        if view is not None and stream is None:
            tensor = view.again()
            if tensor is not None:
                return tags.of_window(role, tensor) if watch.tags else tensor
        tensor = self._acquire(role, shape, dtype, lane, stream)
        return tags.of_window(role, tensor) if watch.tags and tensor is not None else tensor

    def _acquire(
        self, role: str, shape: Sequence[int], dtype: torch.dtype, lane: int, stream: object
    ) -> torch.Tensor | None:
        where = f"acquire on rank {self.rank}"
        self._require_usable("acquire")
        check_stream(where, stream)
        request = check_acquire(where, role, shape, dtype, lane)
        if self._core is None or dtype not in WINDOW_TYPES:
            return None
        lane, nbytes = request.lane, request.nbytes
        slot = (request.role, lane)
        buffer = self._core.acquire(*slot, nbytes)
        shortage = self._shortages.get(slot)
        if buffer is None:
            if self._cap is None or nbytes <= self._cap:
                reason = f"acquire of {nbytes} bytes was refused here: {self._core.refusal()}"
                self._shortages[slot] = Shortage(nbytes, reason)
            return None
        if shortage is not None and shortage.nbytes <= nbytes:
            del self._shortages[slot]
        key = (role, lane, request.shape, dtype)
        view = self._by_key.get(key)
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

        Args:
            rows: Rows of the largest acquire to come.
            hidden: Elements per row.
            dtype: Of the rows.
            lanes: For lanes 0..lanes-1.
            roles: For these roles. All of them get their windows, in all lanes, or none does.
            graph: The windows will be used by captured graphs: keep them until release_graphs.

        Returns:
            True, or False with a RuntimeWarning that gives the reason: then all ranks use the
            process group for such sizes.

        Raises:
            TypeError, ValueError: Wrong arguments.
            MismatchError: Ranks gave different arguments; on all of them.
        """
        where = f"reserve on rank {self.rank}"
        self._require_usable("reserve")
        request = check_reserve(where, rows, hidden, dtype, lanes, roles)
        nbytes = request.nbytes
        reason = self._obstacle or why_no_type(dtype)
        if self._core is not None and not reason:
            reason = self._core.reserve(request.roles, request.lanes, nbytes, graph)
            if reason and (self._cap is None or nbytes <= self._cap):
                self._cap, self._cap_reason = max(nbytes, 1) - 1, reason
            self._views.drop_outgrown()
        if reason:
            text = f"{where}: no windows of {nbytes} bytes: {reason}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return not reason

    def retain(self, buf: torch.Tensor) -> None:
        """Keeps the window that `buf` lies in until release_graphs: a captured graph writes it.

        Raises:
            ValueError: `buf` is not in a window.
        """
        self._require_usable("retain")
        check_tensor(f"retain on rank {self.rank}", "buf", buf)
        found = self._core.find(buf.data_ptr()) if self._core is not None else None
        if self._core is None or found is None:
            raise ValueError(f"retain on rank {self.rank}: buf is not in a window of this group")
        self._core.retain(found[0])

    def release_graphs(self) -> None:
        """No captured graph uses any window any more; trims. Collective."""
        self._require_usable("release_graphs")
        self._views.drop_outgrown()
        if self._core is not None:
            self._core.release_graphs()

    def trim(self) -> None:
        """Gives back outgrown windows that no view and no graph holds. Collective."""
        self._require_usable("trim")
        self._views.drop_outgrown()
        if self._core is not None:
            self._core.trim()

    def check(self) -> None:
        """Raises if no further call can succeed. Local.

        Raises:
            ClosedError: The group was closed, or this process is a fork.
            PoisonedError: An earlier call failed.
            PeerLostError: A peer's process ended.
        """
        self._require_usable("check")
        if self._core is not None:
            self._core.check()

    def stats(self) -> dict[str, int]:
        """Bytes and counts so far. Local.

        Returns:
            live_bytes: current windows; stage_bytes: the part of them used for staging;
            retired_bytes: outgrown windows not given back yet; view_bytes: the part of those that
            live views hold; pinned_bytes: held for graphs; peer_bytes: peers' windows mapped here;
            peak_bytes: largest live + retired so far; growths: windows that replaced a smaller one;
            buffers: windows; calls_pull, calls_staged: reduces without and with staging;
            calls_routed, calls_routed_staged: the same of reduces with a routing; calls_gather,
            calls_gather_staged: the same for all_gather; calls_process_group: calls served by
            torch.distributed.
        """
        self._require_usable("stats")
        core = self._core.stats() if self._core is not None else dict.fromkeys(_CORE_STATS, 0)
        return {name: core[name] for name in _CORE_STATS} | {"calls_process_group": self._fallbacks}

    def close(self) -> None:
        """Ends this rank's part. Local, and harmless a second time.

        Memory under tensors that `acquire` gave stays until they are gone. Peers that still make
        calls get PeerLostError. What Config.pin has done to this process is undone. Leaving the
        group's `with` block does the same.

        Raises:
            ValueError: A call is running in another thread.
        """
        if self._closed:
            return
        if self._core is not None and os.getpid() == self._pid:
            self._core.close()
        self._closed = True
        self._release_processors()
        self._views.clear()
        self._layouts.clear()
        if self._known is not None:
            self._known.forget()
