"""Other maps under one face: density and extinction at points.

Points are heliocentric Galactic ``x, y, z`` [pc], shape ``(n, 3)``; answers have shape
``(n,)`` and are NaN where a map knows nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord

from pipelines.base.errors import InputError
from pipelines.base.geometry import Box, spherical
from pipelines.catalog.schema import Stars
from pipelines.cubes.cube import Cube, truth_extinction
from pipelines.run.folder import Run
from pipelines.run.predict import predict_columns

# Where another map may continue a map: beyond its box, or where no star looks.
BEYOND = ("box", "stars")
# Nearer than this [pc] there is no dust, and maps do not answer.
NOTHING = 1e-3
# Spacing [pc] over which extinctions are differenced and densities integrated.
_STEP = 20.0
# Nodes at once along rays of a map that only knows densities.
_NODES = 1_000_000
_SHOWN = ("p50", "density", "mean")
_SUMMED = ("mean", "density", "p50")

AtPoints = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherMap:
    """What another map is asked at points.

    ``density`` gives [mag/pc], ``extinction`` [mag] from the observer.
    """

    density: AtPoints
    extinction: AtPoints

    def added(
        self, directions: np.ndarray, starts: np.ndarray, ends: np.ndarray
    ) -> np.ndarray:
        """Extinction between two distances [pc] along unit vectors [mag], not negative.

        Shapes ``(n, 3)``, ``(n,)`` and ``(n,)`` or ``(n, e)``.
        """
        begin = np.maximum(starts, NOTHING)
        here = self.extinction(begin[:, None] * directions)
        here = np.where(starts <= NOTHING, 0.0, here)
        across = (len(ends), -1)
        points = ends.reshape(across)[..., None] * directions[:, None]
        there = self.extinction(points.reshape(-1, 3)).reshape(across)
        return np.maximum(there - here[:, None], 0.0).reshape(ends.shape)


def cube_map(cube: Cube, factor: float = 1.0, *, blank: bool = True) -> OtherMap:
    """A cube of densities, trilinear between its points.

    Parameters
    ----------
    cube
        Its ``p50``, ``density`` or ``mean`` is taken, the first that is there; for
        extinctions ``mean``, ``density`` or ``p50``. The integral of the mean is the
        mean of the integral, that of a skew posterior's median is far below either.
    factor
        What turns its unit into mag/pc in the band of the other map.
    blank
        Rays along which the cube has no dust at all, out to its edge, lie outside its
        footprint: NaN.
    """
    unit: Any = u.Unit(cube.unit)
    scale = factor * float(unit.to(u.mag / u.pc))
    axes = (cube.x, cube.y, cube.z)
    lower, upper = zip(*((float(a[0]), float(a[-1])) for a in axes), strict=True)
    box = Box(lower=lower, upper=upper)
    shown, summed = _of(cube, _SHOWN), _of(cube, _SUMMED)

    def integral(points: np.ndarray) -> np.ndarray:
        return truth_extinction(cube, *spherical(points), name=summed)

    def known(values: np.ndarray, points: np.ndarray) -> np.ndarray:
        if not blank:
            return scale * values
        rays = points / np.linalg.norm(points, axis=-1, keepdims=True)
        dark = integral(box.exits(rays)[:, None] * rays) == 0
        return np.where(dark, np.nan, scale * values)

    return OtherMap(
        density=lambda points: known(cube.sample(shown, points), points),
        extinction=lambda points: known(integral(points), points),
    )


def _of(cube: Cube, names: tuple[str, ...]) -> str:
    """The first of the names that the cube has."""
    found = [name for name in names if name in cube.arrays]
    if not found:
        raise InputError(
            f"the cube has {', '.join(cube.arrays)}, but none of {', '.join(names)}"
        )
    return found[0]


def run_map(run: Run, factor: float = 1.0) -> OtherMap:
    """Another run: its posterior median."""
    return OtherMap(
        density=lambda points: factor * predicted_at(run, points)["density_p50"],
        extinction=lambda points: factor * predicted_at(run, points)["extinction_p50"],
    )


def predicted_at(run: Run, points: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of `predict_columns` at points [pc]."""
    lon, lat, distance = spherical(points)
    stars = Stars(l=lon, b=lat, distance=distance)
    return predict_columns(run.plan, run.posterior, stars)


def queried_map(
    source: Any,
    *,
    integrated: bool,
    factor: float,
    options: dict[str, Any],
    step: float = _STEP,
) -> OtherMap:
    """An object with ``.query(coordinates)``, as the package dustmaps has them.

    Parameters
    ----------
    source
        The object.
    integrated
        Whether its values are extinctions from the observer, or else densities.
    factor
        What turns its values into mag, or into mag/pc, in the band of the other map.
    options
        Keywords of ``query``, such as ``mode="median"``.
    step
        Spacing [pc] over which densities are integrated and extinctions differenced.
    """

    def query(points: np.ndarray) -> np.ndarray:
        lon, lat, distance = spherical(points)
        place = SkyCoord(
            lon * u.deg, lat * u.deg, distance=distance * u.pc, frame="galactic"
        )
        values = source.query(place, **options)
        plain = np.asarray(getattr(values, "value", values), dtype=np.float64)
        if plain.shape != place.shape:
            raise InputError(
                f"{type(source).__name__}.query gave {plain.shape} for "
                f"{place.shape[0]} coordinates: ask it for one value each (--query "
                "mode=mean or median)"
            )
        return factor * plain

    if integrated:
        return OtherMap(
            density=lambda points: _differenced(query, points, step), extinction=query
        )
    return OtherMap(
        density=query, extinction=lambda points: _integrated(query, points, step)
    )


def _differenced(extinction: AtPoints, points: np.ndarray, step: float) -> np.ndarray:
    """Density from the extinctions half a step before and behind."""
    distance = np.linalg.norm(points, axis=-1)
    rays = points / distance[:, None]
    near, far = np.maximum(distance - step / 2, 0.0), distance + step / 2
    # At the observer itself there is no extinction, and maps do not answer.
    start = extinction(np.maximum(near, 1e-3)[:, None] * rays)
    start = np.where(near > 0, start, 0.0)
    return (extinction(far[:, None] * rays) - start) / (far - near)


def _integrated(density: AtPoints, points: np.ndarray, step: float) -> np.ndarray:
    """Extinction by the midpoint rule, with at most ``step`` between nodes."""
    distance = np.linalg.norm(points, axis=-1)
    count = math.ceil(float(distance.max(initial=step)) / step)
    share = (np.arange(count) + 0.5) / count
    found = np.empty(len(points))
    rows = max(_NODES // count, 1)
    for start in range(0, len(points), rows):
        part = slice(start, start + rows)
        nodes = points[part, None] * share[:, None]
        values = density(nodes.reshape(-1, 3)).reshape(-1, count)
        found[part] = values.mean(axis=1) * distance[part]
    return found


def read_npz(path: Path) -> Cube:
    """A cube from a NumPy archive.

    It holds ``density`` of shape ``(x, y, z)``, with x towards l = 0 and z towards the
    north Galactic pole, in mag per unit of length of the axes, and these: ``x``, ``y``
    and ``z`` [pc], or ``grid_kpc`` [kpc] for all three.

    Raises
    ------
    InputError
        If it holds something else.
    """
    with np.load(path, allow_pickle=False) as archive:
        held = ", ".join(sorted(archive.files))
        kpc = "grid_kpc" in archive
        try:
            axes = (
                [1000.0 * archive["grid_kpc"]] * 3
                if kpc
                else [archive[name] for name in "xyz"]
            )
            x, y, z = (np.asarray(axis, dtype=np.float64) for axis in axes)
            density = np.ascontiguousarray(archive["density"].T, dtype=np.float32)
            unit = "mag kpc-1" if kpc else "mag pc-1"
            return Cube(x=x, y=y, z=z, arrays={"density": density}, unit=unit)
        except (KeyError, ValueError) as error:
            raise InputError(
                f"{path} holds {held}; expected density (x, y, z) and x, y, z [pc] or "
                f"grid_kpc [kpc]: {error}"
            ) from error
