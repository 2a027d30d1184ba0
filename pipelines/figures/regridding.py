"""A second map on the grid of a first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from astropy import units as u

from pipelines.figures.box import array_axis
from pipelines.figures.integrals import density_name
from pipelines.maps.cube import Cube


def shared_height(cube: Cube, other: Cube) -> tuple[float, float]:
    """Lowest and highest z of the first one's cells that `regridded` fills [pc].

    Raises
    ------
    ValueError
        If there are fewer than two.
    """
    known = _averaged(other.z, _merged(other, cube)[2])
    within = cube.z[(cube.z >= known[0]) & (cube.z <= known[-1])]
    if len(within) < 2:
        raise ValueError(
            f"the maps have {len(within)} planes of cells in common: one spans "
            f"{cube.z[0]:g} to {cube.z[-1]:g} pc in z, the other {other.z[0]:g} to "
            f"{other.z[-1]:g} pc"
        )
    return float(within[0]), float(within[-1])


def regridded(other: Cube, cube: Cube, factor: float = 1.0) -> Cube:
    """The density of another cube, times ``factor``, at the cells of a first.

    Trilinear between cell centres and NaN beyond; in the first one's unit. Where the
    other's cells are finer their mean over a cell of the first is taken before, so that
    what the first cannot resolve is no difference.
    """
    name = density_name(other)
    to_unit = u.Unit(other.unit).to(u.Unit(cube.unit)) * factor
    z, y, x = np.meshgrid(cube.z, cube.y, cube.x, indexing="ij")
    places = np.stack([x, y, z], axis=-1)
    values = (
        _running_means(other, name, _merged(other, cube)).sample("density", places)
        * to_unit
    )
    return replace(cube, arrays={"density": values}, meta=other.meta)


def common_cells(on_grid: Cube, axes: str) -> dict[str, slice]:
    """Which cells along ``axes`` hold all that `regridded` has filled.

    Raises
    ------
    ValueError
        If there are fewer than two along one of them.
    """
    known = np.isfinite(on_grid.arrays["density"])
    found = {}
    for axis in axes:
        others = tuple(i for i in range(3) if i != array_axis(axis))
        filled = np.flatnonzero(known.any(axis=others))
        if len(filled) < 2:
            raise ValueError(f"the maps share {len(filled)} planes of cells in {axis}")
        found[axis] = slice(int(filled[0]), int(filled[-1]) + 1)
    return found


def cropped(cube: Cube, cells: dict[str, slice]) -> Cube:
    """The same cube without cells outside of these."""
    place = tuple(cells.get(axis, slice(None)) for axis in "zyx")
    centres = {a: getattr(cube, a)[cells.get(a, slice(None))] for a in "xyz"}
    arrays = {name: array[place] for name, array in cube.arrays.items()}
    return replace(cube, **centres, arrays=arrays)


def _merged(other: Cube, cube: Cube) -> list[int]:
    """How many of the other's cells make one of the first's, along x, y, z."""
    sizes = zip("xyz", cube.spacing, other.spacing, strict=True)
    return [
        min(max(1, round(h / g)), len(getattr(other, axis)) - 1) for axis, h, g in sizes
    ]


def _averaged(centres: np.ndarray, count: int) -> np.ndarray:
    """Centres of every ``count`` neighbours."""
    half = (count - 1) / 2 * (centres[-1] - centres[0]) / (len(centres) - 1)
    return np.linspace(centres[0] + half, centres[-1] - half, len(centres) - count + 1)


def _running_means(cube: Cube, name: str, merged: list[int]) -> Cube:
    """Means over ``merged`` cells per axis, each at the centre of what it averages."""
    axes = {}
    values = np.asarray(cube.arrays[name], dtype=np.float64)
    for wanted, axis in zip(merged, "xyz", strict=True):
        centres = getattr(cube, axis)
        windows = np.lib.stride_tricks.sliding_window_view(
            values, wanted, axis=array_axis(axis)
        )
        values = windows.mean(axis=-1)
        axes[axis] = _averaged(centres, wanted)
    return Cube(**axes, arrays={"density": values}, unit=cube.unit)
