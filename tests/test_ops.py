"""The operators in graphs: the plain calls' bits, right shapes beforehand, no graph break."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch._dynamo.testing import CompileCounterWithBackend

import device_scenarios_compiled as scenarios
import symmoe
from device_lab import Lab, emulated, emulated_peers
from ranks import Ranks
from reference import assert_same_bits, noise
from symmoe import ops, shapes

HIDDEN, SLOTS = 24, 3
OPS = torch.ops.symmoe
BACKENDS = ("eager", "aot_eager")


def terms(
    seed: int, tokens: int, dtype: torch.dtype = torch.bfloat16
) -> tuple[torch.Tensor, torch.Tensor]:
    return noise(seed, (tokens, SLOTS, HIDDEN), dtype), noise(seed + 500, (tokens, SLOTS), dtype)


def routed(seed: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of pairs, weights, and an index that leaves slots out."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(-1, tokens, (tokens, SLOTS), generator=generator)
    weights = torch.rand(tokens, SLOTS, generator=generator)
    return noise(seed, (tokens, HIDDEN), torch.bfloat16), weights, index


def experts(world: int, tokens: int) -> dict[str, torch.Tensor]:
    """A routing as operators take it."""
    ids = torch.arange(tokens * SLOTS).view(tokens, SLOTS) % (2 * world + 1)
    return {"topk_ids": ids, "expert_to_rank": torch.arange(2 * world).int() % world}


# --- what a compiler is told ----------------------------------------------------------------------


def cases(rank: int, world: int, name: str) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Calls of every operator in every form: with real tensors, so that results are compared."""
    sizes = [2 + other for other in range(world)]
    tokens, padded = sum(sizes), 5
    dense, weights = terms(rank, 2 * world)
    pairs, wide, index = routed(rank, tokens)
    rows = noise(rank, (tokens, HIDDEN), torch.float32)
    more = noise(rank, (padded * world, HIDDEN), torch.float16)
    integers = torch.arange(2 * world * HIDDEN, dtype=torch.int32).view(2 * world, HIDDEN)
    uneven = {"sizes": sizes, "padded_to": padded}
    return [
        ("combine", (dense, weights, name), {}),
        ("combine", (dense[:, 0].contiguous(), None, name), {"scale": 0.5, "deterministic": True}),
        ("combine", (pairs, wide, name), {"index": index, "sizes": sizes, "after": dense}),
        ("combine", (more, None, name), uneven),
        ("reduce_scatter", (rows, name), {"sizes": sizes, "lane": 3}),
        ("reduce_scatter", (rows, name), {"sizes": sizes} | experts(world, tokens)),
        ("combine", (dense, weights, name), experts(world, 2 * world)),
        ("reduce_scatter", (more, name), {"deterministic": True} | uneven),
        ("reduce_scatter", (integers, name), {}),
        ("all_gather", (dense[:, 0].contiguous(), name), {"after": rows}),
        ("all_gather", (rows[: sizes[rank]], name), {"sizes": sizes}),
        # Full, since rows of padding are left as they are: as the allocator gave them.
        ("all_gather", (more[:padded], name), {"sizes": [padded] * world, "padded_to": padded}),
        ("topk_reduce", (dense, weights), {}),
        ("topk_reduce", (pairs, wide), {"index": index, "dtype": torch.float32, "scale": 2.0}),
    ]


def checked(rank: int, world: int) -> None:
    with symmoe.init() as group:
        for name, given, options in cases(rank, world, group.name):
            torch.library.opcheck(getattr(OPS, name).default, given, options)


@pytest.mark.multi
@pytest.mark.parametrize("world", [1, 2])
def test_what_a_compiler_is_told(ranks: Ranks, world: int) -> None:
    ranks.run(world, checked)


def checked_on_devices(lab: Lab, rank: int, world: int) -> None:
    with lab.init() as group:
        for name, given, options in cases(rank, world, group.name):
            # The other tests of opcheck look at results that are not there before the device is.
            tests = ("test_schema", "test_faketensor")
            torch.library.opcheck(getattr(OPS, name).default, given, options, test_utils=tests)
            lab.synchronize()


def sized_on_devices(lab: Lab, rank: int, world: int) -> None:
    """Sizes on the device: room for all rows, and the plain call's bits in the own ones."""
    with lab.init() as group:
        sizes = lab.tensor(torch.tensor([3, 1], dtype=torch.int32))
        rows = lab.tensor(noise(rank, (4 * world, HIDDEN), torch.bfloat16))
        for padded_to in (None, 4):
            options = {"device_sizes": sizes, "padded_to": padded_to}
            torch.library.opcheck(
                OPS.reduce_scatter.default,
                (rows, group.name),
                options,
                test_utils=("test_schema", "test_faketensor"),
            )
            found = lab.host(OPS.reduce_scatter(rows, group.name, **options))
            own = lab.host(group.combine(rows, sizes=sizes, padded_to=padded_to))
            count = (3, 1)[rank]
            assert found.shape == own.shape == (4 * world if padded_to is None else 4, HIDDEN)
            assert_same_bits(found[:count], own[:count])
        with pytest.raises(ValueError, match="both sizes and device_sizes"):
            shapes.reduce_scatter(rows, group.name, sizes=[4, 4], device_sizes=sizes)
        with pytest.raises(ValueError, match="go together"):
            shapes.combine(rows, None, group.name, topk_ids=sizes.view(1, 2))


@pytest.mark.multi
def test_what_a_compiler_is_told_of_devices(ranks: Ranks) -> None:
    ranks.run(2, emulated, checked_on_devices)


@pytest.mark.multi
def test_what_a_compiler_is_told_of_sizes_on_devices(ranks: Ranks) -> None:
    ranks.run(2, emulated_peers, sized_on_devices)


WRONG: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda right: right.new_empty((right.shape[0] + 1, right.shape[1])),
    "dtype": lambda right: right.to(torch.float32),
    "strides": lambda right: right.new_empty((right.shape[1], right.shape[0])).t(),
    "nothing": lambda right: right,
}


@pytest.mark.parametrize("fault", list(WRONG))
def test_a_planted_fault_is_found(fault: str) -> None:
    """Shows that the check above sees what it is for."""

    def told(*given: Any, **options: Any) -> torch.Tensor:
        return WRONG[fault](shapes.combine(*given, **options))

    with symmoe.init() as group, torch.library._scoped_library("planted", "DEF") as library:
        library.define("combine" + ops.SCHEMAS["combine"], tags=ops.TAGS)
        library.impl("combine", ops.KERNELS["combine"], "CPU")
        torch.library.register_fake("planted::combine", told, lib=library)
        given = (*terms(1, 4), group.name)
        operator = torch.ops.planted.combine.default
        if fault == "nothing":
            torch.library.opcheck(operator, given)
        else:
            with pytest.raises(Exception, match="test_faketensor failed"):
                torch.library.opcheck(operator, given)


# --- compiled -------------------------------------------------------------------------------------


def layer(
    group: Any,
    pairs: torch.Tensor,
    weights: torch.Tensor,
    index: torch.Tensor,
    sizes: list[int],
    own: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gather, sum, combine and reduce, with torch's own operators around them."""
    everybody = OPS.all_gather(own * 2, group.name, sizes=sizes)
    combined = OPS.combine(
        pairs + everybody, weights, group.name, index=index, sizes=sizes, scale=0.5, lane=1
    )
    summed = OPS.topk_reduce(pairs, weights, index=index, dtype=torch.float32)
    reduced = OPS.reduce_scatter(summed, group.name, sizes=sizes, lane=1, after=combined)
    return everybody, combined, reduced + 1


def plain_layer(
    group: Any,
    pairs: torch.Tensor,
    weights: torch.Tensor,
    index: torch.Tensor,
    sizes: list[int],
    own: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same with the group's methods."""
    everybody = group.all_gather(own * 2, sizes=sizes)
    combined = group.combine(
        pairs + everybody, weights, index=index, sizes=sizes, scale=0.5, lane=1
    )
    summed = torch.empty(pairs.shape, dtype=torch.float32)
    symmoe.topk_reduce(pairs, weights, index=index, out=summed)
    return everybody, combined, group.reduce_scatter(summed, sizes=sizes, lane=1) + 1


def compiled(rank: int, world: int, backend: str, dynamic: bool) -> None:
    torch.compiler.reset()
    with symmoe.init() as group, torch.no_grad():
        counter = CompileCounterWithBackend(backend)
        run = torch.compile(layer, fullgraph=True, backend=counter, dynamic=dynamic)
        # No two numbers alike: a compiler takes equal ones for the same.
        shapes_seen = ([4, 5], [6, 2], [7, 8]) if dynamic else ([4, 5], [0, 2])
        for seed, sizes in enumerate(shapes_seen):
            own = noise(seed + rank, (sizes[rank], HIDDEN), torch.bfloat16)
            given = (*routed(10 * seed + rank, sum(sizes)), sizes, own)
            found, right = run(group, *given), plain_layer(group, *given)
            for one, other in zip(found, right, strict=True):
                assert_same_bits(one, other)
        if dynamic:
            assert counter.frame_count == 1  # one graph for all sizes
        names = [str(node.target) for graph in counter.graphs for node in graph.graph.nodes]
        assert sum("symmoe" in name for name in names) == 4 * counter.frame_count


@pytest.mark.multi
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled(ranks: Ranks, backend: str, dynamic: bool) -> None:
    ranks.run(2, compiled, backend, dynamic)


@pytest.mark.multi
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_on_devices(ranks: Ranks, world: int, backend: str) -> None:
    ranks.run(world, emulated, scenarios.combines, backend)


@pytest.mark.slow
def test_inductor() -> None:
    """Its own kernels around ours, and not a graph from its cache."""
    torch.compiler.reset()
    no_cache = torch._inductor.config.patch(fx_graph_cache=False)
    with symmoe.init() as group, torch.no_grad(), no_cache:

        def run(expert_out: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            turned = expert_out.transpose(0, 1).relu().transpose(0, 1).contiguous()
            combined = OPS.combine(turned, weights, group.name)
            OPS.all_gather(combined, group.name)  # nobody wants it, but the peers wait for it
            result: torch.Tensor = combined.t().exp().t()
            return result

        quick = torch.compile(run, fullgraph=True, backend="inductor")
        given = terms(4, 4, torch.float32)
        torch.testing.assert_close(quick(*given), run(*given))
        assert group.stats()["calls_gather_staged"] == 2


def test_sizes_that_only_the_call_knows() -> None:
    """Sizes from a tensor: no graph break, and a wrong one raises when the graph runs."""
    torch.compiler.reset()
    with symmoe.init() as group, torch._dynamo.config.patch(capture_scalar_outputs=True):

        @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
        def run(rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = OPS.reduce_scatter(rows, group.name, sizes=counts.tolist())
            return result

        rows = noise(1, (6, HIDDEN), torch.float32)
        assert_same_bits(run(rows, torch.tensor([6])), rows)
        with pytest.raises(ValueError, match="input has 6 rows"):
            run(rows, torch.tensor([5]))


def test_a_call_nobody_wants_is_made() -> None:
    torch.compiler.reset()
    with symmoe.init() as group:

        @torch.compile(fullgraph=True, backend="aot_eager")
        def run(rows: torch.Tensor) -> torch.Tensor:
            OPS.reduce_scatter(rows, group.name)
            return rows + 1

        run(noise(1, (4, HIDDEN), torch.float32))
        assert group.stats()["calls_staged"] == 1


def test_exported() -> None:
    with symmoe.init() as group:

        class Layer(torch.nn.Module):
            def forward(self, expert_out: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
                result: torch.Tensor = OPS.combine(expert_out, weights, name)
                return result

        name = group.name
        rows = torch.export.Dim("rows", min=2, max=1000)
        program = torch.export.export(Layer(), terms(1, 6), dynamic_shapes=({0: rows}, {0: rows}))
        given = terms(2, 9)
        assert_same_bits(program.module()(*given), group.combine(*given))


# --- refusals -------------------------------------------------------------------------------------


def wrong_calls(name: str) -> list[tuple[type[Exception], str, Callable[..., Any], dict[str, Any]]]:
    """Calls that shapes and dtypes show to be wrong, for a world of one."""
    rows, dense = torch.zeros(6, HIDDEN), torch.zeros(6, SLOTS, HIDDEN)
    index = torch.zeros(6, SLOTS, dtype=torch.int64)
    reduce, gather = {"input": rows, "group": name}, {"input": rows, "group": name}
    combine = {"expert_out": dense, "topk_weights": None, "group": name}
    wide = torch.zeros(6, SLOTS, dtype=torch.float64)
    return [
        (ValueError, "input has 6 rows", OPS.reduce_scatter, reduce | {"sizes": [5]}),
        (ValueError, "2 sizes for 1 ranks", OPS.reduce_scatter, reduce | {"sizes": [3, 3]}),
        (ValueError, "is negative", OPS.reduce_scatter, reduce | {"sizes": [-6]}),
        (
            ValueError,
            "more than padded_to",
            OPS.all_gather,
            gather | {"sizes": [6], "padded_to": 5},
        ),
        (ValueError, "needs sizes by rank", OPS.reduce_scatter, reduce | {"padded_to": 6}),
        (ValueError, "lane 16", OPS.reduce_scatter, reduce | {"lane": 16}),
        (ValueError, r"must be \[rows, hidden\]", OPS.reduce_scatter, reduce | {"input": dense}),
        (TypeError, "bool is not supported", OPS.all_gather, gather | {"input": rows.bool()}),
        (ValueError, "input has 6 rows", OPS.all_gather, gather | {"sizes": [7]}),
        (ValueError, "input has 6 rows", OPS.all_gather, gather | {"sizes": [2], "padded_to": 4}),
        (TypeError, "topk_weights is float64", OPS.combine, combine | {"topk_weights": wide}),
        (ValueError, "topk_weights has shape", OPS.combine, combine | {"topk_weights": dense}),
        (ValueError, "topk_weights has shape", OPS.combine, combine | {"topk_weights": rows}),
        (ValueError, "with an index", OPS.combine, combine | {"index": index}),
        (TypeError, "expected int32", OPS.combine, combine | {"expert_out": rows, "index": wide}),
        (ValueError, "must be .M, K, H.", OPS.combine, combine | {"expert_out": rows[0]}),
        (ValueError, "no columns", OPS.combine, combine | {"expert_out": dense[..., :0]}),
        (
            TypeError,
            "out is float64",
            OPS.topk_reduce,
            {"expert_out": rows, "dtype": torch.float64},
        ),
        (ValueError, "gradient", OPS.topk_reduce, {"expert_out": rows.clone().requires_grad_()}),
        (symmoe.ClosedError, "no group named", OPS.all_gather, gather | {"group": "nobody"}),
    ]


def test_wrong_calls() -> None:
    """The errors of the plain calls, from the operator as well as from what a compiler asks."""
    with symmoe.init() as group:
        for kind, text, operator, options in wrong_calls(group.name):
            with pytest.raises(kind, match=text):
                operator(**options)
            told = getattr(shapes, operator.__name__)
            with pytest.raises(kind, match=text):
                told(**options)
            torch.compiler.reset()
            compiled_call = torch.compile(operator, fullgraph=True, backend="eager")
            with pytest.raises(Exception, match=text):
                compiled_call(**options)
        rows = torch.zeros(4, HIDDEN)
        assert OPS.reduce_scatter(rows, group.name).shape == rows.shape  # the group is as it was


def test_an_index_out_of_range() -> None:
    """No shape shows it: the compiled call raises what the plain one does."""
    torch.compiler.reset()
    with symmoe.init() as group:

        @torch.compile(fullgraph=True, backend="aot_eager")
        def run(pairs: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = OPS.combine(pairs, None, group.name, index=index)
            return result

        with pytest.raises(ValueError, match="index"):
            run(torch.zeros(6, HIDDEN), torch.full((6, SLOTS), 6))


def test_names() -> None:
    first, second = symmoe.init(), symmoe.init()
    assert first.name != second.name
    rows = torch.zeros(4, HIDDEN)
    first.close()
    for call in (OPS.all_gather, shapes.all_gather):
        with pytest.raises(symmoe.ClosedError, match="is closed"):
            call(rows, first.name)
    name = second.name
    second.close()
    del second
    gc.collect()
    with pytest.raises(symmoe.ClosedError, match="names do not keep groups"):
        OPS.all_gather(rows, name)


def test_the_import_brings_no_compiler() -> None:
    program = "import sys, symmoe; print('torch._dynamo' in sys.modules, symmoe.ops.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False symmoe.ops\n", done.stderr
