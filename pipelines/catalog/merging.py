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

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import healpy
import numpy as np
from jaxtyping import Float, Int

from dustmap.memory import row_blocks, rows_within
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
_BYTES = 300


def merged(
    stars: Stars, most: int, rows: Int[np.ndarray, " n"] | None = None
) -> tuple[Stars, int]:
    """Return at most about ``most`` bins with extinctions, and the fewest stars.

    As many stars at least are in every bin, but for pixels of the coarsest level. Bins
    are more than ``most`` only where the 12 coarsest pixels of all have more.
    Surveys stay apart. Identifiers and further columns are lost. Besides its columns a
    star takes some 40 bytes. ``rows`` are the stars to merge, all unless given.
    """
    sky = _Sky.of(stars, np.arange(len(stars)) if rows is None else rows)
    share, sample, coarsest, fewest = 1, sky, _COARSEST, 2
    degree = sky.pixel >> _deeper(coarsest)
    found = np.bincount(degree) > 0
    if len(degree) > _COUNTED and found.sum() > _PIXELS:
        share, sample = _SHARE, sky.select((np.cumsum(found) % _SHARE == 0)[degree])
    del degree
    while share * sample.count(coarsest=coarsest) > most and coarsest > 1:
        coarsest //= 2
        # The sample's pixels are no larger ones.
        share, sample = 1, sky
    while share * sample.count(fewest, coarsest) > most:
        fewest += math.ceil(fewest / 4)
        if fewest > len(sky.rows):
            break
    del sample
    parts = [_means(stars, own, fewest, coarsest) for own in sky.blocks(coarsest)]
    columns = [part.columns() for part in parts]
    both = {n: np.concatenate([each[n] for each in columns]) for n in columns[0]}
    return Stars.of(both, stars.units, stars.meta), fewest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sky:
    """Stars' rows, in the order of their ``_FINEST`` pixels; all columns ``(n,)``.

    ``depth`` is ln distance from the nearest one, ``typical`` its median error.
    """

    rows: np.ndarray
    pixel: np.ndarray
    depth: np.ndarray
    survey: np.ndarray
    typical: float

    @classmethod
    def of(cls, stars: Stars, rows: Int[np.ndarray, " n"]) -> _Sky:
        """Sort the rows of stars."""
        pixel = np.empty(len(rows), np.int32)
        for part in row_blocks(len(rows), _BYTES):
            place = stars.l[rows[part]], stars.b[rows[part]]
            pixel[part] = healpy.ang2pix(_FINEST, *place, nest=True, lonlat=True)
        order = pixel.argsort(kind="stable")
        rows, pixel = rows[order], pixel[order]
        depth = np.log(stars.distance[rows])
        depth -= depth.min()
        survey = np.zeros(len(stars), np.int16)
        if stars.survey is not None:
            survey = np.unique(stars.survey, return_inverse=True)[1].astype(np.int16)
        return cls(
            rows=rows,
            pixel=pixel,
            depth=depth,
            survey=survey[rows],
            typical=float(np.median(stars.distance_std[rows] / stars.distance[rows])),
        )

    def select(self, some: np.ndarray | slice) -> _Sky:
        """Return the stars at a mask or a slice."""
        return replace(
            self,
            rows=self.rows[some],
            pixel=self.pixel[some],
            depth=self.depth[some],
            survey=self.survey[some],
        )

    def blocks(self, coarsest: int) -> Iterator[_Sky]:
        """Yield some stars at a time, by whole pixels of the coarsest level."""
        starts = np.flatnonzero(np.diff(self.pixel >> _deeper(coarsest), prepend=-1))
        wanted = np.arange(0, len(self.rows), rows_within(_BYTES))
        some = np.unique(np.searchsorted(starts, wanted))
        edges = [*starts[some[some < len(starts)]].tolist(), len(self.rows)]
        for begin, end in itertools.pairwise(edges):
            yield self.select(slice(begin, end))

    def cells(self, nside: int) -> Int[np.ndarray, " n"]:
        """Return numbers of pixels of this size, steps of depth, and surveys."""
        step = max(float(healpy.nside2resol(nside)), self.typical)
        steps = (self.depth / step).astype(np.int64)
        cell = (self.pixel >> _deeper(nside)) * (steps.max() + 1) + steps
        return cell * (int(self.survey.max()) + 1) + self.survey

    def bins(self, fewest: int, coarsest: int) -> Int[np.ndarray, " n"]:
        """Return the number of every star's bin: the smallest with the ``fewest``."""
        found = np.empty(len(self.rows), np.int64)
        left, nside = np.arange(len(self.rows)), _FINEST
        while len(left):
            cell = self.select(left).cells(nside)
            _, own, counts = np.unique(cell, return_inverse=True, return_counts=True)
            enough = counts[own] >= (fewest if nside > coarsest else 1)
            # Numbers of all levels differ.
            found[left[enough]] = 2 * nside * cell[enough] + nside
            left, nside = left[~enough], nside // 2
        return found

    def count(self, fewest: int | None = None, coarsest: int = _COARSEST) -> int:
        """Return how many bins, or cells of the coarsest pixels, there are."""
        total = 0
        for own in self.blocks(coarsest):
            one_cell = fewest is None
            numbers = own.cells(coarsest) if one_cell else own.bins(fewest, coarsest)
            # NumPy's ``unique`` takes ten times as long.
            total += 1 + int(np.count_nonzero(np.diff(np.sort(numbers))))
        return total


def _deeper(nside: int) -> int:
    """Return the bits of a finest pixel's number below the pixel of ``nside``."""
    return 2 * int(np.log2(_FINEST // nside))


def _means(stars: Stars, own: _Sky, fewest: int, coarsest: int) -> Stars:
    """Return the mean stars of bins."""
    number = own.bins(fewest, coarsest)
    assert stars.extinction is not None
    order = np.lexsort([stars.extinction[own.rows], number])
    number, stars = number[order], stars.select(own.rows[order])
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
