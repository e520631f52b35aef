"""What the machine code of each device kernel must look like, and what it may not."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

TYPES = {"0": "bf16", "1": "fp16", "2": "fp32"}


@dataclass(frozen=True)
class Rule:
    """The bars for a kernel.

    Attributes:
        loads_128: Least number of 16-byte loads; 0 where elements are taken one by one.
        stores_128: Likewise.
        narrow_accesses: The most accesses of less than 16 bytes in the loop that has the vectors.
        read_only_cache: Whether it may load through the read-only cache. Memory that peers write
            must not be read that way: the cache does not see their stores.
        fresh_loads_128: Least number of 16-byte loads that do not: those of peers' rows.
        flushing: The most operations that flush subnormals. ptxas makes some of correctly rounded
            divisions and square roots, where no subnormal is left; that the code asks for none
            itself is seen by the tests that read its PTX.
    """

    loads_128: int
    stores_128: int
    narrow_accesses: int = 0
    read_only_cache: bool = False
    fresh_loads_128: int = 0
    flushing: int = 0


ELEMENTS = Rule(0, 0)
VECTORS_ONLY = Rule(1, 1)


def _topk_rule(match: re.Match[str]) -> Rule:
    """Expert output is read by its owner alone. Each slot of a batch has a load of its own."""
    if match["columns"] == "Narrow":
        return Rule(0, 0, read_only_cache=True)
    # An index, an expert and a weight of either width, the expert's rank, the token's mask, and the
    # report of a fault: two words that say who is writing it and that it is there, looked at and
    # set, and its three numbers.
    return Rule(max(1, int(match["slots"]) // 2), 1, narrow_accesses=14, read_only_cache=True)


# Loads of peers' rows that a thread has on their way at once, and the pieces of rows these are of.
AT_ONCE = {"FewRanks": (8, 4), "ManyRanks": (8, 2)}


def _pull_rule(match: re.Match[str]) -> Rule:
    """A mask per piece of a row is all that comes in less than 16 bytes."""
    if match["columns"] == "Narrow":
        return ELEMENTS
    loads, pieces = AT_ONCE[match["at_once"]]
    return Rule(loads, pieces, narrow_accesses=pieces, fresh_loads_128=loads)


def _combine_rule(match: re.Match[str]) -> Rule:
    """Both of its parts. Expert output is read by its owner alone, the windows' rows are not."""
    topk = _topk_rule(match)
    if match["columns"] == "Narrow":
        return topk
    loads, pieces = AT_ONCE[match["at_once"]]
    narrow = topk.narrow_accesses
    return Rule(topk.loads_128 + loads, 1 + pieces, narrow, True, fresh_loads_128=loads)


# What flushes in three divisions and a square root, on all their ways.
ROOT = 24


def _epilogue_rule(match: re.Match[str]) -> Rule:
    """A row and its residual come and go; nobody writes shared rows and weights meanwhile.

    Narrow are a scale per row, bytes of quantised ones, and a size per rank.
    """
    if match["columns"] == "Narrow":
        return Rule(0, 0, read_only_cache=True, flushing=ROOT)
    return Rule(4, 3, narrow_accesses=4, read_only_cache=True, fresh_loads_128=2, flushing=ROOT)


def _pull_epilogue_rule(match: re.Match[str]) -> Rule:
    """Both of its parts: rows of the windows and the residual are loaded past the cache."""
    if match["columns"] == "Narrow":
        return Rule(0, 0, read_only_cache=True, flushing=ROOT)
    loads, pieces = AT_ONCE[match["at_once"]]
    return Rule(
        loads + 3,
        3,
        narrow_accesses=pieces + 4,
        read_only_cache=True,
        fresh_loads_128=loads + 1,
        flushing=ROOT,
    )


RULES: dict[str, Callable[[re.Match[str]], Rule]] = {
    r"topk_reduce<(?P<columns>Wide|Narrow) \w+ to \w+, (?P<slots>\d+)>": _topk_rule,
    r"rank_reduce<\w+>": lambda _: Rule(2, 1),
    r"pull_reduce<(?P<columns>Wide|Narrow) \w+ to \w+, (?P<at_once>\w+)>": _pull_rule,
    r"apply_epilogue<(?P<columns>Wide|Narrow) \w+ to \w+>": _epilogue_rule,
    r"pull_epilogue<(?P<columns>Wide|Narrow) \w+ to \w+, (?P<at_once>\w+)>": _pull_epilogue_rule,
    r"combine<(?P<columns>Wide|Narrow) \w+ to \w+, (?P<slots>\d+), (?P<at_once>\w+)>": (
        _combine_rule
    ),
    r"route_mask": lambda _: Rule(0, 0, read_only_cache=True),
    r"copy_to_window<16 bytes>": lambda _: VECTORS_ONLY,
    r"copy_to_window<\w+ bytes?>": lambda _: ELEMENTS,
}


def rule_for(name: str) -> Rule | None:
    """The rule for a kernel by its short name."""
    for pattern, make in RULES.items():
        match = re.fullmatch(pattern, name)
        if match is not None:
            return make(match)
    return None


@functools.cache
def short_name(mangled: str) -> str:
    """A kernel's name with its template arguments, as people say it."""
    done = subprocess.run(["c++filt", mangled], check=True, capture_output=True, text=True)
    name = re.sub(r"\((?:symmoe::kernels|long|int)[^()]*\)$", "", done.stdout.strip())
    name = re.sub(r"^void |symmoe::(?:kernels::)?(?:cuda::|hip::|dev::)*", "", name)
    name = re.sub(r"\(DType\)(\d)", lambda match: TYPES[match[1]], name)
    name = re.sub(r"(Wide|Narrow)Columns<(\w+), (\w+)>", r"\1 \2 to \3", name)
    sizes = {"Bits128": "16 bytes", "unsigned int": "4 bytes", "unsigned short": "2 bytes"}
    for kind, said in {**sizes, "unsigned char": "1 byte"}.items():
        name = name.replace(f"<{kind}>", f"<{said}>")
    return name.replace(" >", ">")
