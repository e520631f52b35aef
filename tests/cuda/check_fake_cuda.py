"""`make check-cuda`: what compilers are told of tensors on a GPU, where there is none.

Needs torch's CUDA build. Tensors are torch's fakes: they have a device, a dtype and a shape, and no
memory. The exit code is 0 only if everything was as it should be.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import symmoe
from symmoe import names, ops, shapes
from symmoe.device import libraries
from symmoe.device.cuda import CudaPlace

PACKAGE = Path(symmoe.__file__).parent
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
OPS = torch.ops.symmoe
WORLD, RANK, HIDDEN, SLOTS = 4, 2, 7168, 6
DEVICE = torch.device("cuda", 0)


class Ranks:
    """What operators ask of a group before they run."""

    def __init__(self) -> None:
        self.rank, self.world_size, self._closed = RANK, WORLD, False
        self.name = names.register(self)


GROUP = Ranks()


@dataclass
class Case:
    """One call.

    Attributes:
        name: Of the operator.
        make: Gives the tensors for a number of rows of all ranks, a multiple of WORLD.
        options: All else for that number.
        rows: What the result has.
        dtype: What the result has.
    """

    name: str
    make: Callable[[int], list[torch.Tensor]]
    options: Callable[[int], dict[str, Any]]
    rows: Callable[[int], int]
    dtype: torch.dtype

    def call(self, tensors: list[torch.Tensor], options: dict[str, Any]) -> torch.Tensor:
        """Calls the operator."""
        operator = getattr(OPS, self.name)
        group = {} if self.name == "topk_reduce" else {"group": GROUP.name}
        fields = {"index": tensors[2]} if len(tensors) > 2 else {}
        if self.name in ("combine", "topk_reduce"):
            fields |= {"expert_out": tensors[0], "topk_weights": tensors[1]}
        else:
            fields |= {"input": tensors[0]}
        result: torch.Tensor = operator(**fields, **group, **options)
        return result


def uneven(rows: int) -> list[int]:
    """Rows by rank, all different."""
    own = rows // WORLD
    return [own - 2, own + 2, own - 1, own + 1]


def cases() -> Iterator[Case]:
    """Every operator in every form and dtype."""

    def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=DEVICE)

    for dtype, wide in itertools.product(DTYPES, (True, False)):
        weights_type = torch.float32 if wide else dtype
        integer = torch.int64 if wide else torch.int32

        def dense(rows: int, d: torch.dtype = dtype, w: torch.dtype = weights_type) -> Any:
            return [empty(rows, SLOTS, HIDDEN, dtype=d), empty(rows, SLOTS, dtype=w)]

        def routed(
            rows: int,
            d: torch.dtype = dtype,
            w: torch.dtype = weights_type,
            i: torch.dtype = integer,
        ) -> Any:
            pairs = empty(3 * rows + 1, HIDDEN, dtype=d)
            return [pairs, empty(rows, SLOTS, dtype=w), empty(rows, SLOTS, dtype=i)]

        yield Case("combine", dense, lambda _: {}, lambda m: m // WORLD, dtype)
        yield Case(
            "combine",
            routed,
            lambda m: {"sizes": uneven(m), "scale": 0.5, "lane": 1},
            lambda m: uneven(m)[RANK],
            dtype,
        )
        yield Case("topk_reduce", dense, lambda _: {}, lambda m: m, dtype)
        yield Case(
            "topk_reduce",
            routed,
            lambda _: {"dtype": torch.float32},
            lambda m: m,
            torch.float32,
        )
    for dtype in (*DTYPES, torch.int64):

        def partial(rows: int, d: torch.dtype = dtype) -> Any:
            return [empty(rows, HIDDEN, dtype=d)]

        def own(rows: int, d: torch.dtype = dtype) -> Any:
            return [empty(uneven(rows)[RANK], HIDDEN, dtype=d)]

        yield Case(
            "reduce_scatter",
            partial,
            lambda _: {"deterministic": True},
            lambda m: m // WORLD,
            dtype,
        )
        yield Case(
            "reduce_scatter",
            partial,
            lambda m: {"sizes": [m // WORLD - 1] * WORLD, "padded_to": m // WORLD},
            lambda m: m // WORLD - 1,
            dtype,
        )
        yield Case("all_gather", partial, lambda _: {}, lambda m: WORLD * m, dtype)
        yield Case("all_gather", own, lambda m: {"sizes": uneven(m)}, lambda m: m, dtype)


def require(case: Case, result: torch.Tensor, rows: int) -> None:
    """Raises AssertionError unless the result is what the case says."""
    assert result.device == DEVICE, f"{case.name}: on {result.device}"
    assert result.dtype is case.dtype, f"{case.name}: {result.dtype}, not {case.dtype}"
    wanted = (case.rows(rows), HIDDEN)
    assert tuple(result.shape) == wanted, f"{case.name}: {tuple(result.shape)}, not {wanted}"
    assert result.is_contiguous(), f"{case.name}: strides {result.stride()}"


def called() -> int:
    """With fakes of fixed sizes."""
    count = 0
    for case, rows in itertools.product(cases(), (12, 400)):
        with FakeTensorMode():
            require(case, case.call(case.make(rows), case.options(rows)), rows)
        count += 1
    return count


def found_out() -> int:
    """A result on another device would be noticed: shows that `require` sees what it is for."""
    with torch.library._scoped_library("planted", "DEF") as library:
        library.define("topk_reduce" + ops.SCHEMAS["topk_reduce"], tags=ops.TAGS)
        torch.library.register_fake(
            "planted::topk_reduce",
            lambda *given, **options: shapes.topk_reduce(*given, **options).to("cpu"),
            lib=library,
        )
        case = next(it for it in cases() if it.name == "topk_reduce")
        with FakeTensorMode():
            result = torch.ops.planted.topk_reduce(*case.make(12))
            try:
                require(case, result, 12)
            except AssertionError:
                return 1
    raise AssertionError("a result on the CPU was not noticed")


def traced() -> int:
    """By make_fx, with symbols for rows: the operator is one node, whose shape follows.

    Sizes by rank are left to `compiled`: make_fx takes numbers as they are.
    """
    count = 0
    for case in cases():
        if "sizes" in case.options(400):
            continue
        with FakeTensorMode():
            fixed = case.make(400)
        metas = [torch.empty(it.shape, dtype=it.dtype, device="meta") for it in fixed]
        with FakeTensorMode(shape_env=ShapeEnv()) as mode:
            tensors = [symbolic(mode, meta, number) for number, meta in enumerate(metas)]

            def layer(*given: torch.Tensor, c: Case = case) -> torch.Tensor:
                return c.call(list(given), c.options(400))

            graph = make_fx(layer)(*tensors)
        nodes = [node for node in graph.graph.nodes if "symmoe" in str(node.target)]
        assert len(nodes) == 1, f"{case.name}: {len(nodes)} nodes"
        value = nodes[0].meta["val"]
        assert value.device == DEVICE, f"{case.name}: on {value.device}"
        assert value.dtype is case.dtype, f"{case.name}: {value.dtype}"
        assert isinstance(value.shape[0], torch.SymInt), f"{case.name}: {value.shape}"
        count += 1
    return count


def symbolic(mode: FakeTensorMode, meta: torch.Tensor, number: int) -> torch.Tensor:
    """A fake on the GPU like `meta`, with a symbol for its rows."""
    context: Any = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.DUCK] + [DimDynamic.STATIC] * (meta.dim() - 1)
    )
    like = mode.from_tensor(
        meta, source=ConstantSource(f"tensor{number}"), symbolic_context=context
    )
    return torch.empty(like.shape, dtype=meta.dtype, device=DEVICE)


def compiled(backend: str, dynamic: bool) -> int:
    """By torch.compile without a graph break; one graph for all numbers of rows if dynamic."""
    count = 0
    for case in cases():
        torch.compiler.reset()
        counter = CompileCounterWithBackend(backend)

        def layer(tensors: list[torch.Tensor], options: dict[str, Any], c: Case = case) -> Any:
            return c.call([tensors[0] + 1, *tensors[1:]], options)

        run = torch.compile(layer, fullgraph=True, backend=counter, dynamic=dynamic)
        graphs = []
        for rows in (400, 1000, 1600) if dynamic else (400,):
            with FakeTensorMode(shape_env=ShapeEnv()), torch.no_grad():
                require(case, run(case.make(rows), case.options(rows)), rows)
            graphs.append(counter.frame_count)
        assert graphs[0] == graphs[-1], f"{case.name}: {graphs} graphs after each number of rows"
        count += 1
    return count


def exported() -> int:
    """By torch.export, with a symbol for the rows."""

    class Layer(torch.nn.Module):
        def forward(self, expert_out: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            combined = OPS.combine(expert_out, weights, GROUP.name)
            result: torch.Tensor = OPS.all_gather(combined, GROUP.name)
            return result

    case = next(it for it in cases() if it.name == "combine")
    rows = torch.export.Dim("rows", min=1, max=4096)
    with FakeTensorMode():
        given = tuple(case.make(400))
        program = torch.export.export(
            Layer(), given, dynamic_shapes=({0: WORLD * rows}, {0: WORLD * rows})
        )
    values = [node.meta["val"] for node in program.graph.nodes if "symmoe" in str(node.target)]
    assert len(values) == 2, program.graph
    assert all(value.device == DEVICE for value in values), values
    assert all(isinstance(value.shape[0], torch.SymInt) for value in values), values
    return 1


def refused() -> int:
    """Tensors on different devices."""
    with FakeTensorMode():
        expert_out = torch.empty(8, SLOTS, HIDDEN, device=DEVICE)
        for elsewhere in ("cpu", "cuda:1"):
            weights = torch.empty(8, SLOTS, device=elsewhere)
            message = ""
            try:
                OPS.combine(expert_out, weights, GROUP.name)
            except (ValueError, RuntimeError) as error:
                message = str(error)
            assert "cuda:0" in message, f"weights on {elsewhere}: {message or 'taken'}"
    return 2


def dispatched() -> int:
    """Every operator has a kernel for GPUs."""
    for name in ops.SCHEMAS:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"symmoe::{name}", "CUDA"), name
    return len(ops.SCHEMAS)


def named() -> int:
    """Every name of torch that the package uses is in this build."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                text = ast.unparse(node)
                if text.replace(".", "").replace("_", "").isalnum() and text.startswith("torch."):
                    found.add(text)
    missing = []
    for text in sorted(found):
        value: Any = torch
        for part in text.split(".")[1:]:
            if isinstance(value, torch._ops._OpNamespace | torch.dtype | torch.device):
                break
            if not hasattr(value, part):
                missing.append(text)
                break
            value = getattr(value, part)
    assert not missing, f"torch {torch.__version__} has no {', '.join(missing)}"
    needed = {"torch._C._cuda_getCurrentRawStream", "torch.cuda.ExternalStream"}
    assert needed <= found, f"the package does not use {needed - found} any more"
    return len(found)


def placed() -> int:
    """CudaPlace as far as it goes without a GPU."""
    parameters = list(inspect.signature(torch.cuda.ExternalStream.__new__).parameters)
    assert parameters[1] == "stream_ptr", parameters
    assert "device" in parameters, parameters
    assert callable(torch.cuda.CUDAGraph.replay)
    if libraries.back_end("cuda") is None:
        print("  no libsymmoe_cuda.so (built where there is nvcc): CudaPlace itself not looked at")
        return 1
    place = CudaPlace(0)
    with FakeTensorMode():
        assert place.accepts(torch.empty(1, device="cuda:0"))
        assert not place.accepts(torch.empty(1, device="cuda:1"))
        assert not place.accepts(torch.empty(1))
    assert place.stream(7) == 7
    return 2


def main() -> int:
    """Runs all checks and prints a line for each."""
    if torch.version.cuda is None:
        print(f"torch {torch.__version__} is not a CUDA build", file=sys.stderr)
        return 2
    gpus = torch.cuda.device_count()
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, {gpus} GPUs here")
    checks: list[tuple[str, Callable[[], int]]] = [
        ("names of torch that the package uses", named),
        ("CudaPlace and torch's classes", placed),
        ("operators with a CUDA kernel", dispatched),
        ("calls with fake CUDA tensors", called),
        ("planted faults found", found_out),
        ("refusals", refused),
        ("make_fx, symbolic rows", traced),
    ]
    for backend in ("eager", "aot_eager"):
        for dynamic in (False, True):
            kind = "symbolic" if dynamic else "fixed"

            def check(backend: str = backend, dynamic: bool = dynamic) -> int:
                return compiled(backend, dynamic)

            checks.append((f"torch.compile, {backend}, {kind} sizes", check))
    checks.append(("torch.export, symbolic rows", exported))
    for what, run in checks:
        print(f"{what}: {run()}", flush=True)
    print("check-cuda passed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
