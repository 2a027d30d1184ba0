"""Parts of a map: boxes and spheres, in whole cells at their own coordinates."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from pipelines.base.errors import InputError
from pipelines.cubes.cube import AXES, Cube
from pipelines.cubes.sky import Ends, Integrated


def cut_box(cube: Cube, **ranges: Ends) -> Cube:
    """The cells whose centres lie in ranges of ``x y z`` [pc], both ends included.

    Coordinates stay heliocentric; what was cut is noted in the provenance as ``cut``,
    with null for an end that is the map's.

    Raises
    ------
    InputError
        If a range is not increasing, or holds fewer than two cells along its axis.
    """
    noted = {
        axis: [end if math.isfinite(end) else None for end in ends]
        for axis, ends in ranges.items()
    }
    return _each_level(cube, ranges, {"box": noted, "unit": "pc"})


def cut_sphere(cube: Cube, radius: float) -> Cube:
    """The cells whose centres lie within ``radius`` [pc] of the observer.

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
    noted = {"sphere": radius, "centre": [0.0, 0.0, 0.0], "unit": "pc"}
    cropped = _each_level(cube, dict.fromkeys(AXES, (-radius, radius)), noted)

    def inside(part: Cube) -> Cube:
        z, y, x = np.ix_(part.z, part.y, part.x)
        # A centre on the sphere may land a rounding error beyond it.
        outside = x**2 + y**2 + z**2 > (radius * (1 + 1e-12)) ** 2
        arrays = {n: np.where(outside, np.nan, a) for n, a in part.arrays.items()}
        return replace(part, arrays=arrays)

    return cropped.each(inside)


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
    return integrated.at(integrated.distance[near])


def reach_of_cube(cube: Cube) -> float:
    """Distance from the observer to the furthest corner of the outermost cells [pc]."""
    axes = zip((cube.x, cube.y, cube.z), cube.spacing, strict=True)
    return math.hypot(*(float(np.abs(axis).max() + step / 2) for axis, step in axes))


def _each_level(cube: Cube, ranges: dict[str, Ends], noted: dict[str, object]) -> Cube:
    """Crop every level; finer ones that keep fewer than two cells go."""

    def crop(part: Cube) -> Cube | None:
        try:
            cells = {axis: _cells(part, axis, ends) for axis, ends in ranges.items()}
        except InputError:
            if part.spacing == cube.spacing:
                raise
            return None
        along = tuple(cells.get(axis, slice(None)) for axis in reversed(AXES))
        return replace(
            part,
            **{axis: getattr(part, axis)[kept] for axis, kept in cells.items()},
            arrays={name: array[along] for name, array in part.arrays.items()},
            meta={**part.meta, "cut": {**part.meta.get("cut", {}), **noted}},
        )

    return cube.each(crop)


def _cells(cube: Cube, axis: str, bounds: Ends) -> slice:
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
