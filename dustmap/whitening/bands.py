r"""Spectra of a Matérn covariance's bands of scales on a torus.

A Matérn covariance is a mixture of Gaussians over "times" τ. In distances scaled by the
lengthscale, with :math:`\lambda^2 = 2\nu`,

.. math::

    k(r) = \sigma^2 \frac{\lambda^{2\nu}}{\Gamma(\nu)}
        \int_0^\infty \tau^{\nu - 1} e^{-\lambda^2 \tau - r^2 / 4\tau} \, d\tau ,

and the part of the integral between two times is a band: itself a covariance, smooth on
scales below :math:`2\sqrt{\tau}` of the shorter time, and small at distances beyond
:math:`2\sqrt{\tau}` of the longer time. A kernel's bend :math:`b` multiplies the
integrand by :math:`e^{b(\tau)}`, linear in :math:`\ln\tau` between :math:`\tau = 1`
with :math:`b = 0` and each :math:`\tau = 4^{-j}`, j octaves of length below, and
constant beyond; the whole is divided by its integral at r = 0, which leaves
:math:`k(0) = \sigma^2`. Each Gaussian is a product over axes, whose spectrum on a grid
is a theta function, positive at every frequency. A band's spectrum is thus a sum of
products of positive numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import gamma
from torch import Tensor

from dustmap.grid import Torus
from dustmap.kernels import Radial

# Where the mixture's exp(−λ²τ) has ended.
_END = 60.0


def band_spectrum(
    kernel: Radial, torus: Torus, shortest: float, longest: float
) -> Float[Tensor, "*n"]:
    """Return the eigenvalues of a band's covariance on a torus (``rfftn``, float64).

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
    sides = zip(torus.shape, steps, strict=True)
    *axes, last = (_gaussian_spectra(times, n, h) for n, h in sides)
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

    Raises `ValueError` if the kernel is no mixture of Gaussians with a density over τ.
    """
    # To the longest time over √τ: one part.
    cell = min(longest, _END / (2 * _smoothness(kernel)))
    times, weights = mixture(kernel, shortest, longest, cell)
    total = torch.zeros_like(distance)
    for time, weight in zip(times.tolist(), weights.tolist(), strict=True):
        total += weight * torch.exp(-(distance**2) / (4 * time))
    return float(kernel.variance) * total


def correlated_to(kernel: Radial, tolerance: float) -> float:
    """Return the scaled distance beyond which ``k(r) < tolerance k(0)``."""
    if not kernel.bend:
        return kernel.decay(tolerance)
    # The correlation is at most the largest factor times the unbent one, normalised. A
    # little further allows for errors of quadrature.
    total = float(_parts(kernel, 0.0, math.inf, 1.0)[1].sum())
    most = math.exp(max(0.0, *kernel.bend))
    farthest = 1.01 * kernel.decay(tolerance * total / most)
    distance = torch.linspace(0, farthest, 1000, dtype=torch.float64)
    value = band_covariance(kernel, 0.0, math.inf, distance) / kernel.variance
    return float(distance[int((value > tolerance).sum())])


def shortest_time(kernel: Radial, spacing: Sequence[float], cut: float) -> float:
    """Return :math:`t = (c h)^2` with the largest step h, in lengthscales squared."""
    scale = kernel.lengthscale.detach().expand(len(spacing)).tolist()
    return (cut * max(h / s for h, s in zip(spacing, scale, strict=True))) ** 2


def variance_below(kernel: Radial, spacing: Sequence[float], cut: float) -> float:
    """Return the variance of scales below the cut of a grid; zero without one."""
    if not cut:
        return 0.0
    time, zero = shortest_time(kernel, spacing, cut), torch.zeros(1).double()
    return float(band_covariance(kernel, 0.0, time, zero))


def _smoothness(kernel: Radial) -> float:
    if kernel.smoothness is None:
        raise ValueError(
            f"a {kernel.title} covariance has no bands of scales: use a Matérn "
            "covariance, or one level"
        )
    return kernel.smoothness


def mixture(
    kernel: Radial, shortest: float, longest: float, cell: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return quadrature times and weights, over √τ up to ``cell``, then over log τ.

    The spectrum of a Gaussian on the grid changes its form at the size of a cell:
    without a cut there, the quadrature over [0, ∞) has an error of 2e-3 for ν = 3/2. It
    is also cut at the octaves of a bend.

    Raises `ValueError` if the kernel is no mixture of Gaussians with a density over τ.
    """
    times, weights = _parts(kernel, shortest, longest, cell)
    if kernel.bend:
        weights /= _parts(kernel, 0.0, math.inf, 1.0)[1].sum()
    return times, weights


def _parts(
    kernel: Radial, shortest: float, longest: float, cell: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the times and weights of `mixture`, of a bent kernel not normalised."""
    smoothness = _smoothness(kernel)
    rate, octaves = 2 * smoothness, 0.25 ** np.arange(len(kernel.bend) + 1)
    end = min(longest, _END / rate)
    inner = [cell, *octaves] if kernel.bend else [cell]
    cuts = sorted({shortest, end, *(cut for cut in inner if shortest < cut < end)})
    # The octaves of a bend are many short parts.
    x, w = np.polynomial.legendre.leggauss(16 if kernel.bend else 48)
    x, w = (x + 1) / 2, w / 2
    times, weights = [], []
    for first, last in itertools.pairwise(cuts):
        if last <= cell:
            low, high = math.sqrt(first), math.sqrt(last)
            root = low + (high - low) * x
            times.append(root**2)
            weights.append((high - low) * w * 2 * root ** (2 * smoothness - 1))
        else:
            low, high = math.log(first), math.log(last)
            times.append(np.exp(low + (high - low) * x))
            weights.append((high - low) * w * times[-1] ** smoothness)
    tau, weight = np.concatenate(times), np.concatenate(weights)
    density = rate**smoothness / gamma(smoothness) * np.exp(-rate * tau)
    if kernel.bend:
        known = np.log(octaves[::-1]), np.array([0.0, *kernel.bend])[::-1]
        density *= np.exp(np.interp(np.log(tau), *known))
    return tau, weight * density


def _gaussian_spectra(
    times: np.ndarray, count: int, step: float
) -> Float[Tensor, "t n"]:
    r"""Return ``Σ_n e^{−(n h)²/4τ} cos(q n h)`` at the frequencies of ``count`` points.

    By Poisson's formula it is also
    :math:`\sqrt{4\pi\tau}/h \, \sum_m e^{-\tau (q + 2\pi m/h)^2}`; the sum with fewer
    terms is taken.
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
