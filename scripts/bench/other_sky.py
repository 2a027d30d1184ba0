"""Skies of another kind than `dustmap simulate` makes, as judges of intervals.

The density is a faint disc with filaments, shells around voids, and a bubble around
the Sun with a wall. It has no spectrum in common with a Gaussian process: most of the
volume is a void, most of the dust is in thin structures. Stars are seen to a limiting
magnitude, dimmed by the dust, so that few are seen behind dense clouds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import gaussian_filter, map_coordinates

# Half sides of the box, and width of the cells [pc].
HALF = np.array([1250.0, 1250.0, 400.0])
_CELL = 5.0
# Steps of a ray's integral [pc].
_STEP = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherSky:
    """Stars, with the truth, and the density on cells.

    ``position`` [pc], ``extinction`` and its stated ``error`` [mag], ``density``
    [mag/pc] and ``distance_error`` [pc] are of the stars, in random order; ``seen`` are
    their extinctions with noise and ``distance`` their measured distances. ``cells``
    holds the density [mag/pc] on cells of 5 pc.
    """

    position: np.ndarray
    extinction: np.ndarray
    density: np.ndarray
    seen: np.ndarray
    error: np.ndarray
    distance: np.ndarray
    distance_error: np.ndarray
    cells: np.ndarray

    def density_at(self, points: np.ndarray) -> np.ndarray:
        """Return the true density at points [pc], multilinear between cells."""
        return _look(self.cells, points)


def other_sky(seed: int, *, stars: int = 60_000, defects: bool = False) -> OtherSky:
    """Make a sky; with ``defects`` distances have errors, and errors are understated.

    Stated errors are then 0.8 of the true ones, and distances have errors of 1% to
    10%, larger for fainter stars.
    """
    random = np.random.default_rng(seed)
    cells = _density(random)
    found: list[np.ndarray] = []
    extinctions, margins = [], []
    # A uniform disc of stars whose number grows by 10^0.3 in a magnitude.
    while sum(map(len, found)) < 4 * stars:
        places = random.uniform(-1, 1, (200_000, 3)) * HALF
        distance = np.linalg.norm(places, axis=1)
        kept = random.random(len(places)) < np.exp(-np.abs(places[:, 2]) / 300)
        bright = np.log10(random.random(len(places))) / 0.3
        # Nothing more than 2.5 mag beyond this limit is seen, however little dust.
        faint = bright + 5 * np.log10(np.maximum(distance, 1.0)) > 12.5
        kept &= ~faint & (distance > 20)
        places, bright = places[kept], bright[kept]
        extinction = _extinction(cells, places)
        found.append(places)
        extinctions.append(extinction)
        limit = bright + 5 * np.log10(distance[kept]) + 0.85 * extinction
        margins.append(limit)
    places, extinction = np.concatenate(found), np.concatenate(extinctions)
    magnitude = np.concatenate(margins)
    # The brightest; their order says nothing.
    chosen = random.permutation(np.argsort(magnitude)[:stars])
    places, extinction, magnitude = (
        each[chosen] for each in (places, extinction, magnitude)
    )
    distance = np.linalg.norm(places, axis=1)
    error = np.exp(random.normal(math.log(0.05), 0.4, stars)).clip(0.015, 0.3)
    true_error = error / 0.8 if defects else error
    seen = extinction + true_error * random.standard_normal(stars)
    distance_error = 1e-3 * distance
    measured = distance
    if defects:
        rank = magnitude.argsort().argsort() / stars
        distance_error = distance * (0.01 + 0.09 * rank**2)
        measured = distance + distance_error * random.standard_normal(stars)
        measured = np.abs(measured) + 1
    return OtherSky(
        position=places,
        extinction=extinction,
        density=_look(cells, places),
        seen=seen,
        error=error,
        distance=measured,
        distance_error=distance_error,
        cells=cells,
    )


def _density(random: np.random.Generator) -> np.ndarray:
    """Draw the density on cells [mag/pc]."""
    shape = tuple((2 * HALF / _CELL).astype(int))
    axes = [
        _CELL * (np.arange(n) + 0.5) - half for n, half in zip(shape, HALF, strict=True)
    ]
    disc = 1.5e-4 * np.exp(-np.abs(axes[2]) / 130)
    rho = disc * np.exp(0.5 * _smooth(random, shape, 4.0))
    patchy = np.exp(1.0 * _smooth(random, shape, 6.0) - 0.5)
    for _ in range(30):
        centre = random.uniform(-1, 1, 3) * HALF * (0.95, 0.95, 0.4)
        size, thick = random.uniform(30, 150), random.uniform(5, 14)
        near = [np.abs(a - c) < size + 4 * thick for a, c in zip(axes, centre)]
        part = np.ix_(*near)
        away = np.sqrt(
            sum(
                (a[some] - c).reshape([-1 if i == d else 1 for i in range(3)]) ** 2
                for d, (a, some, c) in enumerate(zip(axes, near, centre))
            )
        )
        wall = random.uniform(1e-3, 4e-3) * patchy[part]
        emptied = np.where(away < size, 0.2, 1.0)
        rho[part] = emptied * rho[part] + wall * np.exp(
            -0.5 * ((away - size) / thick) ** 2
        )
    # The bubble's radius varies with direction between 70 and 120 pc.
    shift = _smooth(random, (40, 40, 40), 5.0)
    part = tuple(slice(int((h - 200) / _CELL), int((h + 200) / _CELL)) for h in HALF)
    near = [axis[some] for axis, some in zip(axes, part)]
    unit = np.stack(np.meshgrid(*near, indexing="ij"))
    inner = np.linalg.norm(unit, axis=0)
    bubble = 95 + 12 * map_coordinates(shift, 20 + 15 * unit / inner, order=1)
    bubble = bubble.clip(70, 120)
    wall = 1.5e-3 * patchy[part] * np.exp(-0.5 * ((inner - bubble) / 10) ** 2)
    rho[part] = np.where(inner < bubble, 0.03, 1.0) * rho[part] + wall
    for _ in range(220):
        _add_filament(rho, axes, random)
    return rho.astype(np.float32)


def _add_filament(
    rho: np.ndarray, axes: list[np.ndarray], random: np.random.Generator
) -> None:
    """Add a bent row of beads to the density."""
    place = random.uniform(-1, 1, 3) * HALF
    place[2] = random.laplace(0, 70)
    heading = random.standard_normal(3) * (1, 1, 0.5)
    heading /= np.linalg.norm(heading)
    width = random.uniform(4, 10)
    peak = 3e-3 * math.exp(random.normal(0, 0.8))
    for _ in range(int(random.uniform(60, 350) / width)):
        heading = heading + 0.25 * random.standard_normal(3)
        heading /= np.linalg.norm(heading)
        place = place + width * heading
        if np.linalg.norm(place) < 110:
            continue
        near = [np.abs(a - c) < 4 * width for a, c in zip(axes, place)]
        if not all(some.any() for some in near):
            continue
        factors = [
            np.exp(-0.5 * ((a[some] - c) / width) ** 2)
            for a, some, c in zip(axes, near, place)
        ]
        bead = np.einsum("i,j,k->ijk", *factors)
        rho[np.ix_(*near)] += peak * math.exp(random.normal(0, 0.5)) * bead / 2.5


def _smooth(
    random: np.random.Generator, shape: tuple[int, ...], width: float
) -> np.ndarray:
    """Return smoothed white noise of unit variance."""
    noise = random.standard_normal(shape, dtype=np.float32)
    field = gaussian_filter(noise, width, mode="wrap")
    return field / field.std()


def _look(cells: np.ndarray, points: np.ndarray) -> np.ndarray:
    place = ((points + HALF) / _CELL - 0.5).reshape(-1, 3).T
    found = map_coordinates(cells, place, order=1, mode="nearest")
    return found.reshape(points.shape[:-1])


def _extinction(cells: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the integral of the density from the Sun to places [mag]."""
    count = int(np.linalg.norm(HALF) / _STEP)
    part = (np.arange(count) + 0.5) / count
    found = np.empty(len(places))
    for first in range(0, len(places), 5_000):
        some = places[first : first + 5_000]
        mean = _look(cells, some[:, None] * part[:, None]).mean(axis=1)
        found[first : first + 5_000] = mean * np.linalg.norm(some, axis=1)
    return found
