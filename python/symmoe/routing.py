"""Which experts each token chose and which rank has them: what lets a combine skip empty rows.

Every rank of an engine that gathers all tokens has this after dispatch. With it a rank writes only
the rows for which it has an expert, and the owner of a row reads only the ranks that have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import torch

from .places import CPU, Place
from .plans import check_input, check_tensor, name_of

if TYPE_CHECKING:
    from .device.routes import KnownRouting

ID_TYPES = (torch.int32, torch.int64)


class Routing:
    """A router's choice for the tokens of all ranks. Cannot be changed; refers to its tensors.

    Args:
        topk_ids: [rows, K], int32 or int64, in the order of the window's rows, equal on all ranks.
            Physical experts: where an expert has several copies, the copy that was chosen. An id
            below 0, or one that is no expert's, contributes nothing. What padding rows hold, those
            behind a rank's own, does not matter and may differ between ranks.
        topk_weights: [rows, K], float32 or the dtype of the rows; None: a plain sum, or weights
            given to `combine`. Not applied to rows that an expert kernel has summed itself.
        expert_to_rank: [physical experts], int32, equal on all ranks: the rank that has the expert,
            -1 for nobody.

    Raises:
        TypeError: A dtype that does not belong, or something that is no tensor.
        ValueError: Shapes that do not fit.
    """

    __slots__ = ("_masks", "expert_to_rank", "topk_ids", "topk_weights")

    _masks: dict[str, KnownRouting]  # what groups of devices have made of it, by their names

    topk_ids: torch.Tensor
    topk_weights: torch.Tensor | None
    expert_to_rank: torch.Tensor

    def __init__(
        self,
        topk_ids: torch.Tensor,
        topk_weights: torch.Tensor | None = None,
        expert_to_rank: torch.Tensor | None = None,
    ) -> None:
        for name, tensor in (("topk_ids", topk_ids), ("expert_to_rank", expert_to_rank)):
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"Routing: {name} must be a tensor, got {type(tensor).__name__}")
        assert expert_to_rank is not None
        if topk_ids.dtype not in ID_TYPES:
            raise TypeError(
                f"Routing: topk_ids is {name_of(topk_ids.dtype)}, expected int32 or int64"
            )
        if expert_to_rank.dtype is not torch.int32:
            raise TypeError(
                f"Routing: expert_to_rank is {name_of(expert_to_rank.dtype)}, expected int32"
            )
        if topk_ids.dim() != 2:
            raise ValueError(f"Routing: topk_ids must be [rows, K], got {list(topk_ids.shape)}")
        if expert_to_rank.dim() != 1:
            raise ValueError(
                f"Routing: expert_to_rank must be [experts], got {list(expert_to_rank.shape)}"
            )
        if topk_weights is not None:
            if not isinstance(topk_weights, torch.Tensor):
                raise TypeError(
                    f"Routing: topk_weights must be a tensor, got {type(topk_weights).__name__}"
                )
            if topk_weights.shape != topk_ids.shape:
                raise ValueError(
                    f"Routing: topk_weights has shape {list(topk_weights.shape)}, topk_ids "
                    f"{list(topk_ids.shape)}"
                )
        object.__setattr__(self, "topk_ids", topk_ids)
        object.__setattr__(self, "topk_weights", topk_weights)
        object.__setattr__(self, "expert_to_rank", expert_to_rank)
        object.__setattr__(self, "_masks", {})

    @property
    def slots(self) -> int:
        """K, experts per token."""
        return self.topk_ids.shape[1]

    @property
    def rows(self) -> int:
        """Rows of all ranks."""
        return self.topk_ids.shape[0]

    def on_rank(self, rank: int) -> torch.Tensor:
        """Which slots' experts are on a rank: bool, [rows, K]."""
        experts = self.expert_to_rank.shape[0]
        if not experts:
            return torch.zeros_like(self.topk_ids, dtype=torch.bool)
        ids = self.topk_ids.clamp(0, experts - 1).long()
        known = (self.topk_ids >= 0) & (self.topk_ids < experts)
        return known & (self.expert_to_rank[ids] == rank)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Routing cannot be changed ({name} = {value!r}); make another one")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Routing cannot be changed (del {name}); make another one")

    def __repr__(self) -> str:
        weights = "no weights" if self.topk_weights is None else "weights"
        return (
            f"<symmoe.Routing of {self.rows} rows, top-{self.slots} of "
            f"{self.expert_to_rank.shape[0]} experts, {weights}>"
        )


def check_routing(where: str, routing: object, rows: int, place: Place = CPU) -> Routing:
    """The routing of a call over `rows` rows. Values are for the core, or the device, to look at.

    Raises:
        TypeError: Not a Routing.
        ValueError: Of other rows, or tensors in other places or not contiguous.
    """
    if not isinstance(routing, Routing):
        raise TypeError(f"{where}: routing must be a symmoe.Routing, got {type(routing).__name__}")
    check_tensor(where, "routing.topk_ids", routing.topk_ids, place)
    check_tensor(where, "routing.expert_to_rank", routing.expert_to_rank, place)
    if routing.rows != rows:
        raise ValueError(
            f"{where}: routing.topk_ids has {routing.rows} rows (shape "
            f"{list(routing.topk_ids.shape)}), the call {rows}"
        )
    return routing


def weights_of(
    where: str,
    routing: Routing,
    topk_weights: torch.Tensor | None,
    summed: bool,
    place: Place = CPU,
) -> torch.Tensor | None:
    """The weights of a routed combine.

    Args:
        where: Begins messages.
        routing: Checked.
        topk_weights: What the call was given.
        summed: Whether the expert kernel has applied weights already: rows come as [M, H].
        place: Where tensors have to be.

    Raises:
        ValueError: Given twice, or for rows that have been summed.
    """
    if summed:
        if topk_weights is not None:
            raise ValueError(
                f"{where}: topk_weights with expert_out of [M, H] and a routing: such rows are "
                f"sums already; give [M, K, H], or an index"
            )
        return None
    if routing.topk_weights is None:
        return topk_weights
    if topk_weights is not None:
        raise ValueError(f"{where}: topk_weights given twice, as an argument and in the routing")
    check_input(where, "routing.topk_weights", routing.topk_weights, place)
    return routing.topk_weights


def check_slots(where: str, routing: Routing, slots: int, summed: bool) -> None:
    """Raises ValueError unless a routed combine has one slot for each id."""
    if not summed and slots != routing.slots:
        raise ValueError(
            f"{where}: {slots} slots per token, but routing.topk_ids has {routing.slots} (shape "
            f"{list(routing.topk_ids.shape)})"
        )
