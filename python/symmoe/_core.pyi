"""Types of the compiled core (csrc/bindings). Pointers are plain addresses, byte counts plain ints.

Errors: ValueError for input; everything else is a class of symmoe.errors.
"""

from collections.abc import Sequence
from typing import Final, final

from . import _measure_stub

measure = _measure_stub

VERSION: Final[str]
MAX_LANES: Final[int]
MAX_RANKS: Final[int]

# Element types (csrc/base/dtype.h).
BFLOAT16: Final[int]
FLOAT16: Final[int]
FLOAT32: Final[int]

# Roles a window can have.
COMBINE: Final[int]
DISPATCH: Final[int]

# Kinds of a Plan.
REDUCE_SCATTER: Final[int]
ALL_GATHER: Final[int]

def host_identity() -> str: ...
def isa_name() -> str: ...
def available_isas() -> list[str]: ...
def set_isa(name: str) -> None: ...
def topk_reduce(
    input: int,
    weights: int,
    index: int,
    output: int,
    tokens: int,
    slots: int,
    hidden: int,
    pairs: int,
    scale: float | None,
    input_type: int,
    output_type: int,
    weights_type: int,
    index_is_64bit: bool,
    threads: int,
) -> None: ...
def rank_reduce(
    sources: Sequence[int], output: int, count: int, dtype: int, threads: int
) -> None: ...

@final
class Listener:
    """A listening socket that peers will connect to; its address goes through the store."""

    def __init__(self) -> None: ...
    @property
    def address(self) -> str: ...

@final
class GroupConfig:
    """Plain settings; every field can be set. All ranks give the same values."""

    deadline_ns: int
    spin_ns: int
    granularity_bytes: int
    max_buffer_bytes: int  # 0: no cap
    check: bool
    # Check mode: two ranks that have waited this long for each other in different lanes count as
    # crossed, which poisons the group. Must be longer than any lane computes between two calls.
    # Default 30 s; 0: never.
    stall_ns: int
    def __init__(self) -> None: ...

@final
class Plan:
    """One call's geometry, checked and ready to run: which rows belong to which rank.

    text says the call in words; ranks compare its hash in every call and it is shown when they
    differ, so it holds all that must be equal on all ranks (sizes in full) and nothing else.
    """

    def __init__(
        self,
        kind: int,
        role: int,
        lane: int,
        dtype: int,
        hidden: int,
        rows: int,
        begins: Sequence[int],
        counts: Sequence[int],
        rank: int,
        text: str,
    ) -> None: ...

@final
class Buffer:
    """One window of this rank, as flat bytes through the buffer protocol (writable)."""

    @property
    def address(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def retired(self) -> bool: ...
    def __buffer__(self, flags: int) -> memoryview: ...

@final
class Group:
    """The windows, flags and pool of one rank.

    Thread-safe across lanes; lets go of the interpreter lock while it waits or computes.
    """

    def __init__(
        self,
        rank: int,
        world: int,
        addresses: Sequence[str],
        token: bytes,
        listener: Listener | None,
        config: GroupConfig,
    ) -> None:
        """Collective. For a world of 1 the listener may be None."""
    def acquire(self, role: int, lane: int, nbytes: int) -> Buffer | None:
        """The current buffer of (role, lane), grown if need be, free to be written.

        None if there can be none here; refusal() then tells why.
        """
    def rearm(self, buffer: Buffer) -> bool:
        """The same for a buffer that was handed out before; False if it was outgrown since."""
    def refusal(self) -> str: ...
    def find(self, address: int) -> tuple[Buffer, int] | None:
        """The buffer that holds an address, and the offset in it."""
    def overlaps(self, address: int, nbytes: int) -> bool:
        """Whether a range touches any window of this rank."""
    def reduce_scatter(
        self, plan: Plan, buffer: Buffer, offset: int, output: int, threads: int
    ) -> bool:
        """Zero staging: the partial rows are in the window.

        False: some rank has no window, all ranks must take the fallback together now.
        """
    def reduce_scatter_staged(self, plan: Plan, input: int, output: int, threads: int) -> bool:
        """Like reduce_scatter, for partial rows in other memory."""
    def all_gather(
        self, plan: Plan, buffer: Buffer, offset: int, output: int, threads: int
    ) -> bool: ...
    def all_gather_staged(self, plan: Plan, input: int, output: int, threads: int) -> bool: ...
    def agree(self, role: int, lane: int, text: str) -> None:
        """Barrier before a fallback: raises MismatchError on all ranks if texts differ."""
    def check_call(self, lane: int, text: str) -> None:
        """SYMMOE_CHECK: compares what all ranks are about to do on this lane, whatever the role."""
    def reserve(self, roles: Sequence[int], lanes: int, nbytes: int, pin: bool) -> str:
        """Collective. Windows for lanes 0..lanes-1 of every role, in one agreement.

        Empty if every rank has the memory for all of them, else the reason (nothing is kept). The
        order of roles does not matter. ValueError if one of the lanes is in a call.
        """
    def retain(self, buffer: Buffer) -> None: ...
    def release_graphs(self) -> None:
        """Collective: once all ranks are here, unpins all buffers and trims."""
    def trim(self) -> None:
        """Collective: gives back outgrown buffers that nobody needs any more."""
    def check(self) -> None:
        """Raises if the group is closed or poisoned, or a peer has ended."""
    def poison(self, reason: str) -> None: ...
    def stats(self) -> dict[str, int]:
        """Bytes: live, stage, retired, view, pinned, peer, peak; numbers: growths, buffers.

        view_bytes is the part of retired_bytes that live views hold. Calls by path: calls_pull,
        calls_staged, calls_gather, calls_gather_staged.
        """
    def close(self) -> None:
        """Idempotent, local. Memory under live views stays until they go."""
