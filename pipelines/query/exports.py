"""Exported files opened for questions: FITS and VTK cubes, maps of the sky, shells.

They are read whole. A cube knows the mean of an integral, the integral of its mean, but
no error of it; maps of the sky know no density, and not which cells stars see.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import healpy
import numpy as np

from pipelines.base.geometry import Box
from pipelines.cubes.cube import Cube, truth_extinction
from pipelines.cubes.sky import ShellMaps, SkyMaps
from pipelines.formats.fits import read_fits
from pipelines.formats.hdus import open_checked
from pipelines.formats.healpix import SHELLS, read_healpix, read_shells
from pipelines.formats.vtk import LEFT_OUT, read_vti
from pipelines.query.places import Places
from pipelines.query.sky import Sky
from pipelines.query.store import MapStore

# Distances on a ray at which cells are looked up, at once.
_NODES = 1 << 20

Named = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """Whole arrays of pixels ``(npix, n)`` by name, as a chunk reader gives them."""

    arrays: Named

    def take(self, name: str, pixels: np.ndarray) -> np.ndarray:
        return self.arrays[name][pixels]


@dataclass(frozen=True, slots=True, kw_only=True)
class CubeDensity:
    """The density of a cube in memory; as `pipelines.query.density.DensityGrid`."""

    cube: Cube

    @property
    def box(self) -> Box:
        """Where the density is known."""
        axes = (self.cube.x, self.cube.y, self.cube.z)
        lower, upper = zip(*((float(axis[0]), float(axis[-1])) for axis in axes))
        return Box(lower=lower, upper=upper)

    @property
    def spacing(self) -> list[float]:
        """Cell sizes along x, y, z [pc]."""
        return list(self.cube.spacing)

    @property
    def arrays(self) -> tuple[str, ...]:
        """What of the density there is."""
        return tuple(n for n in self.cube.arrays if n not in ("support", "filled"))

    def at(self, names: Iterable[str], places: Places) -> Named:
        """Arrays by name, trilinear at places in the box, shape ``(n,)``."""
        return {name: self.cube.sample(name, places.positions()) for name in names}

    def support(self, places: Places) -> np.ndarray:
        """Sight-line length [cells] in the cell of each place in the box."""
        return _support(self.cube, places.positions())


@dataclass(frozen=True, slots=True, kw_only=True)
class CubeSky:
    """Extinction integrated through a cube: its mean alone."""

    cube: Cube
    box: Box
    arrays: tuple[str, ...] = ("mean",)

    @property
    def distance(self) -> np.ndarray:
        """How far it goes [pc], shape ``(1,)``."""
        return np.array(
            [np.linalg.norm(np.abs([self.box.lower, self.box.upper]).max(0))]
        )

    def reach(self, places: Places) -> np.ndarray:
        """How far each sight line can be followed [pc]."""
        return self.box.exits(places.directions)

    def at(self, names: Iterable[str], places: Places) -> Named:
        """Extinction to places in the box [mag], shape ``(n,)``."""
        ray = (places.l, places.b, places.distance)
        return {name: truth_extinction(self.cube, *ray, name=name) for name in names}

    def last_star(self, places: Places) -> np.ndarray:
        """Where the last seen stretch of each sight line ends [pc]."""
        reach, step = self.reach(places), min(self.cube.spacing)
        count = int(np.ceil(reach.max(initial=step) / step))
        share = (np.arange(count) + 0.5) / count
        found = np.zeros(len(places))
        rows = max(_NODES // count, 1)
        for start in range(0, len(places), rows):
            part = slice(start, start + rows)
            along = reach[part, None] * share
            ends = along[..., None] * places.directions[part, None]
            seen = _support(self.cube, ends.reshape(-1, 3)).reshape(along.shape) > 0
            found[part] = np.where(
                seen, along + 0.5 * reach[part, None] / count, 0
            ).max(1)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellDensity:
    """The density of shells: one value for each pixel between two distances."""

    shells: ShellMaps

    @property
    def box(self) -> Box:
        """The cube around the outermost shell."""
        return _cube_around(self.shells.edges[-1])

    @property
    def spacing(self) -> list[float]:
        """Thickness of the thinnest shell [pc]."""
        return [float(np.diff(self.shells.edges).min())]

    @property
    def arrays(self) -> tuple[str, ...]:
        """What of the density there is."""
        return tuple(self.shells.arrays)

    def at(self, names: Iterable[str], places: Places) -> Named:
        """Arrays by name, shape ``(n,)``; NaN outside the shells."""
        edges = self.shells.edges
        shell = np.searchsorted(edges, places.distance, side="right") - 1
        shell = np.where(places.distance == edges[-1], len(edges) - 2, shell)
        within = (shell >= 0) & (shell < len(edges) - 1)
        shell = np.clip(shell, 0, len(edges) - 2)
        pixel = healpy.ang2pix(
            self.shells.nside, places.l, places.b, nest=True, lonlat=True
        )
        found = {name: self.shells.arrays[name][shell, pixel] for name in names}
        return {name: np.where(within, part, np.nan) for name, part in found.items()}

    def support(self, places: Places) -> np.ndarray:
        """Not known: as if every cell were seen."""
        return np.ones(len(places))


def open_export(path: Path) -> MapStore:
    """Open ``map.fits``, ``map.vti``, ``map.healpix.fits`` or shells of an export.

    Raises
    ------
    InputError
        If it is none of these, or is truncated or altered.
    """
    if path.suffix == ".vti":
        return _of_cube(path, read_vti(path))
    with open_checked(path) as hdus:
        names = {hdu.name for hdu in hdus}
        is_table = any(hdu.header.get("PIXTYPE") == "HEALPIX" for hdu in hdus)
    if SHELLS in names:
        shells = read_shells(path)
        return _store(
            path, shells.meta, ShellDensity(shells=shells), _of_shells(shells)
        )
    if is_table:
        maps = read_healpix(path)
        return _store(path, maps.meta, None, _of_maps(maps))
    return _of_cube(path, read_fits(path))


def _of_cube(path: Path, cube: Cube) -> MapStore:
    """Its density; integrals where the Sun is within and no grid was left out."""
    density = CubeDensity(cube=cube)
    lower, upper = np.array(density.box.lower), np.array(density.box.upper)
    around = bool((lower <= 0).all() and (upper >= 0).all() and "mean" in cube.arrays)
    whole = around and not cube.meta.get(LEFT_OUT)
    sky = CubeSky(cube=cube, box=density.box) if whole else None
    return _store(path, cube.meta, density, sky)


def _store(path: Path, meta: dict[str, Any], density: Any, sky: Any) -> MapStore:
    band = str(meta.get("extinction_band") or "")
    verdict = str(meta.get("verdict", ""))
    return MapStore(path=path, band=band, density=density, sky=sky, verdict=verdict)


def _of_maps(maps: SkyMaps) -> Sky:
    """Extinctions to the distances of maps of the sky."""
    arrays = {f"extinction_{name}": part.T for name, part in maps.arrays.items()}
    return _sky(maps.distances, arrays, maps.last_star)


def _of_shells(shells: ShellMaps) -> Sky | None:
    """The mean of all shells before; ``None`` if they begin beyond the observer."""
    edges = shells.edges
    if edges[0] > 0:
        return None
    along = np.cumsum(shells.arrays["mean"] * np.diff(edges)[:, None], axis=0)
    return _sky(edges[1:], {"extinction_mean": along.T}, None)


def _sky(distances: np.ndarray, arrays: Named, last_star: np.ndarray | None) -> Sky:
    pixels = len(next(iter(arrays.values())))
    known = np.full(pixels, np.inf) if last_star is None else last_star
    return Sky(
        reader=_Columns(arrays={**arrays, "last_star": known}),
        box=_cube_around(float(distances[-1])),
        nside=healpy.npix2nside(pixels),
        distance=np.asarray(distances, dtype=np.float64),
        arrays=tuple(name.removeprefix("extinction_") for name in arrays),
    )


def _cube_around(radius: float) -> Box:
    # Wider than twice the sphere: no sight line leaves it before the last distance.
    return Box(lower=(-3 * radius,) * 3, upper=(3 * radius,) * 3)


def _support(cube: Cube, points: np.ndarray) -> np.ndarray:
    """Of the finest cell at each point; of cubes that do not tell, one."""
    found, left = np.ones(len(points)), np.arange(len(points))
    for level in (*reversed(cube.finer), cube):
        if "support" not in level.arrays:
            continue
        index, inside = level.indices(points[left])
        z, y, x = np.rint(index[:, inside]).astype(np.int64)
        found[left[inside]] = level.arrays["support"][z, y, x]
        left = left[~inside]
    return found
