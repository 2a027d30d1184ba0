"""Every kernel against autograd, image sums and the formulas of the oracle."""

from __future__ import annotations

import inspect
import sys

import numpy as np
import pytest
import torch
from reference import Covariance

from dustmap.functionals import GaussLegendre, LineIntegrals
from dustmap.grid import Grid
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.kernels import (
    KERNELS,
    Matern12,
    Matern32,
    Matern52,
    Radial,
    SquaredExponential,
)
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean
from dustmap.testing import check_kernel
from dustmap.whitening import TorusWhitening, padded_torus

SCALES = (0.7, 1.3, 0.9)

# One example of every kind of kernel, by class.
EXAMPLES = {
    Matern12: lambda d: Matern12(lengthscale=SCALES[:d], variance=2.0),
    Matern32: lambda d: Matern32(lengthscale=SCALES[:d], variance=2.0),
    Matern52: lambda d: Matern52(lengthscale=SCALES[:d], variance=1e-8),
    SquaredExponential: lambda d: SquaredExponential(lengthscale=40.0, variance=3.0),
}


def concrete(base):
    for kind in base.__subclasses__():
        # Slotted dataclasses leave the class they were made from behind.
        module = sys.modules[kind.__module__]
        if not inspect.isabstract(kind) and getattr(module, kind.__name__, 0) is kind:
            yield kind
        yield from concrete(kind)


def ours():
    return sorted(
        {k for k in concrete(Radial) if k.__module__.startswith("dustmap.")},
        key=lambda kind: kind.__name__,
    )


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("kind", ours(), ids=lambda kind: kind.__name__)
def test_every_kernel_passes_the_checker(kind, dimension, generator):
    assert kind in EXAMPLES, f"add an example of {kind.__name__} to EXAMPLES"
    check_kernel(EXAMPLES[kind](dimension), dimension, generator)


def test_every_kernel_has_a_name_in_the_configuration():
    assert set(ours()) == set(KERNELS.values())


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
    truth = model.white_noise(generator)
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
