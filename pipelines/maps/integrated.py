"""Extinction integrated along the rays of a HEALPix grid: what an archive hands out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

PREFIX = "extinction_"
LAST_STAR = "last_star"
DISTANCE, PIXEL = "distance", "pixel"
RAY_DIMENSIONS = (PIXEL, DISTANCE)
_TITLES = {
    "mean": "posterior mean of the extinction integrated from the observer",
    "std": "posterior std of the extinction integrated from the observer",
    "p16": "posterior 16% quantile of the extinction integrated from the observer",
    "p50": "posterior median of the extinction integrated from the observer",
    "p84": "posterior 84% quantile of the extinction integrated from the observer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Integrated:
    """Extinction from the observer to each distance along each pixel's centre.

    Parameters
    ----------
    distance
        Increasing distances [pc], shape ``(n,)``; at 0 the extinction is 0.
    arrays
        Name to array of shape ``(npix, n)`` [unit]: ``mean`` and ``std`` of the
        *integral*, and of a positive density ``p16``, ``p50`` and ``p84``. Pixels are
        HEALPix, NESTED, Galactic; NaN where the ray has left the box.
    last_star
        Where the last stretch of a ray that any star looks through ends [pc], shape
        ``(npix,)``; beyond it the map extrapolates. Zero where there is none.
    unit
        Of the arrays.
    """

    distance: np.ndarray
    arrays: dict[str, np.ndarray]
    last_star: np.ndarray
    unit: str = "mag"

    def __post_init__(self) -> None:
        distance = self.distance
        if distance.ndim != 1 or not len(distance) or not (distance > 0).all():
            raise ValueError("distance must be a list of positive numbers [pc]")
        if not (np.diff(distance) > 0).all():
            raise ValueError(f"distance must increase, got {distance.tolist()}")
        unknown = sorted(set(self.arrays) - set(_TITLES))
        if unknown or not {"mean", "std"} <= set(self.arrays):
            raise ValueError(
                f"arrays must be mean, std and maybe {', '.join(list(_TITLES)[2:])}; "
                f"got {', '.join(self.arrays) or 'none'}"
            )
        expected = (len(self.last_star), len(distance))
        for name, array in self.arrays.items():
            if array.shape != expected:
                raise ValueError(
                    f"array {name!r} has shape {array.shape}, expected (pixel, "
                    f"distance) = {expected}"
                )
        nside = self.nside
        if self.last_star.shape != (12 * nside**2,) or not nside or nside & (nside - 1):
            raise ValueError(
                f"last_star has shape {self.last_star.shape}; expected 12 nside² "
                "pixels with nside a power of two (NESTED)"
            )

    @property
    def nside(self) -> int:
        """HEALPix resolution."""
        return math.isqrt(len(self.last_star) // 12)


def integrated_title(name: str) -> str:
    """One line that says what the array ``name`` holds."""
    return _TITLES[name]
