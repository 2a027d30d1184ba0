"""Other maps under one face: extinction and density at points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord

from pipelines.base.errors import InputError
from pipelines.base.geometry import Box, unit_vectors
from pipelines.maps.cube import Cube
from pipelines.maps.truth import truth_density, truth_extinction
from pipelines.run.folder import Run

# Nodes at once along rays of a map that only knows densities.
_NODES = 1_000_000
_SHOWN = ("p50", "density", "mean")
_SUMMED = ("mean", "density", "p50")


class OtherMap(Protocol):
    """What another map is asked; ``nan`` where it knows nothing."""

    def density(self, l: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:  # noqa: E741
        """Density [mag/pc] at places [deg, deg, pc], any shape."""
        ...

    def extinction(self, l: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:  # noqa: E741
        """Extinction [mag] from the observer to places [deg, deg, pc], any shape."""
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

    def name(self, among: tuple[str, ...] = _SHOWN) -> str:
        """Which array is taken."""
        found = [name for name in among if name in self.cube.arrays]
        if not found:
            raise InputError(
                f"the cube has {', '.join(self.cube.arrays)}, but none of "
                f"{', '.join(among)}"
            )
        return found[0]

    def density(self, l: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:  # noqa: E741
        """See `OtherMap.density`."""
        points = np.asarray(d)[..., None] * unit_vectors(l, b)
        values = self._scale * truth_density(self.cube, points, name=self.name())
        return np.where(self._outside(l, b), np.nan, values)

    def extinction(self, l: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:  # noqa: E741
        """See `OtherMap.extinction`."""
        return np.where(
            self._outside(l, b), np.nan, self._scale * self._integral(l, b, d)
        )

    @property
    def _scale(self) -> float:
        unit: Any = u.Unit(self.cube.unit)
        return self.factor * float(unit.to(u.mag / u.pc))

    def _integral(self, l: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:  # noqa: E741
        lon, lat, end = (np.asarray(p, dtype=np.float64).ravel() for p in (l, b, d))
        name = self.name(_SUMMED)
        flat = truth_extinction(self.cube, lon, lat, end, name=name)
        return flat.reshape(np.shape(d))

    def _outside(self, l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
        """Rays without any dust out to the faces of the cube."""
        if not self.blank:
            return np.zeros(np.shape(l), dtype=bool)
        axes = (self.cube.x, self.cube.y, self.cube.z)
        lower, upper = zip(*((float(a[0]), float(a[-1])) for a in axes), strict=True)
        far = Box(lower=lower, upper=upper).exits(unit_vectors(l, b))
        return self._integral(l, b, far) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMap:
    """Another run: its posterior median."""

    run: Run
    factor: float = 1.0

    def density(self, l: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:  # noqa: E741
        """See `OtherMap.density`."""
        return self.factor * self._predicted("density_p50", l, b, d)

    def extinction(self, l: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:  # noqa: E741
        """See `OtherMap.extinction`."""
        return self.factor * self._predicted("extinction_p50", l, b, d)

    def _predicted(self, name: str, *place: np.ndarray) -> np.ndarray:
        from pipelines.compare.sampling import predicted_at

        flat = predicted_at(self.run, *(np.asarray(part).ravel() for part in place))
        return flat[name].reshape(np.shape(place[0]))


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

    def density(self, l: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:  # noqa: E741
        """See `OtherMap.density`."""
        if not self.integrated:
            return self._query(l, b, d)
        near = np.maximum(np.asarray(d) - self.step / 2, 0.0)
        far = np.asarray(d) + self.step / 2
        # At the observer itself there is no extinction, and maps do not answer.
        start = np.where(near > 0, self._query(l, b, np.maximum(near, 1e-3)), 0.0)
        return (self._query(l, b, far) - start) / (far - near)

    def extinction(self, l: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:  # noqa: E741
        """See `OtherMap.extinction`."""
        if self.integrated:
            return self._query(l, b, d)
        flat = [np.asarray(part, dtype=np.float64).ravel() for part in (l, b, d)]
        count = math.ceil(float(flat[2].max(initial=self.step)) / self.step)
        share = (np.arange(count) + 0.5) / count
        rows = max(_NODES // count, 1)
        found = []
        for start in range(0, len(flat[0]), rows):
            lon, lat, end = (part[start : start + rows, None] for part in flat)
            shape = (len(end), count)
            nodes = end * share
            values = self._query(
                np.broadcast_to(lon, shape), np.broadcast_to(lat, shape), nodes
            )
            found.append(values.mean(axis=1) * end[:, 0])
        return np.concatenate(found).reshape(np.shape(d))

    def _query(self, l: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:  # noqa: E741
        place = SkyCoord(
            np.ravel(l) * u.deg,
            np.ravel(b) * u.deg,
            distance=np.ravel(d) * u.pc,
            frame="galactic",
        )
        values = self.source.query(place, **self.options)
        plain = np.asarray(getattr(values, "value", values), dtype=np.float64)
        if plain.shape != place.shape:
            raise InputError(
                f"{type(self.source).__name__}.query gave {plain.shape} for "
                f"{place.shape[0]} coordinates: ask it for one value each (--query "
                "mode=mean or median)"
            )
        return self.factor * plain.reshape(np.shape(d))


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
        names = set(archive.files)
        if not {"density"} <= names or not (
            {"x", "y", "z"} <= names or "grid_kpc" in names
        ):
            raise InputError(
                f"{path} holds {', '.join(sorted(names))}; expected density (x, y, z) "
                "and x, y, z [pc] or grid_kpc [kpc]"
            )
        values = archive["density"].astype(np.float32).transpose(2, 1, 0)
        if "grid_kpc" in names:
            axis = 1000.0 * archive["grid_kpc"].astype(np.float64)
            x = y = z = axis
            unit = "mag kpc-1"
        else:
            x, y, z = (archive[name].astype(np.float64) for name in "xyz")
            unit = "mag pc-1"
    try:
        cube = np.ascontiguousarray(values)
        return Cube(x=x, y=y, z=z, arrays={"density": cube}, unit=unit)
    except ValueError as error:
        raise InputError(f"{path} is no cube: {error}") from error
