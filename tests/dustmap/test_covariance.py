"""Inter-domain covariances against double loops and against each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import Covariance, functional_covariance, points_as_rows, rows_of

import dustmap.covariance as subject
from dustmap.functionals import (
    Derivatives,
    FixedStep,
    GaussLegendre,
    LineIntegrals,
    MonteCarlo,
    PointValues,
    Stack,
)
from dustmap.kernels import KERNELS, Matern12, Matern52

SCALES = (0.8, 1.1, 0.6)


def draw(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1


def mixed(dimension, *, derivatives=True):
    """Points, derivatives and rays of unlike numbers of nodes."""
    end = draw((3, dimension), 1)
    parts = [
        PointValues(draw((2, dimension), 2)),
        LineIntegrals(end, MonteCarlo(count=4, seed=1), start=draw((3, dimension), 6)),
        LineIntegrals(draw((3, dimension), 3), FixedStep(step=0.4)),
    ]
    if derivatives:
        axes = torch.arange(3) % dimension
        derivative = Derivatives(draw((3, dimension), 4), axes)
        parts += [derivative, LineIntegrals(end, GaussLegendre(count=3))]
    return Stack(parts)


def pair(name, dimension):
    kernel = KERNELS[name](lengthscale=SCALES[:dimension], variance=1.3)
    oracle = Covariance(name=name, lengthscale=SCALES[:dimension], variance=1.3)
    return kernel, oracle


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("name", KERNELS)
def test_covariances_of_mixed_functionals_equal_double_loops(name, dimension):
    kernel, oracle = pair(name, dimension)
    stack = mixed(dimension, derivatives=name != "matern12")
    rows = rows_of(stack)
    points = draw((4, dimension), 8)
    exact = functional_covariance(oracle, rows, rows)
    found = subject.functional_covariance(kernel, stack, stack)
    np.testing.assert_allclose(found, exact, atol=1e-13)
    found = subject.functional_variance(kernel, stack)
    np.testing.assert_allclose(found, np.diag(exact), atol=1e-13)
    exact = functional_covariance(oracle, rows, points_as_rows(points.numpy()))
    found = subject.inducing_covariance(kernel, stack, points)
    np.testing.assert_allclose(found, exact, atol=1e-13)


def test_the_conditional_variance_is_not_negative_with_the_very_same_nodes(generator):
    # Independent nodes for k_nn and k_un made most of these negative.
    kernel = Matern52(lengthscale=1.5)
    rays = LineIntegrals(draw((200, 2), 1), MonteCarlo(count=3, seed=2))
    axis = torch.linspace(-1, 1, 9, dtype=torch.float64)
    points = torch.cartesian_prod(axis, axis)
    K = kernel(points[:, None] - points[None]) + 1e-12 * torch.eye(81)
    cross = subject.inducing_covariance(kernel, rays, points)
    explained = (cross * torch.linalg.solve(K, cross.mT).mT).sum(dim=1)
    left = subject.functional_variance(kernel, rays) - explained
    assert float(left.min()) > -1e-10
    other = LineIntegrals(rays.end, MonteCarlo(count=3, seed=3))
    left = subject.functional_variance(kernel, other) - explained
    assert float((left < -1e-10).double().mean()) > 0.3


def test_small_blocks_change_nothing(monkeypatch):
    kernel, _ = pair("matern32", 2)
    stack, points = mixed(2), draw((5, 2), 3)

    def everything():
        return (
            subject.functional_covariance(kernel, stack, stack),
            subject.functional_variance(kernel, stack),
            subject.inducing_covariance(kernel, stack, points),
        )

    whole = everything()
    monkeypatch.setattr(subject, "rows_within", lambda *_: 2)
    for a, b in zip(whole, everything(), strict=True):
        assert torch.allclose(a, b, rtol=1e-13, atol=1e-15)


def test_gradients_by_the_hyperparameters_run_through(generator):
    stack, points = mixed(2), draw((3, 2), 3)
    weights = torch.randn(len(stack), generator=generator, dtype=torch.float64)

    def total(lengthscale, variance):
        kernel = KERNELS["matern32"](lengthscale=lengthscale, variance=variance)
        return torch.stack(
            [
                weights @ subject.functional_covariance(kernel, stack, stack) @ weights,
                weights @ subject.functional_variance(kernel, stack),
                (weights @ subject.inducing_covariance(kernel, stack, points)).sum(),
            ]
        )

    scale = torch.tensor([0.8, 1.1], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(total, (scale, variance))


def test_derivative_data_under_a_rough_kernel_are_refused():
    derivatives = Derivatives(draw((3, 2), 1), 0)
    for call in (
        lambda k: subject.functional_covariance(k, derivatives, derivatives),
        lambda k: subject.functional_variance(k, derivatives),
        lambda k: subject.inducing_covariance(k, derivatives, draw((2, 2), 1)),
    ):
        with pytest.raises(ValueError, match="no derivative"):
            call(Matern12(lengthscale=1.0))
