"""The coarse search of hyperparameters: evidence, amplitude, subset, lengthscale."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from dustmap.covariance import functional_covariance
from dustmap.functionals import GaussLegendre, LineIntegrals, PointValues
from dustmap.inference.scales.search import (
    Fixed,
    clustered_subset,
    maximise_evidence,
    search,
)
from dustmap.kernels import Matern32

FREE = Fixed()


def draw(seed, *, count=120, scale=0.4, spread=0.8, noise=0.15, common=0.0, mean=0.0):
    """Unit-variance covariance of rays in a square, data, noise variances, lengths."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.rand(count, 2, generator=generator, dtype=torch.float64) * 4 - 2
    rays = LineIntegrals(ends, GaussLegendre(count=8))
    K = functional_covariance(Matern32(lengthscale=scale), rays, rays).numpy()
    lengths = rays.lengths.numpy()
    rng = np.random.default_rng(seed)
    field = np.linalg.cholesky(K + 1e-10 * np.eye(count)) @ rng.standard_normal(count)
    errors = noise * rng.uniform(0.5, 1.5, count)
    total = np.sqrt(errors**2 + common**2)
    y = mean * lengths + spread * field + total * rng.standard_normal(count)
    return K, y, errors**2, lengths


def log_normal_density(y, covariance):
    """``log N(y | 0, covariance)`` by somebody else."""
    return scipy.stats.multivariate_normal(cov=covariance).logpdf(y)


def brute(K, y, noise, shape, variances, commons):
    """The best of a grid of variances, noises and amplitudes, each one dense."""
    best = (-np.inf, 0.0, 0.0, 0.0)
    for s2 in variances:
        for tau2 in commons:
            A = s2 * K + np.diag(noise + tau2)
            beta = 0.0
            if shape is not None:
                weights = np.linalg.solve(A, shape)
                beta = (weights @ y) / (weights @ shape)
            fit = y if shape is None else y - beta * shape
            best = max(best, (log_normal_density(fit, A), s2, tau2, beta))
    return best


@pytest.mark.parametrize("common", [0.0, 0.3])
@pytest.mark.parametrize("mean", [None, 0.5])
def test_the_evidence_is_the_best_of_a_brute_grid(common, mean):
    K, y, noise, lengths = draw(1, count=60, common=common, mean=mean or 0.0)
    shape = None if mean is None else lengths
    found = maximise_evidence(K, y, noise, shape, FREE)
    variances = np.geomspace(0.05, 1.5, 32)
    commons = [0.0, *np.geomspace(0.002, 0.3, 40)]
    value, s2, tau2, beta = brute(K, y, noise, shape, variances, commons)
    # The optimiser is not bound to the grid: it may be better, and no worse than
    # its own tolerance of 0.02.
    assert value - 0.03 < found.log_evidence < value + 0.05
    assert found.variance == pytest.approx(s2, rel=0.25)
    assert found.common_noise == pytest.approx(np.sqrt(tau2), abs=0.05)
    assert found.amplitude == pytest.approx(beta, abs=0.02)


def test_what_is_reported_is_the_evidence_at_what_is_reported():
    K, y, noise, lengths = draw(2, mean=0.4)
    found = maximise_evidence(K, y, noise, lengths, FREE)
    A = found.variance * K + np.diag(noise + found.common_noise**2)
    exact = log_normal_density(y - found.amplitude * lengths, A)
    assert found.log_evidence == pytest.approx(exact, abs=1e-6)


def test_the_amplitude_is_that_of_generalised_least_squares():
    K, y, noise, lengths = draw(3, mean=1.5)
    fixed = Fixed(variance=0.6, common_noise=0.2)
    found = maximise_evidence(K, y, noise, lengths, fixed)
    assert (found.variance, found.common_noise) == (0.6, 0.2)
    A = 0.6 * K + np.diag(noise + 0.04)
    # Whitened by the symmetric root and fitted by least squares.
    values, vectors = np.linalg.eigh(A)
    root = vectors / np.sqrt(values)
    exact, *_ = np.linalg.lstsq(root.T @ lengths[:, None], root.T @ y, rcond=None)
    assert found.amplitude == pytest.approx(float(exact[0]), rel=1e-9)
    assert found.amplitude == pytest.approx(1.5, abs=0.5)
    for other in (0.9, 1.1):
        beta = other * found.amplitude
        assert log_normal_density(y - beta * lengths, A) < found.log_evidence


def test_an_amplitude_that_is_given_is_kept():
    K, y, noise, lengths = draw(3, mean=1.5)
    found = maximise_evidence(K, y, noise, lengths, Fixed(amplitude=0.2))
    assert found.amplitude == 0.2
    free = maximise_evidence(K, y, noise, lengths, FREE)
    assert found.log_evidence < free.log_evidence


def test_scatter_beyond_the_errors_is_common_noise_and_not_dust():
    rng = np.random.default_rng(5)
    K, _, noise, _ = draw(5)
    y = 0.7 * rng.standard_normal(len(K))
    found = maximise_evidence(K, y, noise, None, FREE)
    assert found.common_noise == pytest.approx(0.7, rel=0.2)
    assert found.variance * np.mean(np.diag(K)) < 0.2 * 0.49


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_other_units_give_the_same_answer_in_other_units(unit):
    K, y, noise, lengths = draw(4, mean=0.5, common=0.2)
    one = maximise_evidence(K, y, noise, lengths, FREE)
    other = maximise_evidence(K, unit * y, unit**2 * noise, lengths, FREE)
    assert other.variance == pytest.approx(unit**2 * one.variance, rel=1e-3)
    assert other.common_noise == pytest.approx(unit * one.common_noise, rel=1e-3)
    assert other.amplitude == pytest.approx(unit * one.amplitude, rel=1e-3)
    # A density of data scales with the unit to the power −n.
    shifted = other.log_evidence + len(y) * np.log(unit)
    assert shifted == pytest.approx(one.log_evidence, abs=1e-3)
    # Lengths in another unit scale the covariance and the shape.
    longer = maximise_evidence(unit**2 * K, y, noise, unit * lengths, FREE)
    assert unit**2 * longer.variance == pytest.approx(one.variance, rel=1e-3)
    assert unit * longer.amplitude == pytest.approx(one.amplitude, rel=1e-3)
    assert longer.log_evidence == pytest.approx(one.log_evidence, abs=1e-3)


def test_observations_without_scatter_are_no_accident():
    K, _, noise, _ = draw(6)
    found = maximise_evidence(K, np.zeros(len(K)), noise, None, FREE)
    assert np.isfinite(found.log_evidence)
    assert found.variance * np.mean(np.diag(K)) < 0.1 * noise.mean()


def points(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return 1000 * torch.rand(count, 3, generator=generator, dtype=torch.float64)


def test_a_subset_has_the_size_that_was_asked_for_and_no_row_twice(generator):
    for count, size, neighbours in ((5000, 320, 8), (400, 320, 8), (50, 33, 40)):
        rows = clustered_subset(points(count), size, neighbours, generator)
        assert len(rows) == size and len(torch.unique(rows)) == size
        assert int(rows.min()) >= 0 and int(rows.max()) < count


def test_a_small_catalogue_is_taken_whole(generator):
    rows = clustered_subset(points(20), 20, 8, generator)
    assert rows.tolist() == list(range(20))


def test_groups_are_smaller_than_the_subset_even_if_asked_otherwise(generator):
    rows = clustered_subset(points(100), 5, 8, generator)
    assert len(rows) == 5
    rows = clustered_subset(points(6), 5, 8, generator)
    assert len(rows) == 5


def test_equal_positions_give_unique_rows(generator):
    rows = clustered_subset(torch.ones(300, 3), 64, 8, generator)
    assert len(torch.unique(rows)) == 64


def nearest(x):
    return torch.cdist(x, x).fill_diagonal_(float("inf")).min(dim=1).values


def test_a_subset_holds_close_pairs_and_far_ones(generator):
    x = points(5000)
    rows = clustered_subset(x, 320, 8, generator)
    uniform = torch.randperm(5000, generator=generator)[:320]
    chosen = nearest(x[rows]).median()
    # Most members have their true nearest neighbours beside them.
    assert float(chosen) < 1.5 * float(nearest(x).median())
    assert float(chosen) < 0.6 * float(nearest(x[uniform]).median())
    spread = x[rows].std(dim=0) / x.std(dim=0)
    assert float(spread.min()) > 0.75 and float(spread.max()) < 1.25


def test_the_seed_decides_the_subset():
    x = points(2000)
    one, again, other = (
        clustered_subset(x, 64, 8, torch.Generator().manual_seed(s)) for s in (1, 1, 2)
    )
    assert torch.equal(one, again) and not torch.equal(one, other)


CANDIDATES = (0.1, 0.2, 0.4, 0.8, 1.6)


def prior_draw(seed, truth, *, mean=0.0, unit=1.0):
    """A catalogue of 900 values in a square, and the subset the search sees."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(900, 2, generator=generator, dtype=torch.float64) * 4
    K = Matern32(lengthscale=truth)(x[:, None] - x[None])
    root = torch.linalg.cholesky(K + 1e-10 * torch.eye(900))
    white = torch.randn(2, 900, generator=generator, dtype=torch.float64)
    y = mean + 0.7 * root @ white[0] + 0.1 * white[1]
    rows = clustered_subset(x, 160, 8, generator)
    part = PointValues(x[rows])

    def covariance(scale):
        return functional_covariance(Matern32(lengthscale=scale), part, part).numpy()

    y = unit * y[rows].numpy()
    return covariance, y, np.full(len(rows), (0.1 * unit) ** 2)


@pytest.mark.parametrize(("seed", "truth"), [(1, 0.3), (2, 0.3), (3, 0.6), (4, 0.15)])
def test_the_lengthscale_of_a_prior_draw_is_found_within_a_factor_two(seed, truth):
    covariance, y, noise = prior_draw(seed, truth, unit=1e-4)
    scale, shape, best, tried = search(covariance, CANDIDATES, [None], y, noise, FREE)
    assert truth / 2 <= scale <= 2 * truth
    assert shape == 0
    assert 0.5 < best.variance / 0.49e-8 < 2
    assert len(tried) == len(CANDIDATES)
    assert best.log_evidence == max(e.log_evidence for _, _, e in tried)


def test_the_mean_shape_that_made_the_data_is_found():
    covariance, y, noise = prior_draw(1, 0.3, mean=5.0)
    shapes = [None, np.linspace(-1, 1, len(y)), np.ones(len(y))]
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        scale, shape, best, tried = search(
            covariance, CANDIDATES, [shapes[i] for i in order], y, noise, FREE
        )
        assert order[shape] == 2
        assert best.amplitude == pytest.approx(5, abs=0.5)
        assert 0.15 <= scale <= 0.6
        assert (scale, shape, best) in tried


def test_each_lengthscale_is_computed_once():
    covariance, y, noise = prior_draw(1, 0.3)
    asked = []

    def counted(scale):
        asked.append(scale)
        return covariance(scale)

    shapes = [np.linspace(-1, 1, len(y)), None]
    search(counted, CANDIDATES, shapes, y, noise, FREE)
    assert sorted(asked) == list(CANDIDATES)
