r"""The field's power spectrum as constrained by observations, by octaves of wavenumber.

White noise :math:`\epsilon` in Fourier space has modes of all wavenumbers. With the
posterior covariance S and :math:`G = 1 - S` the posterior mean m of a linear model has
the covariance :math:`G a G + G - G^2` if the power of the field is a times that of the
prior. Summed over the latent numbers of a band b of wavenumbers, and neglecting the
mixing of bands by G,

.. math::
   \frac{|m_b|^2}{\operatorname{tr}_b G^2} \approx a_b + s_b , \qquad
   s_b = \frac{\operatorname{tr}_b G}{\operatorname{tr}_b G^2} - 1 ,

which estimates :math:`a_b` from one posterior, whatever its prior: the quadratic
estimator of maximum likelihood (Tegmark 1997, Phys. Rev. D 55, 5895). Its standard
error is that of :math:`N_b = (\operatorname{tr}_b G)^2 / \operatorname{tr}_b G^2`
squares, :math:`(a_b + s_b) \sqrt{2 / N_b}`. If :math:`a_b` is far from one, the prior
has too little or too much power at these lengths. For a log-normal density, G belongs
to the tangent at the mode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.optimize
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.kernels import Kernel, Radial
from dustmap.mixture import LONGEST, OctaveMatern, mixture, octaves, share
from dustmap.whitening import GridWhitening
from dustmap.whitening.modes import TorusModes

# Ignore bands in which a smaller fraction of the latent numbers, or fewer numbers, is
# constrained: the mode of a log-normal density is too smooth there.
_LEAST_PART, _LEAST = 0.2, 10.0
# Relative error of a band's power plus noise that the tangent of a log-normal density
# leaves: on simulated fields with another slope up to a fifth in octaves with a quarter
# of the numbers constrained, and a twentieth in the others.
_TANGENT = 0.15
# Prior standard deviations of the logarithm of the first octave's relative amplitude,
# and of its change from one octave to the next.
_LEVEL, _WALK = 2.0, 1.0
# Median wavenumbers of three parts of an octave with equal numbers of modes, over the
# octave's least wavenumber.
_INSIDE = (1 + 7 * np.array([1, 3, 5]) / 6) ** (1 / 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class BandPower:
    r"""An octave of wavelengths :math:`2\pi/q` [length of the grid].

    ``ratio`` estimates the power :math:`a_b` over that of the prior, with the standard
    ``error``; ``determined`` is :math:`N_b` and ``noise`` :math:`s_b`.
    """

    longest: float
    shortest: float
    determined: float
    noise: float
    ratio: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    r"""Exponent s of :math:`P \propto q^{s}` across bands, and its standard error."""

    exponent: float
    error: float


def band_powers(
    whitening: GridWhitening,
    mean: Float[Tensor, " p"],
    determined: Float[Tensor, "2 p"],
) -> list[BandPower]:
    """Return the bands that observations constrain, the longest wavelengths first.

    Parameters
    ----------
    whitening
        Whitening of the field, with the kernel of its prior.
    mean
        Posterior mean, or mode, of ε.
    determined
        Diagonals of G and G²
        (:attr:`dustmap.inference.full_batch.FullBatchResult.determined`).
    """
    scale = _lengthscale(whitening.kernel)
    tori = map(_numbers, whitening.modes.parts)
    waves, counts = (torch.cat(parts) for parts in zip(*tori, strict=True))
    band = torch.floor(torch.log2(waves * scale))
    found = []
    # Skip the mean over a torus, whose wavenumber is zero.
    for number in band[torch.isfinite(band)].unique().tolist():
        inside = band == number
        parts = (counts, mean.cpu() ** 2, *determined.cpu())
        sums = [float(part[inside].to(torch.float64).sum()) for part in parts]
        count, power, trace, square = sums
        if square < max(_LEAST, _LEAST_PART * count):
            continue
        degrees, noise = trace**2 / square, trace / square - 1
        longest = 2 * math.pi * scale / 2.0**number
        found.append(
            BandPower(
                longest=longest,
                shortest=longest / 2,
                determined=degrees,
                noise=noise,
                ratio=power / square - noise,
                error=power / square * math.sqrt(2 / degrees),
            )
        )
    return found


def spectral_slope(kernel: Radial, bands: Sequence[BandPower]) -> Slope | None:
    """Return the slope of the power in three dimensions.

    It is fitted by least squares of ln P against ln q to the bands of positive power
    beyond the turn of the prior's spectrum, at one over its lengthscale. ``None`` if
    there are fewer than two, or the kernel is no Matérn covariance.
    """
    if kernel.smoothness is None:
        return None
    scale = _lengthscale(kernel)
    turn = 2 * math.pi * scale * 1.01
    used = [band for band in bands if band.longest <= turn and band.ratio > 0]
    if len(used) < 2:
        return None
    middle = [math.sqrt(band.longest * band.shortest) for band in used]
    waves = 2 * math.pi / np.array(middle)
    ratio, error = (
        np.array([getattr(band, name) for band in used]) for name in ("ratio", "error")
    )
    weights = (ratio / error) ** 2
    y = np.log(_power(kernel, scale * waves, 0.0, math.inf) * ratio)
    x = np.log(waves) - np.average(np.log(waves), weights=weights)
    information = float(weights @ x**2)
    exponent = float(weights @ (x * y)) / information
    return Slope(exponent=exponent, error=information**-0.5)


def fitted_octaves(
    kernel: Radial, bands: Sequence[BandPower]
) -> tuple[OctaveMatern, list[float], float]:
    r"""Return a covariance with octaves fitted to bands, standard errors, and the gain.

    The amplitudes :math:`\alpha_j` of `OctaveMatern` maximise

    .. math::

        -\frac12 \sum_b N'_b \left(\ln (r_b + s_b)
            + \frac{a_b + s_b}{r_b + s_b}\right)
        - \frac{\theta_0^2}{2 s_0^2}
        - \sum_j \frac{(\theta_{j+1} - \theta_j)^2}{2 s^2} , \qquad
        \theta_j = \ln \frac{\alpha_j}{\alpha_j^0} ,

    with the model's power :math:`r_b` over that of the kernel, averaged over the modes
    of a band; the amplitudes :math:`\alpha_j^0` at which octaves have the kernel's
    variances; and :math:`1/N'_b = 1/N_b + \epsilon^2/2` for the relative error
    :math:`\epsilon` of the tangent. So a random walk over octaves bends the kernel's
    spectrum. Errors are those of :math:`\theta_j`; the gain is that of the data term
    and prior over the kernel itself [nats].

    Raises
    ------
    ValueError
        If the kernel is no Matérn covariance, or already has amplitudes.
    """
    smoothness = kernel.smoothness
    if smoothness is None or isinstance(kernel, OctaveMatern):
        raise ValueError(f"octaves need a Matérn covariance, got {kernel.title}")
    scale = LONGEST * _lengthscale(kernel)
    shortest = min(band.shortest for band in bands)
    count = max(math.ceil(math.log2(2 * math.pi * scale / shortest)) + 1, 3)
    ends = np.array(octaves(count))
    own = np.array([share(smoothness, *pair) for pair in ends])
    before = np.array([share(smoothness, *pair) for pair in LONGEST**2 * ends])
    # Share of every octave in the kernel's power, averaged over each band.
    waves = np.array([2 * math.pi * scale / band.longest * _INSIDE for band in bands])
    unit = type(kernel)(lengthscale=1.0)
    power = _power(unit, waves / LONGEST, 0.0, math.inf) / LONGEST**3
    parts = np.stack([_power(unit, waves, *pair) for pair in ends])
    parts = (before / own)[:, None] * (parts / power).mean(axis=2)
    determined, noise, ratio = (
        np.array([getattr(band, name) for band in bands])
        for name in ("determined", "noise", "ratio")
    )
    determined = 1 / (1 / determined + _TANGENT**2 / 2)
    walk = np.diff(np.eye(count), axis=0) / _WALK
    precision = walk.T @ walk
    precision[0, 0] += _LEVEL**-2

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        power = np.exp(theta) @ parts + noise
        pull = determined * (1 - (ratio + noise) / power) / power
        slope = np.exp(theta) * (parts @ pull) + 2 * precision @ theta
        data = float(determined @ (np.log(power) + (ratio + noise) / power))
        return data / 2 + float(theta @ precision @ theta) / 2, slope / 2

    found = scipy.optimize.minimize(loss, np.zeros(count), jac=True)
    shares = np.exp(found.x)[:, None] * parts
    shares /= shares.sum(axis=0) + noise
    information = (shares * determined / 2) @ shares.T + precision
    variances = np.exp(found.x) * before
    matern = kernel.with_parameters({"variance": kernel.variance * variances.sum()})
    errors = np.sqrt(np.diag(np.linalg.inv(information))).tolist()
    bent = OctaveMatern(matern=matern, amplitudes=(variances / own).tolist())
    same = np.log1p(noise) + (ratio + noise) / (1 + noise)
    gain = float(determined @ same) / 2 - float(found.fun)
    return bent, errors, gain


def _power(
    kernel: Radial, waves: np.ndarray, shortest: float, longest: float
) -> np.ndarray:
    """Return the power of a band of times in three dimensions, up to a constant."""
    times, weights = mixture(kernel, shortest, longest, 1.0)
    decay = np.exp(-times * waves[..., None] ** 2)
    return float(kernel.variance) * decay @ (weights * times**1.5)


def _lengthscale(kernel: Kernel) -> float:
    """Return the geometric mean of the lengthscales over axes."""
    assert isinstance(kernel, Radial)
    return float(kernel.lengthscale.detach().double().log().mean().exp())


def _numbers(modes: TorusModes) -> tuple[Float[Tensor, " p"], Float[Tensor, " p"]]:
    """Return wavenumbers of a torus' latent numbers, and the modes that each counts."""
    *others, last = zip(modes.torus.shape, modes.torus.grid.spacing, strict=True)
    axes = [torch.fft.fftfreq(n, d=h, dtype=torch.float64) for n, h in others]
    axes.append(torch.fft.rfftfreq(last[0], d=last[1], dtype=torch.float64))
    total = torch.zeros((), dtype=torch.float64)
    for axis in axes:
        total = total[..., None] + (2 * math.pi * axis) ** 2
    counts = modes.pairs.cpu().expand(total.shape) / 2
    # Real and imaginary parts alternate.
    waves, counts = (x.flatten().repeat_interleave(2) for x in (total.sqrt(), counts))
    return waves, counts
