"""Bands of the power spectrum, and scales that suit them."""

import math

import numpy as np
import pytest
import torch

from dustmap.functionals import PointValues
from dustmap.grid import Grid, Torus
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.scales import band_power
from dustmap.inference.scales.band_power import (
    BandPower,
    band_powers,
    changed_kernel,
    fitted_kernel,
    log_spectrum,
    priors_of,
)
from dustmap.kernels import Matern12, Radial, SquaredExponential
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean
from dustmap.whitening import TorusWhitening
from dustmap.whitening.bands import band_covariance

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
    covariance = torch.linalg.inv(precision)
    # Of numbers on which no field depends the prior is left.
    gain = torch.eye(root.size) - covariance
    exact = torch.stack([gain.diagonal(), (gain @ gain).diagonal()])
    mean = found.mean
    assert found.determined is not None
    bands = band_powers(root, mean, found.determined)
    expected = band_powers(root, mean, exact)
    assert len(bands) == len(expected) >= 2
    for one, other in zip(bands, expected, strict=True):
        assert one.determined == pytest.approx(other.determined, rel=0.1)
        assert one.share == pytest.approx(other.share, rel=0.1)
        assert 0 < one.share < 1
        assert one.longest == pytest.approx(2 * one.shortest)
        assert one.error == pytest.approx(one.ratio * math.sqrt(2 / one.determined))
    total = sum(band.determined for band in expected)
    assert total < float(torch.trace(gain))


@pytest.mark.slow
@pytest.mark.parametrize(("fields", "error"), [(2, 0.2), (6, 0.15)])
def test_a_prior_with_the_power_of_the_field_has_ratios_of_one(fields, error):
    """Averaged over fields of the prior; with half of its power they are two."""
    ratios = []
    for seed in range(fields):
        for factor in (1.0, 0.5):
            root = whitening(variance=0.04 * factor)
            generator = torch.Generator().manual_seed(seed)
            model = model_of(root)
            white = torch.randn(root.size, generator=generator, dtype=torch.float64)
            field = whitening().colour(white)
            noise = torch.full((500,), 1e-3, dtype=torch.float64)
            data = model.weights.matvec(field.exp())
            data += noise.sqrt() * torch.randn(500, generator=generator).double()
            settings = FullBatch(samples=0, subgrid_noise=False, probes=8)
            found = infer(model, data, noise, settings=settings,
                          generator=generator)  # fmt: skip
            assert found.determined is not None
            bands = band_powers(root, found.mean, found.determined)
            power = sum(band.ratio * band.determined for band in bands)
            ratios.append(power / sum(band.determined for band in bands))
    one, two = np.array(ratios).reshape(-1, 2).mean(axis=0)
    assert one == pytest.approx(1.0, abs=error)
    assert two / one == pytest.approx(2.0, abs=0.35)


def band(
    wave: float, ratio: float, determined: float = 1e4, share: float = 1.0
) -> BandPower:
    middle = 2 * math.pi / wave
    return BandPower(
        longest=middle * math.sqrt(2),
        shortest=middle / math.sqrt(2),
        determined=determined,
        share=share,
        ratio=ratio,
        error=ratio * math.sqrt(2 / determined),
    )


def spectrum(wave: float, lengthscale: float, variance: float) -> float:
    return variance * lengthscale**3 / (1 + (wave * lengthscale) ** 2) ** 2


@pytest.fixture
def exact(monkeypatch):
    """Bands without an error beyond the statistical one."""
    monkeypatch.setattr(band_power, "_ERROR", 0.0)
    monkeypatch.setattr(band_power, "_SCATTER", 0.0)


@pytest.mark.usefixtures("exact")
def test_scales_are_those_whose_spectrum_the_bands_have():
    kernel = Matern12(lengthscale=50.0, variance=1.0)
    waves = [0.005 * 2**n for n in range(5)]
    bands = [band(q, spectrum(q, 80.0, 1.44) / spectrum(q, 50.0, 1.0)) for q in waves]
    fitted = fitted_kernel(kernel, bands, (1.0, 1.0))
    found, gain = fitted.kernel, fitted.gain
    assert float(found.lengthscale) == pytest.approx(80.0, rel=1e-2)
    assert float(found.variance) == pytest.approx(1.44, rel=1e-2)
    assert found.bend == pytest.approx((0.0, 0.0), abs=1e-2)
    assert gain > 100
    even = [band(q, 1.0) for q in waves]
    fitted = fitted_kernel(kernel, even, (1.0, 1.0))
    found, gain = fitted.kernel, fitted.gain
    assert float(found.lengthscale) == pytest.approx(50.0, rel=1e-3)
    assert gain == pytest.approx(0.0, abs=1e-3)
    held = fitted_kernel(kernel, bands, (1e-4, 1e-4)).kernel
    assert float(held.lengthscale) == pytest.approx(50.0, rel=1e-2)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("share", [0.3, 0.8])
def test_power_that_a_map_shows_in_part_is_found_whole(share):
    kernel = Matern12(lengthscale=50.0, variance=1.0)
    bands = [band(0.005 * 2**n, 1 + share * (2.0 - 1), share=share) for n in range(5)]
    found = fitted_kernel(kernel, bands, (1.0, 1.0)).kernel
    assert float(found.variance) == pytest.approx(2.0, rel=1e-2)
    assert float(found.lengthscale) == pytest.approx(50.0, rel=1e-2)


def test_one_band_alone_hardly_bends_the_kernel():
    kernel = Matern12(lengthscale=50.0, variance=1.0)
    waves = [0.005 * 2**n for n in range(5)]
    bands = [band(q, 3.0 if n == 2 else 1.0) for n, q in enumerate(waves)]
    found = fitted_kernel(kernel, bands, (0.5, 0.25)).kernel
    power = [power_of(found, q) / power_of(kernel, q) for q in waves]
    assert 1.2 < power[2] < 2.2
    assert all(0.7 < other < 1.7 for other in power[:2] + power[3:])


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("change", [-1.0, 1.0])
def test_bands_of_another_slope_bend_the_kernel(change):
    kernel = Matern12(lengthscale=50.0, variance=1.0)
    waves = [0.005 * 2**n for n in range(5)]
    ratios = [(1 + (50.0 * q) ** 2) ** (change / 2) for q in waves]
    bands = [band(q, ratio, 300.0) for q, ratio in zip(waves, ratios, strict=True)]
    found = fitted_kernel(kernel, bands, (1.0, 1.0)).kernel
    for q, ratio in zip(waves, ratios, strict=True):
        power = power_of(found, q) / power_of(kernel, q)
        assert power == pytest.approx(ratio, rel=0.25)


def power_of(kernel: Radial, wave: float) -> float:
    r"""The transform :math:`4 \pi \int k(r) r \sin(q r) / q \, dr`."""
    scale = float(kernel.lengthscale)
    r = np.linspace(0.0, 40 * scale, 400_001)
    k = band_covariance(kernel, 0.0, math.inf, torch.from_numpy(r / scale)).numpy()
    return float(np.trapezoid(k * r * np.sin(wave * r), r)) * 4 * math.pi / wave


def test_a_kernel_without_a_power_law_is_refused():
    smooth = SquaredExponential(lengthscale=50.0, variance=1.0)
    with pytest.raises(ValueError, match="Matérn"):
        fitted_kernel(smooth, [band(0.04, 2.0)], (1.0, 1.0))


@pytest.mark.usefixtures("exact")
def test_errors_of_a_fitted_kernel_are_those_of_its_bands():
    kernel = Matern12(lengthscale=50.0, variance=1.0)
    waves = [0.005 * 2**n for n in range(5)]
    # Of each band's ln power, twice ln std, the error is sqrt(2 / 200) = 0.1.
    bands = [band(q, 1.0, determined=200.0) for q in waves]
    root = fitted_kernel(kernel, bands, (1e-4, 10.0)).root
    covariance = root @ root.T
    least = 0.1 / 2 / math.sqrt(len(waves))
    # The bend is not known either.
    assert least < math.sqrt(covariance[1, 1]) < 2 * least
    assert math.sqrt(covariance[0, 0]) == pytest.approx(1e-4, rel=1e-2)
    # What no band tells has the errors before.
    nothing = [band(0.005, 1.0, determined=1e-6)]
    root = fitted_kernel(kernel, nothing, (0.5, 0.25)).root
    assert np.diag(root @ root.T)[:2] ** 0.5 == pytest.approx((0.5, 0.25), rel=1e-2)


def test_priors_of_pairs_have_the_spectra_of_their_kernels():
    root = whitening(lengthscale=15.0, variance=0.5)
    other = changed_kernel(root.kernel, np.array([0.3, -0.2, 0.4]))
    mean, stds = priors_of(root, [other])(0)
    # Along an axis of the torus, where no two waves share a mode.
    waves = 2 * math.pi * np.arange(1, 6) / (SHAPE[0] * STEP)
    places = [2 * n * SHAPE[1] * (SHAPE[2] // 2 + 1) for n in range(1, 6)]
    power = log_spectrum(other, waves) - log_spectrum(root.kernel, waves)
    assert stds[places].log().numpy() == pytest.approx(power / 2, abs=1e-3)
    # The mean of the exponential of the field stays.
    shift = root.colour(mean)
    assert float(shift.std()) < 1e-12
    change = float(root.kernel.variance) - float(other.variance)
    assert float(shift.mean()) == pytest.approx(change / 2, rel=1e-9)


def test_the_power_spectrum_is_the_transform_of_the_covariance():
    kernel = Matern12(lengthscale=50.0, variance=2.0)
    found = np.exp(log_spectrum(kernel, np.array([0.01, 0.04])))
    # 8 π σ² ℓ³ / (1 + (q ℓ)²)².
    exact = [
        8 * math.pi * 2 * 50.0**3 / (1 + (50.0 * q) ** 2) ** 2 for q in (0.01, 0.04)
    ]
    assert found == pytest.approx(exact, rel=1e-3)
