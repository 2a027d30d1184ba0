"""Other maps under one face: density and extinction at points.

Points are heliocentric Galactic ``x, y, z`` [pc], shape ``(n, 3)``; answers have shape
``(n,)`` and are NaN where a map knows nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord

from pipelines.base.errors import InputError
from pipelines.base.geometry import Box, spherical
from pipelines.catalog.schema import Stars
from pipelines.maps.cube import Cube
from pipelines.maps.truth import truth_density, truth_extinction
from pipelines.run.folder import Run
from pipelines.run.predict import predict_columns

# Nodes at once along rays of a map that only knows densities.
_NODES = 1_000_000
_SHOWN = ("p50", "density", "mean")
_SUMMED = ("mean", "density", "p50")


class OtherMap(Protocol):
    """What another map is asked."""

    def density(self, points: np.ndarray) -> np.ndarray:
        """Density [mag/pc]."""
        ...

    def extinction(self, points: np.ndarray) -> np.ndarray:
        """Extinction [mag] from the observer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CubeMap:
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

    cube: Cube
    factor: float = 1.0
    blank: bool = True

    def density(self, points: np.ndarray) -> np.ndarray:
        """See `OtherMap.density`."""
        values = truth_density(self.cube, points, name=self._name(_SHOWN))
        return self._known(values, points)

    def extinction(self, points: np.ndarray) -> np.ndarray:
        """See `OtherMap.extinction`."""
        return self._known(self._integral(points), points)

    def _name(self, among: tuple[str, ...]) -> str:
        for name in among:
            if name in self.cube.arrays:
                return name
        raise InputError(
            f"the cube has {', '.join(self.cube.arrays)}, but none of "
            f"{', '.join(among)}"
        )

    def _integral(self, points: np.ndarray) -> np.ndarray:
        return truth_extinction(self.cube, *spherical(points), name=self._name(_SUMMED))

    def _known(self, values: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Values in the other map's band; NaN on rays that see no dust at all."""
        unit: Any = u.Unit(self.cube.unit)
        values = self.factor * float(unit.to(u.mag / u.pc)) * values
        if not self.blank:
            return values
        axes = (self.cube.x, self.cube.y, self.cube.z)
        lower, upper = zip(*((float(a[0]), float(a[-1])) for a in axes), strict=True)
        rays = points / np.linalg.norm(points, axis=-1, keepdims=True)
        faces = Box(lower=lower, upper=upper).exits(rays)[:, None] * rays
        return np.where(self._integral(faces) == 0, np.nan, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMap:
    """Another run: its posterior median."""

    run: Run
    factor: float = 1.0

    def density(self, points: np.ndarray) -> np.ndarray:
        """See `OtherMap.density`."""
        return self.factor * predicted_at(self.run, points)["density_p50"]

    def extinction(self, points: np.ndarray) -> np.ndarray:
        """See `OtherMap.extinction`."""
        return self.factor * predicted_at(self.run, points)["extinction_p50"]


def predicted_at(run: Run, points: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of `predict_columns` at points [pc], shape ``(n,)``."""
    lon, lat, distance = spherical(points)
    return predict_columns(
        run.plan, run.posterior, Stars(l=lon, b=lat, distance=distance)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueriedMap:
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

    source: Any
    integrated: bool
    factor: float
    options: dict[str, Any]
    step: float

    def density(self, points: np.ndarray) -> np.ndarray:
        """See `OtherMap.density`."""
        if not self.integrated:
            return self._query(points)
        distance = np.linalg.norm(points, axis=-1)
        near = np.maximum(distance - self.step / 2, 0.0)
        far = distance + self.step / 2
        rays = points / distance[:, None]
        # At the observer itself there is no extinction, and maps do not answer.
        start = self._query(np.maximum(near, 1e-3)[:, None] * rays)
        start = np.where(near > 0, start, 0.0)
        return (self._query(far[:, None] * rays) - start) / (far - near)

    def extinction(self, points: np.ndarray) -> np.ndarray:
        """See `OtherMap.extinction`."""
        if self.integrated:
            return self._query(points)
        distance = np.linalg.norm(points, axis=-1)
        count = math.ceil(float(distance.max(initial=self.step)) / self.step)
        share = (np.arange(count) + 0.5) / count
        found = np.empty(len(points))
        rows = max(_NODES // count, 1)
        for start in range(0, len(points), rows):
            part = slice(start, start + rows)
            nodes = points[part, None] * share[:, None]
            values = self._query(nodes.reshape(-1, 3)).reshape(-1, count)
            found[part] = values.mean(axis=1) * distance[part]
        return found

    def _query(self, points: np.ndarray) -> np.ndarray:
        lon, lat, distance = spherical(points)
        place = SkyCoord(
            lon * u.deg, lat * u.deg, distance=distance * u.pc, frame="galactic"
        )
        values = self.source.query(place, **self.options)
        plain = np.asarray(getattr(values, "value", values), dtype=np.float64)
        if plain.shape != place.shape:
            raise InputError(
                f"{type(self.source).__name__}.query gave {plain.shape} for "
                f"{place.shape[0]} coordinates: ask it for one value each (--query "
                "mode=mean or median)"
            )
        return self.factor * plain


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
