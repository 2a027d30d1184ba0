"""The dust of a mock galaxy on a grid around the Sun."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipelines.config import SimulateConfig
from pipelines.config.simulation import DustConfig, TruthConfig
from pipelines.maps.cube import Cube
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
    x, y, z = axes = _axes(config.truth)
    disc = exponential_disc(axes, dust)
    density = disc.copy()
    if dust.turbulence:
        field = draw_turbulence(
            disc.shape,
            (z[1] - z[0], y[1] - y[0], x[1] - x[0]),
            correlation_length=dust.correlation_length,
            slope=dust.slope,
            stirring=dust.stirring,
            rng=rng,
        )
        density *= np.exp(dust.turbulence * field - 0.5 * dust.turbulence**2)
    clouds = draw_clouds(
        density,
        axes,
        count=dust.clouds,
        radius=config.cloud_radius,
        extinction=dust.cloud_extinction,
        rng=rng,
    )
    cavities = draw_cavities(
        disc, axes, count=dust.cavities, radius=config.cavity_radius, rng=rng
    )
    for cloud in clouds:
        add_cloud(density, axes, cloud)
    for cavity in cavities:
        carve(density, axes, cavity)
    # Stars see what is stored, so the precision of the file is the truth's.
    cube = Cube(x=x, y=y, z=z, arrays={"density": density.astype(np.float32)})
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


def _axes(truth: TruthConfig) -> Axes:
    """Grid points [pc] from face to face, as near to the spacing as fits."""
    halves = (truth.half_x, truth.half_y, truth.half_z)
    x, y, z = (
        np.linspace(-half, half, round(2 * half / truth.spacing) + 1) for half in halves
    )
    return x, y, z
