"""Densities on a regular grid: cells, parts of a map, and integrals along rays."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from astropy import units as u

from dustmap.grid import Grid
from dustmap.nested_grids import NestedGrids
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box, unit_vectors
from pipelines.cubes.sky import Columns, Ends, statistic_title

AXES = ("x", "y", "z")

FRAME = {
    "name": "heliocentric Galactic Cartesian",
    "origin": "the observer (the Sun)",
    "axes": {
        "x": "towards l = 0 deg, b = 0 deg",
        "y": "towards l = 90 deg, b = 0 deg",
        "z": "towards the north Galactic pole",
    },
}


def field_title(name: str) -> str:
    """Return a title of the array ``name``."""
    titles = {
        "support": "sight-line length per cell [cell sizes]",
        "density": "true extinction density",
    }
    return titles.get(name) or statistic_title(name, "extinction density")


def field_unit(name: str, unit: str) -> str:
    """Return the unit of an array of a cube in ``unit``; empty if dimensionless."""
    return "" if name == "support" else unit


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Cube:
    """Fields on a regular heliocentric Galactic grid.

    Parameters
    ----------
    x, y, z
        Coordinates of the cell centres [pc]: +x to l=0, +y to l=90, +z to the north
        Galactic pole. Evenly spaced and increasing.
    arrays
        Name to array of shape ``(z, y, x)``. A map has ``mean``, ``std`` [unit] and
        ``support`` (sight-line length per cell in units of the cell size; zero where
        no sight line crosses); a simulation's truth has ``density``.
    unit
        Unit of the density arrays.
    meta
        Provenance: JSON-serialisable.
    finer
        Cubes inside this one, each with half the spacing of the one before.
    """

    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    arrays: dict[str, np.ndarray]
    unit: str = "mag pc-1"
    meta: dict[str, Any] = field(default_factory=dict)
    finer: tuple[Cube, ...] = ()

    def __post_init__(self) -> None:
        expected = (len(self.z), len(self.y), len(self.x))
        for name, axis in (("x", self.x), ("y", self.y), ("z", self.z)):
            if axis.ndim != 1 or len(axis) < 2:
                raise ValueError(f"{name} must be 1-D with at least 2 points")
            steps = np.diff(axis)
            if not (steps > 0).all() or np.ptp(steps) > 1e-6 * steps.mean():
                raise ValueError(f"{name} must be increasing and evenly spaced")
        for name, array in self.arrays.items():
            if array.shape != expected:
                raise ValueError(
                    f"array {name!r} has shape {array.shape}, expected (z, y, x) = "
                    f"{expected}"
                )

    def __repr__(self) -> str:
        size = " x ".join(str(len(axis)) for axis in (self.x, self.y, self.z))
        finer = f", {len(self.finer)} finer inside" if self.finer else ""
        names = ", ".join(self.arrays)
        return f"Cube of {size} cells (x, y, z){finer}: {names} [{self.unit}]"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of cells along z, y and x, as of the arrays."""
        return len(self.z), len(self.y), len(self.x)

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Cell sizes along x, y, z [pc]."""
        x, y, z = (float(axis[1] - axis[0]) for axis in (self.x, self.y, self.z))
        return x, y, z

    @property
    def grids(self) -> NestedGrids:
        """The cell centres of every level, in the order ``x, y, z``."""
        every = (self, *self.finer)
        return NestedGrids(grids=tuple(grid_of(c.x, c.y, c.z) for c in every))

    @property
    def points(self) -> np.ndarray:
        """The cell centres ``x, y, z`` [pc], shape ``(z, y, x, 3)``."""
        z, y, x = np.meshgrid(self.z, self.y, self.x, indexing="ij")
        return np.stack([x, y, z], axis=-1)

    @property
    def levels(self) -> tuple[Cube, ...]:
        """This cube alone and the finer ones, the coarsest first."""
        return (replace(self, finer=()), *self.finer)

    def level_near_the_sun(self) -> int:
        """Return the number of the finest level that holds an eighth of the box.

        That is an eighth of its reach along x and y, to a cell.
        """
        reach = float(max(np.abs(self.x).max(), np.abs(self.y).max())) / 8
        found = 0
        for number, cube in enumerate(self.levels):
            ends = zip((cube.x, cube.y), cube.spacing)
            if all(min(-axis[0], axis[-1]) >= reach - step for axis, step in ends):
                found = number
        return found

    def each(self, change: Callable[[Cube], Cube | None]) -> Cube:
        """Change every level; finer ones for which ``change`` returns ``None`` go."""
        coarsest, *finer = (change(cube) for cube in self.levels)
        assert coarsest is not None
        return replace(coarsest, finer=tuple(c for c in finer if c is not None))

    def integral(self, name: str, along: str, ends: Ends | None = None) -> np.ndarray:
        """Integrate an array along an axis between two ends [pc], (up, across) [mag].

        The density is linear between the cells' centres; without ``ends`` it is
        integrated from the first centre to the last.
        """
        # A query does without SciPy.
        from scipy.interpolate import make_interp_spline

        centres, how = getattr(self, along), {"axis": "zyx".index(along)}
        values = self.arrays[name]
        linear = make_interp_spline(centres, values, k=1, check_finite=False, **how)
        total = linear.integrate(*(ends or (centres[0], centres[-1])))
        return total * (u.Unit(self.unit) * u.pc).to(u.mag)

    def sample(self, name: str, points: np.ndarray) -> np.ndarray:
        """Interpolate an array of the finest cube trilinearly between cell centres.

        ``points`` are ``x, y, z`` [pc], shape ``(..., 3)``; values have the shape
        ``(...,)`` and are NaN beyond the outermost centres.
        """
        values = [level.arrays[name].T for level in self.levels]
        return self.grids.sample(values, points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The density on one grid, its integrals along axes, and its samples.

    ``columns`` are by axis, ``samples`` have the shape ``(s, z, y, x)``.
    """

    cube: Cube
    columns: dict[str, Columns]
    samples: np.ndarray


def grid_of(*axes: np.ndarray) -> Grid:
    """Return the grid of evenly spaced axes [pc]."""
    ends = [(float(axis[0]), float(axis[-1]), len(axis)) for axis in axes]
    return Grid(
        shape=tuple(count for _, _, count in ends),
        origin=tuple(first for first, _, _ in ends),
        spacing=tuple((last - first) / (count - 1) for first, last, count in ends),
    )


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


def reach_of_cube(cube: Cube) -> float:
    """Return the distance to the furthest corner of the outermost cells [pc]."""
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

    Galactic directions ``l, b`` [deg] and ends of the rays, ``distance`` [pc], have the
    shape ``(N,)``, as has the extinction [mag], NaN where an end lies outside the
    cube's points. ``step`` [pc] is half the smallest size of the cells there unless
    given. ``name`` is that of one of the cube's arrays.

    Raises `ValueError` if the cube does not contain the observer, or ``step`` is not
    positive.
    """
    box = Box.of(cube.grids.box)
    if not box.contains(np.zeros(3)):
        raise ValueError(
            "expected a cube around the observer at 0, got one from "
            f"{box.lower} to {box.upper} pc"
        )
    if step is not None and not step > 0:
        raise ValueError(f"step must be positive, got {step}")
    directions, distance = unit_vectors(l, b), np.asarray(distance, dtype=float)
    total = np.zeros(len(distance))
    near = np.zeros(len(distance))
    outside = np.isnan(cube.sample(name, near[:, None] * directions))
    for level in (*reversed(cube.finer), cube):
        corner = farthest(grid_of(level.x, level.y, level.z))
        end = distance if level is cube else np.minimum(distance, corner)
        longest = 0.5 * min(level.spacing) if step is None else step
        total += _integrals(cube, name, directions, near, end, longest)
        near = np.maximum(near, end)
    # The last node lies before the end, which alone may be outside.
    outside |= np.isnan(cube.sample(name, distance[:, None] * directions))
    return np.where(outside, np.nan, total)


def integrals_between(
    cube: Cube, directions: np.ndarray, low: float, high: float, name: str = "mean"
) -> np.ndarray:
    """Integrate an array along unit vectors ``(n, 3)`` between distances [pc], (n,).

    Steps are as long as the finest cells there.
    """
    grids = cube.grids.grids
    finest = next((g for g in reversed(grids) if g.reach >= high), grids[0])
    start, end = np.full((2, len(directions)), [[low], [high]])
    return _integrals(cube, name, directions, start, end, min(finest.spacing))


def farthest(grid: Grid) -> float:
    """Return the distance from the observer to the furthest corner of a box [pc]."""
    sides = zip(grid.lower, grid.upper, strict=True)
    return math.hypot(*(max(-low, high) for low, high in sides))


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
    chunks: list[np.ndarray] = []
    # Nodes that a thread looks up at once, in some 100 MB. Another number would give
    # rays another number of steps.
    held = 1_000_000
    while len(order):
        # The rays of a chunk share the number of steps of its longest.
        nodes = np.arange(1, len(order) + 1) * steps[order] * 2
        most = max(np.searchsorted(nodes, held, side="right"), 1)
        chunks.append(order[:most])
        order = order[most:]

    def integrate(chunk: np.ndarray) -> None:
        count = int(steps[chunk[-1]])
        # Nodes of the Gauss-Legendre rule on [0, 1].
        gauss = (0.5 - np.sqrt(1 / 12), 0.5 + np.sqrt(1 / 12))
        fractions = np.concatenate([(np.arange(count) + g) / count for g in gauss])
        length = end[chunk] - start[chunk]
        reach = start[chunk, None] + length[:, None] * fractions
        density = cube.sample(name, reach[..., None] * directions[chunk, None, :])
        total[chunk] = density.mean(axis=1) * length

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        list(threads.map(integrate, chunks))
    return total
