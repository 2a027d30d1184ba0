"""Random fields with the spectrum, and partly the look, of turbulence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from scipy import fft
from scipy.ndimage import map_coordinates

Axes = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Coordinates ``x, y, z`` [pc] of a grid's points."""
Rng = np.random.Generator


def draw_turbulence(
    grids: Sequence[Axes],
    *,
    correlation_length: float,
    slope: float,
    stirring: float,
    rng: Rng,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Draw a stationary field on nested grids whose finest values are standard normal.

    Its power spectrum is von Karman's with a cut at the grid's scale, ``P(k) = (1 +
    (k L)^2)^(-slope/2) exp(-(k h)^2)``, with the correlation length L and the largest
    spacing h: below L it falls as k^-slope (11/3: Kolmogorov), above it levels off, and
    the cut removes scales that trilinear interpolation would distort. A finer grid adds
    the band between its own cut and that of the grid around it.

    Every band is drawn on a torus larger than its box, for the coarsest by several L,
    so that opposite faces of the box are independent. Stirring evaluates the field at
    displaced points, with independent smooth fields as components of the displacement:
    blobs become sheets and wisps, and every single value remains normal.

    Grids are coordinates ``x, y, z`` [pc], the coarsest first, each with half the
    spacing of the previous one and corners at points of it. ``correlation_length`` is
    L [pc]; ``slope`` must exceed 3 for a continuous field; ``stirring`` is the standard
    deviation of each component of the displacement, in units of L.

    Returns fields of shape ``(z, y, x)``, and the variance of each, 1 for the finest.
    """
    # All axes are in the order z, y, x. Grids begin at the index ``first`` of the
    # coarsest.
    shapes = [tuple(len(axis) for axis in axes[::-1]) for axes in grids]
    steps = [np.array([a[1] - a[0] for a in axes[::-1]]) for axes in grids]
    first = []
    for level, axes in enumerate(grids):
        cells = [(a[0] - o[0]) / (a[1] - a[0]) for a, o in zip(axes, grids[0])]
        first.append(np.round(cells[::-1]).reshape(3, 1, 1, 1) / 2**level)
    tori, k2s = [], []
    for level, (shape, step) in enumerate(zip(shapes, steps, strict=True)):
        # For 2% of a finer band's correlation between opposite faces, and under 1% of
        # the coarsest one's.
        pad = np.full(3, 32)
        if not level:
            pad = np.ceil(5 * correlation_length / step).astype(int)
        # The grid's points and at least ``pad`` more, in sizes with fast transforms.
        sizes = zip(shape, pad, strict=True)
        tori.append([cast(int, fft.next_fast_len(n + p, real=True)) for n, p in sizes])
        axes = [fft.fftfreq(n, h) for n, h in zip(tori[-1], step, strict=True)]
        axes[-1] = fft.rfftfreq(tori[-1][-1], step[-1])
        # |k|² [pc⁻²] of the modes of a real FFT over the last axis.
        k0, k1, k2 = np.ix_(*[(2 * np.pi * axis) ** 2 for axis in axes])
        k2s.append(k0 + k1 + k2)

    def power(level: int, slope: float) -> np.ndarray:
        cut = np.exp(-k2s[level] * max(steps[level]) ** 2)
        if level:
            cut -= np.exp(-k2s[level] * max(steps[level - 1]) ** 2)
        return cut * (1 + k2s[level] * correlation_length**2) ** (-slope / 2)

    powers = [power(level, slope) for level in range(len(grids))]
    variances = np.array(
        [
            np.asarray(fft.irfftn(band, s=torus)).flat[0] / np.prod(step)
            for band, torus, step in zip(powers, tori, steps, strict=True)
        ]
    )
    variances /= variances.sum()
    bands, flows = [_draw(tori[0], powers[0], rng)], []
    if stirring:
        # Smooth at the turbulence's scale.
        flow_power = power(0, 6.0)
        flows = [_draw(tori[0], flow_power, rng) for _ in range(3)]
    bands += [_draw(*drawn, rng) for drawn in zip(tori[1:], powers[1:], strict=True)]
    fields = []
    for level, shape in enumerate(shapes):
        # Fractional indices of the grid's points in the coarsest, (3, z, y, x).
        index = first[level] + np.indices(shape, dtype=float) / 2**level
        displaced = index.copy()
        for axis, flow in enumerate(flows):
            length = stirring * correlation_length / steps[0][axis]
            own = tuple(slice(n) for n in shape)
            displaced[axis] += length * (_at(flow, index) if level else flow[own])
        # Cubic: linear interpolation would lower the variance between points.
        parts = [
            np.sqrt(variances[n]) * _at(bands[n], (displaced - first[n]) * 2**n)
            for n in range(level + 1)
        ]
        fields.append(np.sum(parts, axis=0))
    return fields, np.cumsum(variances)


def _at(field: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Interpolate a periodic field at fractional indices ``(3, z, y, x)``."""
    return map_coordinates(field, index, order=3, mode="grid-wrap")


def _draw(torus: list[int], power: np.ndarray, rng: Rng) -> np.ndarray:
    """Draw a field of unit variance with a (half) power spectrum on a torus."""
    # Most modes of the half spectrum count twice, as the inverse transform accounts.
    variance = np.asarray(fft.irfftn(power, s=torus)).flat[0]
    white = np.asarray(fft.rfftn(rng.standard_normal(torus)))
    return np.asarray(fft.irfftn(white * np.sqrt(power / variance), s=torus))
