"""Groups by name: a graph that a compiler made can hold a name, but not a group."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any

from .errors import ClosedError

if TYPE_CHECKING:
    from .device.group import DeviceGroup
    from .group import Group

_groups: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def register(group: object) -> str:
    """A name for a new group, which no other group of this process has or had.

    The names of a process come in the order of its groups, so that a program that makes the same
    groups finds its graphs in a compiler's cache.
    """
    name = f"symmoe.{next(_numbers)}"
    _groups[name] = group
    return name


def find(operation: str, name: str) -> Group | DeviceGroup:
    """The group of that name.

    Raises:
        ClosedError: There is none (any more).
    """
    group: Group | DeviceGroup | None = _groups.get(name)
    if group is None:
        raise ClosedError(
            f"{operation}: this process has no group named {name!r}: it was never made here, or "
            f"nothing refers to it any more; names do not keep groups (there are: "
            f"{', '.join(sorted(_groups)) or 'none'})"
        )
    if group._closed:
        raise ClosedError(f"{operation} on rank {group.rank}: the group {name!r} is closed")
    return group
