"""The dust of a mock galaxy on a grid around the Sun."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pipelines.config import SimulateConfig
from pipelines.config.simulation import DustConfig, TruthConfig
from pipelines.cubes.cube import Cube
from pipelines.simulate.structures import (
    Axes,
    Cavity,
    Cloud,
    add_cloud,
    carve,
    draw_cavities,
    draw_clouds,
)
from pipelines.simulate.turbulence import draw_turbulence


@dataclass(frozen=True, slots=True, kw_only=True)
class Galaxy:
    """The truth: ``density`` [mag/pc] in ``cube``, and what stands out in it."""

    cube: Cube
    clouds: list[Cloud]
    cavities: list[Cavity]


def make_galaxy(config: SimulateConfig, rng: np.random.Generator) -> Galaxy:
    """Draw a galaxy: ``(disc × turbulence + clouds) × cavities``.

    The log-normal turbulence has mean one, so the disc is the mean density of the
    diffuse dust. The same generator state gives the same galaxy.
    """
    dust = config.dust
    grids = _grids(config.truth)
    discs = [exponential_disc(axes, dust) for axes in grids]
    densities = [disc.copy() for disc in discs]
    if dust.turbulence:
        fields, variances = draw_turbulence(
            grids,
            correlation_length=dust.correlation_length,
            slope=dust.slope,
            stirring=dust.stirring,
            rng=rng,
        )
        for density, field, variance in zip(densities, fields, variances, strict=True):
            # What the next finer grid adds has the mean one, too.
            half = 0.5 * dust.turbulence**2 * variance
            density *= np.exp(dust.turbulence * field - half)
    clouds = draw_clouds(
        densities[0],
        grids[0],
        count=dust.clouds,
        radius=config.cloud_radius,
        extinction=dust.cloud_extinction,
        rng=rng,
    )
    cavities = draw_cavities(
        discs[0], grids[0], count=dust.cavities, radius=config.cavity_radius, rng=rng
    )
    cubes = []
    for density, axes in zip(densities, grids, strict=True):
        for cloud in clouds:
            add_cloud(density, axes, cloud)
        for cavity in cavities:
            carve(density, axes, cavity)
        x, y, z = axes
        # Stars see what is stored, so the precision of the file is the truth's.
        arrays = {"density": density.astype(np.float32)}
        cubes.append(Cube(x=x, y=y, z=z, arrays=arrays))
    cube = replace(cubes[0], finer=tuple(cubes[1:]))
    return Galaxy(cube=cube, clouds=clouds, cavities=cavities)


def exponential_disc(axes: Axes, dust: DustConfig) -> np.ndarray:
    """Return ``ρ₀ exp(−(R − R₀)/h_R − |z + z_sun|/h_z)`` [mag/pc], ``(z, y, x)``.

    ρ₀ is the density in the plane at the Sun's distance R₀ from the centre.
    """
    x, y, z = axes
    radius = np.hypot(dust.centre_distance - x[None, :], y[:, None])
    radial = np.exp(-(radius - dust.centre_distance) / dust.scale_length)
    vertical = np.exp(-np.abs(z + dust.sun_height) / dust.scale_height)
    return dust.density * vertical[:, None, None] * radial


def _grids(truth: TruthConfig) -> list[Axes]:
    """Grid points [pc] from face to face, as near to the spacing as fits; finer ones.

    Those are between points of the grid around them, and reach half as far.
    """
    halves = (truth.half_x, truth.half_y, truth.half_z)
    x, y, z = (
        np.linspace(-half, half, round(2 * half / truth.spacing) + 1) for half in halves
    )
    grids = [(x, y, z)]
    for level in range(1, truth.levels):
        reach = max(halves) / 2**level
        x, y, z = (_halved(axis, reach) for axis in grids[-1])
        grids.append((x, y, z))
    return grids


def _halved(axis: np.ndarray, reach: float) -> np.ndarray:
    """The part of an axis within ``reach`` of 0, with half the spacing."""
    edge = reach + 0.5 * (axis[1] - axis[0])
    inner = axis[np.abs(axis) < edge]
    return np.linspace(inner[0], inner[-1], 2 * len(inner) - 1)
