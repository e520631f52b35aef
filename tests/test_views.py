"""Tensors over windows that somebody has turned into others give right sums, or raise."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
import torch.distributed as dist

import symmoe
from ranks import Ranks
from reference import assert_same_bits, noise, own_rows, rank_sum

pytestmark = pytest.mark.multi
SIDE = 8  # a square, so that a transposed view has the same shape

Change = Callable[[torch.Tensor], object]


def set_data(other: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def change(window: torch.Tensor) -> None:
        window.data = other(window)

    return change


CHANGES: dict[str, Change] = {
    "set_": lambda w: w.set_(),  # type: ignore[call-overload]
    "set_ to other memory": lambda w: w.set_(torch.ones(SIDE, SIDE)),  # type: ignore[call-overload]
    "resize_ smaller": lambda w: w.resize_(4, SIDE),
    "resize_ to the same bytes": lambda w: w.resize_(4, 2 * SIDE),
    "t_": lambda w: w.t_(),
    "unsqueeze_": lambda w: w.unsqueeze_(0),
    "as_strided_": lambda w: w.as_strided_((SIDE, SIDE), (1, SIDE)),
    "out=": lambda w: torch.add(torch.ones(4, SIDE), 1, out=w),
    "data: part": set_data(lambda w: w[:4]),
    "data: later part": set_data(lambda w: w[4:]),
    "data: transposed": set_data(lambda w: w.t()),
    "data: other dtype": set_data(lambda w: w.view(torch.int32)),
    "data: smaller memory": set_data(lambda w: torch.ones(2, 2)),
    "data: other memory": set_data(lambda w: torch.ones(SIDE, SIDE)),
    "swap_tensors": lambda w: torch.utils.swap_tensors(w, torch.ones(2, SIDE)),  # type: ignore[no-untyped-call]
    "share_memory_": lambda w: w.share_memory_(),  # type: ignore[no-untyped-call]
    "gradient written": lambda w: w.copy_(torch.ones(SIDE, SIDE, requires_grad=True)),
    "gradient wanted": lambda w: w.requires_grad_(),
}
# What the group cannot see before the changed tensor is used in a call.
SILENT = ("data: part", "data: transposed", "data: other dtype", "gradient wanted")


def acquired(group: symmoe.Group, role: str) -> torch.Tensor:
    window = group.acquire(role, (SIDE, SIDE), torch.float32)
    assert window is not None
    return window


def is_fresh(window: torch.Tensor) -> bool:
    return (
        window.shape == (SIDE, SIDE)
        and window.is_contiguous()
        and window.dtype is torch.float32
        and not window.requires_grad
    )


def used(call: Callable[[torch.Tensor], torch.Tensor], window: torch.Tensor) -> bool:
    """Whether a call takes a changed tensor; then with the values it has."""
    copy = window.detach().clone()
    try:
        found = call(window)
    except ValueError:
        return False
    assert_same_bits(found, call(copy))
    return True


def changed(rank: int, world: int, check: bool) -> None:
    guard = torch.full((SIDE + 1, SIDE), 7.0)
    with symmoe.init(config=symmoe.Config(check=check), device="cpu") as group:
        for name, change in CHANGES.items():
            for role in ("combine", "dispatch"):
                collective = group.reduce_scatter if role == "combine" else group.all_gather
                # Changed between acquire and the collective.
                window = acquired(group, role).fill_(1)
                change(window)
                used(collective, window)
                window = acquired(group, role)
                assert is_fresh(window), (name, role)
                window.copy_(noise(rank, (SIDE, SIDE), torch.float32))
                whole = [noise(r, (SIDE, SIDE), torch.float32) for r in range(world)]
                right = rank_sum(whole)[own_rows([SIDE // world] * world, rank)]
                right = right if role == "combine" else torch.cat(whole)
                assert_same_bits(collective(window), right)
                dist.barrier()  # some changes write, and that takes an acquire

                # Changed between the collective and acquire.
                change(window)
                window = acquired(group, role)
                if name in SILENT:
                    used(collective, window)
                    window = acquired(group, role)
                assert is_fresh(window), (name, role)
                window.copy_(noise(rank, (SIDE, SIDE), torch.float32))
                assert_same_bits(collective(window), right)

            # combine writes the window itself.
            dist.barrier()
            change(acquired(group, "combine"))
            out = guard[: SIDE // world]
            group.combine(torch.ones(SIDE, SIDE), out=out)
            assert bool((out == world).all()), name
            assert bool((guard[SIDE // world :] == 7).all())
            change(acquired(group, "combine"))
            if name in SILENT:
                group.combine(torch.ones(SIDE, SIDE))
                used(group.reduce_scatter, acquired(group, "combine"))
            assert is_fresh(acquired(group, "combine")), name


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("world", [1, 2])
def test_changed_views(ranks: Ranks, world: int, check: bool) -> None:
    ranks.run(world, changed, check)


def gradients(rank: int, world: int) -> None:
    """A gradient is refused where one is wanted, and the window is good again afterwards."""
    with symmoe.init(device="cpu") as group:
        window = acquired(group, "combine")
        window.copy_(torch.ones(SIDE, SIDE, requires_grad=True))
        with pytest.raises(ValueError, match="requires a gradient"):
            group.reduce_scatter(window)
        with torch.no_grad():
            assert bool((group.reduce_scatter(window) == world).all())
        window = acquired(group, "combine").fill_(2)
        assert bool((group.reduce_scatter(window) == 2 * world).all())


def test_gradients(ranks: Ranks) -> None:
    ranks.run(2, gradients)


def same_tensor(rank: int, world: int, check: bool) -> None:
    with symmoe.init(config=symmoe.Config(check=check), device="cpu") as group:
        first = group.acquire("combine", (4, 8), torch.float32)
        shapes: list[Iterable[int]] = [(4, 8), [4, 8], torch.Size([4, 8]), torch.tensor([4, 8])]
        for shape in shapes:
            assert group.acquire("combine", shape, torch.float32) is first  # type: ignore[arg-type]
        empty = group.acquire("combine", (0, 8), torch.float32)
        assert group.acquire("combine", [0, 8], torch.float32) is empty
        with pytest.raises(TypeError, match="shape must be"):
            group.acquire("combine", 4, torch.float32)  # type: ignore[arg-type]


@pytest.mark.parametrize("check", [False, True])
def test_a_list_is_a_shape(ranks: Ranks, check: bool) -> None:
    ranks.run(1, same_tensor, check)


def one_shot_sizes(rank: int, world: int) -> None:
    """Sizes that can be read only once count once, and are nobody else's sizes afterwards."""
    with symmoe.init(device="cpu") as group:
        for counts in ([1, 3], [3, 1], [0, 4]):
            for _ in range(2):
                window = group.acquire("combine", (4, SIDE), torch.float32)
                assert window is not None
                window.fill_(1)
                found = group.reduce_scatter(window, sizes=iter(counts))
                assert found.shape == (counts[rank], SIDE)
                assert bool((found == world).all())
            window = group.acquire("dispatch", (counts[rank], SIDE), torch.float32)
            assert window is not None
            found = group.all_gather(window.fill_(1), sizes=(it for it in counts))
            assert found.shape == (4, SIDE)
        window = group.acquire("combine", (4, SIDE), torch.float32)
        assert window is not None
        window.fill_(1)
        with pytest.raises(ValueError, match="0 sizes"):
            group.reduce_scatter(window, sizes=[])
        with pytest.raises(ValueError, match="0 sizes"):
            group.reduce_scatter(window, sizes=())
        with pytest.raises(TypeError, match=r"reduce_scatter on rank .*sizes\[0\] must be an int"):
            group.reduce_scatter(window, sizes=[[1], [3]])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="padded_to must be an integer"):
            group.reduce_scatter(window, sizes=[1, 1], padded_to=[2])  # type: ignore[arg-type]
        assert bool((group.reduce_scatter(window, sizes=(2, 2)) == world).all())


def test_sizes_are_read_once(ranks: Ranks) -> None:
    ranks.run(2, one_shot_sizes)


def wrong_out(rank: int, world: int) -> None:
    """The short cut and the long way refuse the same outputs in the same words."""
    with symmoe.init(device="cpu") as group:
        for role in ("combine", "dispatch"):
            collective = group.reduce_scatter if role == "combine" else group.all_gather
            window = acquired(group, role).fill_(1)
            for source in (window, window.clone()):
                for wrong in ([window], "text", window.numpy()):
                    with pytest.raises(TypeError, match="out must be a tensor, got"):
                        collective(source, out=wrong)  # type: ignore[arg-type]
            collective(window)


def test_wrong_outputs(ranks: Ranks) -> None:
    ranks.run(2, wrong_out)
