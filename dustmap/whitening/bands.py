r"""Spectra of a Matérn covariance's bands of scales on a torus.

A Matérn covariance is a mixture of Gaussians over "times" τ
(:mod:`dustmap.mixture`). The part between two times is a band: a covariance itself,
smooth on the scale :math:`2\sqrt{\tau}` of the shorter time, and negligible beyond a
few times that of the longer. Each Gaussian is a product over axes, whose spectrum on a
grid is a theta function, positive at every frequency, so a band's spectrum is positive.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.grid import Torus
from dustmap.kernels import Radial
from dustmap.mixture import band_correlation, mixture


def band_spectrum(
    kernel: Radial, torus: Torus, shortest: float, longest: float
) -> Float[Tensor, "*n"]:
    """Return eigenvalues of a band's covariance on a torus (float64, half spectrum).

    Parameters
    ----------
    kernel
        A Matérn covariance.
    torus
        Periodic grid; the band is summed over its periods.
    shortest, longest
        The band's times τ, in squared lengthscales; 0 and infinity are allowed.

    Raises
    ------
    ValueError
        If the kernel is no mixture of Gaussians with a density over τ.
    """
    scale = kernel.lengthscale.detach().double().expand(len(torus.shape)).tolist()
    steps = [h / s for h, s in zip(torus.grid.spacing, scale, strict=True)]
    times, weights = mixture(kernel, shortest, longest, max(steps) ** 2)
    *axes, last = [
        _gaussian_spectra(times, n, h) for n, h in zip(torus.shape, steps, strict=True)
    ]
    last = last[:, : torus.shape[-1] // 2 + 1]
    product = torch.from_numpy(weights)[:, None]
    for axis in axes:
        product = (product[:, :, None] * axis[:, None, :]).flatten(1)
    shape = (*torus.shape[:-1], last.shape[1])
    return float(kernel.variance) * (product.mT @ last).reshape(shape)


def band_covariance(
    kernel: Radial, shortest: float, longest: float, distance: Float[Tensor, "*n"]
) -> Float[Tensor, "*n"]:
    """Return a band's covariance at scaled distances r (times as in `band_spectrum`).

    Raises
    ------
    ValueError
        If the kernel is no mixture of Gaussians with a density over τ.
    """
    correlation = band_correlation(kernel, shortest, longest, distance)
    return float(kernel.variance) * correlation


def shortest_time(kernel: Radial, spacing: Sequence[float], cut: float) -> float:
    """Return :math:`t = (c h)^2` with the largest step h, in lengthscales squared."""
    scale = kernel.lengthscale.detach().expand(len(spacing)).tolist()
    return (cut * max(h / s for h, s in zip(spacing, scale, strict=True))) ** 2


def _gaussian_spectra(
    times: np.ndarray, count: int, step: float
) -> Float[Tensor, "t n"]:
    r"""Return ``Σ_n e^{−(n h)²/4τ} cos(q n h)`` at the frequencies of ``count`` points.

    By Poisson's formula it is also
    :math:`\sqrt{4\pi\tau}/h \, \sum_m e^{-\tau (q + 2\pi m/h)^2}`; the sum with fewer
    terms is used.
    """
    terms = np.arange(-8, 9)
    angle = 2 * np.pi * np.fft.fftfreq(count)
    long = times >= step**2 / 4
    spectra = np.empty((len(times), count))
    waves = (angle[:, None] + 2 * np.pi * terms) / step
    tau = times[long, None, None]
    sums = np.exp(-tau * waves**2).sum(axis=-1)
    spectra[long] = np.sqrt(4 * np.pi * times[long, None]) / step * sums
    tau = times[~long, None, None]
    lattice = np.exp(-((terms * step) ** 2) / (4 * tau))
    spectra[~long] = (lattice * np.cos(angle[:, None] * terms)).sum(axis=-1)
    return torch.from_numpy(spectra)
