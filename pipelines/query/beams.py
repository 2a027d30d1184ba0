r"""Average extinction within a cone or a beam, with its error and scatter.

Directions of equal weight lie on a sunflower spiral (Vogel 1979): the k-th of K has the
angle :math:`k\,\pi(3-\sqrt5)` around the centre and the radius r that encloses the
share :math:`u = (k + 1/2)/K` of the weight: for a disc of radius R
:math:`\cos r = 1 - u(1-\cos R)`, for a Gaussian of standard deviation :math:`\sigma`
:math:`r = \sigma\sqrt{-2\ln(1-u)}`. Every posterior sample is averaged over them, so
correlated errors of neighbouring sight lines are not treated as independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from astropy import units as u
from astropy.coordinates import offset_by

from pipelines.base.errors import InputError
from pipelines.maps.places import Places


class BeamAverage(NamedTuple):
    """Average extinction within a beam [mag], NaN where the beam leaves the map.

    ``mean`` and ``std`` describe the posterior of the average (std: NaN without
    samples). ``scatter`` is the standard deviation between the directions: the root
    mean square over samples, or that of the mean map, which is smoother.
    """

    mean: u.Quantity
    std: u.Quantity
    scatter: u.Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """A disc with a ``radius``, or a Gaussian with a ``fwhm``, [deg] or a quantity.

    ``directions`` is the number of sight lines. Raises `InputError` unless exactly one
    width is given, above 0 and up to 90 deg.
    """

    radius: Any = None
    fwhm: Any = None
    directions: int = 128

    def __post_init__(self) -> None:
        for name in ("radius", "fwhm"):
            if isinstance(getattr(self, name), u.Quantity):
                size = getattr(self, name).to_value(u.deg)
                object.__setattr__(self, name, float(size))
        given = [size for size in (self.radius, self.fwhm) if size is not None]
        if len(given) != 1 or not 0 < given[0] <= 90:
            raise InputError(
                "a beam needs either a radius or a FWHM (--radius 0.5, or --fwhm "
                f"10arcmin), above 0 and up to 90 deg; got radius {self.radius} and "
                f"FWHM {self.fwhm}"
            )
        if self.directions < 1:
            raise InputError(
                f"a beam needs at least one direction, got {self.directions}"
            )

    def around(self, places: Places) -> Places:
        """Return the beams' sight lines to each place's distance, row by row."""
        count = self.directions
        share = (np.arange(count) + 0.5) / count
        if self.fwhm is not None:
            sigma = math.radians(self.fwhm) / math.sqrt(8 * math.log(2))
            away = np.minimum(sigma * np.sqrt(-2 * np.log1p(-share)), math.pi)
        else:
            assert self.radius is not None
            away = np.arccos(1 - share * (1 - math.cos(math.radians(self.radius))))
        turn = math.pi * (3 - math.sqrt(5)) * np.arange(count) * u.rad
        centre = places.l[:, None] * u.deg, places.b[:, None] * u.deg
        ends = offset_by(*centre, turn, away * u.rad)
        lon, lat = (np.ravel(angle.to_value(u.deg)) for angle in ends)
        distance = np.repeat(places.distance, count)
        return Places(l=lon % 360, b=lat, distance=distance, shape=lon.shape)


def averaged(values: np.ndarray, beam: Beam) -> tuple[np.ndarray, ...]:
    """Return mean, std and scatter of values ``(n k)``, or of samples ``(n k, s)``."""
    parts = values.reshape(-1, beam.directions, *values.shape[1:])
    average, scatter = parts.mean(axis=1), parts.std(axis=1)
    if values.ndim == 1:
        return average, np.full(len(average), np.nan), scatter
    between = np.sqrt((scatter**2).mean(axis=1))
    return average.mean(axis=1), average.std(axis=1, ddof=1), between
