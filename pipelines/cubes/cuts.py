"""Parts of a map: boxes and spheres, in whole cells at their own coordinates."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from pipelines.base.errors import InputError
from pipelines.cubes.cube import AXES, Cube
from pipelines.cubes.sky import Ends, SkyMaps


def cut_box(cube: Cube, **ranges: Ends) -> Cube:
    """Return the cells whose centres lie in closed ranges of ``x y z`` [pc].

    Coordinates stay heliocentric; what was cut is noted in the provenance as ``cut``,
    with null for an end that is the map's.

    Raises `InputError` if a range is not increasing, or holds fewer than two cells
    along its axis.
    """
    noted = {
        axis: [end if math.isfinite(end) else None for end in ends]
        for axis, ends in ranges.items()
    }
    return _cropped(cube, ranges, {"box": noted, "unit": "pc"})


def cut_sphere(cube: Cube, radius: float) -> Cube:
    """Return the cells whose centres lie within ``radius`` [pc] of the observer.

    The cube is cropped to the sphere, and NaN outside of it; floating-point arrays
    only. What was cut is noted in the provenance as ``cut``.

    Raises `InputError` if the radius is not positive, or the sphere holds fewer than
    two cells along an axis.
    """
    if not 0 < radius < math.inf:
        raise InputError(f"a sphere has a positive radius [pc], got {radius:g}")
    noted = {"sphere": radius, "centre": [0.0, 0.0, 0.0], "unit": "pc"}
    cropped = _cropped(cube, dict.fromkeys(AXES, (-radius, radius)), noted)

    def inside(part: Cube) -> Cube:
        z, y, x = np.ix_(part.z, part.y, part.x)
        # A centre on the sphere may land a rounding error beyond it.
        outside = x**2 + y**2 + z**2 > (radius * (1 + 1e-12)) ** 2
        arrays = {n: np.where(outside, np.nan, a) for n, a in part.arrays.items()}
        return replace(part, arrays=arrays)

    return cropped.each(inside)


def cut_distance(maps: SkyMaps, reach: float) -> SkyMaps:
    """Return integrated extinctions at the distances up to ``reach`` [pc].

    They are those from the observer on, whatever was cut out of the density in between.
    Raises `InputError` if no distance is left.
    """
    near = maps.distances <= reach * (1 + 1e-12)
    if not near.any():
        raise InputError(
            f"the cut ends {reach:g} pc away, before the first distance of the "
            f"integrated extinction ({maps.distances[0]:g} pc)"
        )
    return maps.out_to(maps.distances[near])


def reach_of_cube(cube: Cube) -> float:
    """Distance from the observer to the furthest corner of the outermost cells [pc]."""
    axes = zip((cube.x, cube.y, cube.z), cube.spacing, strict=True)
    return math.hypot(*(float(np.abs(axis).max() + step / 2) for axis, step in axes))


def _cropped(cube: Cube, ranges: dict[str, Ends], noted: dict[str, object]) -> Cube:
    """Crop every level; finer ones that keep fewer than two cells go."""

    def crop(part: Cube) -> Cube | None:
        kept: dict[str, slice] = {axis: slice(None) for axis in AXES}
        for axis, (low, high) in ranges.items():
            if not low < high:
                raise InputError(
                    f"a cut along {axis} goes from low to high [pc], got {low:g} to "
                    f"{high:g}"
                )
            centres = getattr(part, axis)
            step = centres[1] - centres[0]
            # A centre on a bound may land a rounding error beyond it.
            within = (centres >= low - 1e-9 * step) & (centres <= high + 1e-9 * step)
            inside = np.flatnonzero(within)
            if len(inside) < 2 and part.spacing != cube.spacing:
                return None
            if len(inside) < 2:
                raise InputError(
                    f"{axis} from {low:g} to {high:g} pc holds {len(inside)} cells of "
                    f"the map, whose centres lie at {centres[0]:g} to {centres[-1]:g} "
                    f"pc every {step:g}: expected 2 or more"
                )
            kept[axis] = slice(int(inside[0]), int(inside[-1]) + 1)
        along = tuple(kept[axis] for axis in reversed(AXES))
        return replace(
            part,
            **{axis: getattr(part, axis)[cells] for axis, cells in kept.items()},
            arrays={name: array[along] for name, array in part.arrays.items()},
            meta={**part.meta, "cut": {**part.meta.get("cut", {}), **noted}},
        )

    return cube.each(crop)
