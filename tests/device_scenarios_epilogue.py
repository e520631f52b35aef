"""Scenarios of epilogues on devices: the bits of the CPU's steps behind the same sum."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import symmoe
from device_lab import Lab, barrier
from device_scenarios import inputs
from device_scenarios_peers import launched, only, poisoned, since, sizes_of
from device_scenarios_routed import Batch
from reference import assert_same_bits, noise, own_rows, rank_sum

HIDDEN = 40  # that of the other scenarios
DTYPE = torch.bfloat16
ROOM = 2  # rows behind the own ones, of everything
KINDS = (None, "int8", "fp8_e4m3")
TYPES = {"int8": torch.int8, "fp8_e4m3": torch.float8_e4m3fn}


class Own:
    """One rank's tensors for an epilogue, on the device and on the host; rows of room hold 7."""

    def __init__(
        self, lab: Lab, rows: int, dtype: torch.dtype, seed: int, quantize: str | None = None
    ) -> None:
        self.lab, self.rows, self.quantize = lab, rows, quantize
        made = {
            "shared": noise(seed + 1, (rows + ROOM, HIDDEN), dtype),
            "residual": noise(seed + 2, (rows + ROOM, HIDDEN), dtype),
            "norm_weight": noise(seed + 3, (HIDDEN,), dtype if seed % 2 else torch.float32),
        }
        if quantize is not None:
            made["scales"] = torch.full((rows + ROOM,), 7.0)
        self.host = made
        self.device = {name: lab.tensor(tensor) for name, tensor in made.items()}
        self.out_type = dtype if quantize is None else TYPES[quantize]

    def epilogue(self) -> symmoe.Epilogue:
        return self._of(self.device)

    def _of(self, tensors: dict[str, Any]) -> symmoe.Epilogue:
        return symmoe.Epilogue(scale=1.75, eps=1e-5, quantize=self.quantize, **tensors)

    def new_out(self) -> torch.Tensor:
        """With room behind."""
        return self.lab.tensor(torch.full((self.rows + ROOM, HIDDEN), 7).to(self.out_type))

    def finished(self, sums: torch.Tensor) -> torch.Tensor:
        """On the host: what one more call makes of these sums."""
        return symmoe.apply_epilogue(sums, self._of(self.host))

    def check(self, out: torch.Tensor, sums: torch.Tensor) -> None:
        """After one more call, whose sums these are: the host's bits, and nothing beyond."""
        right = self.finished(sums)
        found = self.lab.host(out)
        assert found.dtype is self.out_type
        assert_alike(found[: self.rows], right)
        assert bool((found[self.rows :].float() == 7).all())
        self.check_written()

    def check_written(self) -> None:
        """What is written in place is alike on the device and on the host."""
        for name in ("residual", "scales"):
            if name in self.host:
                assert_alike(self.lab.host(self.device[name]), self.host[name])

    def check_unchanged(self) -> None:
        """Nothing has been written."""
        for name, tensor in self.host.items():
            assert_alike(self.lab.host(self.device[name]), tensor)


def assert_alike(found: torch.Tensor, right: torch.Tensor) -> None:
    """Equal bits, of bytes as well."""
    if found.dtype.itemsize == 1:
        assert torch.equal(found.view(torch.uint8), right.view(torch.uint8))
    else:
        assert_same_bits(found, right)


def pulled(lab: Lab, rank: int, world: int, dtype: torch.dtype) -> None:
    """One kernel sums and finishes; ranks with an epilogue meet ranks without."""
    with lab.init(only("pull")) as group:
        for number, sizes in enumerate(sizes_of(world)):
            padded_to = max(sizes) + 2 if number % 2 else None
            rows = sum(sizes) if padded_to is None else padded_to * world
            given = inputs(world, rows, dtype, number)
            right = rank_sum([part[own_rows(sizes, rank, padded_to)] for part in given])
            private = poisoned(lab, rows, sizes, padded_to, given[rank])
            options: dict[str, Any] = {"sizes": sizes, "padded_to": padded_to}
            for quantize in KINDS:
                own = Own(lab, sizes[rank], dtype, 10 * number + rank, quantize)
                found = group.reduce_scatter(private, epilogue=own.epilogue(), **options)
                own.check(torch.cat([lab.host(found), lab.host(own.new_out())[-ROOM:]]), right)
                window = group.acquire("combine", (rows, HIDDEN), dtype)
                assert window is not None
                lab.put(window, private)
                out, before = own.new_out(), launched(lab)
                found = group.reduce_scatter(window, out, epilogue=own.epilogue(), **options)
                assert found is out
                if lab.emulated and world > 1:
                    assert since(lab, before) == {"pull_epilogue": 1}
                own.check(out, right)
            mine = Own(lab, sizes[rank], dtype, rank).epilogue() if rank % 2 else None
            found = group.reduce_scatter(private, epilogue=mine, **options)
            if mine is None:
                assert_same_bits(lab.host(found), right)
        assert group.stats()["calls_process_group"] == 0


def routed(lab: Lab, rank: int, world: int, dtype: torch.dtype) -> None:
    """Only rows that are there are summed; an epilogue is for all own ones."""
    with lab.init(only("routed")) as group:
        for seed, quantize in enumerate(KINDS):
            batch = Batch(world, seed, 3, dtype)
            routing = batch.routing(lab)
            options: dict[str, Any] = {"sizes": batch.sizes, "scale": 0.5}
            experts, _ = batch.experts(rank, False)
            arguments = [lab.tensor(experts)]
            plain = lab.host(group.combine(*arguments, routing=routing, **options))
            own = Own(lab, batch.sizes[rank], dtype, seed + rank, quantize)
            out, before = own.new_out(), launched(lab)
            group.combine(*arguments, routing=routing, out=out, epilogue=own.epilogue(), **options)
            if lab.emulated and world > 1:
                assert since(lab, before).get("pull_epilogue") == 1
            own.check(out, plain)


def behind(lab: Lab, rank: int, world: int, path: str) -> None:
    """Paths that only sum: a second kernel on the same stream, without a wait in between."""
    sizes = [2 + r if path == "grouped" else 3 for r in range(world)]
    rows = sum(sizes)
    with lab.init(only(path)) as group:
        for number, quantize in enumerate(KINDS):
            given = inputs(world, rows, DTYPE, number)[rank]
            options: dict[str, Any] = {"sizes": sizes, "deterministic": path == "ordered"}
            call = group.combine if path == "fused" else group.reduce_scatter
            private = lab.tensor(given)
            plain = lab.host(call(private, **options))
            own = Own(lab, sizes[rank], DTYPE, number + rank, quantize)
            out, stream, before = own.new_out(), lab.stream(), launched(lab)
            call(private, out=out, epilogue=own.epilogue(), stream=stream, **options)
            if lab.emulated:
                assert since(lab, before)["apply_epilogue"] == 1
            own.check(out, plain)
            name = "local" if world == 1 else path
            assert group.stats()[f"calls_{name}"] == 2 * (number + 1)


def by_the_process_group(lab: Lab, rank: int, world: int) -> None:
    """What no path serves: the same kernel behind torch's collective."""
    sizes = [3] * world
    with lab.init(only("routed")) as group:  # and the calls have no routing
        for number, quantize in enumerate(KINDS):
            private = lab.tensor(inputs(world, sum(sizes), DTYPE, number)[rank])
            for call in (group.reduce_scatter, group.combine):
                plain = lab.host(call(private))
                own = Own(lab, sizes[rank], DTYPE, number + rank, quantize)
                out = own.new_out()
                call(private, out=out, epilogue=own.epilogue())
                own.check(out, plain)
        if world > 1:
            assert group.stats()["calls_process_group"] == 4 * len(KINDS)


def sized_on_the_device(lab: Lab, rank: int, world: int, path: str) -> None:
    """Rows that are there according to the device, and no others, have an epilogue."""
    most = 4
    with lab.init(only(path)) as group:
        call = group.combine if path == "fused" else group.reduce_scatter
        for number, quantize in enumerate(KINDS):
            sizes = [(r + number) % (most + 1) for r in range(world)]
            given = inputs(world, most * world, DTYPE, number)
            right = rank_sum([part[own_rows(sizes, rank)] for part in given])
            there = lab.tensor(torch.tensor(sizes, dtype=torch.int32))
            private = lab.tensor(given[rank])
            # Room for as many as there may be.
            own = Own(lab, most - ROOM, DTYPE, number + rank, quantize)
            own.rows = sizes[rank]
            out = lab.tensor(torch.full((most, HIDDEN), 7).to(own.out_type))
            call(private, out=out, sizes=there, epilogue=own.epilogue())
            own.check(out, right)
            short = Own(lab, most - ROOM - 1, DTYPE, 0)
            with pytest.raises(
                ValueError, match=r"epilogue.shared has shape .* at least \[4, 40\]"
            ):
                call(private, out=out, sizes=there, epilogue=short.epilogue())


def replays(lab: Lab, rank: int, world: int, quantize: str | None) -> None:
    """A graph per lane, each with its residual, which grows with every replay."""
    rows = 3
    with lab.init(symmoe.Config(granularity=4096)) as group:
        assert group.reserve(rows * world, HIDDEN, DTYPE, lanes=2, graph=True)
        streams = [lab.stream(), lab.stream()]
        given = [lab.tensor(inputs(world, rows * world, DTYPE, lane)[rank]) for lane in range(2)]
        plain = [lab.host(group.combine(given[lane], lane=lane)) for lane in range(2)]
        owns = [Own(lab, rows, DTYPE, lane + rank, quantize) for lane in range(2)]
        outs = [own.new_out() for own in owns]
        graphs = []
        for lane in range(2):
            with lab.capture(streams[lane]) as graph:
                epilogue = owns[lane].epilogue()
                group.combine(given[lane], out=outs[lane], lane=lane, epilogue=epilogue)
            graphs.append(graph)
        barrier()
        for _ in range(3):
            for lane in range(2):
                with lab.use(streams[lane]):
                    graphs[lane].replay()
                    lab.synchronize()
            for lane in range(2):
                owns[lane].check(outs[lane], plain[lane])
        for graph in graphs:
            graph.reset()


def alone(lab: Lab, rank: int, world: int) -> None:
    """Without a group, in place as well, and in a graph."""
    for number, quantize in enumerate(KINDS):
        own = Own(lab, 5, DTYPE, number, quantize)
        sums = noise(number, (5, HIDDEN), DTYPE)
        rows, out, stream = lab.tensor(sums), own.new_out(), lab.stream()
        with lab.capture(stream) as graph:
            lab.apply_epilogue(rows, own.epilogue(), out)
        for _ in range(2):
            with lab.use(stream):
                graph.replay()
            own.check(out, sums)
        graph.reset()
    own = Own(lab, 5, DTYPE, 7)
    rows = own.new_out()
    lab.put(rows[:5], lab.tensor(sums))
    lab.apply_epilogue(rows[:5], own.epilogue(), rows)
    own.check(rows, sums)


def misused(lab: Lab, rank: int, world: int) -> None:
    """Wrong ones raise before anything is written, and the group goes on."""
    rows = 3
    with lab.init(only("pull")) as group:
        ones = lab.tensor(torch.ones(rows * world, HIDDEN, dtype=DTYPE))
        own = Own(lab, rows, DTYPE, rank, "int8")
        tensors = own.device
        out = own.new_out()
        window = group.acquire("combine", (rows * world, HIDDEN), DTYPE)
        assert window is not None

        def refuse(words: str, given: dict[str, Any] | None = None, **more: Any) -> None:
            epilogue = own.epilogue() if given is None else symmoe.Epilogue(**given)
            options: dict[str, Any] = {"out": out, "epilogue": epilogue} | more
            for call in (group.reduce_scatter, group.combine):
                with pytest.raises((TypeError, ValueError), match=words):
                    call(ones, **options)

        refuse("out is bfloat16, expected int8", out=own.new_out().to(DTYPE))
        refuse("must be a symmoe.Epilogue", epilogue=3)
        refuse("epilogue.residual has shape", {"residual": tensors["residual"][:2]})
        refuse("epilogue.shared is float32", {"shared": tensors["shared"].float()}, out=None)
        refuse("overlaps", {"residual": window[:rows], "scale": 2.0}, out=None)
        refuse("overlaps", {"residual": ones[:rows]}, out=None)
        refuse("out overlaps", {"residual": tensors["residual"]}, out=tensors["residual"][1:4])
        own.check_unchanged()
        long = lab.tensor(torch.ones(world, 20488, dtype=DTYPE))
        normed = symmoe.Epilogue(norm_weight=lab.tensor(torch.ones(20488)))
        with pytest.raises(symmoe.UnavailableError, match=r"20480 of bfloat16; .*apply_epilogue"):
            group.reduce_scatter(long, epilogue=normed)
        # Steps of single elements have no such limit.
        found = group.reduce_scatter(long, epilogue=symmoe.Epilogue(scale=3.0))
        assert bool((lab.host(found) == 3 * world).all())
        epilogue = own.epilogue()
        assert group.explain("reduce_scatter", ones, epilogue=epilogue).path in ("pull", "local")
        assert group.explain("combine", ones, epilogue=epilogue).path
        group.reduce_scatter(ones, out, epilogue=epilogue)
        own.check(out, torch.full((rows, HIDDEN), float(world), dtype=DTYPE))
        group.check()
