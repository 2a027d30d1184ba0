r"""Matérn covariances as mixtures of Gaussians, and amplitudes of their octaves.

In distances scaled by the lengthscale, with :math:`\lambda^2 = 2\nu`, a Matérn
covariance is a mixture over "times" τ,

.. math::

    k(r) = \sigma^2 \int_0^\infty p(\tau)\, e^{-r^2 / 4\tau} \, d\tau , \qquad
    p(\tau) = \frac{\lambda^{2\nu}}{\Gamma(\nu)} \tau^{\nu - 1} e^{-\lambda^2 \tau} ,

and p times any positive function of τ also gives a covariance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import gamma, gammainc
from torch import Tensor

from dustmap.kernels import Radial

# Upper end of the first octave of an `OctaveMatern`, in lengthscales.
LONGEST = 4.0
# Gauss–Legendre nodes of each part of the integral over times, and of one octave.
_NODES, _OCTAVE_NODES = 48, 8
# Value of λ²τ beyond which exp(−λ²τ) is negligible.
_END = 60.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OctaveMatern(Radial):
    r"""A Matérn covariance with an amplitude for each octave of scale.

    .. math::

        k(r) = \frac{\sigma^2}{Z} \int_0^\infty a(u)\, p(u)\,
            e^{-r^2 / 4 L^2 u} \, du , \qquad
        a(u) = a_j \text{ where } 2^{-j - 1} < \sqrt{u} \le 2^{-j} ,

    with Z such that :math:`k(0) = \sigma^2`, and times :math:`\tau = L^2 u` with L = 4
    lengthscales. The first octave includes all longer times, and the last one all
    shorter times. Equal amplitudes give the Matérn covariance of lengthscale L.

    Parameters
    ----------
    matern
        Matérn covariance with the lengthscale, the variance σ² and the smoothness.
    amplitudes
        Positive :math:`a_j`, those of the longest scales first.
    """

    title = "Matérn with amplitudes by octaves"
    matern: Radial
    amplitudes: tuple[float, ...]

    def __init__(self, *, matern: Radial, amplitudes: Sequence[float]) -> None:
        if matern.smoothness is None or not amplitudes or min(amplitudes) <= 0:
            raise ValueError(
                "amplitudes by octaves: expected a Matérn covariance and positive "
                f"numbers, got {matern.title} and {tuple(amplitudes)}"
            )
        Radial.__init__(self, **matern.parameters())
        object.__setattr__(self, "matern", matern)
        object.__setattr__(self, "amplitudes", tuple(amplitudes))

    @property
    def smoothness(self) -> float | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """ν of the Matérn covariance."""
        return self.matern.smoothness

    def radial(self, r: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return ``φ(r)`` by quadrature over τ."""
        return band_correlation(self, 0.0, math.inf, r)

    def with_parameters(self, parameters: dict[str, Tensor]) -> OctaveMatern:
        matern = self.matern.with_parameters(parameters)
        return OctaveMatern(matern=matern, amplitudes=self.amplitudes)


def octaves(count: int) -> list[tuple[float, float]]:
    """Return the least and the largest u of octaves of √u, the longest first."""
    edges = [math.inf, *(4.0**-j for j in range(1, count)), 0.0]
    return list(zip(edges[1:], edges[:-1], strict=True))


def share(smoothness: float, shortest: float, longest: float) -> float:
    r"""Return the fraction of a Matérn variance in a band, :math:`\int p\, d\tau`."""
    ends = gammainc(smoothness, 2 * smoothness * np.array([shortest, longest]))
    return float(ends[1] - ends[0])


def mixture(
    kernel: Radial, shortest: float, longest: float, cell: float
) -> tuple[Float[np.ndarray, " t"], Float[np.ndarray, " t"]]:
    """Return times and weights of the Gaussians of a correlation's band.

    Quadrature is over √τ up to the time ``cell``, the square of a cell's size, then
    over log τ: the spectrum of a Gaussian on a grid changes its form there, and a
    single quadrature of [0, ∞) has an error of 2e-3 for ν = 3/2.

    Raises
    ------
    ValueError
        If the kernel is no mixture of Gaussians with a density over τ.
    """
    smoothness = kernel.smoothness
    if smoothness is None:
        raise ValueError(
            f"a {kernel.title} covariance has no bands of scales: use a Matérn "
            "covariance, or one level"
        )
    if not isinstance(kernel, OctaveMatern):
        return _matern(smoothness, shortest, longest, cell, _NODES)
    total, unit, times, weights = 0.0, LONGEST**2, [], []
    amplitudes = zip(kernel.amplitudes, octaves(len(kernel.amplitudes)), strict=True)
    for amplitude, (low, high) in amplitudes:
        total += amplitude * share(smoothness, low, high)
        low, high = max(low, shortest / unit), min(high, longest / unit)
        if low < high:
            nodes = _NODES if low == 0.0 or math.isinf(high) else _OCTAVE_NODES
            u, weight = _matern(smoothness, low, high, cell / unit, nodes)
            times.append(unit * u)
            weights.append(amplitude * weight)
    weights = [weight / total for weight in weights]
    return np.concatenate(times), np.concatenate(weights)


def band_correlation(
    kernel: Radial, shortest: float, longest: float, distance: Float[Tensor, "*n"]
) -> Float[Tensor, "*n"]:
    """Return the part of ``φ(r)`` in a band of times, at scaled distances r.

    Raises
    ------
    ValueError
        If the kernel is no mixture of Gaussians with a density over τ.
    """
    # Quadrature over √τ up to the longest time needs no second part.
    cell = min(longest, _END / (2 * (kernel.smoothness or 1.0)))
    times, weights = mixture(kernel, shortest, longest, cell)
    total = torch.zeros_like(distance)
    for time, weight in zip(times.tolist(), weights.tolist(), strict=True):
        total += weight * torch.exp(-(distance**2) / (4 * time))
    return total


def _matern(
    smoothness: float, shortest: float, longest: float, cell: float, nodes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return times and weights of a Matérn correlation's band."""
    rate = 2 * smoothness
    x, w = np.polynomial.legendre.leggauss(nodes)
    x, w = (x + 1) / 2, w / 2
    end = min(longest, _END / rate)
    times, weights = [], []
    if shortest < cell:
        low, high = math.sqrt(shortest), math.sqrt(min(cell, end))
        root = low + (high - low) * x
        times.append(root**2)
        weights.append((high - low) * w * 2 * root ** (2 * smoothness - 1))
    if end > max(cell, shortest):
        low, high = math.log(max(cell, shortest)), math.log(end)
        times.append(np.exp(low + (high - low) * x))
        weights.append((high - low) * w * times[-1] ** smoothness)
    tau, weight = np.concatenate(times), np.concatenate(weights)
    density = rate**smoothness / gamma(smoothness) * np.exp(-rate * tau)
    return tau, weight * density
