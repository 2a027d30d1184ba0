"""Extinction along the rays of HEALPix pixels, and density in shells of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

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
        *integral*, and of a positive density ``p2_5`` to ``p97_5``. Pixels are
        HEALPix, NESTED, Galactic; NaN where the ray has left the box.
    last_star
        Where the last stretch of a ray that any star looks through ends [pc], shape
        ``(npix,)``; beyond it the map extrapolates. Zero where there is none.
    unit
        Of the arrays.
    regression
        What isotonic regression changed, for the provenance; see
        `pipelines.products.integrated.integrals_along`.
    """

    distance: np.ndarray
    arrays: dict[str, np.ndarray]
    last_star: np.ndarray
    unit: str = "mag"
    regression: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_distances(self.distance)
        check_arrays(self.arrays, (len(self.last_star), len(self.distance)))
        nside_of(len(self.last_star))

    @property
    def nside(self) -> int:
        """HEALPix resolution."""
        return nside_of(len(self.last_star))

    def at(self, distances: np.ndarray) -> Integrated:
        """The same at some of its distances."""
        kept = np.searchsorted(self.distance, distances)
        arrays = {name: values[:, kept] for name, values in self.arrays.items()}
        return replace(self, distance=self.distance[kept], arrays=arrays)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellMaps:
    """Density averaged over the pixels of spherical shells around the observer.

    Parameters
    ----------
    edges
        Increasing distances [pc] between which the shells lie, shape ``(n + 1,)``.
    arrays
        Name to array of shape ``(n, npix)`` [unit], HEALPix NESTED in Galactic
        coordinates: ``mean``, ``std`` of the average, and of a positive density its
        quantiles ``p2_5`` to ``p97_5``; NaN where a pixel reaches out of the map.
    unit
        Of the arrays.
    meta
        Provenance: JSON-serialisable.
    """

    edges: np.ndarray
    arrays: dict[str, np.ndarray]
    unit: str = "mag pc-1"
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_distances(self.edges, edges=True)
        check_arrays(self.arrays, (len(self.edges) - 1, self.arrays["mean"].shape[-1]))
        nside_of(self.arrays["mean"].shape[-1])

    @property
    def nside(self) -> int:
        """HEALPix resolution."""
        return nside_of(self.arrays["mean"].shape[1])


def sky_outside(maps: np.ndarray, distances: np.ndarray) -> list[str]:
    """Which part of the sky a map leaves out at each distance [pc], where it does.

    ``maps``, shape ``(n, npix)``, are NaN there.
    """
    parts = zip(np.isnan(maps).mean(axis=1), distances, strict=True)
    return [f"{100 * part:.2g}% of the sky at {at:g} pc" for part, at in parts if part]
