"""Every kernel against autograd, image sums and the formulas of the oracle."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from reference import Covariance

from dustmap.functionals import GaussLegendre, LineIntegrals
from dustmap.grid import Grid
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.kernels import KERNELS, Matern12, Matern32, Radial
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean
from dustmap.whitening import TorusWhitening, padded_torus

SCALES = (0.7, 1.3, 0.9)


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("name", KERNELS)
def test_covariances_of_values_and_slopes_are_positive(name, dimension, generator):
    kernel = KERNELS[name](lengthscale=SCALES[:dimension], variance=1e-8)
    points = torch.randn(40, dimension, generator=generator, dtype=torch.float64)
    lag = points[:, None] - points
    matrices = [kernel(lag), kernel.periodised((5.0,) * dimension)(lag)]
    if kernel.derivatives:
        orders = [None, *range(dimension)]
        few = lag[:8, :8]
        rows = [[kernel.covariance(few, a, b) for b in orders] for a in orders]
        matrices.append(torch.cat([torch.cat(row, dim=1) for row in rows]))
    for matrix in matrices:
        torch.testing.assert_close(matrix, matrix.mT)
        values = torch.linalg.eigvalsh(matrix)
        assert float(values[0]) >= -1e-10 * float(values[-1])


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("name", KERNELS)
def test_a_periodised_kernel_is_the_sum_of_its_images(name, dimension, generator):
    # Unequal periods, short enough that images matter.
    scales, periods = SCALES[:dimension], (4.4, 9.4, 7.3)[:dimension]
    periodic = KERNELS[name](lengthscale=scales, variance=2.0).periodised(periods)
    oracle = Covariance(
        name=name,
        lengthscale=scales,
        variance=2.0,
        periods=periods,
        images=(7,) * dimension,
    )
    lags = torch.randn(3, dimension, generator=generator, dtype=torch.float64)
    turns = lags.new_tensor([3, -2, 1])[:dimension] * lags.new_tensor(periods)
    orders = [None, *range(dimension)] if periodic.derivatives else [None]
    for left, right in itertools.product(orders, orders):
        expected = [oracle(lag, left, right) for lag in lags.numpy()]
        for moved in (lags, lags + turns):
            found = periodic.covariance(moved, left, right)
            np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", KERNELS)
def test_values_and_derivatives_follow_the_textbook(name, generator):
    kernel = KERNELS[name](lengthscale=SCALES, variance=1.7)
    oracle = Covariance(name=name, lengthscale=SCALES, variance=1.7)
    lags = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    lags[0] = 0.0
    lags[1, :2] = 0.0
    orders = [None, 0, 1, 2] if kernel.derivatives else [None]
    for left in orders:
        for right in orders:
            expected = [oracle(lag, left, right) for lag in lags.numpy()]
            np.testing.assert_allclose(
                kernel.covariance(lags, left, right), expected, rtol=1e-12, atol=1e-14
            )


def test_the_rough_kernel_refuses_derivatives_and_says_what_to_use():
    lag = torch.zeros(3, 2, dtype=torch.float64)
    rough = Matern12(lengthscale=1.0)
    for kernel in (rough, rough.periodised((4, 4))):
        assert kernel.derivatives == 0
        with pytest.raises(ValueError, match="Matern32"):
            kernel.covariance(lag, 0, None)
        with pytest.raises(ValueError, match="derivative"):
            kernel.covariance(lag, 0, 1)


@pytest.mark.parametrize("name", KERNELS)
def test_gradients_at_zero_lag_are_numbers(name):
    lengthscale = torch.tensor(SCALES, dtype=torch.float64, requires_grad=True)
    variance = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    kernel = KERNELS[name](lengthscale=lengthscale, variance=variance)
    zero = torch.zeros(1, 3, dtype=torch.float64)
    value = kernel(zero)[0]
    gradients = torch.autograd.grad(value, (lengthscale, variance))
    assert gradients[0].tolist() == [0.0, 0.0, 0.0] and float(gradients[1]) == 1.0
    if not kernel.derivatives:
        return
    curvature = kernel.covariance(zero, 1, 1)[0]
    gradients = torch.autograd.grad(curvature, (lengthscale, variance))
    size = curvature.item()
    assert gradients[1].item() == pytest.approx(size / 2.0)
    assert gradients[0].tolist() == pytest.approx([0, -2 * size / 1.3, 0])


@pytest.mark.parametrize("name", KERNELS)
def test_gradients_pass_gradcheck(name, generator):
    lags = torch.randn(7, 2, generator=generator, dtype=torch.float64)
    lags[0] = 0.0

    def values(lengthscale, variance):
        kernel = KERNELS[name](lengthscale=lengthscale, variance=variance)
        parts = [kernel(lags), kernel.periodised((6.0, 8.0))(lags)]
        if kernel.derivatives:
            parts += [kernel.covariance(lags, 0, 1), kernel.covariance(lags, None, 1)]
        return torch.cat(parts)

    scale = torch.tensor([0.8, 1.1], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(values, (scale, variance))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("tolerance", [0.5, 1e-4, 1e-12])
def test_decay_is_where_the_kernel_has_fallen_to_the_tolerance(name, tolerance):
    kernel = KERNELS[name](lengthscale=3.0)
    lag = torch.tensor([[3.0 * kernel.decay(tolerance)]], dtype=torch.float64)
    assert float(kernel(lag)) == pytest.approx(tolerance, rel=1e-9)


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf, [1.0, 0.0]])
def test_hyperparameters_that_are_not_positive_are_refused(wrong):
    with pytest.raises(ValueError, match="lengthscale"):
        Matern32(lengthscale=wrong)
    if np.isscalar(wrong):
        with pytest.raises(ValueError, match="variance"):
            Matern32(lengthscale=1.0, variance=wrong)


class RationalQuadratic(Radial):
    """``φ(r) = 1/(1 + r²)²``: no kernel of ours."""

    __slots__ = ()
    title = "rational quadratic"

    @staticmethod
    def radial(r):
        return (1 + r**2) ** -2


def test_a_new_kernel_is_one_class_and_one_entry(monkeypatch, generator):
    monkeypatch.setitem(KERNELS, "rational-quadratic", RationalQuadratic)
    kernel = KERNELS["rational-quadratic"](lengthscale=2.0, variance=0.3)
    grid = Grid(shape=(6, 5), spacing=(1.0, 1.0), origin=(-3.0, -2.0))
    torus = padded_torus(grid, kernel, wrap_tolerance=0.1)
    ends = torch.rand(40, 2, generator=generator, dtype=torch.float64) * 3 - 1.5
    rays = LineIntegrals(ends, GaussLegendre(count=6))
    whitening = TorusWhitening(kernel, torus, image_tolerance=1e-4)
    model = LogNormal(whitening, rays, mean=ConstantMean(value=0.5))
    truth = model.white_noise(np.random.default_rng(1))
    y = model.apply(truth)
    result = infer(
        model,
        y,
        torch.full_like(y, 1e-4),
        settings=FullBatch(samples=2),
        generator=generator,
    )
    assert result.converged
    assert float((result.prediction - y).abs().mean()) < 0.02
