"""Scenarios of padding rows on devices: whatever belongs to them, nobody looks at it."""

from __future__ import annotations

from typing import Any

import torch

from device_lab import Lab, barrier
from device_scenarios import HIDDEN
from device_scenarios_peers import NAN, launched, only, since
from device_scenarios_routed import assert_equal_but_zeros, write
from device_scenarios_sizes import ROWS_EACH, on_device
from reference import noise, own_rows, rank_sum, topk_sum
from symmoe import Config, Routing

DTYPE = torch.bfloat16
SLOTS = 2
EXPERTS_PER_RANK = 2
FAR = 2**31 - 1  # neither an expert nor a row
UNTOUCHED = 7.0


def sizes_at(world: int, turn: int) -> list[int]:
    """Rows of each rank, none and all there is room for among them."""
    return [(turn * (r + 1) + 2 * r + 1) % (ROWS_EACH + 1) for r in range(world)]


class Padded:
    """One rank's view of a batch: equal on all ranks but for what belongs to padding rows.

    Those have experts of this rank's own and ones that there are not, an index far beyond
    expert_out, and NaN.

    Attributes:
        ids: [rows, K].
        owners: [experts]: the rank of each.
        weights: [rows, K].
        owned: [rows]: whether the row is somebody's by any of the given sizes.
    """

    def __init__(
        self, rank: int, world: int, turn: int, padded_to: int | None, *sizes: list[int]
    ) -> None:
        self.rank, self.world, self.turn, self.padded_to = rank, world, turn, padded_to
        rows, experts = ROWS_EACH * world, EXPERTS_PER_RANK * world
        generator = torch.Generator().manual_seed(turn)
        self.owners = torch.arange(experts, dtype=torch.int32) % world
        self.ids = torch.randint(-1, experts, (rows, SLOTS), generator=generator)
        self.weights = noise(turn + 7, (rows, SLOTS), torch.float32)
        self.owned = torch.zeros(rows, dtype=torch.bool)
        for given in sizes:
            for owner in range(world):
                self.owned[own_rows(given, owner, padded_to)] = True
        self.ids[~self.owned, 0] = rank  # an expert here: without a look at the sizes it counts
        self.ids[~self.owned, 1] = FAR - rank
        self.weights[~self.owned] = NAN

    def present(self, rank: int) -> torch.Tensor:
        """[rows, K]: whether the slot's expert is on the rank, and its row somebody's."""
        known = (self.ids >= 0) & (self.ids < len(self.owners)) & self.owned[:, None]
        return known & (self.owners[self.ids.clamp(0, len(self.owners) - 1)] == rank)

    def slots(self, rank: int) -> torch.Tensor:
        """[rows, K, hidden]: experts' output of a rank, NaN where it has none."""
        values = noise(100 * self.turn + rank, (len(self.owned), SLOTS, HIDDEN), DTYPE)
        values[~self.present(rank)] = NAN
        return values

    def index(self, absent: int) -> torch.Tensor:
        """[rows, K] of this rank's rows; `absent` where another rank has the expert."""
        index = torch.arange(self.ids.numel()).view(self.ids.shape)
        index[~self.present(self.rank)] = absent
        index[~self.owned] = FAR
        return index

    def part(self, rank: int) -> torch.Tensor:
        """A rank's partial rows, zeros where it has none."""
        index = torch.arange(self.ids.numel()).view(self.ids.shape)
        index[~self.present(rank)] = -1
        rows = self.slots(rank).view(-1, HIDDEN).nan_to_num(0.0)
        return topk_sum(rows, self.weights.nan_to_num(0.0), index, 0.5)

    def right(self, sizes: list[int]) -> torch.Tensor:
        """This rank's rows."""
        own = own_rows(sizes, self.rank, self.padded_to)
        return rank_sum([self.part(r)[own] for r in range(self.world)])


def assert_rows(lab: Lab, out: torch.Tensor, right: torch.Tensor, exact: bool = True) -> None:
    """The own rows, and nothing behind them; without `exact` in any order of addition."""
    found = lab.host(out)
    count = len(right)
    if exact:
        assert_equal_but_zeros(found[:count], right)
    else:
        assert torch.allclose(found[:count].float(), right.float(), atol=0.1, rtol=0.1)
    assert bool((found[count:] == UNTOUCHED).all())


def combines(lab: Lab, rank: int, world: int, path: str, device_sizes: bool) -> None:
    """With a routing and without, by slots and by an index, at once and from an expert kernel."""
    config = only(path) if path else Config(windows=False, paths=("grouped",))
    exact = path not in ("", "grouped")
    with lab.init(config) as group:
        for turn in range(5):
            for padded_to in (ROWS_EACH, None) if device_sizes else (ROWS_EACH,):
                sizes = sizes_at(world, turn)
                batch = Padded(rank, world, turn, padded_to, sizes)
                options: dict[str, Any] = {
                    "sizes": on_device(lab, sizes) if device_sizes else sizes,
                    "padded_to": padded_to,
                    "deterministic": path == "ordered",
                }
                ids, owners = lab.tensor(batch.ids), lab.tensor(batch.owners)
                weights = lab.tensor(batch.weights)
                slots, right = lab.tensor(batch.slots(rank)), batch.right(sizes)
                pairs = slots.view(-1, HIDDEN)
                calls: list[tuple[torch.Tensor, int | None, bool]] = [
                    (slots, None, True),
                    (pairs, FAR, True),  # of slots that another rank has nobody looks at the index
                ]
                if path != "routed":
                    calls.append((pairs, -1, False))
                for rows, absent, routed in calls:
                    most = batch.padded_to or len(batch.owned)
                    out = torch.full((most, HIDDEN), UNTOUCHED, dtype=DTYPE)
                    given = lab.tensor(out)
                    group.combine(
                        rows,
                        None if routed else weights,
                        out=given,
                        index=None if absent is None else lab.tensor(batch.index(absent)),
                        routing=Routing(ids, weights, owners) if routed else None,
                        scale=0.5,
                        **options,
                    )
                    assert_rows(lab, given, right, exact)
                    group.check()
                if path == "fused":
                    continue
                written = torch.full((len(batch.owned), HIDDEN), NAN, dtype=DTYPE)
                here = batch.present(rank).any(1)
                written[here] = batch.part(rank)[here]
                routing = Routing(ids, None, owners)
                out = torch.full((batch.padded_to or len(batch.owned), HIDDEN), 7.0, dtype=DTYPE)
                for call in (group.reduce_scatter, group.combine):
                    given = lab.tensor(out)
                    call(lab.tensor(written), out=given, routing=routing, **options)
                    assert_rows(lab, given, right, exact)
                group.check()


def other_sizes(lab: Lab, rank: int, world: int, path: str, device_sizes: bool) -> None:
    """One Routing in calls of other sizes: the masks of one are not those of the other."""
    turns = [sizes_at(world, turn) for turn in (1, 1, 2, 3, 1)]
    with lab.init(only(path)) as group:
        batch = Padded(rank, world, 5, ROWS_EACH, *turns)
        routing = Routing(*map(lab.tensor, (batch.ids, batch.weights, batch.owners)))
        slots = lab.tensor(batch.slots(rank))
        last = None
        for sizes in turns:
            before = launched(lab)
            out = lab.tensor(torch.full((ROWS_EACH, HIDDEN), UNTOUCHED, dtype=DTYPE))
            given = on_device(lab, sizes) if device_sizes else sizes
            options: dict[str, Any] = {"sizes": given, "padded_to": ROWS_EACH, "scale": 0.5}
            group.combine(slots, out=out, routing=routing, **options)
            if lab.emulated and world > 1:
                made = device_sizes or sizes != last
                assert since(lab, before).get("route_mask", 0) == made
            assert_rows(lab, out, batch.right(sizes))
            last = sizes
        group.check()


def replays(lab: Lab, rank: int, world: int, path: str, padded: bool) -> None:
    """A graph of two calls with one Routing and sizes of their own, all of which change.

    Between replays one of the calls is made outside as well.
    """
    padded_to = ROWS_EACH if padded else None
    with lab.init(only(path)) as group:
        stream = lab.stream()
        batch = Padded(rank, world, 0, padded_to)
        routing = Routing(*map(lab.tensor, (batch.ids, batch.weights, batch.owners)))
        index, weights = lab.tensor(batch.index(FAR)), routing.topk_weights
        assert weights is not None
        rows = lab.tensor(torch.zeros(batch.ids.numel(), HIDDEN, dtype=DTYPE))
        sizes = [on_device(lab, [0] * world) for _ in range(2)]
        blank = lab.tensor(torch.full((len(batch.owned), HIDDEN), UNTOUCHED, dtype=DTYPE))
        outs = [lab.tensor(blank) for _ in range(2)]

        def call(number: int) -> None:
            group.combine(
                rows, out=outs[number], index=index, routing=routing, scale=0.5,
                sizes=sizes[number], padded_to=padded_to,
            )  # fmt: skip

        call(0)
        lab.synchronize()
        with lab.capture(stream) as graph:
            call(0)
            call(1)
        barrier()
        for turn in range(8):
            now = [sizes_at(world, turn), sizes_at(world, turn + 3)]
            batch = Padded(rank, world, turn, padded_to, *now)
            write(lab, routing.topk_ids, batch.ids)
            write(lab, weights, batch.weights)
            write(lab, index, batch.index(FAR))
            for target, values in zip(sizes, now, strict=True):
                write(lab, target, torch.tensor(values, dtype=torch.int32))
            with lab.use(stream):
                lab.put(rows, lab.tensor(batch.slots(rank)).view(-1, HIDDEN))
                for out in outs:
                    lab.put(out, blank)
                graph.replay()
            for out, given in zip(outs, now, strict=True):
                assert_rows(lab, out, batch.right(given))
            with lab.use(stream):
                lab.put(outs[1], blank)
                call(1)
            assert_rows(lab, outs[1], batch.right(now[1]))
            group.check()
        graph.reset()


def wrong_sizes(lab: Lab, rank: int, world: int) -> str:
    """Sizes that do not fit, the same on all ranks: nobody has rows, and ids cannot differ."""
    with lab.init(only("routed")) as group:
        batch = Padded(rank, world, 1, ROWS_EACH)  # all of it is padding
        routing = Routing(*map(lab.tensor, (batch.ids, batch.weights, batch.owners)))
        sizes = [1] * (world - 1) + [ROWS_EACH + 1]
        out = lab.tensor(torch.full((ROWS_EACH, HIDDEN), UNTOUCHED, dtype=DTYPE))
        slots = lab.tensor(batch.slots(rank))
        given = on_device(lab, sizes)
        group.combine(slots, out=out, routing=routing, sizes=given, padded_to=ROWS_EACH)
        assert bool((lab.host(out) == UNTOUCHED).all())
        try:
            group.check()
        except ValueError as error:
            text = str(error)
        else:
            text = ""
        group.check()
        return text
