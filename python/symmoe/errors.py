"""What symmoe raises beside ValueError and TypeError, which mean wrong input.

Wrong input leaves the group usable. After any other failure of a collective the group is poisoned:
the ranks are in unknown states, and later calls raise PoisonedError at once.
"""

from __future__ import annotations


class SymmoeError(RuntimeError):
    """Base of all errors that are not the caller's input."""


class SystemCallError(SymmoeError):
    """The operating system refused something; the message names the call."""


class WindowMemoryError(SymmoeError, MemoryError):
    """There is no memory for a window."""


class PeerLostError(SymmoeError):
    """A peer's process ended, or closed the group, while this rank needed it."""


class DeadlineError(SymmoeError, TimeoutError):
    """A peer did not arrive before the deadline (Config.timeout)."""


class PoisonedError(SymmoeError):
    """An earlier collective of this group failed."""


class ClosedError(SymmoeError):
    """The group was closed, or this process is a fork of the one that made it."""


class MismatchError(SymmoeError):
    """Ranks made different calls, or use different settings, in the same place."""


class UnavailableError(SymmoeError):
    """A library or a feature is not there on this machine; the message says what was tried."""


class DeviceError(SymmoeError):
    """The device's runtime refused something."""


class LayoutError(ValueError):
    """A tensor's tag says that the call would be wrong: a second reduction, or one left out."""


class NcclError(SymmoeError):
    """NCCL refused something, or noticed a failure."""


class StalePlanError(SymmoeError):
    """A plan's module is no longer what it was when the plan was made: call its `refresh`."""
