"""Parts of a map: boxes and spheres, in whole cells at their own coordinates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pipelines.base.errors import InputError
from pipelines.cubes.cube import AXES, Cube
from pipelines.cubes.sky import Integrated

Range = tuple[float, float]


def cut_box(cube: Cube, **ranges: Range) -> Cube:
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
    return _each(cube, lambda part: _crop(part, ranges, {"box": noted, "unit": "pc"}))


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
    return _each(cube, lambda part: _within(part, radius))


def _each(cube: Cube, cut: Callable[[Cube], Cube]) -> Cube:
    """The cut of every level; finer ones that keep fewer than two cells go."""

    def cut_or_none(part: Cube) -> Cube | None:
        try:
            return cut(part)
        except InputError:
            if part.spacing == cube.spacing:
                raise
            return None

    return cube.each(cut_or_none)


def _within(cube: Cube, radius: float) -> Cube:
    """The cells within a radius; see `cut_sphere`."""
    noted = {"sphere": radius, "centre": [0.0, 0.0, 0.0], "unit": "pc"}
    cropped = _crop(cube, dict.fromkeys(AXES, (-radius, radius)), noted)
    z, y, x = np.ix_(cropped.z, cropped.y, cropped.x)
    # A centre on the sphere may land a rounding error beyond it.
    outside = x**2 + y**2 + z**2 > (radius * (1 + 1e-12)) ** 2
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
    return integrated.at(integrated.distance[near])


def reach_of_cube(cube: Cube) -> float:
    """Distance from the observer to the furthest corner of the outermost cells [pc]."""
    axes = zip((cube.x, cube.y, cube.z), cube.spacing, strict=True)
    return math.hypot(*(float(np.abs(axis).max() + step / 2) for axis, step in axes))


def _crop(cube: Cube, ranges: dict[str, Range], noted: dict[str, object]) -> Cube:
    cells = {axis: _cells(cube, axis, ends) for axis, ends in ranges.items()}
    along = tuple(cells.get(axis, slice(None)) for axis in reversed(AXES))
    return replace(
        cube,
        **{axis: getattr(cube, axis)[kept] for axis, kept in cells.items()},
        arrays={name: array[along] for name, array in cube.arrays.items()},
        meta={**cube.meta, "cut": {**cube.meta.get("cut", {}), **noted}},
    )


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
