"""W: exact on polynomials, true to closed forms, and placed to the cell."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dustmap.covariance import inducing_covariance
from dustmap.functionals import (
    Derivatives,
    GaussLegendre,
    LineIntegrals,
    PointValues,
    Stack,
)
from dustmap.grid import Grid, Torus
from dustmap.kernels import Matern32, Matern52, SquaredExponential
from dustmap.projection import projection

SPACING = (1.0, 0.5, 2.0)
SHAPE = (7, 9, 5)


def box(dimension):
    grid = Grid(
        shape=SHAPE[:dimension],
        spacing=SPACING[:dimension],
        origin=(-3.0, -2.0, -4.0)[:dimension],
    )
    # Twice the box, so that the neighbours beyond its faces are not wrapped ones.
    return Torus(grid=grid, shape=tuple(2 * n + 1 for n in grid.shape))


def field_on(torus, refinement, function):
    """A function's values on the torus, continued beyond both faces of the box."""
    origin = torch.tensor(torus.grid.origin, dtype=torch.float64)
    steps = tuple(h / refinement for h in torus.grid.spacing)
    shape = tuple(n * refinement for n in torus.shape)
    fine = Torus(grid=replace(torus.grid, spacing=steps), shape=shape)
    points = fine.lags() + origin
    return function(points.reshape(-1, points.shape[-1]))


def draw_inside(grid, count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    unit = torch.rand(count, grid.dimension, generator=generator, dtype=torch.float64)
    lower, upper = torch.tensor(grid.lower), torch.tensor(grid.upper)
    points = lower + unit * (upper - lower).double()
    # The corners, and the first and last face of every axis, are inside too.
    points[0], points[1] = lower, upper
    points[2, 0], points[3, -1] = lower[0], upper[-1]
    return points


def polynomial(degree, dimension):
    """A product of polynomials of this degree in every axis, and its gradient."""
    c = torch.tensor([[0.7, -0.4, 0.2], [1.1, 0.3, -0.25], [0.9, -0.2, 0.15]]).double()
    c[:, degree + 1 :] = 0.0

    def factors(x):
        return c[:dimension, 0] + c[:dimension, 1] * x + c[:dimension, 2] * x**2

    def value(x):
        return factors(x).prod(dim=-1)

    def slope(x, axis):
        parts = factors(x)
        parts[:, axis] = c[axis, 1] + 2 * c[axis, 2] * x[:, axis]
        return parts.prod(dim=-1)

    return value, slope


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("refinement", [1, 2, 3])
@pytest.mark.parametrize(("interpolation", "degree"), [("linear", 1), ("cubic", 2)])
def test_polynomials_are_seen_exactly_to_the_faces_of_the_box(
    dimension, refinement, interpolation, degree
):
    torus = box(dimension)
    value, slope = polynomial(degree, dimension)
    points = draw_inside(torus.grid, 60)
    axes = torch.arange(60) % dimension
    seen = Stack([PointValues(points), Derivatives(points, axes)])
    W = projection(torus, seen, refinement=refinement, interpolation=interpolation)
    found = W.matvec(field_on(torus, refinement, value))
    slopes = torch.stack([slope(points, a) for a in range(dimension)])
    expected = torch.cat([value(points), slopes[axes, torch.arange(60)]])
    assert torch.allclose(found, expected, atol=1e-11)


def test_a_torus_without_padding_takes_the_points_on_its_last_face():
    grid = Grid(shape=(5, 4), spacing=(0.1, 0.3), origin=(0.2, -0.7))
    torus = Torus(grid=grid, shape=grid.shape)
    W = projection(torus, PointValues(grid.points()), interpolation="linear")
    assert torch.allclose(W.to_dense(), torch.eye(20).double(), atol=1e-12)
    W = projection(torus, PointValues(grid.points()), interpolation="cubic")
    assert torch.allclose(W.to_dense(), torch.eye(20).double(), atol=1e-12)


def test_nothing_observed_gives_a_matrix_without_rows():
    W = projection(box(2), PointValues(torch.zeros(0, 2)), refinement=2)
    assert W.shape == (0, 4 * box(2).size)


CENTRE = torch.tensor([60.0, -35.0, 20.0], dtype=torch.float64)


def dust_box(spacing=5.0):
    shape = (81, 65, 41)
    origin = tuple(-(n - 1) / 2 * spacing for n in shape)
    grid = Grid(shape=shape, spacing=(spacing,) * 3, origin=origin)
    return Torus(grid=grid, shape=shape)


def cloud(x, width=25.0):
    return torch.exp(-0.5 * ((x - CENTRE) ** 2).sum(dim=-1) / width**2)


def cloud_extinction(end, width=25.0):
    length = torch.linalg.vector_norm(end, dim=1)
    along = end @ CENTRE / length
    across = CENTRE @ CENTRE - along**2
    root = math.sqrt(2) * width
    total = torch.erf((length - along) / root) + torch.erf(along / root)
    height = torch.exp(-0.5 * across / width**2)
    return height * width * math.sqrt(math.pi / 2) * total


def dust_ends(count=150):
    generator = torch.Generator().manual_seed(7)
    unit = torch.rand(count, 3, generator=generator, dtype=torch.float64) * 2 - 1
    unit[: count // 2] = unit[: count // 2] * 0.3 + CENTRE / torch.tensor(
        [200.0, 160.0, 100.0]
    )
    return unit.clamp(-1, 1) * torch.tensor([200.0, 160.0, 100.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("interpolation", "allowed"), [("linear", 1.5e-2), ("cubic", 5e-4)]
)
def test_a_cloud_dims_the_stars_behind_it_and_half_a_cell_matters(
    interpolation, allowed
):
    torus, end = dust_box(), dust_ends()
    rays = LineIntegrals(end, GaussLegendre(count=40))
    W = projection(torus, rays, interpolation=interpolation)
    points, exact = torus.grid.points(), cloud_extinction(end)
    size = float(exact.max())

    def error(shift):
        moved = points + torch.tensor(shift, dtype=torch.float64)
        return float((W.matvec(cloud(moved)) - exact).abs().max()) / size

    assert error((0.0, 0.0, 0.0)) < allowed
    for axis in np.eye(3):
        for side in (-2.5, 2.5):
            assert error(side * axis) > 2.5 * allowed


@pytest.mark.parametrize("kind", [Matern32, Matern52, SquaredExponential])
def test_interpolation_errs_as_measured_at_three_cells_a_lengthscale(kind):
    # Linear 3%, cubic 0.25% of k_un at ℓ/h = 3.1; the kernel sets the factor.
    grid = Grid(shape=(25, 25), spacing=(1.0, 1.0), origin=(-12.0, -12.0))
    torus, kernel = Torus(grid=grid, shape=(50, 50)), kind(lengthscale=3.1)
    points = PointValues(draw_inside(grid, 200))
    exact = inducing_covariance(kernel, points, grid.points())
    lags = torus.lags().reshape(-1, 2) + torch.tensor(grid.origin).double()
    K = kernel(lags[:, None] - grid.points()[None])

    def error(interpolation):
        W = projection(torus, points, interpolation=interpolation)
        found = W.matvec(K.mT.contiguous()).mT
        return float(((found - exact).abs().amax(1) / exact.amax(1)).max())

    assert 0.015 < error("linear") < 0.06
    assert 0.001 < error("cubic") < 0.008
