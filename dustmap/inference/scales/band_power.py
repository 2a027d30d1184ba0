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
from functools import lru_cache

import numpy as np
import scipy.optimize
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.full_batch.state import Priors
from dustmap.kernels import Radial
from dustmap.whitening import GridWhitening
from dustmap.whitening.bands import mixture, variance_below
from dustmap.whitening.modes import TorusModes

# Relative error of the bands' ratios beyond their statistical one: modes are not linear
# and end early. Of ten bands of three maps of two simulated skies it was 0.33 (RMS).
_ERROR = 0.3
# The part of it that differs from sky to sky: of 19 bands of ten turbulent skies the
# ratio to the true power scattered by 0.08 to 0.16 about its mean, where the
# statistical error is 0.08 to 0.12.
_SCATTER = 0.1
# Prior standard deviation of the change of a spectrum's logarithm, relative to a power
# law, from one octave to the next. With it the logarithm of the learnt power of ten
# turbulent skies at 60 and 120 pc scatters by 0.09 about the true one's.
OCTAVE_STD = 0.25


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
    scale = whitening.kernel.mean_lengthscale
    tori = map(_numbers, whitening.modes.parts)
    waves, counts = (torch.cat(parts) for parts in zip(*tori, strict=True))
    band = torch.floor(torch.log2(waves * scale))
    found = []
    # The mean over a torus has no wavelength.
    for number in band[torch.isfinite(band)].unique().tolist():
        inside = band == number
        parts = (counts, mean.cpu() ** 2, *determined.cpu())
        count, power, known, squared = (
            float(part[inside].to(torch.float64).sum()) for part in parts
        )
        # Ten numbers give the ratio to 45%; solves are accurate to 2% of the numbers.
        if known < max(10.0, 0.02 * count):
            continue
        longest, ratio = 2 * math.pi * scale / 2.0**number, power / known
        found.append(
            BandPower(
                longest=longest,
                shortest=longest / 2,
                determined=known,
                # The estimate from few probes may exceed one.
                share=min(squared / known, 1.0),
                ratio=ratio,
                error=ratio * math.sqrt(2 / known),
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedKernel:
    """A kernel, the ``gain`` of its fit [nats], and its errors.

    ``root`` is a root of the covariance of the steps of `changed_kernel` about it.
    """

    kernel: Radial
    gain: float
    root: Float[np.ndarray, "t t"]


def fitted_kernel(
    kernel: Radial, bands: Sequence[BandPower], errors: tuple[float, float]
) -> FittedKernel:
    r"""Return the kernel whose power fits the bands, with its errors.

    Lengthscale, variance and bend of a kernel without a bend maximise :math:`-\frac12
    \sum_b w_b (\ln e_b + \alpha_b / e_b)` with :math:`e_b = 1 + g_b (a_b - 1)`, where
    :math:`a_b` is the ratio of the new to the kernel's power and :math:`1 / w_b = g_b /
    \gamma_b + s^2 / 2`, as bands have a relative error s beyond the statistical one.
    The logarithms of lengthscale and std have normal priors with these standard
    ``errors``, changes of the bend between octaves, down to the shortest band, one of
    `OCTAVE_STD`: the spectrum is tied to a power law. Their covariance is that of
    Laplace's approximation with the expected curvature,

    .. math:: \Bigl(\operatorname{diag} \sigma^{-2} + \sum_b \frac{1}{u_b}
       \Bigl(\frac{g_b a_b}{e_b}\Bigr)^2 \nabla \ln a_b\, \nabla \ln a_b^\top
       \Bigr)^{-1} , \qquad u_b = \frac{2 g_b}{\gamma_b} + s'^2 ,

    where s' is the part of s that differs from sky to sky.
    """
    scale = kernel.mean_lengthscale
    middle = [math.sqrt(band.longest * band.shortest) for band in bands]
    waves = 2 * math.pi / np.array(middle)
    numbers = [(band.determined, band.ratio, band.share) for band in bands]
    determined, ratio, share = np.array(numbers).T
    weight = 1 / (share / determined + _ERROR**2 / 2)
    octaves = max(math.ceil(math.log2(waves.max() * scale)), 0)
    spread = np.array([*errors, *[OCTAVE_STD] * octaves])
    before = log_spectrum(kernel, waves)

    def gained(steps: np.ndarray) -> Float[np.ndarray, " b"]:
        return log_spectrum(changed_kernel(kernel, steps), waves) - before

    def loss(steps: np.ndarray) -> float:
        seen = 1 + share * np.expm1(gained(steps))
        data = weight * (np.log(seen) + ratio / seen)
        return float(data.sum() + np.sum((steps / spread) ** 2)) / 2

    # Factors up to e on scales, and between octaves.
    start, bounds = np.zeros(len(spread)), [(-1.0, 1.0)] * len(spread)
    found = scipy.optimize.minimize(loss, start, bounds=bounds).x
    power = np.exp(gained(found))
    # Central differences: the spectrum is smooth.
    steps = 1e-4 * np.eye(len(spread))
    slope = [(gained(found + each) - gained(found - each)) / 2e-4 for each in steps]
    scaled = np.array(slope) * (share * power / (1 + share * (power - 1)))
    known = 1 / (2 * share / determined + _SCATTER**2)
    curvature = np.diag(spread**-2) + (scaled * known) @ scaled.T
    return FittedKernel(
        kernel=changed_kernel(kernel, found),
        gain=loss(start) - loss(found),
        root=np.linalg.cholesky(np.linalg.inv(curvature)),
    )


def changed_kernel(kernel: Radial, steps: Float[np.ndarray, " t"]) -> Radial:
    """Return a kernel after steps of ln lengthscale, ln std and the bend's changes.

    The bend has a change for every step after the first two.
    """
    stretch, factor = np.exp(steps[:2]).tolist()
    before = np.diff(kernel.bend, prepend=0.0) if kernel.bend else 0.0
    return type(kernel)(
        lengthscale=stretch * kernel.lengthscale,
        variance=factor**2 * kernel.variance,
        bend=np.cumsum(before + steps[2:]).tolist(),
    )


def priors_of(whitening: GridWhitening, kernels: Sequence[Radial]) -> Priors:
    r"""Return a function of mean and standard deviations of ε under each kernel.

    Standard deviations are :math:`\sqrt{S' / S}` at every mode, with the power spectra
    of both kernels. The mean is that of the constant which leaves the mean of the
    exponential of the field on the coarsest grid as it is.
    """
    waves = torch.cat([_numbers(part)[0] for part in whitening.modes.parts]).numpy()
    least = waves[waves > 0].min()
    logarithm = np.log(np.maximum(waves, least))
    # The ratio is smooth in the logarithm of the wavenumber.
    nodes = np.geomspace(least, waves.max(), 200)
    before = log_spectrum(whitening.kernel, nodes)
    # The first number is the mode of wavenumber zero on the coarsest torus.
    unit = torch.zeros(whitening.size, dtype=whitening.dtype, device=whitening.device)
    unit[0] = 1.0
    constant = float(whitening.colour(unit)[0])
    spacing, cut = whitening.tori[0].grid.spacing, whitening.cut

    def resolved(kernel: Radial) -> float:
        return float(kernel.variance) - variance_below(kernel, spacing, cut)

    # The searches for the samples of a batch follow each other.
    @lru_cache(maxsize=8)
    def prior(number: int) -> tuple[Float[Tensor, " p"], Float[Tensor, " p"]]:
        ratio = log_spectrum(kernels[number], nodes) - before
        stds = np.exp(np.interp(logarithm, np.log(nodes), ratio) / 2)
        difference = resolved(whitening.kernel) - resolved(kernels[number])
        return difference / 2 / constant * unit, torch.from_numpy(stds).to(unit)

    return prior


def log_spectrum(
    kernel: Radial, waves: Float[np.ndarray, " q"]
) -> Float[np.ndarray, " q"]:
    r"""Return the log power spectrum of a Matérn kernel in 3-D at wavenumbers q.

    :math:`P(q) = \int k(x)\, e^{-i q \cdot x}\, \mathrm d^3 x` in the squared unit of
    the field times a volume.
    """
    times, weights = mixture(kernel, 0.0, math.inf)
    scale = kernel.mean_lengthscale
    falls = np.exp(-times * (waves[:, None] * scale) ** 2)
    gaussians = (4 * math.pi * times) ** 1.5 * falls
    return np.log(float(kernel.variance) * scale**3 * (gaussians @ weights))


def _numbers(modes: TorusModes) -> tuple[Float[Tensor, " p"], Float[Tensor, " p"]]:
    """Return the wavenumber and multiplicity of every latent number of a torus."""
    axes = zip(modes.torus.shape, modes.torus.grid.spacing, modes.half, strict=True)
    total = torch.zeros((), dtype=torch.float64)
    for n, h, stored in axes:
        axis = torch.fft.fftfreq(n, d=h, dtype=torch.float64)[:stored]
        total = total[..., None] + (2 * math.pi * axis) ** 2
    counts = modes.pairs.cpu().expand(total.shape) / 2
    # Real and imaginary parts lie beside each other.
    waves, counts = (x.flatten().repeat_interleave(2) for x in (total.sqrt(), counts))
    return waves, counts
