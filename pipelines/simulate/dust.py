"""The dust of a mock galaxy: an exponential disc, turbulence, clouds and cavities."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import numpy as np

from pipelines.config import SimulateConfig
from pipelines.config.simulation import DustConfig, Galaxy, TruthConfig
from pipelines.cubes.cube import Cube
from pipelines.simulate.turbulence import Axes, Rng, draw_turbulence

CENTRE_DISTANCE = 8200.0
"""Distance to the Galactic centre [pc]."""

Point = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """A Gaussian cloud, or a filament of Gaussian beads one radius apart.

    ``beads`` are the centres [pc], one for a round cloud; ``radius`` is the standard
    deviation of each bead's profile [pc], ``extinction`` is A_V through the middle
    (across a filament) [mag].
    """

    beads: tuple[Point, ...]
    radius: float
    extinction: float

    def add_to(self, density: np.ndarray, axes: Axes) -> None:
        """Add the cloud to a density [mag/pc], shape ``(z, y, x)``, in place."""
        amplitude = self.extinction / (np.sqrt(2 * np.pi) * self.radius)
        if len(self.beads) > 1:
            # Beads one radius apart add up to sqrt(2 pi) times a single bead.
            amplitude /= np.sqrt(2 * np.pi)
        # Beyond four standard deviations lie 3e-4 of its mass.
        reach = 4 * self.radius
        for bead in self.beads:
            window, squared = _near(axes, bead, reach)
            profile = amplitude * np.exp(-0.5 * squared / self.radius**2)
            density[window] += np.where(squared <= reach**2, profile, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cavity:
    """A sphere with 8% of its dust, and the rest in a shell; ``radius`` [pc]."""

    centre: Point
    radius: float

    def carve(self, density: np.ndarray, axes: Axes) -> None:
        """Carve the cavity into a density, shape ``(z, y, x)``, in place."""
        window, squared = _near(axes, self.centre, 2 * self.radius)
        u = np.sqrt(squared) / self.radius
        hollow = 1 - (1 - 0.08) * np.exp(-(u**6))
        shell = 1.5 * np.exp(-0.5 * ((u - 1.1) / 0.15) ** 2)
        density[window] *= hollow * (1 + shell)


def make_dust(config: SimulateConfig, galaxy: Galaxy, rng: Rng) -> Cube:
    """Draw a density [mag/pc]: ``(disc × turbulence + clouds) × cavities``.

    The log-normal turbulence has mean one, so the disc is the mean density of the
    diffuse dust. The same generator state gives the same galaxy. The cube's ``meta``
    lists ``clouds`` and ``cavities``.
    """
    dust = config.dust
    grids = _grids(config.truth)
    discs = [exponential_disc(axes, dust, galaxy) for axes in grids]
    densities = [disc.copy() for disc in discs]
    if dust.turbulence:
        fields, variances = draw_turbulence(
            grids,
            correlation_length=dust.correlation_length,
            slope=galaxy.slope,
            stirring=galaxy.stirring,
            rng=rng,
        )
        for density, field, variance in zip(densities, fields, variances, strict=True):
            # The band of the next finer grid also has mean one.
            half = 0.5 * dust.turbulence**2 * variance
            density *= np.exp(dust.turbulence * field - half)
    spacing = config.truth.spacing
    clouds = draw_clouds(densities[0], grids[0], dust.clouds, spacing, rng)
    cavities = draw_cavities(discs[0], grids[0], dust.cavities, spacing, rng)
    for density, axes in zip(densities, grids, strict=True):
        for cloud in clouds:
            cloud.add_to(density, axes)
        for cavity in cavities:
            cavity.carve(density, axes)
    # The truth has the precision of the file: stars use the stored density.
    first, *finer = (
        Cube(x=x, y=y, z=z, arrays={"density": density.astype(np.float32)})
        for density, (x, y, z) in zip(densities, grids, strict=True)
    )
    meta = {"clouds": [*map(asdict, clouds)], "cavities": [*map(asdict, cavities)]}
    return replace(first, finer=tuple(finer), meta=meta)


def exponential_disc(axes: Axes, dust: DustConfig, galaxy: Galaxy) -> np.ndarray:
    """Return ``ρ₀ exp(−(R − R₀)/h_R − |z + z_sun|/h_z)`` [mag/pc], ``(z, y, x)``.

    ρ₀ is the density in the plane at the Sun's distance R₀ from the centre.
    """
    x, y, z = axes
    radius = np.hypot(CENTRE_DISTANCE - x[None, :], y[:, None])
    radial = np.exp(-(radius - CENTRE_DISTANCE) / galaxy.dust_scale_length)
    vertical = np.exp(-np.abs(z + dust.sun_height) / galaxy.dust_scale_height)
    return dust.density * vertical[:, None, None] * radial


def draw_clouds(
    density: np.ndarray, axes: Axes, count: int, spacing: float, rng: Rng
) -> list[Cloud]:
    """Draw clouds in proportion to ``density``, every second one a filament.

    They are thus near the plane and in dense diffuse dust, shape ``(z, y, x)``. The
    standard deviations of their profiles are 1 to 2.5 times the grid's ``spacing``
    [pc], filaments have 6 to 19 beads, and the median A_V is 0.8 mag.
    """
    radius = (spacing, 2.5 * spacing)
    flatten = np.array([1.0, 1.0, 0.4])
    clouds = []
    for index, centre in enumerate(_draw_positions(density, axes, count, rng)):
        size, beads = _draw_radius(radius, rng), [centre]
        if index % 2:
            # A walk with a slowly turning direction, mostly in the plane.
            size, bead, beads = radius[0], centre, []
            heading = rng.standard_normal(3) * flatten
            for _ in range(rng.integers(6, 20)):
                heading = heading / np.linalg.norm(heading)
                beads.append(bead)
                bead = bead + size * heading
                heading = heading + 0.35 * rng.standard_normal(3) * flatten
        strength = float(0.8 * np.exp(0.5 * rng.standard_normal()))
        points = tuple(map(_point, beads))
        clouds.append(Cloud(beads=points, radius=size, extinction=strength))
    return clouds


def draw_cavities(
    density: np.ndarray, axes: Axes, count: int, spacing: float, rng: Rng
) -> list[Cavity]:
    """Draw cavities in proportion to ``density``; the first one contains the Sun.

    Their radii are 5 to 12 times the grid's ``spacing`` [pc].
    """
    radius = (5 * spacing, 12 * spacing)
    centres = _draw_positions(density, axes, max(count - 1, 0), rng)
    local = [np.zeros(3)] if count else []
    return [
        Cavity(centre=_point(centre), radius=_draw_radius(radius, rng))
        for centre in [*local, *centres]
    ]


def _grids(truth: TruthConfig) -> list[Axes]:
    """Return grid points [pc] of every level, the coarsest first.

    The coarsest grid extends from face to face, with nearly the given spacing. A finer
    grid has half the spacing and half the extent of the grid around it.
    """
    halves = (truth.half_x, truth.half_y, truth.half_z)
    x, y, z = (
        np.linspace(-half, half, round(2 * half / truth.spacing) + 1) for half in halves
    )
    grids = [(x, y, z)]
    for level in range(1, truth.levels):
        reach = max(halves) / 2**level
        inner = (a[np.abs(a) < reach + 0.5 * (a[1] - a[0])] for a in grids[-1])
        x, y, z = (np.linspace(a[0], a[-1], 2 * len(a) - 1) for a in inner)
        grids.append((x, y, z))
    return grids


def _draw_positions(weight: np.ndarray, axes: Axes, count: int, rng: Rng) -> np.ndarray:
    """Draw points with probability ∝ ``weight`` ``(z, y, x)``; ``(count, 3)`` xyz."""
    cumulative = np.cumsum(weight, dtype=float)
    flat = np.searchsorted(cumulative, rng.random(count) * cumulative[-1])
    index = np.unravel_index(flat, weight.shape)[::-1]
    columns = [
        axis[i] + (axis[1] - axis[0]) * rng.uniform(-0.5, 0.5, count)
        for axis, i in zip(axes, index, strict=True)
    ]
    return np.stack(columns, axis=1)


def _draw_radius(limits: tuple[float, ...], rng: Rng) -> float:
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
