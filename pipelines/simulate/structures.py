"""Clouds, filaments and cavities: what stands out of the diffuse dust."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Standard deviations after which a cloud's Gaussian profile is cut (3e-4 of it).
_REACH = 4.0
# Dust left in a cavity, and swept into its shell, relative to what was there.
_INSIDE, _SHELL = 0.08, 1.5
# Least and largest number of beads of a filament.
_BEADS = (6, 20)

Axes = tuple[np.ndarray, np.ndarray, np.ndarray]
Point = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """A Gaussian cloud, or a filament of Gaussian beads one radius apart.

    Parameters
    ----------
    beads
        Centres ``x, y, z`` [pc]; one for a round cloud.
    radius
        Standard deviation of each bead's profile [pc].
    extinction
        A_V through the middle (across a filament) [mag].
    """

    beads: tuple[Point, ...]
    radius: float
    extinction: float

    @property
    def amplitude(self) -> float:
        """Peak density of one bead [mag/pc]."""
        across = self.extinction / (np.sqrt(2 * np.pi) * self.radius)
        # Beads one radius apart add up to sqrt(2 pi) times one of them.
        return across if len(self.beads) == 1 else across / np.sqrt(2 * np.pi)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cavity:
    """An emptied sphere with its dust piled up in a shell."""

    centre: Point
    radius: float


def draw_clouds(
    density: np.ndarray,
    axes: Axes,
    *,
    count: int,
    radius: tuple[float, float],
    extinction: float,
    rng: np.random.Generator,
) -> list[Cloud]:
    """Draw clouds in proportion to ``density``, every second one a filament.

    That keeps them to the plane and to the dense patches.

    Parameters
    ----------
    density
        Diffuse dust, shape ``(z, y, x)``.
    axes
        Coordinates ``x, y, z`` [pc].
    radius
        Least and largest standard deviation [pc].
    extinction
        Median A_V through a cloud [mag].
    """
    clouds = []
    for index, centre in enumerate(_draw_positions(density, axes, count, rng)):
        size = _draw_radius(radius, rng)
        beads = [centre]
        if index % 2:
            size = radius[0]
            beads = _draw_filament(centre, size, rng)
        strength = float(extinction * np.exp(0.5 * rng.standard_normal()))
        points = tuple(map(_point, beads))
        clouds.append(Cloud(beads=points, radius=size, extinction=strength))
    return clouds


def draw_cavities(
    density: np.ndarray,
    axes: Axes,
    *,
    count: int,
    radius: tuple[float, float],
    rng: np.random.Generator,
) -> list[Cavity]:
    """Draw cavities in proportion to ``density``; the first one holds the Sun."""
    centres = _draw_positions(density, axes, max(count - 1, 0), rng)
    local = [np.zeros(3)] if count else []
    return [
        Cavity(centre=_point(centre), radius=_draw_radius(radius, rng))
        for centre in [*local, *centres]
    ]


def add_cloud(density: np.ndarray, axes: Axes, cloud: Cloud) -> None:
    """Add a cloud to ``density``, shape ``(z, y, x)``, in place."""
    reach = _REACH * cloud.radius
    for bead in cloud.beads:
        window, squared = _near(axes, bead, reach)
        profile = cloud.amplitude * np.exp(-0.5 * squared / cloud.radius**2)
        density[window] += np.where(squared <= reach**2, profile, 0)


def carve(density: np.ndarray, axes: Axes, cavity: Cavity) -> None:
    """Empty a cavity of ``density``, shape ``(z, y, x)``, in place."""
    window, squared = _near(axes, cavity.centre, 2 * cavity.radius)
    u = np.sqrt(squared) / cavity.radius
    hollow = 1 - (1 - _INSIDE) * np.exp(-(u**6))
    shell = _SHELL * np.exp(-0.5 * ((u - 1.1) / 0.15) ** 2)
    density[window] *= hollow * (1 + shell)


def _draw_positions(
    weight: np.ndarray, axes: Axes, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw points with probability ∝ ``weight`` ``(z, y, x)``; ``(count, 3)`` xyz."""
    cumulative = np.cumsum(weight, dtype=float)
    flat = np.searchsorted(cumulative, rng.random(count) * cumulative[-1])
    index = np.unravel_index(flat, weight.shape)[::-1]
    columns = [
        axis[i] + (axis[1] - axis[0]) * rng.uniform(-0.5, 0.5, count)
        for axis, i in zip(axes, index, strict=True)
    ]
    return np.stack(columns, axis=1)


def _draw_filament(
    centre: np.ndarray, step: float, rng: np.random.Generator
) -> list[np.ndarray]:
    """Walk from ``centre`` with a slowly turning direction, mostly in the plane."""
    flatten = np.array([1.0, 1.0, 0.4])
    heading = rng.standard_normal(3) * flatten
    bead, beads = centre, []
    for _ in range(rng.integers(*_BEADS)):
        heading = heading / np.linalg.norm(heading)
        beads.append(bead)
        bead = bead + step * heading
        heading = heading + 0.35 * rng.standard_normal(3) * flatten
    return beads


def _draw_radius(limits: tuple[float, float], rng: np.random.Generator) -> float:
    return float(np.exp(rng.uniform(*np.log(limits))))


def _point(coordinates: np.ndarray) -> Point:
    x, y, z = map(float, coordinates)
    return x, y, z


def _near(
    axes: Axes, centre: Point, reach: float
) -> tuple[tuple[slice, ...], np.ndarray]:
    """Return the window of points within ``reach`` per axis and their distance²."""
    windows, squares = [], []
    for axis, middle in zip(axes[::-1], centre[::-1], strict=True):
        first, last = np.searchsorted(axis, (middle - reach, middle + reach))
        windows.append(slice(first, last))
        squares.append((axis[first:last] - middle) ** 2)
    dz, dy, dx = np.ix_(*squares)
    return tuple(windows), dz + dy + dx
