"""The one cube object that every format, figure and query sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.ndimage import map_coordinates

from pipelines.maps.checks import (
    check_arrays,
    check_distances,
    nside_of,
    statistic_title,
)
from pipelines.maps.integrated import Integrated

AXES = ("x", "y", "z")
Band = tuple[np.ndarray, np.ndarray]
FRAME = {
    "name": "heliocentric Galactic Cartesian",
    "origin": "the observer (the Sun)",
    "axes": {
        "x": "towards l = 0 deg, b = 0 deg",
        "y": "towards l = 90 deg, b = 0 deg",
        "z": "towards the north Galactic pole",
    },
}
_TITLES = {
    "support": "sight-line length per cell [cell sizes]",
    "density": "true extinction density",
    "filled": "1 where another map fills a hole, else 0",
}
_DIMENSIONLESS = ("support", "filled")
# In cells: a point on a face may land a rounding error beyond it.
_EDGE = 1e-6


def field_title(name: str) -> str:
    """One line that says what the array ``name`` holds."""
    return _TITLES.get(name) or statistic_title(name, "extinction density")


def field_unit(name: str, unit: str) -> str:
    """Unit of the array ``name`` in a cube of densities in ``unit``; "" if pure."""
    return "" if name in _DIMENSIONLESS else unit


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
    def spacing(self) -> tuple[float, float, float]:
        """Cell sizes along x, y, z [pc]."""
        x, y, z = (float(axis[1] - axis[0]) for axis in (self.x, self.y, self.z))
        return x, y, z

    @property
    def levels(self) -> tuple[Cube, ...]:
        """This cube alone and the finer ones, the coarsest first."""
        return (replace(self, finer=()), *self.finer)

    def level_within(self, reach: float | None = None) -> int:
        """Number of the finest level that holds all within a distance of the Sun [pc].

        Along x and y, to a cell: boxes may be flatter. Of an eighth of this box's reach
        if ``None``.
        """
        if reach is None:
            reach = float(max(np.abs(self.x).max(), np.abs(self.y).max())) / 8
        holding = [
            number
            for number, cube in enumerate(self.levels)
            if all(
                min(-axis[0], axis[-1]) >= reach - step
                for axis, step in zip((cube.x, cube.y), cube.spacing)
            )
        ]
        return max(holding, default=0)

    def each(self, change: Callable[[Cube], Cube | None]) -> Cube:
        """The same change of every level; finer ones that it leaves out go."""
        coarsest, *finer = (change(cube) for cube in self.levels)
        assert coarsest is not None
        return replace(coarsest, finer=tuple(c for c in finer if c is not None))

    def sample(self, name: str, points: np.ndarray) -> np.ndarray:
        """Interpolate one array trilinearly between the cell centres.

        Of the finest cube that holds a point.

        Parameters
        ----------
        points
            Positions ``x, y, z`` [pc], shape ``(..., 3)``.

        Returns
        -------
        Values of shape ``(...,)``; NaN beyond the outermost centres.
        """
        flat = points.reshape(-1, 3)
        found, left = np.full(len(flat), np.nan), np.arange(len(flat))
        for cube in (*reversed(self.finer), self):
            index, inside = cube.indices(flat[left])
            found[left[inside]] = map_coordinates(
                cube.arrays[name],
                index[:, inside],
                output=float,
                order=1,
                mode="nearest",
            )
            left = left[np.isnan(found[left])]
        return found.reshape(points.shape[:-1])

    def indices(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where points ``x, y, z`` ``(n, 3)`` [pc] lie, in cells from the first centre.

        Returns
        -------
        Fractional indices along z, y, x, shape ``(3, n)``, and whether each point lies
        between the outermost centres.
        """
        index = np.empty((3, len(points)))
        inside = np.ones(len(points), dtype=bool)
        for row, axis in enumerate((self.z, self.y, self.x)):
            step = (axis[-1] - axis[0]) / (len(axis) - 1)
            index[row] = (points[:, 2 - row] - axis[0]) / step
            inside &= (index[row] >= -_EDGE) & (index[row] <= len(axis) - 1 + _EDGE)
        return index, inside


@dataclass(frozen=True, slots=True, kw_only=True)
class SkyMaps:
    """Cumulative extinction from the observer out to a list of distances.

    Parameters
    ----------
    distances
        Increasing distances [pc], shape ``(n,)``.
    mean, std
        Mean and standard deviation of the *integrated* extinction [mag], HEALPix
        NESTED in Galactic coordinates, shape ``(n, npix)``; NaN where the ray leaves
        the map before the distance.
    meta
        Provenance: JSON-serialisable.
    quantiles
        quantiles ``p2_5`` to ``p97_5`` of the integral, of a positive density.
    last_star
        How far out stars look by pixel [pc], shape ``(npix,)``, where it is known.
    filled
        Of a map that another one continues, by distance and pixel: 0 where a value is
        its own, 1 the other's, 2 its own with what the other adds.
    """

    distances: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    meta: dict[str, Any] = field(default_factory=dict)
    quantiles: dict[str, np.ndarray] = field(default_factory=dict)
    last_star: np.ndarray | None = None
    filled: np.ndarray | None = None

    @classmethod
    def of(cls, rays: Integrated, meta: dict[str, Any]) -> SkyMaps:
        """Integrated extinctions, distance by distance."""
        maps = {name: array.T for name, array in rays.arrays.items()}
        return cls(
            distances=rays.distance,
            mean=maps.pop("mean"),
            std=maps.pop("std"),
            quantiles=maps,
            last_star=rays.last_star,
            meta={**meta, **rays.regression},
        )

    @property
    def median(self) -> np.ndarray | None:
        """Median of the integral, of a positive density."""
        return self.quantiles.get("p50")

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Mean, std and quantiles by name."""
        return {"mean": self.mean, "std": self.std, **self.quantiles}

    def __post_init__(self) -> None:
        check_distances(self.distances)
        check_arrays(self.arrays, (len(self.distances), self.mean.shape[-1]))
        nside_of(self.mean.shape[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOfSight:
    """Cumulative extinction along one direction, and the stars near it.

    ``l, b`` [deg]; ``distance`` [pc], ``mean``, ``std`` [mag] along the ray;
    ``star_distance`` [pc], ``star_extinction``, ``star_error`` [mag] of the stars
    within ``radius`` [deg]; ``truth`` [mag] along the ray where it is known.

    ``median`` [mag], ``inner`` and ``outer``, each the lower and the upper curve [mag]
    that hold 68% and 95%, are there if the posterior has samples; ``last_star`` [pc],
    the end of the last stretch that any star looks through, where it is known.
    """

    l: float  # noqa: E741  the field's name for Galactic longitude
    b: float
    distance: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    star_distance: np.ndarray
    star_extinction: np.ndarray
    star_error: np.ndarray
    radius: float
    truth: np.ndarray | None = None
    median: np.ndarray | None = None
    inner: Band | None = None
    outer: Band | None = None
    last_star: float | None = None

    def scaled(self, factor: float) -> LineOfSight:
        """The same with all extinctions multiplied by a factor."""
        names = ("mean", "std", "star_extinction", "star_error", "truth", "median")
        names += ("inner", "outer")
        known = {n: v for n in names if (v := getattr(self, n)) is not None}
        return replace(self, **{n: factor * np.asarray(v) for n, v in known.items()})
