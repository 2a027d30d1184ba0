"""Exported maps: stores that are read chunk by chunk, and files that are read whole.

Integrals through a cube have a mean, the integral of its mean, but no error; maps of
the sky have no density and no support of cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import healpy
import numpy as np
from astropy import units as u

from dustmap.nested_grids import NestedGrids
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.base.quantiles import NAMES, QUANTILES, between, normal
from pipelines.cubes.cube import AXES, Cube, grid_of
from pipelines.cubes.sky import Columns, Ends, LineOfSight, ShellMaps, SkyMaps
from pipelines.formats.vtk import LEFT_OUT
from pipelines.formats.zarr import (
    level_prefixes,
    open_cube,
    read_columns,
    read_integrated,
    read_zarr,
)
from pipelines.maps.answers import Answers, Directions, Found, Kind, probability
from pipelines.maps.cells import (
    ChunkReader,
    GridCells,
    InMemory,
    ShellCells,
    cube_around,
)
from pipelines.maps.places import Places
from pipelines.maps.rays import CubeRays, PixelRays
from pipelines.run.facts import Facts, box_facts
from pipelines.storage.atomic import MARKER

# Of a box: positions that rounding puts this far beyond a face lie on it.
_EDGE = 5e-7
_NO_DENSITY = ("support", "filled")


@dataclass(frozen=True, kw_only=True, repr=False)
class Stored(Answers):
    """A map that ``dustmap export`` wrote, interpolated; it holds no samples.

    ``cells`` is None for maps of the sky, ``rays`` for a map that was exported without
    integrated extinction; one of them is there.
    """

    cells: GridCells | ShellCells | None
    rays: PixelRays | CubeRays | None

    @property
    def box(self) -> Box:
        return self._rays().box if self.cells is None else self.cells.box

    @property
    def facts(self) -> Facts:
        reach, judged = "none", {"verdict": self.verdict} if self.verdict else {}
        if self.rays is not None:
            known = ", ".join(self.rays.arrays)
            reach = f"to {self.rays.distance[-1]:.5g} pc: {known}"
        if self.cells is None:
            return {"density": "none", "integrated extinction": reach, **judged}
        return {
            **box_facts(self.box, self.cells.spacing),
            "density": ", ".join(self.cells.arrays),
            "integrated extinction": reach,
            **judged,
        }

    def kinds(self, *, integrated: bool) -> tuple[str, ...]:
        part = self.rays if integrated else self.cells
        return () if part is None else part.arrays

    def support(self, places: Places) -> np.ndarray:
        """Sight-line length [cells] in the cell of each place.

        For maps of the sky 0 beyond the last star, else 1.
        """
        if self.cells is None:
            return np.where(places.distance > self.last_star(places), 0.0, 1.0)
        return self.cells.support(places)

    def last_star(self, places: Places) -> np.ndarray:
        return self._rays().last_star(places)

    def reach(self, places: Places) -> np.ndarray:
        return self._rays().reach(places)

    def _crossings(
        self, places: Places, extinction: np.ndarray, centre: str
    ) -> tuple[np.ndarray, np.ndarray]:
        return self._rays().crossings(places, extinction, centre)

    def _answers(
        self, places: Places, kinds: Sequence[Kind], integrated: bool
    ) -> Found:
        part = self._rays() if integrated else self._cells()
        positive = "p50" in part.arrays
        made_of = {kind: _made_of(kind, part.arrays, integrated) for kind in kinds}
        names = list(
            dict.fromkeys(name for parts in made_of.values() for name in parts)
        )
        known = (*part.arrays, *(name for name in names if positive and name[0] == "p"))
        missing = [name for name in names if name not in known]
        if missing:
            raise InputError(
                f"{self.path} has no {', '.join(missing)} of the "
                f"{'extinction' if integrated else 'density'}, only "
                f"{', '.join(part.arrays)}: choose one of these (--mode, mode=), or "
                "name the run or its map.zarr"
            )
        read = part.at(names, places)

        def value(kind: Kind) -> np.ndarray:
            if len(made_of[kind]) == 1:
                return read[made_of[kind][0]]
            if positive:
                arrays = {name: read[name] for name in made_of[kind]}
                return between(arrays, probability(kind))
            return normal(read["mean"], read["std"], probability(kind))

        return {kind: value(kind) for kind in made_of}

    def _rays(self) -> PixelRays | CubeRays:
        if self.rays is None:
            raise InputError(
                f"{self.path} holds the density only, not the integrated extinction: "
                "write it again with `dustmap export RUN --zarr`, or ask the run folder"
            )
        return self.rays

    def _cells(self) -> GridCells | ShellCells:
        if self.cells is None:
            raise InputError(
                f"{self.path} holds integrated extinctions only, not the density: ask "
                "for --integrated (integrated=True), or name a map.zarr or map.fits"
            )
        return self.cells


def _made_of(kind: Kind, arrays: Sequence[str], integrated: bool) -> tuple[str, ...]:
    """The arrays that a kind is read from, or that `PixelRays` extrapolates."""
    if kind in ("mean", "std") or kind in arrays:
        return (str(kind),)
    if "p50" not in arrays:
        return "mean", "std"
    names = tuple(name for name in NAMES if name in arrays)
    low, high = QUANTILES[names[0]], QUANTILES[names[-1]]
    if integrated and not low <= probability(kind) <= high:
        return (f"p{100 * probability(kind):.12g}",)
    return names


@dataclass(frozen=True, kw_only=True, repr=False)
class ZarrMap(Stored):
    """A map store: only the chunks around places are read."""

    def _cube(self) -> Cube:
        return self._stored_cube

    def _columns(self, along: str, between: Ends | None, level: int) -> Columns | None:
        """Return columns of the store: through the coarsest grid."""
        found = None if level else self._stored_columns.get(along)
        assert isinstance(self.cells, GridCells)
        axis, box = AXES.index(along), self.cells.box
        ends = between or (box.lower[axis], box.upper[axis])
        if found is None or not np.allclose((found.low, found.high), ends):
            return None
        return found

    def _sky_maps(
        self, distances: Sequence[float] | None, nside: int | None
    ) -> SkyMaps:
        """Maps at some of the distances along the store's rays."""
        maps = self._held_maps()
        if maps is None:
            return super()._sky_maps(distances, nside)
        own = healpy.npix2nside(maps.mean.shape[1])
        if nside not in (None, own):
            raise InputError(f"{self.path} has sky maps of nside {own} only")
        return maps.out_to(distances)

    def _lines(self, directions: Directions | None) -> list[LineOfSight]:
        maps = self._held_maps()
        if maps is None:
            return super()._lines(directions)
        return [maps.ray(*one) for one in directions or maps.informed_directions()]

    def _held_maps(self) -> SkyMaps | None:
        return self._maps

    @cached_property
    def _stored_cube(self) -> Cube:
        """The density, compared with its hashes."""
        return read_zarr(self.path)

    @cached_property
    def _stored_columns(self) -> dict[str, Columns]:
        return read_columns(self.path)

    @cached_property
    def _maps(self) -> SkyMaps | None:
        if self.rays is None:
            return None
        return SkyMaps.of(read_integrated(self.path), self._stored_cube.meta)


@dataclass(frozen=True, kw_only=True, repr=False)
class SkyMap(Stored):
    """Maps of the sky in memory."""

    maps: SkyMaps

    def _sky_maps(self, *chosen: Any) -> SkyMaps:
        return self.maps

    def _held_maps(self) -> SkyMaps:
        return self.maps


@dataclass(frozen=True, kw_only=True, repr=False)
class CubeMap(Stored):
    """A cube in memory; ``blank``: NaN along rays on which it has no dust at all.

    Such rays lie outside the footprint of a map of others.
    """

    density_cube: Cube
    blank: bool = False

    @property
    def box(self) -> Box:
        """Where the map is; rounding may pass its faces."""
        box, slack = super().box, _EDGE * np.array(self.density_cube.spacing)
        lower, upper = np.array(box.lower) - slack, np.array(box.upper) + slack
        return Box(lower=tuple(lower.tolist()), upper=tuple(upper.tolist()))

    @property
    def unit(self) -> str:
        return self.density_cube.unit

    def _cube(self) -> Cube:
        return self.density_cube

    def _answers(
        self, places: Places, kinds: Sequence[Kind], integrated: bool
    ) -> Found:
        unit: Any = u.Unit(self.density_cube.unit)
        scale = float(unit.to(u.mag / u.pc))
        found = super()._answers(places, kinds, integrated)
        if self.blank:
            through = places.at(self.reach(places))
            dark = self._rays().at(("mean",), through)["mean"] == 0
            found = {k: np.where(dark, np.nan, v) for k, v in found.items()}
        return {kind: scale * values for kind, values in found.items()}


def open_store(path: Path) -> ZarrMap:
    """Open a map store without reading its arrays or hashes.

    Raises
    ------
    InputError
        If it is none of this program's, or of another version.
    """
    if not (path / MARKER).is_file():
        raise InputError(
            f"{path} is incomplete: it has no {MARKER}, so its writer did not finish. "
            "Export it again"
        )
    group, attributes = open_cube(path)
    reader = ChunkReader(path, group)
    try:
        prefixes = tuple(level_prefixes(attributes))
        cells = GridCells(
            reader=reader,
            grids=NestedGrids(
                grids=tuple(
                    grid_of(*(np.asarray(reader.array(p + a)[...]) for a in "xyz"))
                    for p in prefixes
                )
            ),
            arrays=tuple(n for n in attributes["arrays"] if n not in _NO_DENSITY),
            prefixes=prefixes,
            has_support="support" in attributes["arrays"],
        )
        described, rays = attributes.get("integrated"), None
        if described is not None:
            names = (str(name) for name in described["arrays"])
            rays = PixelRays(
                reader=reader,
                box=cells.box,
                nside=int(described["nside"]),
                distance=np.asarray(reader.array("distance")[...], dtype=np.float64),
                arrays=tuple(name.removeprefix("extinction_") for name in names),
            )
    except KeyError as error:
        raise InputError(f"{path} is no map of this program: {error}") from error
    return ZarrMap(
        path=path,
        band=str(attributes.get("band", "")),
        verdict=str(attributes["provenance"].get("verdict", "")),
        cells=cells,
        rays=rays,
    )


def of_cube(path: Path, cube: Cube, *, blank: bool = False) -> CubeMap:
    """Return a cube as a map: a truth's density is its mean.

    It integrates where the Sun is within and no grid was left out.
    """
    names = {n: "mean" if n == "density" else n for n in cube.arrays}
    levels = tuple(f"{number}/" for number in range(len(cube.levels)))
    arrays = {
        place + names[name]: array
        for place, level in zip(levels, cube.levels, strict=True)
        for name, array in level.arrays.items()
    }
    cells = GridCells(
        reader=InMemory(arrays=arrays),
        grids=cube.grids,
        arrays=tuple(n for n in names.values() if n not in _NO_DENSITY),
        prefixes=levels,
        has_support="support" in cube.arrays,
    )
    summed = next((n for n in ("mean", "density", "p50") if n in cube.arrays), None)
    lower, upper = np.array(cells.box.lower), np.array(cells.box.upper)
    around = bool((lower <= 0).all() and (upper >= 0).all())
    rays = None
    if summed is not None and around and not cube.meta.get(LEFT_OUT):
        called = (names[summed],)
        rays = CubeRays(cube=cube, cells=cells, name=summed, arrays=called)
    return CubeMap(
        path=path,
        **_stated(cube.meta),
        cells=cells,
        rays=rays,
        density_cube=cube,
        blank=blank,
    )


def of_sky_maps(path: Path, maps: SkyMaps) -> SkyMap:
    """Return maps of the sky as extinctions to their distances and between them."""
    arrays = {f"extinction_{name}": part.T for name, part in maps.arrays.items()}
    rays = _pixel_rays(maps.distances, arrays, maps.last_star)
    return SkyMap(path=path, **_stated(maps.meta), cells=None, rays=rays, maps=maps)


def of_shells(path: Path, shells: ShellMaps) -> Stored:
    """Return shells as densities; extinctions add them up if they begin at the Sun."""
    edges, rays = shells.edges, None
    if edges[0] == 0:
        along = np.cumsum(shells.arrays["mean"] * np.diff(edges)[:, None], axis=0)
        rays = _pixel_rays(edges[1:], {"extinction_mean": along.T}, None)
    cells = ShellCells(shells=shells)
    return Stored(path=path, **_stated(shells.meta), cells=cells, rays=rays)


def _stated(meta: dict[str, Any]) -> dict[str, Any]:
    """Band and verdict of a provenance."""
    band, verdict = meta.get("extinction_band") or "", meta.get("verdict", "")
    return {"band": str(band), "verdict": str(verdict)}


def _pixel_rays(
    distances: np.ndarray, arrays: dict[str, np.ndarray], last_star: np.ndarray | None
) -> PixelRays:
    """Rays of whole maps ``(npix, n)``; all look endlessly far if nothing is said."""
    pixels = len(next(iter(arrays.values())))
    known = np.full(pixels, np.inf) if last_star is None else last_star
    return PixelRays(
        reader=InMemory(arrays={**arrays, "last_star": known}),
        box=cube_around(float(distances[-1])),
        nside=healpy.npix2nside(pixels),
        distance=np.asarray(distances, dtype=np.float64),
        arrays=tuple(name.removeprefix("extinction_") for name in arrays),
    )
