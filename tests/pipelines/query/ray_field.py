"""A map whose extinction is known along every ray, without a fit."""

from __future__ import annotations

import healpy
import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord

from pipelines.base.geometry import unit_vectors
from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import Curves
from pipelines.formats.zarr import write_zarr

HALF = np.array([500.0, 400.0, 200.0])
STEP = 25.0
SCATTER = 0.3
LEVEL = 2e-3
# How far stars look.
SEEN = 300.0


def density(points):
    """Median density [mag/pc] at ``(..., 3)`` [pc]: a gradient, so that axes differ."""
    x, y, z = np.moveaxis(np.asarray(points), -1, 0)
    return LEVEL * (1 + x / 1500 + y / 2500 + z / 1200)


def extinction(points):
    """Its integral from the origin, in closed form: the field is linear."""
    distance = np.linalg.norm(points, axis=-1)
    return distance * (density(np.zeros(3)) + density(points)) / 2


def spread(median):
    """All that a log-normal posterior of this median holds."""
    mean = median * np.exp(SCATTER**2 / 2)
    return {
        "mean": mean,
        "std": mean * np.sqrt(np.expm1(SCATTER**2)),
        "p16": median * np.exp(-SCATTER),
        "p50": median,
        "p84": median * np.exp(SCATTER),
    }


def cube():
    """The density on a grid of 25 pc."""
    x, y, z = (np.arange(-half, half + 1, STEP) for half in HALF)
    mesh = np.stack(np.meshgrid(x, y, z, indexing="ij"), axis=-1)
    arrays = spread(density(mesh))
    arrays["support"] = (np.linalg.norm(mesh, axis=-1) <= SEEN) * 1.0
    arrays = {n: a.transpose(2, 1, 0).astype(np.float32) for n, a in arrays.items()}
    return Cube(x=x, y=y, z=z, arrays=arrays)


def integrated(nside=16, last=None):
    """The extinction along the pixels' rays, out to the furthest corner."""
    last = np.linalg.norm(HALF) if last is None else last
    distance = np.arange(STEP, last + STEP / 2, STEP)
    lon, lat = healpy.pix2ang(nside, np.arange(12 * nside**2), nest=True, lonlat=True)
    ends = distance[:, None, None] * unit_vectors(lon, lat)
    outside = (np.abs(ends) > HALF).any(axis=-1)
    arrays = {
        name: np.where(outside, np.nan, values).astype(np.float32)
        for name, values in spread(extinction(ends)).items()
    }
    steepness = (np.abs(unit_vectors(lon, lat)) / HALF).max(axis=1)
    return Curves(
        distances=distance,
        nodes=np.arange(len(distance)),
        arrays={name: values.T for name, values in arrays.items()},
        last_star=np.minimum(SEEN, 1 / steepness).astype(np.float32),
    )


def write(path, nside=16, last=None):
    """The store of this map."""
    write_zarr(path, cube(), integrated(nside, last))
    return path


def at(lon, lat, distance):
    """Galactic coordinates of angles [deg] and distances [pc], broadcast."""
    lon, lat, distance = np.broadcast_arrays(lon, lat, distance)
    return SkyCoord(
        l=lon * u.deg, b=lat * u.deg, distance=distance * u.pc, frame="galactic"
    )
