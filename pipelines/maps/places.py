"""Places on the sky or in space: coordinates of any frame, flat and Galactic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from astropy import units as u
from astropy.coordinates import Galactic, SkyCoord, SphericalRepresentation

from pipelines.base.errors import InputError
from pipelines.base.geometry import spherical, unit_vectors
from pipelines.base.quantities import numbers
from pipelines.catalog.frames import placed


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Heliocentric Galactic places, flat.

    Longitude ``l`` and latitude ``b`` [deg] and ``distance`` [pc] have the shape
    ``(n,)``; the distance is infinite for a whole sight line through the map, NaN if
    missing. ``shape`` is that of the original coordinates, ``()`` for a single one.
    """

    l: np.ndarray  # noqa: E741  the standard symbol of Galactic longitude
    b: np.ndarray
    distance: np.ndarray
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.l)

    @classmethod
    def of_points(cls, points: np.ndarray) -> Places:
        """Return the places of ``x, y, z`` [pc], shape ``(..., 3)``."""
        lon, lat, distance = spherical(points.reshape(-1, 3))
        return cls(l=lon, b=lat, distance=distance, shape=points.shape[:-1])

    @classmethod
    def along(cls, directions: np.ndarray, distances: np.ndarray) -> Places:
        """Return places at distances [pc], shape ``(n, e)``, along unit vectors."""
        lon, lat, _ = spherical(directions)
        each = [np.repeat(angle, distances.shape[1]) for angle in (lon, lat)]
        flat = np.asarray(distances, dtype=np.float64).reshape(-1)
        return cls(l=each[0], b=each[1], distance=flat, shape=distances.shape)

    @property
    def coords(self) -> SkyCoord:
        """The places as Galactic coordinates, flat."""
        return SkyCoord(
            l=self.l * u.deg,
            b=self.b * u.deg,
            distance=self.distance * u.pc,
            frame="galactic",
        )

    @property
    def directions(self) -> np.ndarray:
        """Return unit vectors ``x, y, z``, shape ``(n, 3)``."""
        return unit_vectors(self.l, self.b)

    def positions(self) -> np.ndarray:
        """Return ``x, y, z`` [pc], shape ``(n, 3)``; not finite if distance is not."""
        # A direction may contain zeros, and zero times infinity is NaN.
        with np.errstate(invalid="ignore"):
            return self.distance[:, None] * self.directions

    def select(self, rows: np.ndarray | slice) -> Places:
        """Return the places in these rows."""
        lon, lat, distance = self.l[rows], self.b[rows], self.distance[rows]
        return Places(l=lon, b=lat, distance=distance, shape=lon.shape)

    def at(self, distance: np.ndarray) -> Places:
        """Return the same directions at other distances [pc], shape ``(n,)``."""
        return replace(self, distance=distance)

    def restore(self, values: np.ndarray) -> np.ndarray:
        """Reshape ``(n, ...)`` to the shape of the original coordinates."""
        return values.reshape(self.shape + values.shape[1:])


def unmasked(coords: SkyCoord) -> SkyCoord:
    """Return coordinates with NaN in place of masked values."""
    # Versions of astropy without this attribute mask no coordinates.
    if not getattr(coords, "masked", False):
        return coords
    data = cast(Any, coords.data).without_differentials()
    parts = [getattr(data, name) for name in data.components]
    plain = type(data)(*(numbers(part, part.unit) * part.unit for part in parts))
    return SkyCoord(cast(Any, coords.frame).realize_frame(plain))


def coordinates(
    values: Mapping[str, np.ndarray], source: str, frame: Any = None
) -> SkyCoord:
    """Return coordinates by name in a frame, as `pipelines.catalog.frames.placed`.

    Raises `InputError` if a latitude or a distance is out of range.
    """
    for name, bad, said in (
        ("b", lambda b: np.abs(b) > 90, "latitude beyond 90 deg: check its unit"),
        ("dec", lambda b: np.abs(b) > 90, "latitude beyond 90 deg: check its unit"),
        ("distance", lambda d: d < 0, "negative distance: leave unknown ones empty"),
    ):
        if name in values and (wrong := int(bad(values[name]).sum())):
            raise InputError(
                f"{source}: {wrong} of {len(values[name])} places have a {said}"
            )
    return placed(values, frame)


def places_of(coords: SkyCoord, *, total: bool = False) -> Places:
    """Read coordinates of any frame and shape.

    With ``total`` all distances become infinite, in heliocentric directions:
    coordinates of another origin, such as the Galactic centre, are transformed first.

    Raises `InputError` if this is not a `SkyCoord`, or lacks a required distance or its
    unit.
    """
    if not isinstance(coords, SkyCoord):
        raise InputError(
            "expected an astropy.coordinates.SkyCoord, got "
            f"{type(coords).__name__}: give SkyCoord(l=90*u.deg, b=5*u.deg, "
            'distance=400*u.pc, frame="galactic")'
        )
    coords = unmasked(coords)
    sphere: Any = coords.spherical
    distance = np.full(coords.shape, np.inf)
    if sphere.distance.unit.is_equivalent(u.pc):
        distance = np.asarray(sphere.distance.to_value(u.pc), dtype=np.float64)
    elif not total:
        raise InputError(
            "the coordinates have no distance, or one without a unit: give "
            "SkyCoord(..., distance=400*u.pc); or, for the extinction through the "
            "whole map, total=True with integrated=True"
        )
    finite = np.isfinite(distance)
    if total:
        # Zero distance would lose the direction.
        finite &= distance > 0
    # A bare direction ends too far for the frame's origin to matter.
    ends = np.where(finite, distance, 1e12) * u.pc
    seen = SphericalRepresentation(sphere.lon, sphere.lat, ends)
    frame = cast(Any, coords.frame).realize_frame(seen)
    moved = frame.transform_to(Galactic()).spherical
    there = np.where(finite, moved.distance.to_value(u.pc), distance)
    return Places(
        l=np.asarray(moved.lon.deg, dtype=np.float64).reshape(-1),
        b=np.asarray(moved.lat.deg, dtype=np.float64).reshape(-1),
        distance=np.full(coords.size, np.inf) if total else there.reshape(-1),
        shape=coords.shape,
    )
