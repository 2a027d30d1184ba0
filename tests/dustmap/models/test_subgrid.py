"""The local statistics of what a grid leaves of a field, against dense covariances."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from reference import PROFILES

from dustmap.covariance import functional_covariance
from dustmap.functionals import PointValues
from dustmap.grid import Grid
from dustmap.kernels import KERNELS
from dustmap.models.subgrid import local_residual
from dustmap.whitening.bands import band_covariance

SPACING = (0.5, 0.4, 0.6)
VARIANCE = 1.7


def kernel_of(dimension, ratio=2.0, *, name="matern32"):
    """A kernel whose lengthscale is so many steps of the grid along every axis."""
    scales = [ratio * h for h in SPACING[:dimension]]
    return KERNELS[name](lengthscale=scales, variance=VARIANCE)


def measured(dimension, ratio=2.0, *, name="matern32"):
    return local_residual(kernel_of(dimension, ratio, name=name), SPACING[:dimension])


def exact_phase_variance(kernel, spacing, phase):
    """``Var[f(x) − Σ w f(corner)]`` of the multilinear interpolant at one phase."""
    steps = torch.tensor(spacing, dtype=torch.float64)
    place = torch.tensor(phase, dtype=torch.float64)
    places, shares = [place * steps], [1.0]
    for corner in itertools.product((0, 1), repeat=len(phase)):
        up = torch.tensor(corner, dtype=torch.float64)
        places.append(up * steps)
        shares.append(-float(torch.where(up > 0, place, 1 - place).prod()))
    points, weights = PointValues(torch.stack(places)), torch.tensor(shares).double()
    return float(weights @ functional_covariance(kernel, points, points) @ weights)


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("name", ["matern32", "matern52"])
def test_at_every_phase_the_variance_is_that_of_the_kernel(dimension, name):
    kernel = kernel_of(dimension, name=name)
    phases = measured(dimension, name=name).phases
    assert tuple(phases.shape) == (4,) * dimension
    worst = float(phases.max())
    assert float(phases[(0,) * dimension]) < 1e-12 * worst
    for index in itertools.product(range(4), repeat=dimension):
        exact = exact_phase_variance(
            kernel, SPACING[:dimension], [i / 4 for i in index]
        )
        # Four draws of 3375 cells or more, of which neighbours are alike: 2%.
        found = float(phases[index])
        assert found == pytest.approx(exact, rel=0.08, abs=1e-12 * worst)


def test_at_other_phases_it_is_interpolated_round_the_cell():
    local = measured(2)
    grid = Grid(shape=(5, 6), spacing=SPACING[:2], origin=(-1.0, -0.3))
    steps, origin = torch.tensor(SPACING[:2]), torch.tensor(grid.origin)

    def at(*cells):
        points = origin.double() + torch.tensor([cells]).double() * steps.double()
        return float(local.at(points, grid))

    c = local.phases
    # Places in cells: on a phase, half way between two, and back round to the first.
    assert at(1.5, 2.25) == pytest.approx(float(c[2, 1]), rel=1e-6)
    assert at(0.375, 3.5) == pytest.approx(float(c[1, 2] + c[2, 2]) / 2, rel=1e-6)
    between = float(c[3, 3] + c[0, 3] + c[3, 0] + c[0, 0]) / 4
    assert at(2.875, 4.875) == pytest.approx(between, rel=1e-6)


def isotropic_directions(dimension, count):
    """Directions spread evenly over half a circle or half a sphere."""
    if dimension == 1:
        return np.ones((1, 1))
    if dimension == 2:
        angle = math.pi * (np.arange(count) + 0.5) / count
        return np.stack([np.cos(angle), np.sin(angle)], axis=1)
    height = (np.arange(count) + 0.5) / count
    angle = math.pi * (3 - math.sqrt(5)) * np.arange(count)
    flat = np.sqrt(1 - height**2)
    return np.stack([flat * np.cos(angle), flat * np.sin(angle), height], axis=1)


def line_residual_variance(name, ratio, spacing, start, direction, length):
    """Variance of a line integral minus that of the interpolant, all dense."""
    steps = np.array(spacing)
    nodes = int(6 * length / steps.min())
    along = (np.arange(nodes) + 0.5) / nodes * length
    points = start + along[:, None] * direction
    cells = points / steps
    low = np.floor(cells)
    share = cells - low
    places = [points]
    weights = [np.full(nodes, length / nodes)]
    for up in itertools.product((0, 1), repeat=len(steps)):
        places.append((low + up) * steps)
        weights.append(-weights[0] * np.prod(np.where(up, share, 1 - share), axis=1))
    every, which = np.unique(
        np.round(np.concatenate(places), 9), axis=0, return_inverse=True
    )
    w = np.bincount(which.reshape(-1), np.concatenate(weights))
    x = every / (ratio * steps)
    squares = (x**2).sum(axis=1)
    r = np.sqrt(np.maximum(squares[:, None] + squares - 2 * x @ x.T, 0))
    return VARIANCE * float(w @ PROFILES[name][0](r) @ w)


@pytest.mark.parametrize(
    ("dimension", "count", "length"), [(1, 1, 60.0), (2, 24, 16.0), (3, 48, 6.0)]
)
def test_long_line_integrals_collect_it_by_their_length(dimension, count, length):
    # What rays twice as long add to the variance, so that their ends do not count.
    spacing = SPACING[:dimension]
    generator = np.random.default_rng(5)
    increases = []
    for direction in isotropic_directions(dimension, count):
        start = generator.random(dimension) * np.array(spacing)
        near, far = (
            line_residual_variance("matern32", 2.0, spacing, start, direction, d)
            for d in (length, 2 * length)
        )
        increases.append((far - near) / length)
    found = measured(dimension).line
    assert found == pytest.approx(np.mean(increases), rel=0.06)


def test_what_lies_below_a_cut_is_added():
    """Linear interpolation loses little of a field without short scales."""
    kernel, spacing = KERNELS["matern12"](lengthscale=100.0, variance=1.2), (25.0,) * 3
    found = local_residual(kernel, spacing, cut=0.6)
    time = (0.6 * 25 / 100) ** 2
    s = torch.linspace(0, 400, 400_001, dtype=torch.float64)
    below = band_covariance(kernel, 0.0, time, s / 100)
    line = 2 * float(torch.trapezoid(below.expm1(), s))
    assert line < found.line < 1.1 * line
    assert float(found.phases.min()) == pytest.approx(float(below[0]), rel=1e-6)
    assert float(found.phases.max()) < 1.2 * float(below[0])


@pytest.mark.parametrize(
    ("dimension", "count"), [(2, 8), pytest.param(3, 7, marks=pytest.mark.slow)]
)
def test_it_is_a_smooth_function_of_the_lengthscale(dimension, count):
    # By 10% a step: no jump where a torus grows.
    ratios = 2.1 * 1.1 ** np.arange(count)
    found = [measured(dimension, ratio) for ratio in ratios]
    for value in (
        np.array([local.line for local in found]),
        np.array([float(local.phases.mean()) for local in found]),
    ):
        exponent = np.diff(np.log(value)) / math.log(1.1)
        assert (exponent < -1).all()
        assert np.abs(np.diff(exponent)).max() < 0.15
