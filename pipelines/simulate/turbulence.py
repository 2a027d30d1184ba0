"""Random fields with the spectrum, and something of the look, of turbulence."""

from __future__ import annotations

from typing import cast

import numpy as np
from scipy import fft
from scipy.ndimage import map_coordinates

# Correlation lengths between opposite faces: the correlation left is under 1%.
_PADDING = 5
# Fall of the displacement's spectrum: smooth at the scale of the turbulence.
_FLOW_SLOPE = 6.0


def draw_turbulence(
    shape: tuple[int, int, int],
    spacing: tuple[float, float, float],
    *,
    correlation_length: float,
    slope: float,
    stirring: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw a stationary field whose every value is standard normal.

    Its power spectrum is von Karman's with a cut at the grid's scale, ``P(k) = (1 +
    (k L)^2)^(-slope/2) exp(-(k h)^2)``, with L the correlation length and h the
    largest spacing: below L it falls as k^-slope (11/3: Kolmogorov), above it levels
    off, and the cut leaves nothing that a trilinear interpolant would distort.

    The field is drawn on a torus that exceeds the box by several L and cut out of it,
    so opposite faces of the box are independent. Stirring looks the field up at
    displaced points, each component of the displacement an independent smooth field:
    blobs become sheets and wisps, and every single value stays standard normal.

    Parameters
    ----------
    shape, spacing
        Points along each axis, and their distances [pc].
    correlation_length
        L [pc].
    slope
        Fall of the spectrum; above 3 for a continuous field.
    stirring
        Standard deviation of each component of the displacement, in units of L;
        without it the field is Gaussian.
    """
    pad = [int(np.ceil(_PADDING * correlation_length / step)) for step in spacing]
    torus = [
        cast(int, fft.next_fast_len(n + extra, real=True))
        for n, extra in zip(shape, pad, strict=True)
    ]
    window = tuple(slice(n) for n in shape)
    k2 = _wavenumbers_squared(torus, spacing)
    cut = np.exp(-k2 * max(spacing) ** 2)
    scaled = 1 + k2 * correlation_length**2
    field = _draw(torus, cut * scaled ** (-slope / 2), rng)
    if not stirring:
        return np.ascontiguousarray(field[window])
    index = np.indices(shape, dtype=float)
    for axis, step in enumerate(spacing):
        flow = _draw(torus, cut * scaled ** (-_FLOW_SLOPE / 2), rng)[window]
        index[axis] += stirring * correlation_length / step * flow
    # Cubic: a linear look-up would take variance from between the points.
    return map_coordinates(field, index, order=3, mode="grid-wrap")


def _draw(torus: list[int], power: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a field of unit variance with a (half) power spectrum on a torus."""
    # The half spectrum holds most modes for two; the inverse transform knows which.
    variance = np.asarray(fft.irfftn(power, s=torus)).flat[0]
    white = np.asarray(fft.rfftn(rng.standard_normal(torus)))
    return np.asarray(fft.irfftn(white * np.sqrt(power / variance), s=torus))


def _wavenumbers_squared(
    shape: list[int], spacing: tuple[float, float, float]
) -> np.ndarray:
    """Return |k|^2 [pc^-2] of the modes of a real FFT over the last axis."""
    axes = [fft.fftfreq(n, step) for n, step in zip(shape, spacing, strict=True)]
    axes[-1] = fft.rfftfreq(shape[-1], spacing[-1])
    k0, k1, k2 = np.ix_(*[(2 * np.pi * axis) ** 2 for axis in axes])
    return k0 + k1 + k2
