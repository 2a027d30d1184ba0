"""Directions, rays and boxes, heliocentric Galactic: the observer is at the origin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Used to measure which part of a sphere lies in a box.
_DIRECTIONS = 20_000


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

    def contains(self, positions: np.ndarray) -> np.ndarray:
        """Return whether ``x, y, z`` [pc], shape ``(..., 3)``, lie in the box."""
        within = (positions >= self.lower) & (positions <= self.upper)
        return np.asarray(within.all(axis=-1))

    def exits(self, directions: np.ndarray) -> np.ndarray:
        """Return the distance [pc] at which rays along ``(..., 3)`` leave it."""
        face = np.where(directions > 0, self.upper, self.lower)
        flat = np.abs(directions) < 1e-12
        reach = np.where(flat, np.inf, face / np.where(flat, 1.0, directions))
        # On a face itself a position may come out a rounding error beyond it.
        return reach.min(axis=-1) * (1 - 1e-9)

    def outside(self, distance: float) -> float:
        """Return the fraction of the sky on which a distance [pc] is outside."""
        # A Fibonacci lattice: as many directions in all parts of the sky.
        number = np.arange(_DIRECTIONS)
        sine = 1 - (2 * number + 1) / _DIRECTIONS
        longitude = 180 * (1 + 5**0.5) * number
        directions = unit_vectors(longitude, np.rad2deg(np.arcsin(sine)))
        return float((self.exits(directions) < distance * (1 - 1e-6)).mean())
