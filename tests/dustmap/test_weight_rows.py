"""W against a slow double loop."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from linear_operators import check_linear_operator

import dustmap.projection.weight_rows as subject
from dustmap.functionals import (
    Derivatives,
    FixedStep,
    GaussLegendre,
    LineIntegrals,
    PointValues,
    Stack,
)
from dustmap.grid import Grid, Torus
from dustmap.projection import projection
from dustmap.projection.corner_weights import Lattice
from dustmap.projection.node_values import NodeValues
from dustmap.tori import Tori

CALM = GaussLegendre(count=4)


def torus_of(dimension):
    # Not padded along the first axis: the last face's neighbours are the first's.
    grid = Grid(
        shape=(5, 6, 4)[:dimension],
        spacing=(1.0, 0.5, 2.0)[:dimension],
        origin=(-2.0, -1.2, -3.0)[:dimension],
    )
    return Torus(grid=grid, shape=(5, 8, 7)[:dimension])


def ends(torus, count, generator):
    unit = torch.rand(
        count, torus.grid.dimension, generator=generator, dtype=torch.float64
    )
    lower, upper = torch.tensor(torus.grid.lower), torch.tensor(torus.grid.upper)
    found = lower + unit * (upper - lower).double()
    # A ray without length, and a corner of the box.
    found[0], found[1] = 0.0, lower
    return found


def corner(t, interpolation, slope):
    """Offsets with weights by the definition of the convolution kernels."""

    def hat(s):
        return (-np.sign(s) if slope else 1 - abs(s)) if abs(s) < 1 else 0.0

    def keys(s):
        a, sign, s = -0.5, np.sign(s), abs(s)
        if s < 1:
            value = (a + 2) * s**3 - (a + 3) * s**2 + 1
            steep = 3 * (a + 2) * s**2 - 2 * (a + 3) * s
        elif s < 2:
            value = a * s**3 - 5 * a * s**2 + 8 * a * s - 4 * a
            steep = 3 * a * s**2 - 10 * a * s + 8 * a
        else:
            return 0.0
        return sign * steep if slope else value

    kernel = hat if interpolation == "linear" else keys
    return [(o, kernel(t - o)) for o in range(-1, 3)]


def slowly(torus, functionals, refinement, interpolation):
    """W entry by entry."""
    shape = [n * refinement for n in torus.shape]
    nodes = functionals.nodes()
    W = np.zeros((nodes.count, math.prod(shape)))
    for j, row in enumerate(nodes.rows.tolist()):
        axes, along = [], -1 if nodes.axes is None else int(nodes.axes[j])
        for d, n in enumerate(shape):
            step = torus.grid.spacing[d] / refinement
            place = (float(nodes.points[j, d]) - torus.grid.origin[d]) / step
            base = math.floor(place)
            scale = 1 / step if d == along else 1.0
            corners = corner(place - base, interpolation, d == along)
            axes.append([((base + o) % n, scale * w) for o, w in corners])
        for choice in itertools.product(*axes):
            column = np.ravel_multi_index([c[0] for c in choice], shape)
            weight = math.prod(c[1] for c in choice)
            W[row, column] += float(nodes.weights[j]) * weight
    return torch.from_numpy(W)


def kinds(torus, generator):
    end = ends(torus, 15, generator)
    rays = LineIntegrals(end, FixedStep(step=0.23), start=end.flip(0) * 0.5)
    slopes = Derivatives(end * 0.99 + 0.003, torch.arange(15) % torus.grid.dimension)
    quadrature = LineIntegrals(end, GaussLegendre(count=7))
    mixed = Stack([rays, slopes, quadrature])
    return {"rays": rays, "mixed": mixed}


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("interpolation", ["linear", "cubic"])
@pytest.mark.parametrize("kind", ["rays", "mixed"])
def test_rows_are_the_double_loop(dimension, interpolation, kind, generator):
    torus = torus_of(dimension)
    seen = kinds(torus, generator)[kind]
    for refinement in (1, 3):
        options = {"refinement": refinement, "interpolation": interpolation}
        expected = slowly(torus, seen, **options)
        W = projection(torus, seen, **options)
        assert torch.allclose(W.to_dense(), expected, atol=1e-12)


def test_rows_of_many_threads_and_blocks_come_in_order(generator, monkeypatch):
    monkeypatch.setattr(subject, "rows_within", lambda *_: 125)
    torus = torus_of(3)
    rays = LineIntegrals(ends(torus, 2000, generator), FixedStep(step=0.3))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        W = projection(torus, rays)
    finally:
        torch.set_num_threads(before)
    one = torch.ones(torus.size, dtype=torch.float64)
    # Weights of a ray add up to its length, whatever the interpolation.
    assert torch.allclose(W.matvec(one), rays.lengths, rtol=1e-12)
    # The columns beyond the box have no entries.
    assert W.bytes == 12 * W.nonzeros + 8 * 2001 + 4 * torus.grid.size
    check_linear_operator(W, generator=generator)


def test_rays_that_leave_the_box_are_refused(generator):
    torus = torus_of(3)
    end = ends(torus, 300, generator)
    end[7, 0] = 2.01
    end[150, 2] = -3.01
    rays = LineIntegrals(end, FixedStep(step=0.01))
    with pytest.raises(ValueError, match="functionals have nodes outside the box"):
        projection(torus, rays)
    with pytest.raises(ValueError, match="3 dimensions, the grid in 2"):
        projection(torus_of(2), PointValues(end))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_at_nodes_are_those_of_rows(dtype, generator):
    outer = Grid(shape=(9, 7, 9), spacing=(2.0, 2.0, 1.0), origin=(-8.0, -6.0, -4.0))
    inner = Grid(shape=(9, 5, 7), spacing=(1.0, 1.0, 0.5), origin=(-4.0, -2.0, -1.0))
    # Without padding along one axis.
    tori = Tori(
        tori=(Torus(grid=outer, shape=(12, 7, 10)), Torus(grid=inner, shape=(9, 8, 9)))
    )
    inside = ends(tori[0], 200, generator)
    points = torch.cat([inside, tori.grids.box.points(), inner.points()])
    rows = projection(tori, PointValues(points), dtype=dtype).to_dense()
    lattice = Lattice.make(tori, 1, cubic=False)
    values = NodeValues(lattice, points.numpy(), dtype)
    torch.testing.assert_close(values.to_dense(), rows, rtol=1e-5, atol=1e-6)
    assert values.bytes == len(points) * (4 + 3 * dtype.itemsize) + 4 * (
        outer.size + inner.size
    )
    check_linear_operator(values, generator=generator)
