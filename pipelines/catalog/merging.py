r"""Stars of one bin as one: their mean, with the error of the mean.

Of tens of millions of stars many are closer to each other than the dust can be told
apart: in direction than the cells of a map, in distance than their errors. Such stars
have the same expected extinction, and their mean and its error say the same as all of
them. A fit then costs as much as its volume has bins, not stars.

A bin is a HEALPix pixel and a step of ln distance, as wide as a pixel or as typical
errors of distances. Pixels are as small as leaves enough stars in a bin; stars that
are too few in smaller pixels share larger ones. With weights
:math:`p_i = w_i / \sigma_i^2` a bin has the means

.. math::
   A = \frac{\sum p_i A_i}{\sum p_i}, \quad
   d = \frac{\sum p_i d_i}{\sum p_i}, \quad
   \sigma_A^2 = \frac{1}{\sum p_i}, \quad
   \sigma_d^2 = \frac{\sum p_i\, (\sigma_{d,i}^2 + (d_i - d)^2)}{\sum p_i}

and as many stars as :math:`n = (\sum p_i)^2 / \sum p_i^2`. Outliers have small
:math:`w_i = (\nu + 1) / (\nu + r_i^2 / s_i^2)`, with the residual r about the median of
the bin, then its mean. The scale s is σ, or that of the bin's median absolute
deviation. Where stars scatter much more than :math:`\sigma_i`, it is raised to a part
of that.
"""

from __future__ import annotations

import math

import healpy
import numpy as np
from jaxtyping import Float, Int

from pipelines.base.geometry import unit_vectors
from pipelines.catalog.schema import Stars

# Finest pixels, of 0.06 deg.
_FINEST = 1024
# Coarsest ones, of 0.9 deg, unless bins are too many.
_COARSEST = 64
# Most stars whose bins are counted exactly, and most pixels of a degree that they are
# in. Of more, those in every sixteenth pixel tell how many bins there are, to some per
# cent: to sort all takes ten times as long.
_COUNTED = 2**22
_PIXELS = 16_000
_SHARE = 16
# Degrees of freedom of the noise: as in fits before they learn them.
_DEGREES = 4.0
# Least error of a star over the scatter of its bin: one of 2% of the stars, with a
# seventh of the others' errors and wrong by 2 mag, took its bin over.
_LEAST = 0.3
# Rounds of weights.
_ROUNDS = 3


def merged(stars: Stars, most: int) -> tuple[Stars, int]:
    """Return at most about ``most`` bins with extinctions, and the fewest stars.

    As many stars at least are in every bin, but for pixels of the coarsest level. Bins
    are more than ``most`` only where the 12 coarsest pixels of all have more.
    Surveys stay apart. Identifiers and further columns are lost.
    """
    assert stars.extinction is not None
    assert stars.extinction_error is not None
    pixel = healpy.ang2pix(_FINEST, stars.l, stars.b, nest=True, lonlat=True)
    depth = np.log(stars.distance)
    depth -= depth.min()
    names, survey = None, np.zeros(len(stars), np.int64)
    if stars.survey is not None:
        names, survey = np.unique(stars.survey, return_inverse=True)
    error = stars.distance_std
    typical = float(np.median(error / stars.distance))
    whole = pixel, depth, survey, typical
    share, sample, coarsest, fewest = 1, whole, _COARSEST, 2
    degree = pixel >> 2 * int(np.log2(_FINEST // _COARSEST))
    found = np.bincount(degree) > 0
    if len(stars) > _COUNTED and found.sum() > _PIXELS:
        some = (np.cumsum(found) % _SHARE == 0)[degree]
        share, sample = _SHARE, (pixel[some], depth[some], survey[some], typical)
    while share * _count(_cells(coarsest, *sample)) > most and coarsest > 1:
        coarsest //= 2
        # The sample's pixels are no larger ones.
        share, sample = 1, whole
    while share * _count(_bins(fewest, coarsest, *sample)) > most:
        fewest += math.ceil(fewest / 4)
        if fewest > len(stars):
            break
    own = _bins(fewest, coarsest, *whole)
    del pixel, depth, degree, whole, sample
    order = np.lexsort([stars.extinction, own])
    own = own[order]
    first = np.flatnonzero(np.append(True, own[1:] != own[:-1]))
    del own
    precision = _precisions(
        stars.extinction[order], stars.extinction_error[order], first
    )
    total = np.add.reduceat(precision, first)

    def mean(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(precision * values, first) / total

    distance = stars.distance[order]
    vectors = unit_vectors(stars.l[order], stars.b[order])
    x, y, z = (mean(vectors[:, axis]) for axis in range(3))
    found, spread = mean(distance), None
    if stars.distance_error is not None:
        apart = distance - np.repeat(found, np.diff(np.append(first, len(order))))
        spread = np.sqrt(mean(error[order] ** 2 + apart**2))
    bins = Stars(
        l=np.degrees(np.arctan2(y, x)) % 360.0,
        b=np.degrees(np.arctan2(z, np.hypot(x, y))),
        distance=found,
        distance_error=spread,
        extinction=mean(stars.extinction[order]),
        extinction_error=total**-0.5,
        survey=None if names is None else names[survey[order[first]]],
        merged=total**2 / np.add.reduceat(precision**2, first),
        units=stars.units,
        meta=stars.meta,
    )
    return bins, fewest


def _count(numbers: Int[np.ndarray, " n"]) -> int:
    """Return how many differ; NumPy's ``unique`` takes ten times as long."""
    return 1 + int(np.count_nonzero(np.diff(np.sort(numbers))))


def _cells(
    nside: int, pixel: np.ndarray, depth: np.ndarray, survey: np.ndarray, typical: float
) -> Int[np.ndarray, " n"]:
    """Return numbers of pixels of this size, steps of depth, and surveys."""
    step = max(float(healpy.nside2resol(nside)), typical)
    steps = (depth / step).astype(np.int64)
    cell = (pixel >> 2 * int(np.log2(_FINEST // nside))) * (steps.max() + 1) + steps
    return cell * (survey.max() + 1) + survey


def _bins(
    fewest: int,
    coarsest: int,
    pixel: np.ndarray,
    depth: np.ndarray,
    survey: np.ndarray,
    typical: float,
) -> Int[np.ndarray, " n"]:
    """Return the number of every star's bin: the smallest with the ``fewest``."""
    found, left, nside = np.empty(len(pixel), np.int64), np.arange(len(pixel)), _FINEST
    while len(left):
        cell = _cells(nside, pixel[left], depth[left], survey[left], typical)
        _, own, counts = np.unique(cell, return_inverse=True, return_counts=True)
        enough = counts[own] >= (fewest if nside > coarsest else 1)
        # Numbers of all levels differ.
        found[left[enough]] = 2 * nside * cell[enough] + nside
        left, nside = left[~enough], nside // 2
    return found


def _precisions(
    y: np.ndarray, sigma: np.ndarray, first: np.ndarray
) -> Float[np.ndarray, " n"]:
    """Return w / σ² of stars, ordered by bin (from ``first`` on) and extinction."""
    counts = np.diff(np.append(first, len(y)))
    number = np.repeat(np.arange(len(first)), counts)
    middle = first + (counts - 1) // 2, first + counts // 2
    centre = (y[middle[0]] + y[middle[1]]) / 2
    apart = np.abs(y - centre[number])
    ordered = apart[np.lexsort([apart, number])]
    deviation = (ordered[middle[0]] + ordered[middle[1]]) / 2
    del ordered
    square = (1.4826 * deviation[number]) ** 2
    variance = np.maximum(sigma**2, _LEAST**2 * square)
    scale = np.maximum(variance, square)
    # The median of k stars has π/2k of their variance.
    squares = apart**2 / (1 + np.pi / 2 / counts)[number]
    for _ in range(_ROUNDS):
        precision = (_DEGREES + 1) / (_DEGREES + squares / scale) / variance
        total = np.add.reduceat(precision, first)
        mean = np.add.reduceat(precision * y, first) / total
        own = precision / total[number]
        about = (y - mean[number]) ** 2 / np.maximum(1 - own, 0.1)
        # A star that is most of its bin cannot differ from it.
        squares = np.where(own > 0.9, scale, about)
    return (_DEGREES + 1) / (_DEGREES + squares / scale) / variance
