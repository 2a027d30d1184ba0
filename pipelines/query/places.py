"""Where a map is asked: coordinates of any frame and shape, flat and Galactic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from astropy import units as u
from astropy.coordinates import Galactic, SkyCoord, SphericalRepresentation

from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors

# A direction needs some distance to be seen from the Sun: so far that no frame's
# origin makes a difference.
_FAR = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Heliocentric Galactic places, flat.

    Parameters
    ----------
    l, b
        Galactic longitude and latitude [deg], shape ``(n,)``.
    distance
        Heliocentric distance [pc], shape ``(n,)``: infinite stands for the whole way
        through the map, NaN for a row whose distance is missing.
    shape
        Shape of the coordinates as they came; ``()`` of a single one.
    """

    l: np.ndarray  # noqa: E741  the field's name for Galactic longitude
    b: np.ndarray
    distance: np.ndarray
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.l)

    @property
    def directions(self) -> np.ndarray:
        """Unit vectors ``x, y, z``, shape ``(n, 3)``."""
        return unit_vectors(self.l, self.b)

    def positions(self) -> np.ndarray:
        """``x, y, z`` [pc], shape ``(n, 3)``; not finite where the distance is not."""
        # A direction has zeros, and zero times infinity is no number.
        with np.errstate(invalid="ignore"):
            return self.distance[:, None] * self.directions

    def select(self, rows: np.ndarray) -> Places:
        """Some of the places, as a flat list."""
        return Places(
            l=self.l[rows],
            b=self.b[rows],
            distance=self.distance[rows],
            shape=(len(self.l[rows]),),
        )

    def at(self, distance: np.ndarray) -> Places:
        """The same directions at other distances [pc], shape ``(n,)``."""
        return Places(l=self.l, b=self.b, distance=distance, shape=self.shape)

    def restore(self, values: np.ndarray) -> np.ndarray:
        """Bring ``(n, ...)`` into the shape that the coordinates had."""
        return values.reshape(self.shape + values.shape[1:])


def places_of(coords: SkyCoord, *, total: bool = False) -> Places:
    """Read coordinates of any frame and shape.

    With ``total`` the distances are infinite whatever they were, in the directions of
    the places as the Sun sees them: those of another origin, such as the Galactic
    centre, are moved first.

    Raises
    ------
    InputError
        If it is no `SkyCoord`, or has no distance (or one without a unit) though one
        is needed.
    """
    if not isinstance(coords, SkyCoord):
        raise InputError(
            "a map is asked at an astropy.coordinates.SkyCoord, got "
            f"{type(coords).__name__}: SkyCoord(l=90*u.deg, b=5*u.deg, "
            'distance=400*u.pc, frame="galactic")'
        )
    distance = _distance_in_frame(coords, total=total)
    lon, lat, heliocentric = _galactic(coords, distance)
    if total:
        heliocentric = np.full_like(heliocentric, np.inf)
    return Places(l=lon, b=lat, distance=heliocentric, shape=coords.shape)


def _distance_in_frame(coords: SkyCoord, *, total: bool) -> np.ndarray:
    """Distance [pc] from the origin of the coordinates' own frame, flat."""
    distance: Any = cast(Any, coords).spherical.distance
    if not distance.unit.is_equivalent(u.pc):
        if total:
            return np.full(coords.size, np.inf)
        raise InputError(
            "the coordinates have no distance, or one without a unit: the extinction "
            "and the density of a 3-D map depend on it. Give SkyCoord(..., "
            "distance=400*u.pc); or, for the extinction through the whole map, "
            "total=True with integrated=True"
        )
    values = np.asarray(distance.to_value(u.pc), dtype=np.float64).reshape(-1)
    # At no distance a direction would be lost.
    return np.where(values > 0, values, np.inf) if total else values


def _galactic(
    coords: SkyCoord, distance: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``l``, ``b`` [deg] and heliocentric distance [pc], flat."""
    sphere: Any = coords.spherical
    finite = np.isfinite(distance)
    seen = SphericalRepresentation(
        np.reshape(sphere.lon, (-1,)),
        np.reshape(sphere.lat, (-1,)),
        np.where(finite, distance, _FAR) * u.pc,
    )
    # Attributes of a frame, such as the time of observation, go with it; those that
    # have the coordinates' shape do so only while the shape is kept.
    flat: Any = cast(Any, coords.frame).replicate_without_data()
    if flat.shape:
        seen = seen.reshape(flat.shape)
    moved: Any = SkyCoord(flat.realize_frame(seen)).transform_to(Galactic())
    there = np.asarray(moved.distance.to_value(u.pc)).reshape(-1)
    return (
        np.asarray(moved.l.deg, dtype=np.float64).reshape(-1),
        np.asarray(moved.b.deg, dtype=np.float64).reshape(-1),
        np.where(finite, there, distance),
    )
