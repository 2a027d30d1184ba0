"""How far a map goes and how fine its sky maps are: defaults and checks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import healpy
import numpy as np
from scipy.spatial import KDTree

from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.cubes.sky import check_distances
from pipelines.run.folder import Run

# Distances along a ray: of larger boxes every second grid step, or third.
_MOST_DISTANCES = 160
# Of maps by default.
_FINEST_NSIDE = 128


def default_distances(run: Run, count: int = 6) -> np.ndarray:
    """Even, round distances [pc] out to the box's furthest face."""
    reach = reach_of(run)
    step = reach / count
    power = 10.0 ** math.floor(math.log10(step))
    step = max(f * power for f in (1, 2, 2.5, 5, 10) if f * power <= step * 1.0001)
    return step * np.arange(1, math.floor(reach / step + 1e-9) + 1)


def ray_distances(run: Run) -> np.ndarray:
    """Every grid step [pc] out to the box's furthest corner, finer where the grid is.

    Every second or third where there would be more than 160. The published engine pays
    a solve for each: those of `default_distances`.
    """
    if not run.plan.is_full_batch:
        return default_distances(run)
    every = len(grid_steps(run, 1.0)) / _MOST_DISTANCES
    return grid_steps(run, max(1.0, math.ceil(every)))


def grid_steps(run: Run, cells: float) -> np.ndarray:
    """Distances [pc] that are so many cells of the finest grid there apart."""
    found, grids = [0.0], run.plan.grids
    for grid in reversed(grids):
        end = farthest(run) if grid is grids[0] else grid.reach
        step = cells * min(grid.spacing)
        count = math.floor((end - found[-1]) / step * (1 + 1e-12))
        found += (found[-1] + step * np.arange(1, count + 1)).tolist()
    return np.array(found[1:])


def checked_distances(
    run: Run, distances: Sequence[float] | np.ndarray, *, edges: bool = False
) -> np.ndarray:
    """Distances, or edges of shells, [pc] as float64.

    Raises
    ------
    InputError
        If they do not increase from above zero (edges: from zero), or end beyond the
        map.
    """
    checked = np.asarray(distances, dtype=np.float64)
    check_distances(checked, edges=edges)
    if checked[-1] > farthest(run):
        raise InputError(
            f"{'shells' if edges else 'distances'} go to {checked[-1]:g} pc, where no "
            "sight line is still inside the map: its furthest corner is "
            f"{farthest(run):.6g} pc away"
        )
    return checked


def checked_nside(nside: int) -> int:
    """The resolution, if NESTED maps have it."""
    if not healpy.isnsideok(nside, nest=True):
        raise InputError(f"nside must be a power of 2, got {nside}")
    return nside


def pixel_directions(nside: int) -> np.ndarray:
    """Unit vectors to the centres of all pixels (NESTED, Galactic), ``(npix, 3)``."""
    pixels = np.arange(healpy.nside2npix(nside))
    return unit_vectors(*healpy.pix2ang(nside, pixels, nest=True, lonlat=True))


def reach_of(run: Run) -> float:
    """Distance to the furthest face of the box along an axis [pc]."""
    return float(np.abs([run.plan.grid.lower, run.plan.grid.upper]).max())


def farthest(run: Run) -> float:
    """Distance to the box's furthest corner [pc]."""
    grid = run.plan.grid
    sides = zip(grid.lower, grid.upper, strict=True)
    return math.hypot(*(max(-low, high) for low, high in sides))


def default_nside(run: Run) -> int:
    """The coarsest resolution whose pixels are a grid step or less, within 16..128.

    That is at half the distance to the furthest face. Where a residual of neighbouring
    stars makes extinctions sharper than the grid, pixels are no wider than the stars
    are apart (the median separation from the nearest). The published engine
    pays a solve for every pixel and distance: 8.
    """
    nside = _nside_at(run, reach_of(run) / 2)
    if run.posterior.residual is None:
        return nside
    directions = run.posterior.residual.rays.directions.numpy()
    apart = float(np.median(KDTree(directions).query(directions, k=2)[0][:, 1]))
    while nside < _FINEST_NSIDE and healpy.nside2resol(nside) > apart:
        nside *= 2
    return nside


def ray_nside(run: Run) -> int:
    """The resolution of rays to look between: a grid step or less at the furthest face.

    Twice that of `default_nside`, within 16..128: halfway, what is interpolated between
    rays was off by 0.6 standard deviations at the far side of a box of 85 cells, here
    by 0.17. The published engine: 8.
    """
    return _nside_at(run, reach_of(run))


def _nside_at(run: Run, distance: float) -> int:
    if not run.plan.is_full_batch:
        return 8
    angle = min(run.plan.grid.spacing) / distance
    nside = 16
    while nside < _FINEST_NSIDE and healpy.nside2resol(nside) > angle:
        nside *= 2
    return nside
