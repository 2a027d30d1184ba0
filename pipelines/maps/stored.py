"""Exported maps: stores read chunk by chunk, and files read whole.

Integrals through a cube have a mean but no error; sky maps have neither density nor
support of cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from astropy import units as u

from dustmap.nested_grids import NestedGrids
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.base.quantiles import NAMES, QUANTILES, interpolated_quantile
from pipelines.base.table import Facts
from pipelines.cubes.cube import AXES, Cube, grid_of
from pipelines.cubes.sky import Columns, Ends, LineOfSight, SkyMaps
from pipelines.formats.zarr import (
    is_url,
    level_prefixes,
    open_cube,
    read_columns,
    read_integrated,
    read_zarr,
)
from pipelines.maps.answers import (
    ESTIMATES,
    Answers,
    Crossed,
    Directions,
    Distances,
    Draws,
    Found,
    Kind,
    Kinds,
    Rng,
    probability,
)
from pipelines.maps.cells import ChunkReader, GridCells, in_memory
from pipelines.maps.places import Places
from pipelines.maps.rays import CubeRays, PixelRays
from pipelines.storage.atomic import MARKER, AnyPath, marker_of, require_same

if TYPE_CHECKING:
    from dustmap.models.prior_integrals import PriorIntegrals

# Arrays of which integrals through a cube are made, the first that it has.
_SUMMED = ("mean", "density", "p50")
Whole = TypeVar("Whole")


class Once(Generic[Whole]):
    """A product that the first call reads, once for all threads.

    It is pickled without what it has read.
    """

    def __init__(self, read: Callable[[], Whole]) -> None:
        self._read, self._lock, self._found = read, Lock(), list[Whole]()

    def __call__(self) -> Whole:
        with self._lock:
            if not self._found:
                self._found.append(self._read())
            return self._found[0]

    def __reduce__(self) -> Any:
        return Once, (self._read,)


def _given(product: Whole) -> Whole:
    """Return a product in memory: a function that, unlike a lambda, can be pickled."""
    return product


@dataclass(frozen=True, kw_only=True, repr=False)
class Stored(Answers):
    """A map written by ``dustmap export``, interpolated.

    ``cells`` hold the density, ``None`` for sky maps, and ``rays`` the extinction,
    ``None`` for a map exported without it; at least one is given. ``read_cube``,
    ``read_maps`` and, by axis, ``read_columns`` read whole products. ``scale`` is the
    factor from the unit of the file to mag/pc. If ``blank``, values are NaN along rays
    without any dust: they lie outside the footprint of a published map. ``draws`` is
    the run for posterior samples, ``meta`` the provenance.
    """

    cells: GridCells | None
    rays: PixelRays | CubeRays | None
    read_cube: Callable[[], Cube] | None = None
    read_maps: Callable[[], SkyMaps] | None = None
    read_columns: Callable[[], dict[str, Columns]] = dict
    scale: float = 1.0
    blank: bool = False
    draws: Answers | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def box(self) -> Box:
        """The volume of the map."""
        return self._rays().box if self.cells is None else self.cells.box

    @property
    def facts(self) -> Facts:
        facts: Facts = {"density": "none", "integrated extinction": "none"}
        if self.cells is not None:
            facts["density"] = ", ".join(self.cells.arrays)
            facts = {**self.cells.box.facts(self.cells.grids.box.spacing), **facts}
        if self.rays is not None:
            end = f"to {self.rays.distance[-1]:.5g} pc: "
            if self.cells is None:
                end = f"at {len(self.rays.distance)} distances, linear between, {end}"
            facts["integrated extinction"] = end + ", ".join(self.rays.arrays)
        if self.estimate:
            facts["extinctions"] = ESTIMATES[self.estimate]
        if self.verdict:
            facts["verdict"] = self.verdict
        return facts if self.draws is None else {**facts, **self.draws.facts}

    @property
    def has_samples(self) -> bool:
        return self.draws is not None

    def origins(self) -> list[dict[str, Any]]:
        return self.meta.get("maps", [])

    def kinds(self, *, integrated: bool) -> tuple[str, ...]:
        part = self.rays if integrated else self.cells
        return () if part is None else part.arrays

    def support(self, places: Places) -> np.ndarray:
        """Return the sight-line length [cells] in each place's cell.

        For sky maps it is 0 beyond the last star, else 1.
        """
        if self.cells is None:
            return np.where(places.distance > self.last_star(places), 0.0, 1.0)
        return self.cells.support(places)

    def last_star(self, places: Places) -> np.ndarray:
        if self.rays is None:
            return np.full(len(places), np.inf)
        return self.rays.last_star(places)

    def reach(self, places: Places) -> np.ndarray:
        return self._rays().reach(places)

    def crossings(self, places: Places, extinction: np.ndarray) -> Crossed:
        rays = self._rays()
        if "std" not in rays.arrays or isinstance(rays, CubeRays):
            # A mean without quantiles has no intervals.
            return super().crossings(places, extinction)
        return rays.crossings(places, extinction)

    def samples(self, places: Places, *, integrated: bool, rng: Rng = None) -> Draws:
        drawn = super() if self.draws is None else self.draws
        return drawn.samples(places, integrated=integrated, rng=rng)

    def _answers(self, places: Places, kinds: Kinds, integrated: bool) -> Found:
        part = self._rays() if integrated else self._cells()
        positive = "p50" in part.arrays
        made_of = {kind: _made_of(kind, part.arrays, integrated) for kind in kinds}
        names = [*dict.fromkeys(name for parts in made_of.values() for name in parts)]
        known = (*part.arrays, *(name for name in names if positive and name[0] == "p"))
        lacking = [k for k, parts in made_of.items() if not {*parts} <= {*known}]
        missing = ["median" if kind == "p50" else str(kind) for kind in lacking]
        if missing:
            raise InputError(
                f"{self.path} has no {', '.join(missing)} of the "
                f"{'extinction' if integrated else 'density'}, only "
                f"{', '.join(part.arrays)}: choose one of these (--mode, mode=), or "
                "open the run or its map.zarr"
            )
        read = part.at(names, places)
        if self.cells is None and isinstance(part, PixelRays) and "std" in part.arrays:
            read = part.between(read, places)
        if self.blank and self.rays is not None:
            through = places.at(self.reach(places))
            dark = self._rays().at(("mean",), through)["mean"] == 0
            read = {name: np.where(dark, np.nan, v) for name, v in read.items()}
        found = {}
        for kind, parts in made_of.items():
            if len(parts) == 1:
                values = read[parts[0]]
            else:
                arrays = {name: read[name] for name in parts}
                values = interpolated_quantile(arrays, probability(kind))
            found[kind] = self.scale * values
        return found

    def _rays(self) -> PixelRays | CubeRays:
        if self.rays is None:
            raise InputError(
                f"{self.path} holds the density only, not the integrated extinction: "
                "write it again with `dustmap export RUN --zarr`, or query the run "
                "folder"
            )
        return self.rays

    def _cells(self) -> GridCells:
        if self.cells is None:
            raise InputError(
                f"{self.path} holds integrated extinctions only, not the density: use "
                "--integrated (integrated=True), or open a map.zarr or map.fits"
            )
        return self.cells

    def prior(self) -> PriorIntegrals:
        # A cut-out ends where the map goes on.
        if self.cells is None or "plan" not in self.meta or "cut" in self.meta:
            return super().prior()
        from pipelines.model.plan import Plan  # needs torch

        changes = self.meta.get("band_conversions", [])
        factor = math.prod(float(change["factor"]) for change in changes)
        return Plan.from_dict(self.meta["plan"]).build_prior().scaled(factor)

    def cube(self) -> Cube:
        return super().cube() if self.read_cube is None else self.read_cube()

    def columns(
        self, along: str, between: Ends | None = None, *, level: int = 0
    ) -> Columns | None:
        """Return the store's columns through the coarsest grid."""
        found = None if level else self.read_columns().get(along)
        if found is None:
            return None
        axis, box = AXES.index(along), self._cells().box
        ends = between or (box.lower[axis], box.upper[axis])
        return found if np.allclose((found.low, found.high), ends) else None

    def sky_maps(
        self, distances: Distances = None, nside: int | None = None
    ) -> SkyMaps:
        """Return sky maps at some of the store's distances."""
        if self.read_maps is None:
            return super().sky_maps(distances, nside)
        maps = self.read_maps()
        if nside not in (None, maps.nside):
            raise InputError(f"{self.path} has sky maps of nside {maps.nside} only")
        return maps.out_to(distances)

    def lines(self, directions: Directions | None = None) -> list[LineOfSight]:
        # Plain sky maps have too few distances for curves.
        if self.read_maps is None or self.cells is None:
            return super().lines(directions)
        maps = self.read_maps()
        return [maps.ray(*one) for one in directions or maps.informed_directions()]


def _made_of(kind: Kind, arrays: Sequence[str], integrated: bool) -> tuple[str, ...]:
    """Return the arrays needed for a kind; `PixelRays` may extrapolate some."""
    if kind in ("mean", "std") or kind in arrays:
        return (str(kind),)
    if "p50" not in arrays:
        return "mean", "std"
    names = tuple(name for name in NAMES if name in arrays)
    low, high = QUANTILES[names[0]], QUANTILES[names[-1]]
    if integrated and not low <= probability(kind) <= high:
        return (f"p{100 * probability(kind):.12g}",)
    return names


def open_store(path: AnyPath) -> Stored:
    """Open a map store, a folder or a URL, without reading its arrays or hashes.

    Whole products are read on first use, of a folder checked against the hashes.

    Raises `InputError` if this program did not write it, or wrote another version, or
    it is incomplete.
    """
    if not is_url(path) and not (Path(path) / MARKER).is_file():
        raise InputError(
            f"{path} is incomplete: {MARKER} is missing, so the export did not finish. "
            "Export it again"
        )
    marker = None if is_url(path) else marker_of(path)
    group, attributes = open_cube(path)
    reader = ChunkReader(path, group, marker)
    try:
        prefixes = tuple(level_prefixes(attributes))
        levels = [[np.asarray(reader.array(p + a)) for a in AXES] for p in prefixes]
        cells = GridCells(
            take=reader.take,
            grids=NestedGrids(grids=tuple(grid_of(*axes) for axes in levels)),
            arrays=tuple(n for n in attributes["arrays"] if n != "support"),
            prefixes=prefixes,
            has_support="support" in attributes["arrays"],
        )
        described, rays = attributes.get("integrated"), None
        if described is not None:
            names = (str(name) for name in described["arrays"])
            rays = PixelRays(
                take=reader.take,
                box=cells.box,
                nside=int(described["nside"]),
                distance=np.asarray(reader.array("distance")[...], dtype=np.float64),
                arrays=tuple(name.removeprefix("extinction_") for name in names),
            )
    except KeyError as error:
        raise InputError(f"{path} is not a map of this program: {error}") from error
    return Stored(
        path=Path(path),
        **_stated({**attributes["provenance"], **(described or {})}),
        cells=cells,
        rays=rays,
        read_cube=Once(partial(_whole, read_zarr, path, marker)),
        read_maps=None
        if rays is None
        else Once(partial(_whole, read_integrated, path, marker)),
        read_columns=Once(partial(_whole, read_columns, path, marker)),
    )


def _whole(
    read: Callable[[AnyPath], Whole], path: AnyPath, marker: str | None
) -> Whole:
    """Read a product of the store that was opened."""
    product = read(path)
    if marker is not None:
        require_same(path, marker)
    return product


def of_cube(
    path: Path, cube: Cube, curves: SkyMaps | None = None, *, blank: bool = False
) -> Stored:
    """Return a cube as a map; the density of a simulated truth becomes the mean.

    Extinctions are those of the curves, if given; integrals need the Sun inside the
    cube.
    """
    names = {n: "mean" if n == "density" else n for n in cube.arrays}
    levels = tuple(f"{number}/" for number in range(len(cube.levels)))
    arrays = {
        place + names[name]: array
        for place, level in zip(levels, cube.levels, strict=True)
        for name, array in level.arrays.items()
    }
    cells = GridCells(
        take=in_memory(arrays),
        grids=cube.grids,
        arrays=tuple(n for n in names.values() if n != "support"),
        prefixes=levels,
        has_support="support" in cube.arrays,
    )
    unit: Any = u.Unit(cube.unit)
    summed = next((n for n in _SUMMED if n in cube.arrays), None)
    rays = None
    if curves is not None:
        rays = _pixel_rays(curves, cells.box, to_faces=True)
    elif summed and cells.box.contains(np.zeros(3)):
        rays = CubeRays(cube=cube, cells=cells, name=summed, arrays=(names[summed],))
    return Stored(
        path=path,
        **_stated({**cube.meta, **({} if curves is None else curves.meta)}),
        scale=float(unit.to("mag pc-1")),
        cells=cells,
        rays=rays,
        read_cube=partial(_given, cube),
        blank=blank,
    )


def of_sky_maps(path: Path, maps: SkyMaps) -> Stored:
    """Return sky maps as a map, with extinctions interpolated between distances.

    The last stars are taken to be infinitely far if unknown.
    """
    # Wide enough that no sight line leaves it before the last distance.
    side = 3 * float(maps.distances[-1])
    rays = _pixel_rays(maps, Box(lower=(-side,) * 3, upper=(side,) * 3), to_faces=False)
    stated, read = _stated(maps.meta), partial(_given, maps)
    return Stored(path=path, **stated, cells=None, rays=rays, read_maps=read)


def _pixel_rays(maps: SkyMaps, box: Box, *, to_faces: bool) -> PixelRays:
    arrays = {f"extinction_{name}": values.T for name, values in maps.arrays.items()}
    last = maps.last_star
    endless = np.full(12 * maps.nside**2, np.inf)
    return PixelRays(
        take=in_memory({**arrays, "last_star": endless if last is None else last}),
        box=box,
        nside=maps.nside,
        distance=np.asarray(maps.distances, dtype=np.float64),
        arrays=tuple(maps.arrays),
        to_faces=to_faces,
    )


def _stated(meta: dict[str, Any]) -> dict[str, Any]:
    """Return a provenance, with its band, its verdict and its estimate.

    Before there were two estimates, products of runs held the map's.
    """
    return {
        "band": str(meta.get("extinction_band") or ""),
        "verdict": str(meta.get("verdict", "")),
        "estimate": str(meta.get("estimate", "map" if "run" in meta else "")),
        "meta": meta,
    }
