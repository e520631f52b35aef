"""Combines Mixture-of-Experts output across ranks with no staging copy.

    group = symmoe.init()                                          # every rank
    window = group.acquire("combine", (rows, hidden), torch.bfloat16)
    symmoe.topk_reduce(expert_out, topk_weights, out=window)       # or any kernel of yours
    mine = group.reduce_scatter(window)                            # each rank's own rows

`Group.combine` does the last three steps in one call.
"""

from __future__ import annotations

import importlib.util

from ._version import __version__

if importlib.util.find_spec(f"{__name__}._core") is None:
    raise ImportError(
        "symmoe's compiled core is missing: `pip install .`, or `make core` in a clone"
    )

from . import ops
from .apply import apply_epilogue
from .balanced import balanced_topk_ids
from .bootstrap import init
from .combine_costs import CombineCosts
from .combine_order import Order
from .combine_plan import CombinePlan, plan_combine
from .commuting import Verdict, commutes_with_sum
from .config import Config
from .counting import Collectives, count_collectives
from .decision import Alternative, Decision
from .device.group import DeviceGroup
from .epilogue import Epilogue
from .errors import (
    ClosedError,
    DeadlineError,
    DeviceError,
    LayoutError,
    MismatchError,
    NcclError,
    PeerLostError,
    PoisonedError,
    StalePlanError,
    SymmoeError,
    SystemCallError,
    UnavailableError,
    WindowMemoryError,
)
from .group import Group
from .routing import Routing
from .tags import Layout, Partial, Replicated, Sharded, layout_of, tag
from .topk import topk_reduce

__all__ = [
    "Alternative",
    "ClosedError",
    "Collectives",
    "CombineCosts",
    "CombinePlan",
    "Config",
    "DeadlineError",
    "Decision",
    "DeviceError",
    "DeviceGroup",
    "Epilogue",
    "Group",
    "Layout",
    "LayoutError",
    "MismatchError",
    "NcclError",
    "Order",
    "Partial",
    "PeerLostError",
    "PoisonedError",
    "Replicated",
    "Routing",
    "Sharded",
    "StalePlanError",
    "SymmoeError",
    "SystemCallError",
    "UnavailableError",
    "Verdict",
    "WindowMemoryError",
    "__version__",
    "apply_epilogue",
    "balanced_topk_ids",
    "commutes_with_sum",
    "count_collectives",
    "init",
    "layout_of",
    "ops",
    "plan_combine",
    "tag",
    "topk_reduce",
]
