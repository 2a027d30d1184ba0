"""W shared out by rows against W in one piece."""

from __future__ import annotations

import itertools

import pytest
import torch
from linear_operators import check_linear_operator
from ranks import on_ranks

from dustmap.distributed.group import Group
from dustmap.distributed.rows import ShardedRows, row_cuts
from dustmap.functionals import (
    Derivatives,
    DistanceMarginalizedIntegrals,
    FixedStep,
    Functionals,
    GaussLegendre,
    LineIntegrals,
    Stack,
)
from dustmap.grid import Grid, Torus
from dustmap.projection import matrix, projection
from dustmap.tori import Tori

BOX = Grid(shape=(7, 6), spacing=(0.5, 0.6), origin=(-1.5, -1.5))
TORUS = Torus(grid=BOX, shape=(10, 8))
INNER = Grid(shape=(5, 5), spacing=(0.25, 0.3), origin=(-0.5, -0.3))
LEVELS = Tori(tori=(TORUS, Torus(grid=INNER, shape=(6, 6))))


def _functionals(count: int) -> Functionals:
    """Rays of very different lengths, blurred ones and slopes."""
    generator = torch.Generator().manual_seed(3)
    unit = torch.rand(3, count, 2, generator=generator, dtype=torch.float64)
    ends = (unit - 0.5) * 2.6 * torch.linspace(0.05, 1, count)[:, None]
    spread = 0.1 * unit[0, :, 0]
    reach = 1.05 * torch.linalg.vector_norm(ends[1], dim=1)
    return Stack(
        [
            LineIntegrals(ends[0], FixedStep(step=0.1)),
            DistanceMarginalizedIntegrals(ends[1], spread, reach, FixedStep(step=0.1)),
            Derivatives(ends[2], 1),
        ]
    )


def _products(group: Group, count: int, nested: bool) -> dict[str, object]:
    functionals = _functionals(count)
    grids = LEVELS if nested else TORUS
    whole = projection(grids, functionals)
    shared = projection(grids, functionals, group=group)
    assert isinstance(shared, ShardedRows)
    generator = torch.Generator().manual_seed(5)
    check_linear_operator(shared, generator=generator)
    draw = {"generator": generator, "dtype": torch.float64}
    x, y = torch.randn(2, grids.size, **draw), torch.randn(3, len(functionals), **draw)
    w = torch.rand(len(functionals), **draw)
    pairs = [
        (shared.matvec(x), whole.matvec(x)),
        (shared.rmatvec(y), whole.rmatvec(y)),
        (shared.gram(x, w), whole.gram(x, w)),
    ]
    return {
        "errors": [float((a - b).abs().max()) for a, b in pairs],
        "products": [a for a, _ in pairs],
        "nonzeros": shared.nonzeros,
        "whole": whole.nonzeros,
        "own": shared.own.nonzeros,
        "bytes": shared.bytes / whole.bytes,
    }


def _cases(group: Group) -> list[dict[str, object]]:
    return [_products(group, *case) for case in ((40, False), (1, False), (40, True))]


@pytest.mark.parametrize("size", [2, 4])
def test_products_are_those_of_the_whole_matrix(size: int) -> None:
    # Of many rows, of fewer than ranks, and of rows on nested grids.
    for case, found in enumerate(zip(*on_ranks(_cases, size), strict=True)):
        for one in found:
            assert max(one["errors"]) < 1e-12
            assert one["nonzeros"] == one["whole"] == sum(f["own"] for f in found)
            for mine, first in zip(one["products"], found[0]["products"], strict=True):
                assert torch.equal(mine, first)
        if case == 0 or (case == 2 and size == 2):
            # Nodes are shared evenly; of how many entries they make, some add up.
            assert max(one["bytes"] for one in found) < 1.6 / size


def _forms(group: Group) -> list[list[object]]:
    return [_form(group, many) for many in (0, 10**9)]


def _form(group: Group, many: int) -> list[object]:
    """Return whether W is a tree, and its products."""
    matrix._MANY = many if group.first else 0
    matrix.FEWER = 1e-9
    grid = Grid(shape=(9, 9, 7), spacing=(20.0,) * 3, origin=(-80.0, -80.0, -60.0))
    torus = Torus(grid=grid, shape=(12, 12, 10))
    unit = torch.rand(200, 3, generator=torch.Generator().manual_seed(3)).double()
    rays = LineIntegrals((2 * unit - 1) * 59, FixedStep(step=5.0))
    x = torch.randn(torus.size, generator=torch.Generator().manual_seed(4)).double()
    shared = projection(torus, rays, group=group)
    return [shared.excess > 1, shared.matvec(x), shared.nonnegative(x**2)]


def test_all_ranks_take_the_tree_or_none_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_MANY", "FEWER"):
        monkeypatch.setattr(matrix, name, getattr(matrix, name))
    alone = _forms(Group())
    for found in on_ranks(_forms, 2):
        for one, other, tree in zip(found, alone, (True, False), strict=True):
            assert one[0] == other[0] == tree
            for mine, whole in zip(one[1:], other[1:], strict=True):
                torch.testing.assert_close(mine, whole)


def test_shares_have_as_many_nodes() -> None:
    lengths = torch.linspace(0.1, 10, 20_000, dtype=torch.float64)
    rays = LineIntegrals(lengths[:, None], FixedStep(step=0.2))
    cuts = row_cuts(rays, 7)
    nodes = torch.ceil(lengths / 0.2) + 1
    shares = [float(nodes[a:b].sum()) for a, b in itertools.pairwise(cuts)]
    assert cuts[0] == 0 and cuts[-1] == 20_000
    assert max(shares) < 1.02 * float(nodes.sum()) / 7
    # Where rows are alike, as many rows.
    even = LineIntegrals(lengths[:, None], GaussLegendre(count=3))
    assert row_cuts(even, 4) == pytest.approx([0, 5_000, 10_000, 15_000, 20_000], abs=5)


def test_fewer_rows_than_ranks_leave_some_without() -> None:
    one = LineIntegrals(torch.ones(1, 2), FixedStep(step=0.2))
    cuts = row_cuts(one, 3)
    assert len(cuts) == 4 and cuts[0] == 0 and cuts[-1] == 1
    assert all(a <= b for a, b in itertools.pairwise(cuts))
    assert row_cuts(one.select(torch.arange(0)), 3) == [0, 0, 0, 0]
