"""Random fields with the spectrum, and something of the look, of turbulence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from scipy import fft
from scipy.ndimage import map_coordinates

Axes = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Coordinates ``x, y, z`` [pc] of a grid's points."""

# Correlation lengths between opposite faces: the correlation left is under 1%.
_PADDING = 5
# Cells between opposite faces of a finer grid: of its band's correlation 2% is left.
_PADDING_CELLS = 32
# Fall of the displacement's spectrum: smooth at the scale of the turbulence.
_FLOW_SLOPE = 6.0


def draw_turbulence(
    grids: Sequence[Axes],
    *,
    correlation_length: float,
    slope: float,
    stirring: float,
    rng: np.random.Generator,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Draw a stationary field on nested grids whose finest values are standard normal.

    Its power spectrum is von Karman's with a cut at the grid's scale, ``P(k) = (1 +
    (k L)^2)^(-slope/2) exp(-(k h)^2)``, with L the correlation length and h the
    largest spacing: below L it falls as k^-slope (11/3: Kolmogorov), above it levels
    off, and the cut leaves nothing that a trilinear interpolant would distort. A finer
    grid adds the band between its own cut and that of the grid around it.

    Every band is drawn on a torus that exceeds its box, the coarsest by several L, and
    cut out of it, so opposite faces of the box are independent. Stirring looks the
    field up at displaced points, each component of the displacement an independent
    smooth field: blobs become sheets and wisps, and every single value stays normal.

    Parameters
    ----------
    grids
        Coordinates ``x, y, z`` [pc] of nested grids, the coarsest first, each with half
        the spacing of the one before and its corners at points of it.
    correlation_length
        L [pc].
    slope
        Fall of the spectrum; above 3 for a continuous field.
    stirring
        Standard deviation of each component of the displacement, in units of L;
        without it the field is Gaussian.

    Returns
    -------
    Fields of shape ``(z, y, x)``, and the variance of each, 1 for the finest.
    """
    frames = [_Frame.of(level, axes, grids[0]) for level, axes in enumerate(grids)]
    coarsest = frames[0]
    pad = [int(np.ceil(_PADDING * correlation_length / h)) for h in coarsest.spacing]
    tori = [coarsest.torus(pad)]
    tori += [frame.torus([_PADDING_CELLS] * 3) for frame in frames[1:]]
    k2s = [
        _wavenumbers_squared(torus, frame.spacing)
        for torus, frame in zip(tori, frames, strict=True)
    ]

    def power(level: int, slope: float) -> np.ndarray:
        cut = np.exp(-k2s[level] * max(frames[level].spacing) ** 2)
        if level:
            cut -= np.exp(-k2s[level] * max(frames[level - 1].spacing) ** 2)
        return cut * (1 + k2s[level] * correlation_length**2) ** (-slope / 2)

    powers = [power(level, slope) for level in range(len(frames))]
    variances = np.array(
        [
            np.asarray(fft.irfftn(band, s=torus)).flat[0] / np.prod(frame.spacing)
            for band, torus, frame in zip(powers, tori, frames, strict=True)
        ]
    )
    variances /= variances.sum()
    bands = [_draw(tori[0], powers[0], rng)]
    flows = []
    if stirring:
        flow_power = power(0, _FLOW_SLOPE)
        flows = [_draw(tori[0], flow_power, rng) for _ in range(3)]
    bands += [_draw(*drawn, rng) for drawn in zip(tori[1:], powers[1:], strict=True)]
    fields = []
    for frame in frames:
        index = frame.index()
        displaced = index.copy()
        for axis, flow in enumerate(flows):
            length = stirring * correlation_length / coarsest.spacing[axis]
            on_grid = flow[coarsest.window] if frame is coarsest else _at(flow, index)
            displaced[axis] += length * on_grid
        # Cubic: a linear look-up would take variance from between the points.
        parts = [
            np.sqrt(variances[of.level]) * _at(bands[of.level], of.own(displaced))
            for of in frames[: frame.level + 1]
        ]
        fields.append(np.sum(parts, axis=0))
    return fields, np.cumsum(variances)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """A grid's place in the coarsest: everything along z, y, x.

    Its first point is at the index ``first`` of the coarsest grid, whose cells are
    ``2**level`` times as large.
    """

    level: int
    shape: tuple[int, ...]
    spacing: tuple[float, ...]
    first: np.ndarray

    @classmethod
    def of(cls, level: int, axes: Axes, coarsest: Axes) -> _Frame:
        finer = 2**level
        steps = [axis[1] - axis[0] for axis in coarsest[::-1]]
        starts = zip(axes[::-1], coarsest[::-1], steps, strict=True)
        first = [round(finer * (own[0] - c[0]) / h) / finer for own, c, h in starts]
        return cls(
            level=level,
            shape=tuple(len(axis) for axis in axes[::-1]),
            spacing=tuple(float(axis[1] - axis[0]) for axis in axes[::-1]),
            first=np.reshape(first, (3, 1, 1, 1)),
        )

    @property
    def window(self) -> tuple[slice, ...]:
        """The grid's part of its torus."""
        return tuple(slice(n) for n in self.shape)

    def torus(self, pad: Sequence[int]) -> list[int]:
        """Return the points of a torus with at least ``pad`` beside the grid's."""
        sizes = zip(self.shape, pad, strict=True)
        return [cast(int, fft.next_fast_len(n + p, real=True)) for n, p in sizes]

    def index(self) -> np.ndarray:
        """Return the points' fractional indices in the coarsest, ``(3, z, y, x)``."""
        return self.first + np.indices(self.shape, dtype=float) / 2**self.level

    def own(self, index: np.ndarray) -> np.ndarray:
        """Convert indices in the coarsest grid to indices in this one."""
        return (index - self.first) * 2**self.level


def _at(field: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Look a periodic field up at fractional indices ``(3, z, y, x)``."""
    return map_coordinates(field, index, order=3, mode="grid-wrap")


def _draw(torus: list[int], power: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a field of unit variance with a (half) power spectrum on a torus."""
    # The half spectrum holds most modes for two; the inverse transform knows which.
    variance = np.asarray(fft.irfftn(power, s=torus)).flat[0]
    white = np.asarray(fft.rfftn(rng.standard_normal(torus)))
    return np.asarray(fft.irfftn(white * np.sqrt(power / variance), s=torus))


def _wavenumbers_squared(shape: list[int], spacing: tuple[float, ...]) -> np.ndarray:
    """Return |k|^2 [pc^-2] of the modes of a real FFT over the last axis."""
    axes = [fft.fftfreq(n, step) for n, step in zip(shape, spacing, strict=True)]
    axes[-1] = fft.rfftfreq(shape[-1], spacing[-1])
    k0, k1, k2 = np.ix_(*[(2 * np.pi * axis) ** 2 for axis in axes])
    return k0 + k1 + k2
