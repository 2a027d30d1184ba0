"""Cubes averaged in blocks, small enough for a page in a browser."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from pipelines.cubes.cube import Cube

# Cells of which a browser computes surfaces in about a second, and draws planes at
# once.
POINTS = 320_000


class Thinned(NamedTuple):
    """Means over blocks of a cube with ``factor`` cells a side, ``step`` [pc] apart.

    ``x y z`` [pc] are the blocks' centres; ``arrays`` have the shape ``(z, y, x)``, and
    ``seen`` is true if a sight line crosses the block.
    """

    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    arrays: dict[str, np.ndarray]
    seen: np.ndarray
    factor: int
    step: tuple[float, ...]


def shown_levels(cube: Cube) -> dict[str, int]:
    """Return which levels of a cube to show, by title: the whole, and near the Sun."""
    shown = {"Whole box": 0}
    if cube.finer:
        shown["Near the Sun"] = cube.level_near_the_sun()
    return shown


def thinned(
    cube: Cube, arrays: Mapping[str, np.ndarray], points: int = POINTS
) -> Thinned:
    """Average arrays of the cube's shape in blocks of equal sides.

    There are at most ``points`` blocks. Blocks at an edge may have fewer cells. The
    posterior mean, averaged, still integrates to the extinction.
    """
    factor = 1
    while math.prod(-(-n // factor) for n in cube.shape) > points:
        factor += 1
    x, y, z = (_blocks(axis, factor) for axis in (cube.x, cube.y, cube.z))
    means = {
        name: _blocks(array.astype(np.float64), factor)
        for name, array in arrays.items()
    }
    seen = np.ones((len(z), len(y), len(x)), dtype=bool)
    if "support" in cube.arrays:
        seen = _blocks(cube.arrays["support"].astype(np.float64), factor) > 0
    step = tuple(factor * spacing for spacing in cube.spacing)
    return Thinned(x, y, z, means, seen, factor, step)


def _blocks(values: np.ndarray, factor: int) -> np.ndarray:
    """Average blocks of ``factor`` along every axis."""
    for axis, length in enumerate(values.shape):
        first = np.arange(0, length, factor)
        number = np.diff([*first, length])
        shape = [-1 if a == axis else 1 for a in range(values.ndim)]
        values = np.add.reduceat(values, first, axis=axis) / number.reshape(shape)
    return values
