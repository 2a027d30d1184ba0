"""Parts of a map: boxes and spheres, in whole cells at their own coordinates."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from pipelines.base.errors import InputError
from pipelines.maps.cube import AXES, Cube
from pipelines.maps.integrated import Integrated

Range = tuple[float, float]
_FAR = (-math.inf, math.inf)


def cut_box(cube: Cube, *, x: Range = _FAR, y: Range = _FAR, z: Range = _FAR) -> Cube:
    """The cells whose centres lie in a box [pc], both ends included.

    Coordinates stay heliocentric; what was cut is noted in the provenance as ``cut``,
    with null for an end that is the map's.

    Raises
    ------
    InputError
        If a range is not increasing, or holds fewer than two cells along its axis.
    """
    ranges = dict(zip(AXES, (x, y, z), strict=True))
    kept = {axis: _cells(cube, axis, ranges[axis]) for axis in AXES}
    noted = {
        axis: [end if math.isfinite(end) else None for end in ends]
        for axis, ends in ranges.items()
        if ends != _FAR
    }
    return _kept(cube, kept, {"box": noted, "unit": "pc"})


def cut_sphere(
    cube: Cube, radius: float, centre: tuple[float, float, float] = (0.0, 0.0, 0.0)
) -> Cube:
    """The cells whose centres lie within ``radius`` [pc] of ``centre`` [pc].

    The cube is cropped to the sphere, and NaN outside of it; floating-point arrays
    only. What was cut is noted in the provenance as ``cut``.

    Raises
    ------
    InputError
        If the radius is not positive, or the sphere holds fewer than two cells along
        an axis.
    """
    if not 0 < radius < math.inf:
        raise InputError(f"a sphere has a positive radius [pc], got {radius:g}")
    kept = {
        axis: _cells(cube, axis, (middle - radius, middle + radius))
        for axis, middle in zip(AXES, centre, strict=True)
    }
    noted = {"sphere": radius, "centre": list(map(float, centre)), "unit": "pc"}
    cropped = _kept(cube, kept, noted)
    square = [(getattr(cropped, a) - c) ** 2 for a, c in zip(AXES, centre, strict=True)]
    away = square[2][:, None, None] + square[1][:, None] + square[0]
    # A centre on the sphere may land a rounding error beyond it.
    outside = away > (radius * (1 + 1e-12)) ** 2
    arrays = {n: np.where(outside, np.nan, a) for n, a in cropped.arrays.items()}
    return replace(cropped, arrays=arrays)


def cut_distance(integrated: Integrated, reach: float) -> Integrated:
    """Integrated extinctions at the distances up to ``reach`` [pc].

    They are those from the observer on, whatever was cut out of the density in between.

    Raises
    ------
    InputError
        If no distance is left.
    """
    near = integrated.distance <= reach * (1 + 1e-12)
    if not near.any():
        raise InputError(
            f"the cut ends {reach:g} pc away, before the first distance of the "
            f"integrated extinction ({integrated.distance[0]:g} pc)"
        )
    arrays = {name: array[:, near] for name, array in integrated.arrays.items()}
    return replace(integrated, distance=integrated.distance[near], arrays=arrays)


def reach_of_cube(cube: Cube) -> float:
    """Distance from the observer to the furthest corner of the outermost cells [pc]."""
    ends = [
        max(abs(axis[0] - step / 2), abs(axis[-1] + step / 2))
        for axis, step in zip((cube.x, cube.y, cube.z), cube.spacing, strict=True)
    ]
    return math.hypot(*ends)


def _cells(cube: Cube, axis: str, bounds: Range) -> slice:
    low, high = bounds
    if not low < high:
        raise InputError(
            f"a cut along {axis} goes from low to high [pc], got {low:g} to {high:g}"
        )
    centres = getattr(cube, axis)
    # A centre on a bound may land a rounding error beyond it.
    slack = 1e-9 * (centres[1] - centres[0])
    inside = np.flatnonzero((centres >= low - slack) & (centres <= high + slack))
    if len(inside) < 2:
        raise InputError(
            f"{axis} from {low:g} to {high:g} pc holds {len(inside)} cells of the map, "
            f"whose centres lie at {centres[0]:g} to {centres[-1]:g} pc every "
            f"{centres[1] - centres[0]:g}: expected 2 or more"
        )
    return slice(int(inside[0]), int(inside[-1]) + 1)


def _kept(cube: Cube, cells: dict[str, slice], noted: dict[str, object]) -> Cube:
    along = tuple(cells[axis] for axis in reversed(AXES))
    return replace(
        cube,
        **{axis: getattr(cube, axis)[cells[axis]] for axis in AXES},
        arrays={name: array[along] for name, array in cube.arrays.items()},
        meta={**cube.meta, "cut": noted},
    )
