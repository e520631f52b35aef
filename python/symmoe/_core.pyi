"""Types of the compiled core (csrc/bindings). Pointers are plain addresses, byte counts plain ints.

Errors: ValueError for input; everything else is a class of symmoe.errors.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, final

import torch

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
INT8: Final[int]
FLOAT8_E4M3: Final[int]

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
    routing: Routing | None = None,
    rank: int = 0,
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
        routed: bool = False,
    ) -> None: ...

@final
class Routing:
    """The masks of one call's rows: which ranks have one of a row's experts.

    Refers to the memory of ids and expert_to_rank, which combine and topk_reduce read again.
    ValueError if an expert is on a rank that does not exist.
    """

    def __init__(
        self,
        rows: int,
        begins: Sequence[int],
        counts: Sequence[int],
        ids: int,
        ids_are_64bit: bool,
        slots: int,
        expert_to_rank: int,
        experts: int,
    ) -> None: ...
    @property
    def hash(self) -> int:
        """Ranks compare it in every call."""
    def rows_written(self, rank: int) -> int:
        """Rows for which a rank has an expert."""
    def rows_read(self, begin: int, count: int) -> int:
        """Partial rows, of all ranks, behind `count` rows from `begin` on."""
    def copy_rows(self, rank: int, target: int, source: int, row_bytes: int, threads: int) -> None:
        """Copies the rows for which the rank has an expert to the same place elsewhere."""

@final
class Epilogue:
    """What a rank does with its summed rows; refers to the memory at these addresses (0: none).

    The steps: csrc/kernels/cpu/epilogue.h. quantized is 0, INT8 or FLOAT8_E4M3.
    """

    def __init__(
        self,
        shared: int,
        scale: float | None,
        scale_shared: bool,
        residual: int,
        norm_weight: int,
        weight_type: int,
        eps: float,
        quantized: int,
        scales: int,
    ) -> None: ...
    def apply(
        self, input: int, output: int, rows: int, hidden: int, dtype: int, threads: int
    ) -> None:
        """Does the steps to rows that are summed already; `output` may be exactly `input`."""

@final
class Buffer:
    """One window of this rank, as flat bytes through the buffer protocol (writable)."""

    @property
    def address(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def retired(self) -> bool: ...
    @property
    def armed(self) -> bool:
        """Whether it was acquired and not reduced since."""
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
    def why_no_output(self, address: int, nbytes: int, lane: int) -> str:
        """What is wrong with memory as an output of a lane; empty: nothing."""
    def reduce_scatter(
        self,
        plan: Plan,
        buffer: Buffer,
        offset: int,
        output: int,
        threads: int,
        routing: Routing | None = None,
        epilogue: Epilogue | None = None,
    ) -> bool:
        """Zero staging: the partial rows are in the window.

        False: some rank has no window, all ranks must take the fallback together now.
        """
    def reduce_scatter_staged(
        self,
        plan: Plan,
        input: int,
        output: int,
        threads: int,
        routing: Routing | None = None,
        epilogue: Epilogue | None = None,
    ) -> bool:
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
        calls_staged, calls_routed, calls_routed_staged, calls_gather, calls_gather_staged.
        """
    def close(self) -> None:
        """Idempotent, local. Memory under live views stays until they go."""

@final
class DeviceGroupConfig:
    """What a group of devices is made from; all ranks give the same values, but for ordinal."""

    back_end: str
    ordinal: int
    allow_unsafe_nccl: bool
    no_windows: str
    pids: list[int]
    def __init__(self) -> None: ...
    def set_borrowed(self, comm: int) -> None: ...
    def set_nccl(self, setting: str, wheels: Sequence[str]) -> None: ...
    def set_pool(self, granularity: int, max_buffer_bytes: int) -> None: ...
    def set_waits(self, deadline_ns: int, look_ns: int) -> None: ...
    def set_check(self, check: bool) -> None: ...
    def set_paths(self, paths: Sequence[int]) -> None: ...
    def set_windows(self, maker: int) -> None: ...
    def set_tuning(self, lines: Sequence[tuple[int, int, int, float]]) -> None: ...

@final
class DevicePlan:
    """A Plan with the path that a group of devices chose for it.

    With sizes on the device the plan's counts are what each rank may have at most.
    """

    def __init__(self, plan: Plan, device_sizes: bool = False, padded_to: int = 0) -> None: ...
    @property
    def text(self) -> str: ...

@final
class DeviceRouting:
    """A batch's routing on a device, and the memory of its masks."""

# Output, its rows, sizes on the device (or 0), routing, whether rows are summed, deterministic,
# stream, epilogue, memory for the sums of one that quantises (or 0).
DeviceCall: TypeAlias = tuple[
    int, int, int, DeviceRouting | None, bool, bool, int, Epilogue | None, int
]
# operation, lane, input, output, output_bytes, stream.
OutsideCall: TypeAlias = tuple[int, int, int, int, int, int]
# input, weights, index, output, tokens, slots, hidden, pairs, scale, types of input, output and
# weights, index_is_64bit.
TopkSum: TypeAlias = tuple[
    int, int, int, int, int, int, int, int, float | None, int, int, int, bool
]

@final
class Stream:
    @property
    def handle(self) -> int: ...

@final
class Device:
    """A device without a group. Errors: symmoe.errors.UnavailableError if it cannot be opened."""

    def __init__(self, back_end: str, ordinal: int) -> None: ...
    @property
    def properties(self) -> dict[str, Any]: ...
    def check(self) -> None: ...
    def shared_refusal(self) -> str:
        """Why memory of the device cannot be windows without NCCL; empty if it can."""
    def make_stream(self) -> Stream: ...
    def synchronize(self, stream: int) -> None: ...
    def topk_reduce(
        self,
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
        stream: int,
    ) -> None: ...
    def apply_epilogue(
        self,
        steps: Epilogue,
        input: int,
        output: int,
        rows: int,
        hidden: int,
        dtype: int,
        stream: int,
    ) -> None: ...

def device_costs(major: int) -> dict[str, float]:
    """Constants of the model by which paths on devices are chosen, for a compute capability."""

def predicted_us(
    path: str, major: int, world: int, nbytes: int, slots: int, from_sum: bool, routed: bool
) -> float:
    """What that model says of equally many rows of each rank, `nbytes` in all of a rank's own."""

def nccl_description(setting: str, wheels: Sequence[str], allow_unsafe: bool) -> dict[str, str]: ...

@final
class DeviceGroup:
    """One rank of a group of devices. `gather(topic, text)` gives every rank's text."""

    def __init__(
        self,
        rank: int,
        world: int,
        config: DeviceGroupConfig,
        gather: Callable[[str, str], list[str]],
    ) -> None: ...
    def prepare(self, plan: DevicePlan, buffer: Buffer) -> Callable[[int, int, bool], bool]: ...
    def run(self, plan: DevicePlan, buffer: Buffer, offset: int, call: DeviceCall) -> bool: ...
    def run_from(self, plan: DevicePlan, input: int, call: DeviceCall) -> bool: ...
    def combine(self, plan: DevicePlan, terms: TopkSum, call: DeviceCall) -> bool: ...
    def fill_out(self, plan: DevicePlan, terms: TopkSum, call: DeviceCall) -> None: ...
    def begin_outside(self, call: OutsideCall) -> None: ...
    def end_outside(self, call: OutsideCall) -> None: ...
    def finish(self, plan: DevicePlan, call: DeviceCall) -> None:
        """The epilogue of a call that no path could do, once its sums are there."""
    def make_routing(
        self,
        ids: int,
        ids_are_64bit: bool,
        expert_to_rank: int,
        rows: int,
        slots: int,
        experts: int,
    ) -> DeviceRouting: ...
    def needs_memory(self, routing: DeviceRouting, stream: int) -> bool: ...
    def give(self, routing: DeviceRouting, memory: int, stream: int) -> None: ...
    def topk_reduce(
        self,
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
        stream: int,
    ) -> None: ...
    def explain(
        self, plan: DevicePlan, deterministic: bool, from_sum: bool, routed: bool, slots: int
    ) -> list[tuple[str, str, float, bool]]: ...
    def acquire(self, role: int, lane: int, nbytes: int, stream: int) -> Buffer | None: ...
    def rearm(self, buffer: Buffer, stream: int) -> bool: ...
    def refusal(self) -> str: ...
    def find(self, address: int) -> tuple[Buffer, int] | None: ...
    def overlaps(self, address: int, nbytes: int) -> bool: ...
    def why_no_output(self, address: int, nbytes: int, lane: int) -> str: ...
    def reserve(self, roles: Sequence[int], lanes: int, nbytes: int, pin: bool) -> str: ...
    def retain(self, buffer: Buffer) -> None: ...
    def release_graphs(self) -> None: ...
    def trim(self) -> None: ...
    def suspend(self) -> None: ...
    def resume(self) -> None: ...
    def describe(self) -> dict[str, Any]: ...
    def check(self) -> None: ...
    def poison(self, reason: str) -> None: ...
    def stats(self) -> dict[str, int]: ...
    def close(self) -> None: ...

@final
class KnownCalls:
    """A group's calls that were checked once in Python and have the same form every time.

    The three functions are plain C functions: they take their arguments by position, as the user
    gave them, and release the interpreter lock while they run. They give the output; None if the
    call is not known or anything about it is unusual (nothing was done: take the long way); False
    if some rank has no window (all ranks must take their fallback together now).
    """

    def __init__(
        self,
        group: Group,
        routing_type: type,
        epilogue_type: type,
        tensor_type: type[torch.Tensor],
        parameter_type: type[torch.Tensor],
        is_grad_enabled: Callable[[], bool],
    ) -> None: ...
    def remember(
        self,
        plan: Plan,
        input: torch.Tensor,
        output: torch.Tensor,
        routing: object,
        sizes: object,
        padded_to: object,
        epilogue: object,
        steps: Epilogue | None,
        new_output: Callable[[], torch.Tensor],
    ) -> None:
        """From now on such a reduce_scatter or all_gather is known, whatever the plan is of.

        The arguments are those of a call that was right, and `steps` what its epilogue came to.
        Nothing is remembered where a tensor cannot be read in C (a subclass; a torch without
        DLPack's table of functions).
        """
    def remember_combine(
        self,
        plan: Plan,
        expert_out: torch.Tensor,
        output: torch.Tensor,
        weights: torch.Tensor | None,
        index: torch.Tensor | None,
        routing: object,
        slots: int,
        pairs: int,
        weights_type: int,
        index_is_64bit: bool,
        sizes: object,
        padded_to: object,
        epilogue: object,
        steps: Epilogue | None,
        new_output: Callable[[], torch.Tensor],
    ) -> None:
        """The same for combine; `plan` is its reduce_scatter's, the weights those it applied."""
    def remember_window(
        self, buffer: Buffer, tensor: torch.Tensor
    ) -> Callable[[], torch.Tensor | None] | None:
        """What acquires a window once more: Group.rearm, and the tensor if it is as it was.

        None where the tensor cannot be read in C.
        """
    def forget(self) -> None:
        """No call is known any more."""
    @property
    def reduce_scatter(self) -> Callable[..., torch.Tensor | bool | None]:
        """(input, out, sizes, padded_to, lane, stream, threads, cores, routing, epilogue)."""
    @property
    def all_gather(self) -> Callable[..., torch.Tensor | bool | None]:
        """As reduce_scatter."""
    @property
    def combine(self) -> Callable[..., torch.Tensor | bool | None]:
        """(expert_out, weights, out, index, scale, sizes, padded_to, lane, stream, ...)."""
