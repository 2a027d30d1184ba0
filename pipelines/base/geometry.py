"""Heliocentric Galactic directions, rays and boxes: the observer is at the origin."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dustmap.grid import Grid, tolerant_faces


def unit_vectors(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
    """Return directions, shape ``(..., 3)``, of Galactic ``l``, ``b`` [deg]."""
    longitude, latitude = np.deg2rad(l), np.deg2rad(b)
    return np.stack(
        (
            np.cos(latitude) * np.cos(longitude),
            np.cos(latitude) * np.sin(longitude),
            np.sin(latitude),
        ),
        axis=-1,
    )


def spherical(points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ``l, b`` [deg] and distance [pc] of points [pc] ``(..., 3)``."""
    distance = np.linalg.norm(points, axis=-1)
    lon = np.degrees(np.arctan2(points[..., 1], points[..., 0])) % 360
    sine = points[..., 2] / np.where(distance > 0, distance, 1.0)
    lat = np.degrees(np.arcsin(np.clip(sine, -1, 1)))
    return lon, lat, distance


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A closed box around the observer: ``lower``, ``upper`` [pc]."""

    lower: tuple[float, ...]
    upper: tuple[float, ...]

    @classmethod
    def of(cls, grid: Grid) -> Box:
        """Return the box between the first and the last point of a grid."""
        return cls(lower=grid.lower, upper=grid.upper)

    @property
    def sides(self) -> tuple[float, ...]:
        """Lengths along the axes [pc]."""
        return tuple(b - a for a, b in zip(self.lower, self.upper, strict=True))

    def facts(self, spacing: Iterable[float]) -> dict[str, str]:
        """Return the box and the spacing [pc] of its map in words."""
        sides = zip("xyz", self.lower, self.upper, strict=True)
        return {
            "box [pc]": ", ".join(f"{a:g} < {axis} < {b:g}" for axis, a, b in sides),
            "spacing [pc]": " x ".join(f"{step:g}" for step in spacing),
        }

    def contains(self, positions: np.ndarray) -> np.ndarray:
        """Return a mask of ``x, y, z`` [pc] ``(..., 3)`` in the box, to rounding."""
        low, high = tolerant_faces(self.lower, self.upper)
        return np.asarray(((positions >= low) & (positions <= high)).all(axis=-1))

    def exits(self, directions: np.ndarray) -> np.ndarray:
        """Return the distance [pc] at which rays along ``(..., 3)`` leave it."""
        face = np.where(directions > 0, self.upper, self.lower)
        flat = np.abs(directions) < 1e-12
        reach = np.where(flat, np.inf, face / np.where(flat, 1.0, directions))
        # Rounding may place a position on a face slightly beyond it.
        return reach.min(axis=-1) * (1 - 1e-9)
