"""The calls of a group of devices that are made of several of its collectives."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, cast

import torch

from .. import sequence
from ..epilogue import Epilogue
from ..plans import Sizes
from ..routing import Routing
from .calls import DeviceCalls

if TYPE_CHECKING:
    from .group import DeviceGroup


class SequenceCalls(DeviceCalls):
    """What a layer that is split by rows calls; its parts are the group's own."""

    __slots__ = ()

    def rs_norm_ag(
        self,
        input: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        epilogue: Epilogue,
        sizes: Sizes = None,
        padded_to: int | None = None,
        routing: Routing | None = None,
        lane: int = 0,
        deterministic: bool = False,
        stream: object | None = None,
    ) -> torch.Tensor:
        """Sums partial rows, does an epilogue to the own ones and gathers all ranks'. Collective.

        As `Group.rs_norm_ag`. The own rows are made in their place of `out`, from where they are
        gathered in place, whether that is in a "dispatch" window or not.

        Args:
            input: As in `reduce_scatter`.
            out: As in `all_gather`. Nothing that the call uses may overlap it. None: a new tensor,
                padding 0.
            epilogue: As in `reduce_scatter`, not quantised. Its residual is this rank's own.
            sizes: As in `reduce_scatter`, known on the host.
            padded_to: As in `reduce_scatter`.
            routing: As in `reduce_scatter`.
            lane: Which microbatch.
            deterministic: As in `reduce_scatter`.
            stream: A stream of the device; None: the current one.

        Returns:
            `out`; ready for what `stream` is given next.

        Raises:
            TypeError, ValueError, MismatchError, SymmoeError: As `reduce_scatter`.
        """
        self._require_open(sequence.RS_NORM_AG)
        group = cast("DeviceGroup", self)
        with self._order_of(stream):  # a new output is made there
            ends = sequence.prepare(
                group,
                self._place,
                input,
                out,
                epilogue,
                sizes,
                padded_to,
                routing is not None,
                lane,
                stream,
            )
        return sequence.run(
            group, ends, input, epilogue, padded_to, routing, lane, deterministic, stream
        )

    def _order_of(self, stream: object | None) -> contextlib.AbstractContextManager[None]:
        """Inside, torch makes and writes memory in `stream`'s order."""
        if stream is None:
            return contextlib.nullcontext()
        return self._place.in_order(self._place.stream(stream))
