r"""The field's power spectrum from observations, by octaves of wavenumber.

White noise :math:`\epsilon` in Fourier space has modes of all wavenumbers q, and the
amplitude :math:`\alpha_b` of the prior's power in a band b is where the evidence of
Laplace's approximation is stationary (MacKay 1992, Neural Comput. 4, 415),

.. math::
   \alpha_b = \frac{|m_b|^2}{\gamma_b} , \qquad
   \gamma_b = p_b - \operatorname{tr} S_b ,

with the posterior's mean :math:`m_b` and covariance :math:`S_b` of the band's
:math:`p_b` numbers. :math:`\gamma_b` is the number of them that observations determine;
:math:`\alpha_b` has the relative error :math:`\sqrt{2/\gamma_b}`. Where it differs
from one, the prior has too little or too much power at these lengths.

The posterior's mean shows only a part :math:`g_b` of the power that the prior lacks.
With :math:`G = 1 - S`, and amplitudes a that change little from band to band,

.. math::
   E\,|m_b|^2 = \operatorname{tr} G_b + \sum_c \operatorname{tr}(G_{bc} G_{cb})
   (a_c - 1) , \qquad
   E\,\alpha_b = 1 + g_b\,(a_b - 1) , \qquad
   g_b = \operatorname{tr} (G^2)_b / \operatorname{tr} G_b .
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
from dustmap.whitening import GridWhitening
from dustmap.whitening.bands import mixture
from dustmap.whitening.modes import TorusModes

# Relative error of the bands' ratios beyond their statistical one: modes are not linear
# and end early. Of ten bands of three maps of two simulated skies it was 0.33 (RMS).
_ERROR = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class BandPower:
    r"""The power in an octave of wavelengths :math:`2\pi/q` [unit of the grid].

    ``determined`` is :math:`\gamma_b`, ``share`` :math:`g_b`, ``ratio``
    :math:`\alpha_b` and ``error`` its standard error.
    """

    longest: float
    shortest: float
    determined: float
    share: float
    ratio: float
    error: float


def band_powers(
    whitening: GridWhitening,
    mean: Float[Tensor, " p"],
    determined: Float[Tensor, "2 p"],
) -> list[BandPower]:
    """Return the octaves that observations constrain, longest wavelengths first.

    Parameters
    ----------
    whitening
        Whitening of the field, with the kernel of its prior.
    mean
        Posterior mean, or mode, of ε.
    determined
        Estimates of the diagonals of G and G²
        (:attr:`dustmap.inference.full_batch.FullBatchResult.determined`).
    """
    scale = _lengthscale(whitening.kernel)
    tori = map(_numbers, whitening.modes.parts)
    waves, counts = (torch.cat(parts) for parts in zip(*tori, strict=True))
    band = torch.floor(torch.log2(waves * scale))
    found = []
    # The mean over a torus has no wavelength.
    for number in band[torch.isfinite(band)].unique().tolist():
        inside = band == number
        parts = (counts, mean.cpu() ** 2, *determined.cpu())
        sums = [float(part[inside].to(torch.float64).sum()) for part in parts]
        found.append(_band(*sums, longest=2 * math.pi * scale / 2.0**number))
    return [one for one in found if one is not None]


def fitted_kernel(
    kernel: Radial,
    bands: Sequence[BandPower],
    errors: tuple[float, float],
) -> tuple[Radial, float]:
    r"""Return the kernel whose power fits the bands, and the gain [nats].

    Lengthscale, variance and bend of a kernel without a bend maximise :math:`-\frac12
    \sum_b w_b (\ln e_b + \alpha_b / e_b)` with :math:`e_b = 1 + g_b (a_b - 1)`, where
    :math:`a_b` is the ratio of the new to the kernel's power and :math:`1 / w_b = g_b /
    \gamma_b + s^2 / 2`, as bands have a relative error s beyond the statistical one.
    The logarithms of lengthscale and std have normal priors with these standard
    ``errors``; changes of the bend between octaves, down to the shortest band, have a
    prior standard deviation of 0.5.
    """
    scale = _lengthscale(kernel)
    middle = [math.sqrt(band.longest * band.shortest) for band in bands]
    waves = 2 * math.pi / np.array(middle)
    determined = np.array([band.determined for band in bands])
    ratio = np.array([band.ratio for band in bands])
    share = np.array([band.share for band in bands])
    weight = 1 / (share / determined + _ERROR**2 / 2)
    octaves = max(math.ceil(math.log2(waves.max() * scale)), 0)
    # A change of 0.5 alters the slope of a power law by 0.7.
    doubts = np.array([*errors, *[0.5] * octaves])

    def bent(theta: np.ndarray) -> Radial:
        stretch, factor = np.exp(theta[:2]).tolist()
        return type(kernel)(
            lengthscale=stretch * kernel.lengthscale,
            variance=factor**2 * kernel.variance,
            bend=np.cumsum(theta[2:]).tolist(),
        )

    start = np.zeros(len(doubts))
    before = log_spectrum(bent(start), waves)

    def loss(theta: np.ndarray) -> float:
        power = log_spectrum(bent(theta), waves) - before
        seen = 1 + share * np.expm1(power)
        data = weight * (np.log(seen) + ratio / seen)
        return float(data.sum() + np.sum((theta / doubts) ** 2)) / 2

    # Factors up to e on scales, and between octaves.
    bounds = [(-1.0, 1.0)] * len(start)
    found = scipy.optimize.minimize(loss, start, bounds=bounds).x
    return bent(found), loss(start) - loss(found)


def log_spectrum(
    kernel: Radial, waves: Float[np.ndarray, " q"]
) -> Float[np.ndarray, " q"]:
    r"""Return the log power spectrum of a Matérn kernel in 3-D at wavenumbers q.

    :math:`P(q) = \int k(x)\, e^{-i q \cdot x}\, \mathrm d^3 x` in the squared unit of
    the field times a volume.
    """
    times, weights = mixture(kernel, 0.0, math.inf)
    scale = _lengthscale(kernel)
    gaussians = (4 * math.pi * times) ** 1.5 * np.exp(
        -times * (waves[:, None] * scale) ** 2
    )
    return np.log(float(kernel.variance) * scale**3 * (gaussians @ weights))


def _lengthscale(kernel: Kernel) -> float:
    """Return the geometric mean of the lengthscales."""
    assert isinstance(kernel, Radial)
    return float(kernel.lengthscale.detach().double().log().mean().exp())


def _numbers(modes: TorusModes) -> tuple[Float[Tensor, " p"], Float[Tensor, " p"]]:
    """Return the wavenumber and multiplicity of every latent number of a torus."""
    *others, last = zip(modes.torus.shape, modes.torus.grid.spacing, strict=True)
    axes = [torch.fft.fftfreq(n, d=h, dtype=torch.float64) for n, h in others]
    axes.append(torch.fft.rfftfreq(last[0], d=last[1], dtype=torch.float64))
    total = torch.zeros((), dtype=torch.float64)
    for axis in axes:
        total = total[..., None] + (2 * math.pi * axis) ** 2
    counts = modes.pairs.cpu().expand(total.shape) / 2
    # Real and imaginary parts lie beside each other.
    waves, counts = (x.flatten().repeat_interleave(2) for x in (total.sqrt(), counts))
    return waves, counts


def _band(
    count: float, power: float, determined: float, squared: float, *, longest: float
) -> BandPower | None:
    """Return an octave's power, or ``None`` if too few modes are constrained."""
    # Ten numbers give the ratio to 45%; solves are accurate to 2% of the numbers.
    if determined < max(10.0, 0.02 * count):
        return None
    ratio = power / determined
    return BandPower(
        longest=longest,
        shortest=longest / 2,
        determined=determined,
        # The estimate from few probes may exceed one.
        share=min(squared / determined, 1.0),
        ratio=ratio,
        error=ratio * math.sqrt(2 / determined),
    )
