r"""Stars of one place as one: their mean, with the error of the mean.

Of tens of millions of stars many are closer to each other than the dust can be told
apart: in direction than the cells of a map, in distance than their errors. Such stars
have the same expected extinction, but for what lies between them, and what is left of
it by the map they share: their mean, and its error, say the same as all of them. A fit
then costs as much as its volume has places, not stars.

A place is a HEALPix pixel and a bin of ln distance, as wide as a pixel or as typical
errors of distances. With weights :math:`p_i = w_i / \sigma_i^2` a place has the means

.. math::
   A = \frac{\sum p_i A_i}{\sum p_i}, \quad
   d = \frac{\sum p_i d_i}{\sum p_i}, \quad
   \sigma_A^2 = \frac{1}{\sum p_i}, \quad
   \sigma_d^2 = \frac{\sum p_i\, (\sigma_{d,i}^2 + (d_i - d)^2)}{\sum p_i}

and as many stars as :math:`n = (\sum p_i)^2 / \sum p_i^2`. Outliers have small
:math:`w_i = (\nu + 1) / (\nu + r_i^2 / s_i^2)`, with the residual r about the mean of
the place, or of few stars about the median of neighbours, and its scale s. Where
neighbours scatter much more than :math:`\sigma_i`, it is raised to a part of that.
"""

from __future__ import annotations

import healpy
import numpy as np
import torch
from jaxtyping import Float

from dustmap.memory import row_blocks
from dustmap.noise import about_median
from pipelines.base.geometry import unit_vectors
from pipelines.catalog.schema import Stars

# Finest pixels, of 0.06 deg.
_FINEST = 1024
# Degrees of freedom of the noise: as in fits before they learn them.
_DEGREES = 4.0
# Least error of a star over its neighbours' scatter: one of 2% of the stars, with a
# seventh of the others' errors and wrong by 2 mag, took its place over. With 0.2 the
# means' errors were 1.4 times those stated, with 0.3 1.1 times, without 13 times.
_LEAST = 0.3
# Neighbours whose median shows an outlier.
_NEAR = 16
# Fewest stars of a place whose mean shows it instead,
_FEWEST = 4
# in so many rounds.
_ROUNDS = 2


def merged(stars: Stars, most: int) -> tuple[Stars, float, float]:
    """Return at most ``most`` places with extinctions, and their sizes.

    They are more only where the 12 coarsest pixels have more. Sizes are the width of
    pixels [deg] and of bins of ln distance. Surveys stay apart. Places are ordered by
    survey, pixel and distance; identifiers and further columns are lost.
    """
    assert stars.extinction is not None
    assert stars.extinction_error is not None
    finest = healpy.ang2pix(_FINEST, stars.l, stars.b, nest=True, lonlat=True)
    depth = np.log(stars.distance)
    survey = np.zeros(len(stars), np.int64)
    names = None
    if stars.survey is not None:
        names, survey = np.unique(stars.survey, return_inverse=True)
    blurred = stars.distance_error is not None
    error = stars.distance_std
    typical = float(np.median(error / stars.distance)) if blurred else 0.0
    nside = _FINEST
    while True:
        size = float(healpy.nside2resol(nside))
        step = max(size, typical)
        pixel = finest >> 2 * int(np.log2(_FINEST // nside))
        # Outwards in one pixel and inwards in the next: stars that follow each other
        # are near each other, and so are the neighbours among which outliers show.
        inwards = pixel % 2 == 1
        bins = np.floor((depth - depth.min()) / step).astype(np.int64)
        bins = np.where(inwards, bins.max() - bins, bins)
        # Surveys apart: their extinctions may differ by more than their errors.
        cell = (survey * healpy.nside2npix(nside) + pixel) * (bins.max() + 1) + bins
        # NumPy counts unique numbers with a hash, ten times as slowly.
        count = 1 + np.count_nonzero(np.diff(np.sort(cell)))
        if count <= most or nside == 1:
            break
        nside //= 2
    # Also in a place, whatever the order of the rows.
    order = np.lexsort([stars.l, np.where(inwards, -depth, depth), cell])
    cell = cell[order]
    first = np.flatnonzero(np.append(True, cell[1:] != cell[:-1]))
    del cell, finest, pixel, inwards, bins, depth
    y, sigma = stars.extinction[order], stars.extinction_error[order]
    precision = _precisions(y, sigma, first)
    total = np.add.reduceat(precision, first)

    def mean(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(precision * values, first) / total

    distance = stars.distance[order]
    vectors = unit_vectors(stars.l[order], stars.b[order])
    x, y_, z = (mean(vectors[:, axis]) for axis in range(3))
    found = mean(distance)
    spread = None
    if blurred:
        about = np.repeat(found, np.diff(np.append(first, len(y))))
        spread = np.sqrt(mean(error[order] ** 2 + (distance - about) ** 2))
    return (
        Stars(
            l=np.degrees(np.arctan2(y_, x)) % 360.0,
            b=np.degrees(np.arctan2(z, np.hypot(x, y_))),
            distance=found,
            distance_error=spread,
            extinction=mean(y),
            extinction_error=total**-0.5,
            survey=None if names is None else names[survey[order[first]]],
            merged=total**2 / np.add.reduceat(precision**2, first),
            units=stars.units,
            meta=stars.meta,
        ),
        np.degrees(size),
        step,
    )


def _precisions(
    y: np.ndarray, sigma: np.ndarray, first: np.ndarray
) -> Float[np.ndarray, " n"]:
    """Return w / σ² of stars in the order of the sky; places begin at ``first``."""
    seen, variance, last = torch.from_numpy(y).float(), sigma**2, len(y) - 1
    scale, squares = variance.copy(), np.empty_like(y)
    beside = torch.arange(1, _NEAR // 2 + 1)
    beside = torch.cat([-beside, beside])
    # Numbers of neighbours, their values and deviations.
    for own in row_blocks(len(y), 24.0 * _NEAR):
        near = torch.arange(own.start, own.stop)[:, None] + beside
        centre, scatter = about_median(seen[near.clamp(0, last)])
        square = scatter.double().numpy() ** 2
        scale[own] = np.maximum(scale[own], square)
        variance[own] = np.maximum(variance[own], _LEAST**2 * square)
        # The median of k stars has π/2k of their variance.
        apart = y[own] - centre.double().numpy()
        squares[own] = apart**2 / (1 + np.pi / 2 / _NEAR)
    counts = np.diff(np.append(first, len(y)))
    many = np.repeat(counts >= _FEWEST, counts)
    for _ in range(_ROUNDS):
        precision = (_DEGREES + 1) / (_DEGREES + squares / scale) / variance
        total = np.add.reduceat(precision, first)
        mean = np.add.reduceat(precision * y, first) / total
        own = precision / np.repeat(total, counts)
        about = (y - np.repeat(mean, counts)) ** 2 / np.maximum(1 - own, 0.1)
        squares = np.where(many, about, squares)
    return (_DEGREES + 1) / (_DEGREES + squares / scale) / variance
