r"""Expected true distances, by the distribution of the measured ones.

Of the stars at one measured distance more come from where stars are more numerous
(Eddington 1913, MNRAS 73, 359). If errors are normal, of a known standard deviation
:math:`\sigma`, true distances of stars measured at d have the mean and the variance

.. math::
   d + \sigma^2 \, \frac{\partial}{\partial d} \ln p(d \mid \sigma) , \quad
   \sigma^2 + \sigma^4 \, \frac{\partial^2}{\partial d^2} \ln p(d \mid \sigma)

whatever their distribution (Tweedie's formula: Efron 2011, JASA 106, 1602). Here p is
the density of the measured distances of stars with this :math:`\sigma`, a slice of a
part of the sky. It is smoothed by normals of :math:`2 n^{-1/7}` standard deviations,
one at most, of each of which a slice has n stars, and of √2 as many, and derivatives
are extrapolated to none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int
from scipy.ndimage import gaussian_filter1d

from pipelines.base.errors import InputError
from pipelines.catalog.schema import Stars

# Stars of a part of the sky, a run of pixels of 0.9 deg: distances differ by direction,
# as dust and a survey's limits do.
_PART = 200_000
_NSIDE = 64
# Stars of a slice at least, if a survey has as many, and most slices.
_STARS = 2_000
_SLICES = 50
# Cells of a histogram in a standard deviation, and most of all: errors so small that
# these are too few move no star.
_CELLS = 8
_MOST_CELLS = 1_000_000
# Standard deviations of the longest shift: beyond it stars are too few for a slope.
_LONGEST = 3.0
# Least variance of an expected distance over that of the measured one.
_LEAST_RATIO = 0.1
# Stars within the smoothing whose second derivative counts by half: that of a few is
# the smoothing's own.
_FEW = 10.0


def with_expected_distances(stars: Stars) -> tuple[Stars, int]:
    """Return stars with expected distances and errors, and how many met a limit.

    Surveys stay apart; stars with exact distances stay in place. The limit of a shift
    is three standard deviations, or three quarters of the distance, that of an error
    a factor of 0.3.

    Raises `InputError` if the stars have no distance errors.
    """
    if stars.distance_error is None:
        raise InputError(
            'model.distance_prior = "stars" needs the column distance_error: map it in '
            '`dustmap ingest`, or set distance_prior = "flat"'
        )
    distance, sigma = stars.distance.copy(), stars.distance_error
    error, limited = sigma.copy(), 0
    for rows in _alike(stars):
        count = int(np.clip(len(rows) // _STARS, 1, _SLICES))
        for some in np.array_split(rows[sigma[rows].argsort(kind="stable")], count):
            own, middle = sigma[some], float(sigma[some[len(some) // 2]])
            slope, curvature = _derivatives(distance[some], middle)
            shift, ratio = own**2 * slope, 1 + own**2 * curvature
            most = np.minimum(_LONGEST * own, 0.75 * distance[some])
            extreme = (np.abs(shift) > most) | (ratio < _LEAST_RATIO)
            limited += int(np.count_nonzero(extreme))
            distance[some] += np.clip(shift, -most, most)
            error[some] *= np.sqrt(np.maximum(ratio, _LEAST_RATIO))
    return replace(stars, distance=distance, distance_error=error), limited


def _alike(stars: Stars) -> Iterator[Int[np.ndarray, " k"]]:
    """Yield the rows of one survey, with distance errors, in a part of the sky."""
    assert stars.distance_error is not None
    survey = np.zeros(len(stars), int) if stars.survey is None else stars.survey
    pixel = stars.pixels(_NSIDE)
    for name in np.unique(survey):
        rows = np.flatnonzero((survey == name) & (stars.distance_error > 0))
        rows = rows[pixel[rows].argsort(kind="stable")]
        # Pixels are never divided.
        ends = pixel[rows[_PART : len(rows) - _PART + 1 : _PART]]
        yield from filter(len, np.split(rows, np.searchsorted(pixel[rows], ends)))


def _derivatives(
    d: Float[np.ndarray, " n"], sigma: float
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return two derivatives of the logarithmic density of distances at each."""
    cell = max(sigma / _CELLS, float(np.ptp(d)) / _MOST_CELLS)
    # A margin as wide as the smoothing reaches.
    edges = np.arange(d.min() - 6 * sigma, d.max() + 6 * sigma + cell, cell)
    counts = np.histogram(d, edges)[0].astype(float)
    dense = max(np.count_nonzero(counts) * cell / sigma, 1)
    width = min(2 * (len(d) / dense) ** (-1 / 7), 1.0) * sigma / cell
    found = np.zeros((2, len(counts)))
    # What smoothing changes is proportional to its variance.
    for factor, wide in ((-1, width * 2**0.5), (2, width)):
        density, slope, bend = (
            gaussian_filter1d(counts, wide, order=order) for order in range(3)
        )
        density = np.maximum(density, np.finfo(float).tiny)
        slope /= density
        found += factor * np.stack([slope, bend / density - slope**2])
    # Within the narrower smoothing, the last.
    others = np.maximum(np.sqrt(2 * np.pi) * width * density - 1, 0.0)
    found[1] *= others / (others + _FEW)
    middle = (edges[1:] + edges[:-1]) / 2
    slope, curvature = (np.interp(d, middle, each) for each in found)
    return slope / cell, curvature / cell**2
