"""Bands of the power spectrum, and octaves of the prior that suit them."""

import math

import numpy as np
import pytest
import torch

from dustmap.functionals import LineIntegrals, PointValues, StepsOutwards
from dustmap.grid import Grid, Torus
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.scales.band_power import (
    BandPower,
    band_powers,
    fitted_octaves,
    spectral_slope,
)
from dustmap.kernels import Matern12, SquaredExponential
from dustmap.mixture import OctaveMatern
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean
from dustmap.whitening import TorusWhitening

SHAPE, STEP = (12, 10, 8), 5.0


def whitening(lengthscale: float = 15.0, variance: float = 0.04) -> TorusWhitening:
    grid = Grid(shape=SHAPE, spacing=(STEP,) * 3, origin=(0.0,) * 3)
    kernel = Matern12(lengthscale=lengthscale, variance=variance)
    return TorusWhitening(kernel, Torus(grid=grid, shape=SHAPE))


def model_of(root: TorusWhitening, count: int = 500) -> LogNormal:
    """Values at points: with little variance it is nearly linear."""
    rng = np.random.default_rng(0)
    points = torch.from_numpy(rng.uniform(0, 35, (count, 3)))
    return LogNormal(root, PointValues(points), mean=ConstantMean(value=1.0))


def test_probes_count_what_a_dense_solve_does():
    root = whitening()
    model, noise = model_of(root), torch.full((500,), 1e-3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    truth = torch.randn(root.size, generator=generator, dtype=torch.float64)
    data = model.apply(truth)
    settings = FullBatch(samples=0, subgrid_noise=False, probes=200)
    found = infer(model, data, noise, settings=settings,
                  generator=generator)  # fmt: skip
    tangent = model.linearise(found.mean).operator
    phi = tangent.matvec(torch.eye(root.size, dtype=torch.float64)).T
    precision = torch.eye(root.size) + phi.T @ (phi / noise[:, None])
    # Of numbers on which no field depends the prior is left.
    known = torch.eye(root.size) - torch.linalg.inv(precision)
    exact = torch.stack([known.diagonal(), (known @ known).diagonal()])
    assert found.determined is not None
    bands = band_powers(root, found.mean, found.determined)
    expected = band_powers(root, found.mean, exact)
    assert len(bands) == len(expected) >= 2
    for one, other in zip(bands, expected, strict=True):
        assert one.determined == pytest.approx(other.determined, rel=0.1)
        assert one.noise == pytest.approx(other.noise, abs=0.1)
        assert one.longest == pytest.approx(2 * one.shortest)
        whole = (one.ratio + one.noise) * math.sqrt(2 / one.determined)
        assert one.error == pytest.approx(whole)
    total = sum(band.determined for band in expected)
    assert total < float(torch.trace(known))


# A field with a flatter and with a steeper spectrum than the prior's, by one in slope.
@pytest.mark.parametrize("slope", [-1, 1])
def test_stars_bend_a_prior_of_another_slope(slope):
    count, step, stars, scale = 24, 10.0, 10_000, 60.0
    half = count * step / 2
    grid = Grid(shape=(count,) * 3, spacing=(step,) * 3, origin=(-half,) * 3)
    prior = Matern12(lengthscale=scale, variance=1.0)
    true = OctaveMatern(
        matern=Matern12(lengthscale=scale / 2, variance=1.0),
        amplitudes=[2.0 ** (-slope * octave) for octave in range(7)],
    )

    def root_of(kernel) -> TorusWhitening:
        return TorusWhitening(kernel, Torus(grid=grid, shape=grid.shape), cut=0.6)

    root, source = root_of(prior), root_of(true)
    generator = torch.Generator().manual_seed(3)
    white = source.modes.white_noise(generator)
    ends = np.random.default_rng(3).uniform(-half, half - step, (stars, 3))
    lines = LineIntegrals(torch.from_numpy(ends), StepsOutwards(step=step / 2))
    model = LogNormal(root, lines, mean=ConstantMean(value=1.0))
    data = model.weights.matvec(source.colour(white).exp())
    noise = torch.full_like(data, (0.02 * float(data.mean())) ** 2)
    data += noise.sqrt() * torch.randn(stars, generator=generator).double()
    settings = FullBatch(
        samples=0,
        subgrid_noise=False,
        probes=4,
        preconditioner_rank=100,
        newton_steps=50,
    )
    fit = infer(model, data, noise, settings=settings, generator=generator)
    assert fit.determined is not None
    bands = band_powers(root, fit.mean, fit.determined)
    bent, errors, gain = fitted_octaves(prior, bands)
    assert gain > 1 and len(errors) == len(bent.amplitudes)
    # The power of this very field: chance has no part in it.
    found = power_over(root, root_of(bent), None)
    true_power = power_over(root, source, white)
    assert len(bands) >= 2
    for band in bands:
        ratio = found[band.longest] / true_power[band.longest]
        assert abs(math.log(ratio)) < max(0.15, 2 * band.error / band.ratio)


def power_over(
    root: TorusWhitening, other: TorusWhitening, eps: torch.Tensor | None
) -> dict[float, float]:
    """Power in bands of ``other``'s field over the prior of ``root``, by wavelength."""
    (modes,) = root.modes.parts
    counts = modes.pairs.cpu().expand(modes.half).flatten().repeat_interleave(2) / 2
    # Expected, without a field.
    eps = counts.sqrt() if eps is None else eps
    (spectrum,) = other.modes.spectra(eps)
    scaled = torch.view_as_real(spectrum * other._root / root._root).flatten()
    bands = band_powers(root, scaled, counts.expand(2, -1))
    return {band.longest: band.ratio for band in bands}


def band(wave: float, ratio: float, determined: float = 1e4) -> BandPower:
    middle = 2 * math.pi / wave
    return BandPower(
        longest=middle * math.sqrt(2),
        shortest=middle / math.sqrt(2),
        determined=determined,
        noise=0.0,
        ratio=ratio,
        error=ratio * math.sqrt(2 / determined),
    )


def spectrum(wave: float, lengthscale: float, variance: float) -> float:
    return variance * lengthscale**3 / (1 + (wave * lengthscale) ** 2) ** 2


def test_the_slope_is_that_of_prior_times_ratio():
    kernel = Matern12(lengthscale=50.0, variance=1.0)
    waves = [0.04 * 2**n for n in range(4)]
    bands = [band(q, q ** (-11 / 3) / spectrum(q, 50.0, 1.0)) for q in waves]
    slope = spectral_slope(kernel, bands)
    assert slope is not None
    assert slope.exponent == pytest.approx(-11 / 3, abs=1e-6)
    assert 0 < slope.error < 0.02
    assert spectral_slope(kernel, bands[:1]) is None
    smooth = SquaredExponential(lengthscale=50.0, variance=1.0)
    assert spectral_slope(smooth, bands) is None
    with pytest.raises(ValueError, match="octaves"):
        fitted_octaves(smooth, bands)
