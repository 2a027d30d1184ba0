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

and as many stars as :math:`n = (\sum p_i)^2 / \sum p_i^2`. Outliers have no weight:
:math:`w_i = (1 - r_i^2 / c^2 s_i^2)^2` for :math:`r_i < c s_i`, Tukey's biweight
(Beaton & Tukey 1974, Technometrics 16, 147), with the residual r about the median of
the bin, then its mean. Extinctions are more often far too large than far too small:
weights that only decrease with r leave a bias. The scale s is σ, or that of the bin's
median absolute deviation. Where stars scatter much more than :math:`\sigma_i`, it is
raised to a part of that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import healpy
import numpy as np
from jaxtyping import Float, Int

from pipelines.base.geometry import unit_vectors
from pipelines.catalog.schema import Stars

# Finest pixels, of 0.06 deg.
_FINEST = 1024
# Coarsest ones, of 0.9 deg, unless bins are too many.
_COARSEST = 64
# Stars of a sample that tells the number of bins, to some per cent, and fewest of its
# pixels of 0.9 deg: to count the bins of all takes ten times as long.
_COUNTED = 2**22
_PIXELS = 500
# The biweight's c: means have 95% of the efficiency of plain ones of normal errors.
_TUKEY = 4.685
# Least weight: should all stars of a bin be outliers of it, its error is large.
_LEAST_WEIGHT = 1e-6
# Least error of a star over the scatter of its bin: one of 2% of the stars, with a
# seventh of the others' errors and wrong by 2 mag, took its bin over.
_LEAST = 0.3
# Rounds of weights.
_ROUNDS = 3
# Bytes of a star while bins are made.
BYTES = 300


def merged(parts: Iterable[Stars], most: int) -> tuple[Stars, int]:
    """Return at most about ``most`` bins with extinctions, and the fewest stars.

    As many stars at least are in every bin, but for pixels of the coarsest level. Bins
    are more than ``most`` only where the 12 coarsest pixels of all have more.
    Surveys stay apart. Identifiers and further columns are lost. ``parts`` are stars by
    parts of the sky, read several times; every bin is of one part.
    """
    share, sample, total = 1, [], 0
    for part in parts:
        total += len(part)
        sample.append(_sampled(part, share))
        while sum(len(own) for own, _ in sample) > _COUNTED:
            if sum(pixels for _, pixels in sample) < 4 * _PIXELS:
                break
            share *= 4
            sample = [_sampled(own, share) for own, _ in sample]
    some = [own for own, _ in sample]
    errors = [own.distance_std / own.distance for own in some]
    typical, coarsest, fewest = float(np.median(np.concatenate(errors))), _COARSEST, 2

    def count(fewest: int) -> int:
        # The sample's pixels are no larger ones.
        whole, found = coarsest < _COARSEST, 0
        for own in parts if whole else some:
            numbers = np.sort(_bins(own, fewest, coarsest, typical))
            # NumPy's ``unique`` takes ten times as long.
            found += int(np.count_nonzero(np.diff(numbers, prepend=-1)))
        return found if whole else share * found

    while count(total + 1) > most and coarsest > 1:
        coarsest //= 2
    while count(fewest) > most and fewest <= total:
        fewest += math.ceil(fewest / 4)
    del some, sample
    found = [_means(own, _bins(own, fewest, coarsest, typical)) for own in parts]
    return Stars.joined(found), fewest


def _sampled(stars: Stars, share: int) -> tuple[Stars, int]:
    """Return stars in one of ``share`` pixels, and the number of these pixels."""
    pixel = stars.pixels(_COARSEST)
    chosen = pixel % share == 0
    return stars.select(chosen), len(np.unique(pixel[chosen]))


def _bins(
    stars: Stars, fewest: int, coarsest: int, typical: float
) -> Int[np.ndarray, " n"]:
    """Return the number of every star's bin: the smallest with the ``fewest`` stars.

    Bins are no deeper than pixels are wide, or than the ``typical`` error of distances
    over these.
    """
    pixel, depth = stars.pixels(_FINEST), np.log(stars.distance)
    survey = np.zeros(len(stars), np.int64)
    if stars.survey is not None:
        survey = np.unique(stars.survey, return_inverse=True)[1]
    found = np.empty(len(stars), np.int64)
    left, nside = np.arange(len(stars)), _FINEST
    while len(left):
        step = max(float(healpy.nside2resol(nside)), typical)
        steps = np.floor(depth[left] / step).astype(np.int64)
        steps -= steps.min()
        cell = (pixel[left] // (_FINEST // nside) ** 2) * (steps.max() + 1) + steps
        cell = cell * (survey.max() + 1) + survey[left]
        _, own, counts = np.unique(cell, return_inverse=True, return_counts=True)
        enough = counts[own] >= (fewest if nside > coarsest else 1)
        # Numbers of all levels differ.
        found[left[enough]] = 2 * nside * cell[enough] + nside
        left, nside = left[~enough], nside // 2
    return found


def _means(stars: Stars, number: Int[np.ndarray, " n"]) -> Stars:
    """Return the mean stars of bins with these numbers."""
    assert stars.extinction is not None
    order = np.lexsort([stars.extinction, number])
    number, stars = number[order], stars.select(order)
    assert stars.extinction is not None
    assert stars.extinction_error is not None
    first = np.flatnonzero(np.append(True, number[1:] != number[:-1]))
    precision = _precisions(stars.extinction, stars.extinction_error, first)
    total = np.add.reduceat(precision, first)

    def mean(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(precision * values, first) / total

    x, y, z = (mean(part) for part in unit_vectors(stars.l, stars.b).T)
    found, spread = mean(stars.distance), None
    if stars.distance_error is not None:
        counts = np.diff(np.append(first, len(order)))
        apart = stars.distance - np.repeat(found, counts)
        spread = np.sqrt(mean(stars.distance_std**2 + apart**2))
    return Stars(
        l=np.degrees(np.arctan2(y, x)) % 360.0,
        b=np.degrees(np.arctan2(z, np.hypot(x, y))),
        distance=found,
        distance_error=spread,
        extinction=mean(stars.extinction),
        extinction_error=total**-0.5,
        survey=None if stars.survey is None else stars.survey[first],
        merged=total**2 / np.add.reduceat(precision**2, first),
    )


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

    def weighted() -> np.ndarray:
        inside = np.maximum(1 - squares / (_TUKEY**2 * scale), 0.0)
        return np.maximum(inside**2, _LEAST_WEIGHT) / variance

    for _ in range(_ROUNDS):
        precision = weighted()
        total = np.add.reduceat(precision, first)
        mean = np.add.reduceat(precision * y, first) / total
        own = precision / total[number]
        about = (y - mean[number]) ** 2 / np.maximum(1 - own, 0.1)
        # A star that is most of its bin cannot differ from it.
        squares = np.where(own > 0.9, 0.0, about)
    return weighted()
