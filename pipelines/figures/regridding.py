"""A second map on the grid of a first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from astropy import units as u

from pipelines.cubes.cube import Cube
from pipelines.figures.box import array_axis
from pipelines.figures.integrals import Ends, density_name


def shared_range(cube: Cube, other: Cube, axis: str) -> Ends:
    """Lowest and highest centre of the first one's cells that `regridded` fills [pc].

    Raises
    ------
    ValueError
        If there are fewer than two.
    """
    centres, known = getattr(cube, axis), _averaged(other, cube, axis)[1]
    within = centres[(centres >= known[0]) & (centres <= known[-1])]
    if len(within) < 2:
        others = getattr(other, axis)
        raise ValueError(
            f"the maps have {len(within)} planes of cells in common: one spans "
            f"{centres[0]:g} to {centres[-1]:g} pc in {axis}, the other {others[0]:g} "
            f"to {others[-1]:g} pc"
        )
    return float(within[0]), float(within[-1])


def regridded(other: Cube, cube: Cube, factor: float = 1.0) -> Cube:
    """The density of another cube, times ``factor``, at the cells of a first.

    Trilinear between cell centres and NaN beyond; in the first one's unit. Where the
    other's cells are finer their mean over a cell of the first is taken before, so that
    what the first cannot resolve is no difference.
    """
    values = np.asarray(other.arrays[density_name(other.arrays)], dtype=np.float64)
    axes = {}
    for axis in "xyz":
        count, axes[axis] = _averaged(other, cube, axis)
        values = np.lib.stride_tricks.sliding_window_view(
            values, count, axis=array_axis(axis)
        ).mean(axis=-1)
    means = Cube(**axes, arrays={"density": values}, unit=other.unit)
    z, y, x = np.meshgrid(cube.z, cube.y, cube.x, indexing="ij")
    found = means.sample("density", np.stack([x, y, z], axis=-1))
    found *= u.Unit(other.unit).to(u.Unit(cube.unit)) * factor
    return replace(cube, arrays={"density": found}, meta=other.meta)


def _averaged(other: Cube, cube: Cube, axis: str) -> tuple[int, np.ndarray]:
    """How many of the other's cells make one of the first's, and their centres."""
    centres, coarse = getattr(other, axis), getattr(cube, axis)
    step = centres[1] - centres[0]
    count = min(max(1, round((coarse[1] - coarse[0]) / step)), len(centres) - 1)
    windows = np.lib.stride_tricks.sliding_window_view(centres, count)
    return count, windows.mean(axis=-1)
