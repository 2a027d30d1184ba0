"""Scales learnt without a grid: against dense algebra, loops, and known truths."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from dense_kriging import integrals

from dustmap.grid import Grid, Torus
from dustmap.inference.scales.learning import learn_scales
from dustmap.inference.scales.neighbour_likelihood import (
    Conditionals,
    NeighbourLikelihood,
)
from dustmap.inference.scales.prior_scales import Coordinates, PriorScales
from dustmap.kernels import KERNELS
from dustmap.models.means import ConstantMean, ExponentialDisc
from dustmap.residual.kriging import TABLE_ERROR, Kriging
from dustmap.residual.neighbours import nearest_earlier
from dustmap.whitening import TorusWhitening

DISC = ExponentialDisc(
    value=1e-3, scale_height=120.0, scale_length=3000.0, centre_distance=8000.0
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def stars(count, generator, half=(600.0, 600.0, 250.0)):
    """Ray ends evenly in a box around the observer [pc]."""
    uniform = torch.rand(count, 3, generator=generator, dtype=torch.float64)
    return (2 * uniform - 1) * torch.tensor(half, dtype=torch.float64)


def scales(lengthscale=100.0, std=1.0, mean=DISC, common_noise=0.0):
    return PriorScales(
        lengthscale=torch.tensor(lengthscale, dtype=torch.float64).expand(3),
        std=std,
        mean=mean,
        common_noise=common_noise,
    )


@pytest.mark.parametrize("count", [1, 7, 39])
@pytest.mark.parametrize("block", [5, 10**5])
def test_neighbours_are_the_nearest_of_the_earlier_rows(count, block, monkeypatch):
    monkeypatch.setattr("dustmap.memory.rows_within", lambda *_: block)
    points = torch.randn(40, 3, generator=seeded(), dtype=torch.float64)
    found = nearest_earlier(points, count)
    assert found.shape == (40 - count, count)
    for row, near in enumerate(found, start=count):
        distances = (points[:row] - points[row]).norm(dim=1)
        assert near.tolist() == distances.argsort()[:count].tolist()


def test_as_many_neighbours_as_rows_are_refused():
    with pytest.raises(ValueError, match="more rows than the 4 neighbours"):
        nearest_earlier(torch.zeros(4, 3), 4)


@pytest.mark.parametrize("positive", [True, False])
def test_with_all_rows_for_neighbours_the_density_is_the_dense_one(positive):
    generator, n = seeded(1), 30
    ends = stars(n, generator)
    noise = 1e-3 * (1 + torch.rand(n, generator=generator, dtype=torch.float64))
    likelihood = NeighbourLikelihood(
        ends, noise, kernel=KERNELS["matern12"], positive=positive, count=n - 1
    )
    std = 0.9 if positive else 1e-3
    found = likelihood.conditionals(
        scales([80.0, 100.0, 120.0], std, ConstantMean(value=2e-3), 4e-4)
    )
    # Dense: in units of the lengthscales, of an exponential with half the correlation
    # where the density has.
    moment = math.expm1(std**2) if positive else std**2
    half = math.log1p(0.5 * moment) / std**2 if positive else 0.5
    stretch = -math.log(half) / math.log(2)
    axes = stretch * torch.tensor([80.0, 100.0, 120.0], dtype=torch.float64)
    scaled, distance = ends / axes, ends.norm(dim=1)
    length = scaled.norm(dim=1)
    unit = scaled / length[:, None]
    chord = (unit[:, None] - unit[None]).norm(dim=-1)
    integral = integrals(chord, length[:, None].expand(n, n), length.expand(n, n))
    factor = distance / length * (2e-3 if positive else 1.0)
    dense = moment * factor[:, None] * factor * integral
    dense += torch.diag(torch.maximum(TABLE_ERROR * dense.diagonal(), noise + 4e-4))
    y = torch.randn(n, generator=generator, dtype=torch.float64)
    weights = torch.linalg.solve(dense[:-1, :-1], dense[:-1, -1])
    residual = y - 2e-3 * distance
    torch.testing.assert_close(
        found.errors(y)[0], residual[-1] - weights @ residual[:-1], rtol=1e-8, atol=0
    )
    variance = dense[-1, -1] - weights @ dense[:-1, -1]
    torch.testing.assert_close(found.variance[0], variance, rtol=1e-8, atol=0)


def _alone(variance):
    """Return densities of stars without neighbours and with mean zero."""
    n = len(variance)
    kriging = Kriging(
        neighbours=torch.empty(n, 0, dtype=torch.int64),
        weights=torch.empty(n, 0, dtype=torch.float64),
        variance=variance,
        prior=variance,
    )
    mean = torch.zeros_like(variance)
    return Conditionals(mean=mean, kriging=kriging, variance=variance)


def test_densities_are_a_mixture_with_the_likeliest_fraction_of_outliers():
    generator, n = seeded(2), 2000
    variance = 0.01 * (1 + torch.rand(n, generator=generator, dtype=torch.float64))
    errors = variance.sqrt() * torch.randn(n, generator=generator, dtype=torch.float64)
    errors[:80] *= 10
    found = _alone(variance).log_density(errors)

    def density(width):
        # Of five degrees of freedom and this variance.
        scale = width * (0.6 * variance).sqrt().numpy()
        return scipy.stats.t.pdf(errors.numpy(), 5, scale=scale)

    tried = [
        np.log((1 - part) * density(1.0) + part * density(10.0))
        for part in np.linspace(0.001, 0.2, 200)
    ]
    best = max(tried, key=np.sum)
    assert float(found.sum()) == pytest.approx(best.sum(), abs=0.5)
    np.testing.assert_allclose(found.numpy(), best, atol=0.2)


@pytest.mark.parametrize("error", [0.0, 1e3])
def test_densities_are_finite_where_none_or_all_look_like_outliers(error):
    n = 50
    extinction = torch.full((n,), error, dtype=torch.float64)
    found = _alone(torch.ones_like(extinction)).log_density(extinction)
    parts = [
        scipy.stats.t.logpdf(error, 5, scale=width * 0.6**0.5) for width in (1.0, 10.0)
    ]
    mixed = np.logaddexp(parts[0] + math.log(0.8), parts[1] + math.log(0.2))
    expected = parts[0] if error == 0 else mixed
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)


def test_coordinates_are_logarithms_of_the_parameters():
    start = scales(100.0, 0.5, DISC, 1e-4)
    names = ("lengthscale", "variance", "mean", "scale_height", "common_noise")
    whole = Coordinates(start=start, names=names)
    there = whole.at(torch.full((5,), math.log(2), dtype=torch.float64))
    assert there.lengthscale.tolist() == pytest.approx([200.0] * 3)
    assert there.std == pytest.approx(0.5 * math.sqrt(2))
    assert there.mean.value == pytest.approx(2e-3)
    assert there.mean.scale_height == pytest.approx(240.0)
    assert there.common_noise == pytest.approx(2e-4)


@pytest.mark.parametrize("name", ["slope", "common_noise"])
def test_what_has_no_positive_start_cannot_be_learnt(name):
    with pytest.raises(ValueError, match=f"'{name}' cannot be learnt: expected one of"):
        Coordinates(start=scales(), names=("lengthscale", name))


def mock(kernel, ends, truth, seed, *, positive):
    """Extinctions through a density of constant mean, on a torus of 128 cells."""
    spacing = float(truth.lengthscale[0]) / 8
    grid = Grid(shape=(128,) * 3, spacing=(spacing,) * 3, origin=(0.0,) * 3)
    unit = KERNELS[kernel](lengthscale=truth.lengthscale[0])
    torus = TorusWhitening(
        unit, Torus(grid=grid, shape=grid.shape), image_tolerance=1e-4
    )
    field = truth.std * torus.prior_draw(seeded(seed))[0][0].reshape(grid.shape)
    if positive:
        field = truth.mean.value * torch.exp(field - truth.std**2 / 2)
    else:
        field = truth.mean.value + field
    along = (torch.arange(800, dtype=torch.float64) + 0.5) / 800
    cells = torch.floor(along[:, None] * ends[:, None] / spacing).long() % 128
    return field[cells.unbind(-1)].mean(dim=1) * ends.norm(dim=1)


def recovered(kernel, positive, truth, start, count=1000, seed=11):
    """What is learnt from a mock."""
    ends = stars(count, seeded(seed))
    true = mock(kernel, ends, truth, seed, positive=positive)
    error = 0.02
    white = torch.randn(count, generator=seeded(seed + 1), dtype=torch.float64)
    noise = torch.full((count,), error**2, dtype=torch.float64)
    return learn_scales(
        NeighbourLikelihood(ends, noise, kernel=KERNELS[kernel], positive=positive),
        true + error * white,
        Coordinates(start=start, names=("lengthscale", "variance", "mean")),
    )


@pytest.mark.parametrize(
    ("kernel", "positive", "std"), [("matern12", True, 1.0), ("matern32", False, 8e-4)]
)
def test_scales_of_a_mock_are_found(kernel, positive, std):
    flat = ConstantMean(value=1e-3)
    truth = scales(60.0, std, flat)
    start = scales(100.0, 1.5 * std, ConstantMean(value=1.5e-3))
    found = recovered(kernel, positive, truth, start)
    assert found.converged
    assert math.log(float(found.scales.lengthscale[0]) / 60.0) == pytest.approx(
        0, abs=0.3
    )
    assert math.log(found.scales.std / std) == pytest.approx(0, abs=0.15)
    assert math.log(found.scales.mean.value / 1e-3) == pytest.approx(0, abs=0.2)
    assert all(0.02 < error < 0.3 for error in found.errors.values())


@pytest.mark.parametrize("fault", [math.nan, math.inf, 1e200])
@pytest.mark.parametrize("rows", [[50], list(range(60))])
def test_numbers_that_are_not_finite_end_the_search_as_a_status(fault, rows):
    ends = stars(60, seeded(3))
    extinction = 1e-3 * ends.norm(dim=1)
    extinction[rows] = fault
    likelihood = NeighbourLikelihood(
        ends,
        torch.full((60,), 4e-4, dtype=torch.float64),
        kernel=KERNELS["matern12"],
        positive=True,
    )
    start = scales(100.0, 0.8, DISC)
    found = learn_scales(
        likelihood, extinction, Coordinates(start=start, names=("lengthscale",))
    )
    assert not found.finite and not found.converged and found.steps <= 2
    assert all(math.isfinite(error) for error in found.errors.values())
    np.testing.assert_allclose(found.scales.lengthscale, start.lengthscale)


@pytest.mark.slow
def test_lengthscales_fall_to_a_tenth_of_the_start_at_most():
    """Stars that scatter independently have no lengthscale: the search would go on."""
    ends = stars(1000, seeded(3))
    white = torch.randn(1000, generator=seeded(4), dtype=torch.float64)
    extinction = 1e-3 * ends.norm(dim=1) * torch.exp(0.5 * white)
    noise = torch.full((1000,), 0.02**2, dtype=torch.float64)
    kernel = KERNELS["matern12"]
    found = learn_scales(
        NeighbourLikelihood(ends, noise, kernel=kernel, positive=True),
        extinction,
        Coordinates(
            start=scales(100.0, 1.0, ConstantMean(value=1e-3)),
            names=("lengthscale", "variance", "mean"),
        ),
    )
    assert not found.converged
    assert float(found.scales.lengthscale[0]) == pytest.approx(10.0)
