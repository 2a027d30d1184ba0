"""The truth of a mock galaxy: a density interpolated and integrated along rays.

The density is the trilinear interpolant of a cube's grid points: that *is* the truth,
with nothing below the grid.
"""

from __future__ import annotations

import numpy as np

from pipelines.base.geometry import unit_vectors
from pipelines.maps.cube import Cube

# Nodes of the Gauss-Legendre rule on [0, 1].
_GAUSS = (0.5 - np.sqrt(1 / 12), 0.5 + np.sqrt(1 / 12))
# Nodes that are looked up at once.
_NODES = 1_000_000


def truth_density(
    cube: Cube, positions: np.ndarray, *, name: str = "density"
) -> np.ndarray:
    """Density at ``x, y, z`` [pc], shape ``(..., 3)``; NaN outside the cube."""
    return cube.sample(name, positions)


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
    interpolant is a cubic. As far as a finer cube's corners the steps are its own.

    Parameters
    ----------
    l, b
        Galactic directions [deg], shape ``(N,)``.
    distance
        Where the rays end [pc], shape ``(N,)``.
    step
        Longest step [pc]; half the smallest size of the cells there unless given.
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
                f"expected a cube around the observer at 0, got one that spans "
                f"[{axis[0]:g}, {axis[-1]:g}] pc on an axis"
            )
    if step is not None and not step > 0:
        raise ValueError(f"step must be positive, got {step}")
    directions, distance = unit_vectors(l, b), np.asarray(distance, dtype=float)
    total, start = np.zeros(len(distance)), np.zeros(len(distance))
    for level in (*reversed(cube.finer), cube):
        end = distance if level is cube else np.minimum(distance, _furthest(level))
        longest = 0.5 * min(level.spacing) if step is None else step
        total += _integrals(cube, name, directions, start, end, longest)
        start = np.maximum(start, end)
    # The last node lies before the end, which alone may be outside.
    ends = cube.sample(name, distance[:, None] * directions)
    return np.where(np.isnan(ends), np.nan, total)


def _furthest(cube: Cube) -> float:
    """Distance of the corner of a cube that is furthest from the observer [pc]."""
    axes = (cube.x, cube.y, cube.z)
    return float(np.linalg.norm([max(-axis[0], axis[-1]) for axis in axes]))


def _integrals(
    cube: Cube,
    name: str,
    directions: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    step: float,
) -> np.ndarray:
    """Integrate along rays between two distances each [pc], in equal steps [mag]."""
    steps = np.ceil((end - start) / step).astype(int)
    total = np.zeros(len(steps))
    order = np.argsort(steps, kind="stable")
    order = order[steps[order] > 0]
    while len(order):
        # The rays of a chunk share the number of steps of its longest.
        nodes = np.arange(1, len(order) + 1) * steps[order] * 2
        most = max(np.searchsorted(nodes, _NODES, side="right"), 1)
        chunk, order = order[:most], order[most:]
        count = int(steps[chunk[-1]])
        fractions = np.concatenate([(np.arange(count) + g) / count for g in _GAUSS])
        length = end[chunk] - start[chunk]
        reach = start[chunk, None] + length[:, None] * fractions
        density = cube.sample(name, reach[..., None] * directions[chunk, None, :])
        total[chunk] = density.mean(axis=1) * length
    return total
