"""Plans a combine with an output transform and shared experts, and runs it: each sum exactly once.

A layer whose experts work in a latent width ends with a transform of their sum into the hidden
width. The sum over ranks may come before it, or, if the transform commutes with sums, behind it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from . import combine_run, tags
from .agreement import Finding, agree
from .combine_arguments import prepare, widths_of
from .combine_costs import CombineCosts, CostModel, Times, capability_of, transform_of
from .combine_order import ROUTED, Conditions, Order, decide
from .commuting import Verdict, commutes_with_sum
from .device.group import DeviceGroup
from .errors import StalePlanError
from .group import Group
from .module_state import ModuleState, digest_of, form_of
from .observing import watch
from .plans import WINDOW_TYPES, Sizes, as_int, name_of
from .plans import Layout as Geometry
from .routing import Routing
from .tags import Layout, Partial, Replicated, Sharded

MAX_ORDERS = 512


class Judgement(NamedTuple):
    """What the ranks agreed on about a module as it is.

    Attributes:
        state: The module then.
        widths: latent and hidden.
        conditions: What the order follows from, with the verdict.
        model: Of the costs; None where there is no transform.
        orders: Found already, by rows and slots.
    """

    state: ModuleState
    widths: tuple[int, int]
    conditions: Conditions
    model: CostModel | None
    orders: dict[tuple[int, int], Order]


def plan_combine(
    *,
    group: Group | DeviceGroup,
    transform: nn.Module | None = None,
    shared: Layout | None = None,
    routed: Layout | None = None,
    hidden: int | None = None,
    latent: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    rows: int | None = None,
    sequence_parallel: bool = False,
    skip_final: bool = False,
    prefer: Literal["early", "late"] | None = None,
    costs: CombineCosts | None = None,
) -> CombinePlan:
    """Plans the end of an MoE layer. Collective: all ranks give the same, in the same order.

    The ranks compare their modules (structure and values) and what they found about them; tags are
    in use from then on (docs/layouts.md). docs/plans.md has the rules as a table.

    Args:
        group: The ranks: those of tensor parallelism or expert parallelism, whichever splits the
            experts. A world of one where neither does.
        transform: Applied to the experts' sum, [rows, latent] -> [rows, hidden], row by row, with
            the same weights on all ranks. None: there is none, latent is hidden.
        shared: What the shared experts' rows, in hidden width, are: `Partial()` where they are
            split over the ranks, for all ranks' rows; `Sharded()` where each rank computes those of
            its own tokens. None: there are no shared experts.
        routed: What the expert kernel's output is: `Partial()`, a rank's part for all ranks' rows;
            or, of a kernel that reduces by itself, `Sharded()`, a rank's own rows, or
            `Replicated()`, all rows. None: `Sharded()` with sequence_parallel, else `Partial()`.
        hidden: Elements of a row of the result. None: what the transform makes.
        latent: Elements of a row of the experts. None: what the transform's first linear layer
            takes; without a transform, hidden.
        dtype: Of all rows: bfloat16, float16 or float32.
        rows: Rows of all ranks in the call that `when` and `reason` speak of. None: one per rank.
        sequence_parallel: Tokens were split over the ranks before the layer, and the kernel's own
            exchange gives each rank its rows, so that nothing is left to sum.
        skip_final: The caller sums over ranks: `combine` gives the summands.
        prefer: The order to take where both are right. None: the cheaper one.
        costs: Constants to go by. None: those of the group's kind, and on devices the core's model
            of a collective that reads windows.

    Raises:
        TypeError: Something of another type.
        ValueError: Conditions that contradict each other (docs/plans.md), widths that are not known
            or do not fit, a transform that cannot be applied to [1, latent].
        MismatchError: Ranks differ in arguments, module or weights, on all of them; or another rank
            raised one of the above.
        SymmoeError: A peer was lost, the deadline passed, the group is closed or poisoned.
    """
    return CombinePlan(
        group, transform, shared, routed, hidden, latent, dtype, rows, sequence_parallel,
        skip_final, prefer, costs,
    )  # fmt: skip


class CombinePlan:
    """The end of an MoE layer: which sums over ranks there are, when, and the calls that make them.

    Made by `plan_combine`. `combine` makes each sum once: what has been reduced is refused, and
    what has not comes out reduced (or, with skip_final, tagged as what it is). For as long as the
    plan is used the transform has to stay as it was; a change raises StalePlanError until all ranks
    have called `refresh`.

    Attributes:
        group: The ranks.
        transform: The output transform, or None.
        dtype: Of all rows.
        rows: Rows of all ranks that `when` and `reason` speak of.
    """

    def __init__(
        self,
        group: Group | DeviceGroup,
        transform: nn.Module | None,
        shared: Layout | None,
        routed: Layout | None,
        hidden: int | None,
        latent: int | None,
        dtype: torch.dtype,
        rows: int | None,
        sequence_parallel: bool,
        skip_final: bool,
        prefer: Literal["early", "late"] | None,
        costs: CombineCosts | None,
    ) -> None:
        if not isinstance(group, (Group, DeviceGroup)):
            raise TypeError(f"plan_combine: expected a group, got {type(group).__name__}")
        if routed is None:
            routed = Sharded() if sequence_parallel else Partial()
        self.group = group
        self.transform = transform
        self.dtype = dtype
        self.rows = group.world_size
        self._given_rows = rows
        self._given_widths = (latent, hidden)
        self._costs = costs
        self._given = Conditions(
            group.world_size, None, routed, shared, sequence_parallel, skip_final, prefer
        )
        self._judged = self._judge("plan_combine")
        watch.use_tags()

    # --- what was decided -------------------------------------------------------------------------

    @property
    def latent(self) -> int:
        """Elements of a row of the experts."""
        return self._judged.widths[0]

    @property
    def hidden(self) -> int:
        """Elements of a row of the result."""
        return self._judged.widths[1]

    @property
    def when(self) -> str:
        """When a call of `rows` rows reduces the routed experts': "early", "late" or "none"."""
        return self.at(self.rows).when

    @property
    def reason(self) -> str:
        """Why."""
        return self.at(self.rows).reason

    @property
    def commutes(self) -> Verdict | None:
        """Whether the transform commutes with a sum, on all ranks; None: there is no transform."""
        return self._judged.conditions.commutes

    def at(self, rows: int, slots: int = 0) -> Order:
        """The order of a call; equal on all ranks. Local.

        Args:
            rows: Rows of all ranks.
            slots: Experts per token, in a call with a routing; 0 without.
        """
        orders, key = self._judged.orders, (rows, slots)
        order = orders.get(key)
        if order is None:
            model = self._judged.model

            def times() -> Times:
                assert model is not None
                return model.times(rows, slots)

            if len(orders) >= MAX_ORDERS:
                orders.clear()
            order = orders[key] = decide(self._judged.conditions, times)
        return order

    def refresh(self) -> None:
        """Judges the transform again as it is now. Collective, also where it has not changed.

        Raises:
            ValueError, MismatchError, SymmoeError: As `plan_combine`; the plan is as it was before.
        """
        self._judged = self._judge("refresh")

    def _judge(self, operation: str) -> Judgement:
        conditions, widths = self._given, (0, 0)
        error: Exception | None = None
        try:  # whatever is wrong here alone: this rank takes part in the agreement all the same
            self.group.check()
            conditions, widths, finding = self._look(operation)
        except Exception as caught:
            error, finding = caught, Finding(fault=f"{type(caught).__name__}: {caught}")
        holds, reason = agree(self.group, operation, finding)
        if error is not None:
            raise error
        if conditions.commutes is not None:
            conditions = replace(conditions, commutes=Verdict(holds, reason))
            conditions.check(operation)
        model = None
        if self.transform is not None:
            form = transform_of(self.transform, *widths)
            partial = conditions.shared_is_partial
            world, major = self.group.world_size, capability_of(self.group)
            model = CostModel(world, major, self.dtype, form, partial, self._costs)
        return Judgement(ModuleState(self.transform), widths, conditions, model, {})

    def _look(self, operation: str) -> tuple[Conditions, tuple[int, int], Finding]:
        """What this rank finds by itself; raises what is wrong about its arguments."""
        given, module = self._given, self.transform
        for name, layout, kinds in (
            ("routed", given.routed, (Partial, Sharded, Replicated)),
            ("shared", given.shared, (Partial, Sharded, type(None))),
        ):
            if not isinstance(layout, kinds):
                raise TypeError(f"{operation}: {name} cannot be {layout!r}")
        if self.dtype not in WINDOW_TYPES:
            raise TypeError(
                f"{operation}: dtype is {name_of(self.dtype)}, expected bfloat16, float16 or "
                f"float32"
            )
        if self._costs is not None and not isinstance(self._costs, CombineCosts):
            raise TypeError(f"{operation}: costs must be CombineCosts, got {self._costs!r}")
        if self._given_rows is not None:
            self.rows = as_int(f"{operation}: rows", self._given_rows)
            if self.rows < 0:
                raise ValueError(f"{operation}: rows is {self.rows}, must be at least 0")
        widths = widths_of(operation, self.group, module, *self._given_widths, self.dtype)
        verdict = Verdict(True, "")
        if module is not None:
            verdict = commutes_with_sum(module, width=widths[0], dtype=self.dtype)
            given = replace(given, commutes=verdict)
        given.check(operation)
        text = (
            f"routed {given.routed}, shared {given.shared}, sequence_parallel "
            f"{given.sequence_parallel}, skip_final {given.skip_final}, prefer {given.prefer}, "
            f"{widths[0]} -> {widths[1]} {name_of(self.dtype)}, {self.rows} rows, {self._costs}, "
            f"compute capability {capability_of(self.group) or 'none'}, transform "
            f"{form_of(module)}"
        )
        return given, widths, Finding(text, digest_of(module), verdict.commutes, verdict.reason)

    # --- running it -------------------------------------------------------------------------------

    def shared_window(self, rows: int, *, lane: int = 0) -> Tensor | None:
        """Where shared experts' summands are best written: no order copies them from there.

        To be asked for before they are computed, like `acquire`, of which it is one.

        Args:
            rows: Rows of all ranks.
            lane: Which microbatch: that of the combine that will take them.

        Returns:
            [rows, hidden]; None where there is no window: any memory will do.
        """
        return self.group.acquire("combine", (rows, self.hidden), self.dtype, lane=lane)

    def combine(
        self,
        expert_out: Tensor,
        topk_weights: Tensor | None = None,
        *,
        shared: Tensor | None = None,
        routing: Routing | None = None,
        out: Tensor | None = None,
        index: Tensor | None = None,
        scale: float | None = None,
        sizes: Sizes = None,
        padded_to: int | None = None,
        lane: int = 0,
        deterministic: bool = False,
    ) -> Tensor:
        """Sums over slots and ranks, transforms, adds the shared experts' rows. Collective.

        What is collective about it are the `reductions` of `at(rows)`: none, one or two.

        Args:
            expert_out: As for `Group.combine`, of latent width. Of a kernel that reduces by itself,
                what the plan's `routed` says: [own rows, latent] or [rows, latent].
            topk_weights: As for `Group.combine`.
            shared: The shared experts' rows: [rows, hidden] where they are summands, else
                [own rows, hidden]. Given exactly where the plan has some.
            routing: As for `Group.combine`.
            out: At least [own rows, hidden] ([rows, hidden] with skip_final); rows beyond are left
                alone. Never in a window. None: a new tensor.
            index: As for `Group.combine`.
            scale: Factor of the routed experts' sum.
            sizes: As for the group's own `combine`. With sizes on a device, rows of `out` up to the
                most there may be are written, those beyond the own ones with anything.
            padded_to: As for `Group.combine`.
            lane: Which microbatch; uses (and overwrites) its "combine" window.
            deterministic: As for `Group.combine`.

        Returns:
            `out`: this rank's rows, tagged Sharded; with skip_final its summands of all rows,
            tagged Partial.

        Raises:
            StalePlanError: The transform changed since it was judged.
            LayoutError: A tag says that rows are not what the plan was made for.
            TypeError, ValueError, MismatchError, SymmoeError: As `Group.combine`.
        """
        conditions, where = self._judged.conditions, f"combine on rank {self.group.rank}"
        awaited = bool(self.at(self.rows).reductions)  # of any token count
        with combine_run.reporting(self.group, lane, awaited):
            change = self._judged.state.changes(self.transform)
            if change:
                raise StalePlanError(
                    f"{where}: the transform changed since the plan was made ({change}): call "
                    f"refresh() on all ranks"
                )
            call = prepare(
                where, self.group, conditions, self.transform, self._judged.widths, self.dtype,
                expert_out, topk_weights, shared, routing, out, index, scale, sizes, padded_to,
                lane, deterministic,
            )  # fmt: skip
            rows = len(expert_out) if call.layout is None else call.layout.rows
            order = self.at(rows, 0 if routing is None else routing.slots)
        with torch.inference_mode():
            if order.when == "early":
                combine_run.early(call)
            elif order.when == "late":
                combine_run.late(call)
            elif conditions.reduced_already:
                combine_run.reduced_already(call, isinstance(conditions.routed, Replicated))
            else:
                combine_run.kept(call, only_own=not conditions.skip_final)
        return self._tagged(call.out, call.layout, rows)

    def _tagged(self, out: Tensor, layout: Geometry | None, rows: int) -> Tensor:
        """Tags the result as what it is, but not what lies behind it; returns all of it."""
        if self._judged.conditions.skip_final:
            tags.put(out[:rows], tags.PARTIAL)
        elif layout is None or layout.device_sizes:
            tags.put(out[: rows if layout is None else layout.out_shape[0]], Sharded())
        else:
            tags.put(out[: layout.counts[self.group.rank]], Sharded(layout.counts))
        return out

    def __repr__(self) -> str:
        order = self.at(self.rows)
        made = ", ".join(
            f"{name} [{self.rows}, {self.latent if name == ROUTED else self.hidden}]"
            for name in order.reductions
        )
        transform = "no transform"
        if self.transform is not None:
            transform = f"{type(self.transform).__name__} {self.latent} -> {self.hidden}"
        return f"<symmoe.CombinePlan, {transform}: {order}; reduces {made or 'nothing'}>"
