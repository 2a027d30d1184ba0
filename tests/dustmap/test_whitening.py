"""Both whitenings against dense covariances."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from linear_operators import check_linear_operator
from operators import FunctionOperator
from reference import Covariance, conditional_features

from dustmap.grid import Grid, Torus
from dustmap.kernels import KERNELS, Matern32, SquaredExponential
from dustmap.whitening import TorusWhitening, padded_torus
from dustmap.whitening.bands import band_covariance

SPACING = (1.0, 0.8, 1.25)
SCALES = (0.9, 1.0, 1.1)

# Kernel, torus and refinement: brute image sums allow no more than this.
CASES = [
    ("matern12", (12,), 2),
    ("matern32", (16,), 1),
    ("matern32", (9,), 3),
    ("matern52", (10,), 4),
    ("matern52", (6, 5), 2),
    ("matern32", (4, 5), 3),
    ("squared-exponential", (4, 3, 4), 1),
    ("squared-exponential", (3, 4, 3), 2),
    ("squared-exponential", (2, 3, 2), 3),
]


def torus_of(shape):
    d = len(shape)
    grid = Grid(shape=(2,) * d, spacing=SPACING[:d], origin=(0.3,) * d)
    return Torus(grid=grid, shape=shape)


def whitening(name, shape, refinement, **kwargs):
    kernel = KERNELS[name](lengthscale=SCALES[: len(shape)], variance=2.0)
    return TorusWhitening(kernel, torus_of(shape), refinement=refinement, **kwargs)


def oracle(name, torus):
    d, reach = len(torus.shape), {"matern12": 37, "matern32": 22, "matern52": 18}
    images = tuple(
        math.ceil(reach.get(name, 9) * scale / period + 0.5)
        for scale, period in zip(SCALES, torus.periods)
    )
    return Covariance(
        name=name,
        lengthscale=SCALES[:d],
        variance=2.0,
        periods=torus.periods,
        images=images,
    )


def torus_points(torus, refinement):
    fine = Grid(
        shape=tuple(n * refinement for n in torus.shape),
        spacing=tuple(h / refinement for h in torus.grid.spacing),
        origin=torus.grid.origin,
    )
    return fine.points().numpy()


def as_operator(w):
    return FunctionOperator(
        (math.prod(w.fine_shape), w.size), w.colour, w.colour_transpose, dtype=w.dtype
    )


@pytest.mark.parametrize(("name", "shape", "refinement"), CASES)
def test_colouring_is_the_dense_conditional_mean(name, shape, refinement, generator):
    w = whitening(name, shape, refinement)
    covariance = oracle(name, w.torus)
    coarse, fine = torus_points(w.torus, 1), torus_points(w.torus, refinement)
    K_uu = covariance.matrix(coarse, coarse)
    exact = conditional_features(covariance.matrix(fine, coarse), K_uu)
    operator = as_operator(w)
    white = w.modes.of(torch.eye(w.torus.size, dtype=torch.float64))
    np.testing.assert_allclose(w.colour(white).mT, exact, atol=1e-10)
    check_linear_operator(operator, generator=generator)


def test_prior_draws_have_the_periodic_covariance_and_white_epsilon(generator):
    w, count = whitening("matern52", (5, 4), 2), 6000
    field, eps = w.prior_draw(generator, count)
    covariance = w.fine.to_dense()
    (modes,) = w.modes.parts
    white = modes.flat(modes.inverse(w.modes.spectra(eps)[0] / modes.pairs.sqrt()))
    for draws, exact in (
        (field, covariance),
        (white, torch.eye(w.torus.size).double()),
    ):
        found = draws.mT @ draws / count
        spread = (
            (exact.diagonal()[:, None] * exact.diagonal() + exact**2) / count
        ).sqrt()
        assert float(((found - exact) / spread).abs().max()) < 5.5
        assert (
            float((draws.mean(0) / (exact.diagonal() / count).sqrt()).abs().max()) < 5
        )
    # What ε does not explain of the field is uncorrelated with ε.
    cross = (field - w.colour(eps)).mT @ white / count
    assert float(cross.abs().max()) < 5.5 * math.sqrt(2.0 / count)


@pytest.mark.parametrize(("lengthscale", "lost"), [(3.0, 9), (4.0, 23)])
def test_modes_lost_to_rounding_are_reported_and_do_no_harm(
    lengthscale, lost, generator
):
    grid = Grid(shape=(32,), spacing=(1.0,), origin=(0.0,))
    kernel = SquaredExponential(lengthscale=lengthscale)
    w = TorusWhitening(kernel, Torus(grid=grid, shape=(64,)), refinement=2)
    assert w.report.dropped_modes == lost
    assert w.report.dropped_fine_modes >= lost
    A = as_operator(w).to_dense()
    assert torch.allclose(A @ A.mT, w.fine.to_dense(), atol=1e-8)
    # The field on fine points is a sum of numbers up to 1e7 that nearly cancel.
    check_linear_operator(as_operator(w), generator=generator, rtol=1e-8)


def test_the_wrap_error_is_that_of_the_covariance_inside_the_box():
    grid = Grid(shape=(6, 5), spacing=(1.0, 0.8), origin=(0.0, 0.0))
    kernel = Matern32(lengthscale=[1.5, 1.2], variance=3.0)
    previous = 1.0
    for shape in ((8, 8), (12, 12), (20, 20)):
        w = TorusWhitening(kernel, Torus(grid=grid, shape=shape))
        points = grid.points()
        lag = points[:, None] - points[None]
        periodic = kernel.periodised(w.torus.periods, w.image_tolerance)
        exact = (periodic(lag) - kernel(lag)).abs().max() / 3.0
        assert w.report.wrap_error == pytest.approx(float(exact), rel=1e-9)
        assert w.report.wrap_error < 0.5 * previous
        previous = w.report.wrap_error


@pytest.mark.parametrize("name", ["matern12", "matern32"])
def test_below_its_cut_a_torus_carries_nothing(name, generator):
    grid = Grid(shape=(10, 9), spacing=(1.0, 0.8), origin=(0.0, 0.0))
    kernel = KERNELS[name](lengthscale=[3.0, 2.4], variance=1.5)
    torus = padded_torus(grid, kernel, 1e-6)
    w = TorusWhitening(kernel, torus, cut=0.6)
    time = (0.6 / 3) ** 2
    A = as_operator(w).to_dense()
    check_linear_operator(as_operator(w), generator=generator)
    lags = grid.points() / torch.tensor([3.0, 2.4], dtype=torch.float64)
    distance = lags.norm(dim=1).reshape(grid.shape)
    exact = band_covariance(kernel, time, math.inf, distance)
    first = (A @ A.mT)[0].reshape(w.fine_shape)
    found = first[: grid.shape[0], : grid.shape[1]]
    torch.testing.assert_close(found, exact, rtol=0, atol=2e-5)
    (below,) = w.unresolved
    assert below + float(exact[0, 0]) == pytest.approx(1.5)
    assert TorusWhitening(kernel, torus).unresolved == [0.0]
    assert w.report.wrap_error < 1e-5


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("tolerance", [1e-2, 1e-4])
def test_padding_follows_from_the_tolerance(name, tolerance):
    grid = Grid(shape=(12, 7), spacing=(1.0, 0.5), origin=(0.0, 0.0))
    kernel = KERNELS[name](lengthscale=[2.0, 1.0])
    torus = padded_torus(grid, kernel, tolerance)
    for axis, scale in enumerate((2.0, 1.0)):
        extent = (grid.shape[axis] - 1) * grid.spacing[axis]
        gap = torus.periods[axis] - extent
        assert gap >= scale * kernel.decay(tolerance) - 1e-9
    error = TorusWhitening(kernel, torus).report.wrap_error
    assert error <= 3 * tolerance
