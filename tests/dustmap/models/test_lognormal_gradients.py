"""Gradients of the log-normal density by hyperparameters, against differences."""

from __future__ import annotations

import math

import pytest
import torch

from dustmap.functionals import GaussLegendre, LineIntegrals, PointValues, Stack
from dustmap.grid import Grid, Torus
from dustmap.kernels import Matern32
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean, ExponentialDisc
from dustmap.whitening import TorusWhitening

DISC = ExponentialDisc(
    value=0.7, scale_height=0.8, scale_length=3.0, centre_distance=8.0, midplane=0.1
)
RULE = GaussLegendre(count=5)


def rng(seed=1):
    return torch.Generator().manual_seed(seed)


def normal(model, *, count):
    shape = (count, model.latent_size)
    return torch.randn(shape, generator=rng(2), dtype=torch.float64)


def weighed(model, eps, a, b):
    total = (a * model.apply(eps)).sum()
    for one, weights in zip(eps, b, strict=True):
        total = total + (weights * model.linearise(one).variance).sum()
    return float(total)


def derivative_of(model, name, place, eps, a, b, step):
    value = model.parameters()[name]

    def at(steps):
        changed = value.clone()
        changed.view(-1)[place] *= math.exp(steps * step)
        return weighed(model.with_parameters({name: changed}), eps, a, b)

    derivative = (8 * (at(1) - at(-1)) - at(2) + at(-2)) / (12 * step)
    return derivative / float(value.reshape(-1)[place])


def small_model(dimension, refinement=1, *, isotropic=False, mean=None):
    """A few points only: every difference measures the unresolved part anew."""
    spacing = (1.0, 0.8, 1.2)[:dimension]
    shape, torus = {1: ((8,), (11,)), 2: ((5, 6), (8, 7)), 3: ((3, 4, 3), (5, 6, 4))}[
        dimension
    ]
    grid = Grid(shape=shape, spacing=spacing, origin=(-1.0,) * dimension)
    lower, upper = torch.tensor(grid.lower), torch.tensor(grid.upper)

    def draw(count, seed):
        unit = torch.rand(count, dimension, generator=rng(seed), dtype=torch.float64)
        return lower + unit * (upper - lower)

    scales = 1.1 if isotropic else [1.6, 1.3, 1.8][:dimension]
    return LogNormal(
        TorusWhitening(
            Matern32(lengthscale=scales, variance=0.5),
            Torus(grid=grid, shape=torus),
            refinement=refinement,
        ),
        Stack([LineIntegrals(draw(5, 1), RULE), PointValues(draw(4, 2))]),
        mean=ConstantMean(value=0.4) if mean is None else mean,
    )


GRADIENTS = [
    (1, 1, False, None),
    (2, 1, False, None),
    (2, 1, True, None),
    (2, 2, False, None),
    (3, 1, True, DISC),
]


@pytest.mark.parametrize(("dimension", "refinement", "isotropic", "mean"), GRADIENTS)
def test_gradients_are_those_of_predictions(dimension, refinement, isotropic, mean):
    model = small_model(dimension, refinement, isotropic=isotropic, mean=mean)
    eps, n = normal(model, count=3), len(model.functionals)
    a = torch.randn(3, n, generator=rng(7), dtype=torch.float64)
    # None of the variance: what is left is exact to rounding.
    gradient = model.parameter_gradient(eps, a, torch.zeros_like(a))
    names = {"lengthscale", "variance", "mean", "subgrid_share"}
    names |= {"scale_height"} if mean else set()
    assert set(gradient) == set(model.parameters()) == names

    def seen_by(changed):
        return float((a * changed.apply(eps)).sum())

    for name, value in model.parameters().items():
        assert gradient[name].shape == value.shape
        for place in range(value.numel()):
            ends = []
            for steps in (2, 1, -1, -2):
                changed = value.clone()
                changed.view(-1)[place] *= math.exp(steps * 1e-3)
                ends.append(seen_by(model.with_parameters({name: changed})))
            exact = (8 * (ends[1] - ends[2]) - ends[0] + ends[3]) / 12e-3
            found = gradient[name].reshape(-1)[place] * value.reshape(-1)[place]
            assert float(found) == pytest.approx(exact, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("dimension", "isotropic", "mean"),
    [(1, False, None), (2, False, None), (2, True, None)],
)
def test_gradients_are_those_of_variances(dimension, isotropic, mean):
    model = small_model(dimension, isotropic=isotropic, mean=mean)
    eps, n = normal(model, count=2), len(model.functionals)
    a, b = torch.randn(2, 2, n, generator=rng(7), dtype=torch.float64)
    for of_prediction, of_variance in ((0 * a, b), (a, b)):
        gradient = model.parameter_gradient(eps, of_prediction, of_variance)
        for name, value in model.parameters().items():
            for place in range(value.numel()):
                exact = derivative_of(
                    model, name, place, eps, of_prediction, of_variance, 0.01
                )
                found = float(gradient[name].reshape(-1)[place])
                # κ and c are differentiated by steps of 5%.
                assert found == pytest.approx(exact, rel=2e-3)
