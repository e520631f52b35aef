"""Reads what cuobjdump prints of a cubin: each kernel's resources, instructions and loops."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from cuda_toolchain import ToolchainError, find_all

RESOURCES = re.compile(r"^ Function ([\w$.]+):\s*\n\s*(REG:.*)$", re.MULTILINE)
FUNCTION = re.compile(r"^\s*Function : ([\w$.]+)\s*$", re.MULTILINE)
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
BLOCK_SIZE = re.compile(
    r"EIATTR_MAX_THREADS\s*\n.*\n\s*Value:\s*(0x[0-9a-f]+) (0x[0-9a-f]+) (0x\w+)"
)
LOAD_128 = re.compile(r"LDG\.E(\.\w+)*\.128\b")
STORE_128 = re.compile(r"STG\.E(\.\w+)*\.128\b")


@dataclass(frozen=True)
class Instruction:
    """One machine instruction; `offset` is its place in the kernel in bytes."""

    offset: int
    opcode: str
    operands: str

    def __str__(self) -> str:
        return f"{self.opcode} {self.operands} at {self.offset:#x}"

    @property
    def is_load_128(self) -> bool:
        """Whether it loads 16 bytes per thread from global memory."""
        return LOAD_128.match(self.opcode) is not None

    @property
    def is_store_128(self) -> bool:
        """Whether it stores 16 bytes per thread to global memory."""
        return STORE_128.match(self.opcode) is not None

    @property
    def is_narrow(self) -> bool:
        """Whether it accesses global memory, but less than 16 bytes of it."""
        is_global = self.opcode.startswith(("LDG", "STG"))
        return is_global and not self.is_load_128 and not self.is_store_128

    @property
    def is_generic(self) -> bool:
        """Whether it finds out while it runs which kind of memory an address is of."""
        return re.match(r"(LD|ST|ATOM)\b", self.opcode) is not None

    @property
    def is_local(self) -> bool:
        """Whether it touches local memory, which is where spills go."""
        return re.match(r"(LDL|STL)\b", self.opcode) is not None

    @property
    def flushes(self) -> bool:
        """Whether it is float32 arithmetic that takes subnormals for zero."""
        # Not F2I.FTZ: integer division is made of it.
        return re.match(r"F(ADD|MUL|FMA|SET|SETP|MNMX)\b.*\.FTZ\b", self.opcode) is not None

    @property
    def is_read_only_load(self) -> bool:
        """Whether it loads through the read-only cache."""
        return self.opcode.startswith("LDG") and "CONSTANT" in self.opcode.split(".")


@dataclass
class Kernel:
    """One kernel of a cubin.

    Attributes:
        name: Mangled.
        resources: By cuobjdump's names: REG (per thread), STACK, SHARED and LOCAL in bytes.
        block_threads: The most threads of a block that it was compiled for.
    """

    name: str
    resources: dict[str, int]
    block_threads: int
    instructions: list[Instruction] = field(default_factory=list)

    @property
    def registers(self) -> int:
        """Registers per thread."""
        return self.resources["REG"]

    @cached_property
    def loops(self) -> list[list[Instruction]]:
        """The instructions between the target of each branch backwards and the branch."""
        loops = []
        for last in self.instructions:
            target = re.search(r"(?:^|\s|,)(0x[0-9a-f]+)\s*$", last.operands)
            if last.opcode.split(".")[0] == "BRA" and target and int(target[1], 16) < last.offset:
                first = int(target[1], 16)
                loops.append([i for i in self.instructions if first <= i.offset <= last.offset])
        return loops

    @cached_property
    def vector_body(self) -> list[Instruction]:
        """The loop with the most 16-byte accesses, loads and stores; all, if there is no such loop.

        Of several with as many, the smallest. A compiler may put rare parts of a loop elsewhere.
        """

        def accesses(body: list[Instruction]) -> tuple[int, int]:
            return sum(i.is_load_128 for i in body), sum(i.is_store_128 for i in body)

        loops = [loop for loop in self.loops if all(accesses(loop))]
        if not loops:
            return self.instructions
        return max(loops, key=lambda loop: (sum(accesses(loop)), -len(loop)))


def read(cubin: Path) -> list[Kernel]:
    """The kernels of a cubin.

    Raises:
        ToolchainError: There is no disassembler.
    """
    return list(parse(_dump(cubin, "-sass", "-res-usage"), _dump(cubin, "-elf")))


def _dump(cubin: Path, *options: str) -> str:
    """Kept beside the cubin: its name stands for its content."""
    kept = cubin.with_suffix("".join(options).replace("-", ".") + ".txt")
    if not kept.is_file():
        partial = kept.with_suffix(f".{os.getpid()}")
        partial.write_text(_run_cuobjdump(cubin, *options))
        partial.replace(kept)
    return kept.read_text()


def _run_cuobjdump(cubin: Path, *options: str) -> str:
    tools = find_all()
    cuobjdump, nvdisasm = tools["cuobjdump"], tools["nvdisasm"]
    if cuobjdump is None or nvdisasm is None:
        raise ToolchainError("no cuobjdump and nvdisasm: tools/cuda_toolchain.py --install")
    # cuobjdump calls nvdisasm by its name.
    path = os.pathsep.join([str(nvdisasm.path.parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        [cuobjdump.path, *options, cubin],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": path},
    )
    return done.stdout


def parse(sass: str, elf: str) -> Iterator[Kernel]:
    """The kernels in the output of `cuobjdump -sass -res-usage` and `cuobjdump -elf`."""
    resources = {
        name: {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", line)}
        for name, line in RESOURCES.findall(sass)
    }
    sections = re.split(r"^\.nv\.info\.(?=\S+$)", elf, flags=re.MULTILINE)[1:]
    infos = {section.split(maxsplit=1)[0]: section for section in sections}
    pieces = FUNCTION.split(sass)[1:]
    for name, body in zip(pieces[::2], pieces[1::2], strict=True):
        sizes = BLOCK_SIZE.search(infos.get(name, ""))
        threads = 1
        for size in sizes.groups() if sizes else ():
            threads *= int(size, 16)
        kernel = Kernel(name, resources[name], threads if sizes else 1024)
        for line in body.splitlines():
            match = INSTRUCTION.match(line)
            if match is not None and match[3] != "NOP":
                kernel.instructions.append(
                    Instruction(int(match[1], 16), match[3], match[4].strip())
                )
        yield kernel
