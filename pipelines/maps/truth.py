"""A known density, looked up at points and integrated along rays.

The density is the trilinear interpolant of a cube's grid points: that *is* the truth
of a mock galaxy, with nothing below the grid.
"""

from __future__ import annotations

import numpy as np
from scipy.ndimage import map_coordinates

from pipelines.base.geometry import unit_vectors
from pipelines.maps.cube import Cube

_GAUSS = (0.5 - np.sqrt(1 / 12), 0.5 + np.sqrt(1 / 12))
_NODES = 1_000_000
_EDGE = 1e-6


def truth_density(
    cube: Cube, positions: np.ndarray, *, name: str = "density"
) -> np.ndarray:
    """Interpolate a cube trilinearly.

    Parameters
    ----------
    cube
        The truth.
    positions
        Heliocentric Galactic ``x, y, z`` [pc], shape ``(..., 3)``.
    name
        Which of the cube's arrays.

    Returns
    -------
    Density [unit of the cube], shape ``(...)``; NaN outside the cube's points.
    """
    array = cube.arrays[name]
    index = np.empty((3, *positions.shape[:-1]))
    for row, axis in enumerate((cube.z, cube.y, cube.x)):
        start, step = axis[0], (axis[-1] - axis[0]) / (len(axis) - 1)
        index[row] = (positions[..., 2 - row] - start) / step
    last = np.asarray(array.shape, dtype=float).reshape(3, *[1] * (index.ndim - 1)) - 1
    # A point on a face may land a rounding error beyond it.
    inside = ((index >= -_EDGE) & (index <= last + _EDGE)).all(axis=0)
    values = map_coordinates(array, index, output=float, order=1, mode="nearest")
    return np.where(inside, values, np.nan)


def truth_extinction(
    cube: Cube,
    l: np.ndarray,  # noqa: E741
    b: np.ndarray,
    distance: np.ndarray,
    step: float | None = None,
    *,
    name: str = "density",
) -> np.ndarray:
    """Integrate a cube's trilinear interpolant from the observer to each distance.

    Each ray is cut into equal steps of at most ``step`` with two Gauss-Legendre nodes
    each: exact on every step that crosses no face of a cell, since there the
    interpolant is a cubic. Rays are worked off in chunks of about a million nodes.

    Parameters
    ----------
    cube
        The truth; its box must contain the observer at the origin.
    l, b
        Galactic directions [deg], shape ``(N,)``.
    distance
        Where the rays end [pc], shape ``(N,)``.
    step
        Longest step [pc]; half the smallest cell size unless given.
    name
        Which of the cube's arrays.

    Returns
    -------
    Extinction [mag], shape ``(N,)``; NaN where the ray leaves the cube's points.

    Raises
    ------
    ValueError
        If the cube does not contain the observer, or ``step`` is not positive.
    """
    for axis in (cube.x, cube.y, cube.z):
        if not axis[0] <= 0 <= axis[-1]:
            raise ValueError(
                f"the cube spans [{axis[0]:g}, {axis[-1]:g}] pc on an axis: rays "
                "start at 0, outside it"
            )
    step = 0.5 * min(cube.spacing) if step is None else step
    if not step > 0:
        raise ValueError(f"step must be positive, got {step}")
    directions = unit_vectors(l, b)
    steps = np.maximum(np.ceil(np.asarray(distance) / step), 1).astype(int)
    total = np.empty(len(steps))
    order = np.argsort(steps, kind="stable")
    while len(order):
        # The rays of a chunk share the number of steps of its longest.
        most = np.searchsorted(
            np.arange(1, len(order) + 1) * steps[order] * 2, _NODES, side="right"
        )
        chunk, order = order[: max(most, 1)], order[max(most, 1) :]
        starts = np.arange(count := int(steps[chunk[-1]]))
        fractions = np.concatenate([(starts + node) / count for node in _GAUSS])
        reach = distance[chunk, None] * fractions
        density = truth_density(
            cube, reach[..., None] * directions[chunk, None, :], name=name
        )
        total[chunk] = density.mean(axis=1) * distance[chunk]
    # The last node lies before the end, which alone may be outside.
    ends = truth_density(cube, distance[:, None] * directions, name=name)
    return np.where(np.isnan(ends), np.nan, total)
