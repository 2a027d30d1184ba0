r"""Expected true distances, by the distribution of the measured ones.

Of the stars at one measured distance more come from where stars are more numerous
(Eddington 1913, MNRAS 73, 359). If errors are normal, of a known standard deviation
:math:`\sigma`, stars measured at d have the expected distance

.. math:: d + \sigma^2 \, \frac{\partial}{\partial d} \ln p(d \mid \sigma)

whatever the true distances (Tweedie's formula: Efron 2011, JASA 106, 1602). Here p is
the density of the measured distances of stars with this :math:`\sigma`, a slice of the
catalogue. It is smoothed by normals of :math:`2 n^{-1/7}` standard deviations, one at
most, of each of which a slice has n stars, and of √2 as many, and the slope is
extrapolated to none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import healpy
import numpy as np
from jaxtyping import Float, Int
from scipy.ndimage import gaussian_filter1d

from pipelines.base.errors import InputError
from pipelines.catalog.schema import Stars

# Stars of a part of the sky: distances differ by direction, as dust and a survey's
# limits do.
_PART = 200_000
# Stars of a slice at least, if a survey has as many, and most slices.
_STARS = 2_000
_SLICES = 50
# Cells of a histogram in a standard deviation, and most of all: errors so small that
# these are too few move no star.
_CELLS = 8
_MOST_CELLS = 1_000_000
# Standard deviations of the longest shift: beyond it stars are too few for a slope.
_LONGEST = 3.0


def with_expected_distances(stars: Stars) -> tuple[Stars, int]:
    """Return the stars at expected distances, and the number of shifts at their limit.

    Surveys stay apart; stars with exact distances stay in place. The limit of a shift
    is three standard deviations, or three quarters of the distance.

    Raises `InputError` if the stars have no distance errors.
    """
    if stars.distance_error is None:
        raise InputError(
            'model.distance_prior = "stars" needs the column distance_error: map it in '
            '`dustmap ingest`, or set distance_prior = "flat"'
        )
    distance, sigma, limited = stars.distance.copy(), stars.distance_error, 0
    for rows in _alike(stars):
        count = int(np.clip(len(rows) // _STARS, 1, _SLICES))
        for some in np.array_split(rows[sigma[rows].argsort(kind="stable")], count):
            slopes = _slopes(distance[some], float(sigma[some[len(some) // 2]]))
            wanted = sigma[some] ** 2 * slopes
            most = np.minimum(_LONGEST * sigma[some], 0.75 * distance[some])
            limited += int(np.count_nonzero(np.abs(wanted) > most))
            distance[some] += np.clip(wanted, -most, most)
    return replace(stars, distance=distance), limited


def _alike(stars: Stars) -> Iterator[Int[np.ndarray, " k"]]:
    """Yield the rows of one survey, with distance errors, in a part of the sky."""
    assert stars.distance_error is not None
    survey = np.zeros(len(stars), int) if stars.survey is None else stars.survey
    for name in np.unique(survey):
        rows = np.flatnonzero((survey == name) & (stars.distance_error > 0))
        nside = math.isqrt(len(rows) // (12 * _PART))
        if nside:
            pixel = healpy.ang2pix(nside, stars.l[rows], stars.b[rows], lonlat=True)
            order = pixel.argsort(kind="stable")
            edges = np.flatnonzero(np.diff(pixel[order])) + 1
            yield from np.split(rows[order], edges)
        elif len(rows):
            yield rows


def _slopes(d: Float[np.ndarray, " n"], sigma: float) -> Float[np.ndarray, " n"]:
    """Return the slope of the logarithmic density of distances at each of them."""
    cell = max(sigma / _CELLS, float(np.ptp(d)) / _MOST_CELLS)
    # A margin as wide as the smoothing reaches.
    edges = np.arange(d.min() - 6 * sigma, d.max() + 6 * sigma + cell, cell)
    counts = np.histogram(d, edges)[0].astype(float)
    dense = max(np.count_nonzero(counts) * cell / sigma, 1)
    width = min(2 * (len(d) / dense) ** (-1 / 7), 1.0) * sigma / cell
    found = np.zeros(len(counts))
    # What smoothing changes is proportional to its variance.
    for factor, wide in ((2, width), (-1, width * 2**0.5)):
        density, slope = (gaussian_filter1d(counts, wide, order=n) for n in (0, 1))
        found += factor * slope / np.maximum(density, np.finfo(float).tiny)
    return np.interp(d, (edges[1:] + edges[:-1]) / 2, found) / cell
