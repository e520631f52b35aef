"""What the device kernels cost: registers, how many threads fit, instructions per 16 bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sass import Kernel

WARP = 32
# ptxas and the hardware hand registers out in groups of eight per thread of a warp.
REGISTER_GRAIN = 8
SHARED_GRAIN = 128


@dataclass(frozen=True)
class Multiprocessor:
    """What the blocks of one multiprocessor share; from the CUDA C++ Programming Guide."""

    registers: int = 65536
    warps: int = 64
    blocks: int = 32
    shared_bytes: int = 228 * 1024

    def occupancy(self, kernel: Kernel) -> float:
        """Share of the warps that run at once, with blocks as large as the kernel allows."""
        warps = -(-kernel.block_threads // WARP)
        per_thread = -(-kernel.registers // REGISTER_GRAIN) * REGISTER_GRAIN
        by_registers = self.registers // (per_thread * WARP) // warps
        shared = -(-kernel.resources["SHARED"] // SHARED_GRAIN) * SHARED_GRAIN
        by_shared = self.shared_bytes // shared if shared else self.blocks
        return min(by_registers, by_shared, self.blocks, self.warps // warps) * warps / self.warps


MULTIPROCESSORS = {
    "sm_80": Multiprocessor(shared_bytes=164 * 1024),
    "sm_90": Multiprocessor(),
    "sm_100": Multiprocessor(),
}


def instructions_per_16_bytes(kernel: Kernel) -> str:
    """Of the vector body as it stands in the code; a dash where there is none."""
    body = kernel.vector_body
    loads = sum(instruction.is_load_128 for instruction in body)
    return f"{len(body) / loads:.0f}" if loads else "-"


def table(kernels: dict[str, dict[str, Kernel]]) -> str:
    """A Markdown table, one row per kernel, each cell for all architectures."""
    names = list(MULTIPROCESSORS)
    rows = [
        f"| kernel | registers ({', '.join(names)}) | occupancy | instructions per 16 bytes |",
        "|---|---|---|---|",
    ]
    for name in sorted(kernels, key=_natural_order):
        by_architecture = kernels[name]
        present = [architecture for architecture in names if architecture in by_architecture]
        found = [by_architecture[architecture] for architecture in present]
        occupancy = [
            f"{MULTIPROCESSORS[architecture].occupancy(kernel):.0%}"
            for architecture, kernel in zip(present, found, strict=True)
        ]
        cells = (
            ", ".join(str(kernel.registers) for kernel in found),
            ", ".join(occupancy),
            ", ".join(map(instructions_per_16_bytes, found)),
        )
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _natural_order(name: str) -> list[tuple[str, int]]:
    """Sorts 16 behind 8."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D+)(\d*)", name)]
