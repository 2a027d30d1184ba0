"""Extinction integrated along the rays of a HEALPix grid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipelines.maps.checks import check_arrays, check_distances, nside_of


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
        check_distances(self.distance)
        check_arrays(self.arrays, (len(self.last_star), len(self.distance)))
        nside_of(len(self.last_star))

    @property
    def nside(self) -> int:
        """HEALPix resolution."""
        return nside_of(len(self.last_star))
