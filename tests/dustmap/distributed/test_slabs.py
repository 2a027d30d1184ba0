"""Transforms, sums and noise of grids in slabs, against one process."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from ranks import on_ranks

from dustmap.distributed.group import Group
from dustmap.distributed.rows import even_cuts
from dustmap.distributed.slab_fft import SlabCirculant, SlabFFT
from dustmap.distributed.slab_state import cut, gathered
from dustmap.distributed.slabs import Slabs, SlabSpace
from dustmap.linalg.circulant import Circulant
from dustmap.linalg.preconditioners import NystromPreconditioner

# Odd and even sizes, fewer columns than ranks, one axis to three.
SHAPES = [(9,), (8,), (7, 2), (6, 5), (9, 4), (5, 3, 4), (8, 4, 5), (4, 1, 1)]
UNEVEN = {1: lambda n: (0, n), 2: lambda n: (0, 1, n), 4: lambda n: (0, 1, 2, 3, n)}


def _random(*shape: int, seed: int = 0, dtype=torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype)


def _transforms(group: Group, dtype: torch.dtype) -> list[float]:
    """Errors of every shape, relative to the largest number."""
    errors = []
    for shape, batch in itertools.product(SHAPES, [(), (2, 3)]):
        slabs = Slabs(shape=shape, cuts=UNEVEN[group.size](shape[0]), group=group)
        fft = SlabFFT(slabs)
        x = _random(*batch, math.prod(shape), dtype=dtype)
        dims = tuple(range(-len(shape), 0))
        grid = x.reshape(*batch, *shape)
        whole = torch.fft.rfftn(grid, dim=dims)
        if len(shape) == 1:
            whole = torch.fft.fft(grid)
        whole = whole.reshape(*batch, shape[0], -1)
        modes = fft.forward(slabs.own(x))
        expected = whole[..., fft.columns]
        assert modes.dtype == whole.dtype and modes.shape == expected.shape
        size = float(whole.abs().max())
        if modes.numel():
            errors.append(float((modes - expected).abs().max()) / size)
        back = fft.inverse(modes)
        assert back.dtype == dtype
        errors.append(float((slabs.whole(back) - x).abs().max()))
    return errors


@pytest.mark.parametrize("size", [1, 2, 4])
def test_transforms_are_those_of_one_process(size: int) -> None:
    run = (lambda *a: [a[0](Group(), *a[2:])]) if size == 1 else on_ranks
    for dtype, limit in ((torch.float64, 2e-15), (torch.float32, 1e-6)):
        for errors in run(_transforms, size, dtype):
            assert max(errors) < limit


def _circulants(group: Group) -> dict[str, object]:
    errors, dropped = [], []
    for shape in SHAPES:
        lags = [torch.arange(n, dtype=torch.float64) for n in shape]
        lags = [torch.minimum(i, n - i) for i, n in zip(lags, shape, strict=True)]
        distance = torch.stack(torch.meshgrid(*lags, indexing="ij")).norm(dim=0)
        # Long correlations: modes are dropped.
        column = torch.exp(-(distance**2) / 8)
        one = Circulant.from_first_column(column)
        slabs = Slabs(shape=shape, cuts=UNEVEN[group.size](shape[0]), group=group)
        fft = SlabFFT(slabs)
        parted = SlabCirculant.from_slab(slabs.own(column.reshape(-1)), fft)
        x = _random(3, math.prod(shape))
        before = group.traffic.bytes.get("all-to-all", 0)
        product = parted.matvec(slabs.own(x))
        sent = group.traffic.bytes["all-to-all"] - before
        if len(shape) > 1:
            modes = slabs.counts[group.rank] * fft.cuts[-1]
            held = shape[0] * (fft.columns.stop - fft.columns.start)
            assert sent == 3 * 16 * (modes + held)
        pairs = [
            (slabs.whole(product), one.matvec(x)),
            (
                slabs.whole(parted.power(0.5).matvec(slabs.own(x))),
                one.power(0.5).matvec(x),
            ),
        ]
        errors += [float((a - b).abs().max() / b.abs().max()) for a, b in pairs]
        dropped.append((parted.dropped_modes(), one.dropped_modes()))
    return {"errors": errors, "dropped": dropped}


@pytest.mark.parametrize("size", [2, 4])
def test_circulants_are_those_of_one_process(size: int) -> None:
    for found in on_ranks(_circulants, size):
        assert max(found["errors"]) < 1e-13
        assert all(parted == one for parted, one in found["dropped"])


def _spaces(group: Group) -> dict[str, object]:
    shape = (9, 3, 2)
    slabs = Slabs.even(shape, group)
    space = SlabSpace(slabs)
    x, y = _random(2, 54), _random(2, 54, seed=1)
    generator = torch.Generator().manual_seed(7)
    noise = space.normal(3, slabs.size, generator)
    again = space.normal(3, slabs.size, generator)
    rows = space.orthonormal(slabs.own(_random(20, 54)))
    H = _random(54, 54, seed=2)
    H = H @ H.mT

    def product(v: torch.Tensor) -> torch.Tensor:
        return slabs.own(slabs.whole(v) @ H)

    sketch = NystromPreconditioner.build(
        product,
        slabs.size,
        54,
        generator,
        dtype=torch.float64,
        space=space,
    )
    one = torch.zeros(slabs.size, dtype=torch.float64)
    one[-1] = float(group.rank == group.size - 1)
    return {
        "inner": space.inner(slabs.own(x), slabs.own(y)),
        "expected": (x * y).sum(dim=-1),
        "any": (space.any(one), space.any(0 * one)),
        "length": space.length(slabs.size),
        "noise": slabs.whole(noise),
        "again": slabs.whole(again),
        "rows": slabs.whole(rows),
        "solved": slabs.whole(sketch(slabs.own(x))),
        # Of full rank it is the inverse, up to λ_r + 1.
        "inverse": torch.linalg.solve(H + torch.eye(54), x.mT).mT,
        "smallest": float(sketch.eigenvalues[-1]) + 1,
        "state": generator.get_state(),
    }


def test_sums_and_noise_do_not_depend_on_the_number_of_ranks() -> None:
    alone = _spaces(Group())
    noise = alone["noise"]
    assert noise.shape == (3, 54) and not torch.equal(noise, alone["again"])
    planes = noise.reshape(27, 6)
    assert len({tuple(plane.tolist()) for plane in planes}) == 27
    for size in (2, 4):
        for found in on_ranks(_spaces, size):
            assert torch.allclose(found["inner"], found["expected"], rtol=1e-13)
            assert found["any"] == (True, False) and found["length"] == 54
            assert torch.equal(found["noise"], noise)
            assert torch.equal(found["again"], alone["again"])
            assert torch.equal(found["state"], alone["state"])
            gram = found["rows"] @ found["rows"].mT
            assert torch.allclose(gram, torch.eye(20).double(), atol=1e-14)
            solved = found["smallest"] * found["inverse"]
            assert torch.allclose(found["solved"], solved, rtol=1e-6, atol=1e-8)


def test_noise_in_planes_is_white() -> None:
    slabs = Slabs.even((50, 40, 10), Group())
    noise = SlabSpace(slabs).normal(4, 20_000, torch.Generator().manual_seed(1))
    assert abs(float(noise.mean())) < 4 / math.sqrt(80_000)
    assert abs(float(noise.var()) - 1) < 4 * math.sqrt(2 / 80_000)
    planes = noise.reshape(200, 400)
    between = planes @ planes.mT / 400
    between.fill_diagonal_(0.0)
    assert float(between.abs().max()) < 6 / math.sqrt(400)
    assert abs(float((between**2).sum()) / (200 * 199) - 1 / 400) < 1e-4


def test_too_few_planes_are_refused() -> None:
    with pytest.raises(ValueError, match="planes"):
        Slabs(shape=(3, 2), cuts=tuple(even_cuts(2, 1)), group=Group())
    slabs = Slabs.even((4, 2), Group())
    with pytest.raises(ValueError, match="slab"):
        SlabSpace(slabs).normal(1, 7, torch.Generator())


def _saved(group: Group) -> dict[str, object]:
    slabs = Slabs.even((9, 2, 3), group)
    own = slabs.own(_random(2, 54))
    state = {"eps": own[0], "cg/x": own, "none": own[:0], "n": torch.ones(5), "k": 3}
    return gathered(state, slabs)


def _taken_up(group: Group, saved: dict[str, object]) -> dict[str, object]:
    slabs = Slabs.even((9, 2, 3), group)
    state = cut(saved, slabs)
    # No memory beside the part.
    assert state["eps"].untyped_storage().nbytes() == 8 * slabs.size
    return {
        "eps": slabs.whole(state["eps"]),
        "cg/x": slabs.whole(state["cg/x"]),
        "none": state["none"].shape[0],
        "same": torch.equal(state["n"], torch.ones(5)) and state["k"] == 3,
    }


def test_what_four_ranks_saved_is_taken_up_by_two() -> None:
    first, *others = on_ranks(_saved, 4)
    assert first["slabs:cg/x"].shape == (2, 54) and first["slabs:none"].shape == (0, 54)
    assert all(other["slabs:cg/x"].numel() == 0 for other in others)
    for found in on_ranks(_taken_up, 2, first):
        assert torch.equal(found["eps"], _random(2, 54)[0])
        assert torch.equal(found["cg/x"], _random(2, 54))
        assert found["same"] and found["none"] == 0
    with pytest.raises(ValueError, match="grid"):
        cut(first, Slabs.even((4, 2), Group()))
