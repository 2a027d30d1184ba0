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
from pipelines.base.geometry import Box, unit_vectors
from pipelines.base.pixels import nside_of, pixel_directions
from pipelines.base.quantiles import NAMES, QUANTILES, interpolated_quantile
from pipelines.base.table import Facts
from pipelines.cubes.cube import AXES, Cube, grid_of
from pipelines.cubes.sky import (
    Columns,
    Curves,
    Ends,
    LineOfSight,
    SkyMaps,
    check_distances,
    even_distances,
    outside,
)
from pipelines.formats.zarr import (
    is_url,
    level_prefixes,
    nodes_of,
    open_cube,
    read_columns,
    read_curves,
    read_samples,
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
    at_all_places,
    probability,
)
from pipelines.maps.cells import ChunkReader, GridCells, in_memory
from pipelines.maps.places import Places
from pipelines.maps.rays import CubeRays, PixelRays
from pipelines.maps.sampled import SampledRays
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
    """A map written by this program, interpolated.

    ``cells`` hold the density, ``None`` for sky maps, and ``rays`` the extinction,
    ``None`` for a map without it; at least one is given. ``read_cube``, ``read_maps``,
    ``read_curves`` and, by level and axis, ``read_columns`` read whole products.
    ``scale`` is the factor from the unit of the file to mag/pc. If ``blank``, values
    are NaN along rays without any dust: they lie outside the footprint of a published
    map. ``draws`` are the ``sample_count`` posterior samples, if any, ``meta`` is the
    provenance.
    """

    cells: GridCells | None
    rays: PixelRays | CubeRays | None
    read_cube: Callable[[], Cube] | None = None
    read_maps: Callable[[], SkyMaps] | None = None
    read_curves: Callable[[], Curves] | None = None
    read_columns: Callable[[], list[dict[str, Columns]]] = list
    scale: float = 1.0
    blank: bool = False
    draws: SampledRays | None = None
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
        if self.draws is not None:
            facts["samples"] = f"{self.sample_count}"
        if stars := self.meta.get("stars"):
            facts["stars"] = ", ".join(f"{n:,} {what}" for what, n in stars.items())
        if judged := self.meta.get("held_out"):
            rmse = judged["rmse"]
            facts["held-out stars"] = (
                f"RMSE {rmse['store']:.3g} mag, noise included ({rmse['exact']:.3g} by "
                "exact predictions)"
            )
        return facts

    @property
    def is_positive(self) -> bool:
        """True if quantiles are those of a positive density."""
        return "p50" in self.kinds(integrated=False)

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
        if self.draws is None:
            return super().samples(places, integrated=integrated, rng=rng)
        inside = self.box.contains(places.positions())
        within = places.select(inside)
        if integrated:
            assert isinstance(self.rays, PixelRays), "a store with samples has curves"
            drawn = self.draws.extinctions(within, self.rays)
        else:
            moments = self.moments(within, ("mean", "std"), integrated=False)
            law = moments["mean"] / self.scale, moments["std"] / self.scale
            drawn = self.draws.densities(within, *law, positive=self.is_positive)
        whole = at_all_places({"mean": self.scale * drawn}, inside)["mean"]
        return whole if rng is None else whole[:, int(rng.integers(self.sample_count))]

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
        if self.cells is None or not self.meta.get("prior") or "cut" in self.meta:
            return super().prior()
        from dustmap.models.prior_integrals import PriorIntegrals

        changes = self.meta.get("band_conversions", [])
        factor = math.prod(float(change["factor"]) for change in changes)
        return PriorIntegrals.from_dict(self.meta["prior"]).scaled(factor)

    def cube(self) -> Cube:
        return super().cube() if self.read_cube is None else self.read_cube()

    def columns(
        self, along: str, between: Ends | None = None, *, level: int = 0
    ) -> Columns | None:
        """Return the store's columns through a grid, if they have these ends."""
        columns = self.read_columns()
        held = columns[level].get(along) if level < len(columns) else None
        if held is None:
            return None
        axis, grid = AXES.index(along), self._cells().grids[level]
        ends = between or (grid.lower[axis], grid.upper[axis])
        return held if np.allclose((held.low, held.high), ends) else None

    def checked_distances(self, distances: Distances, nside: int | None) -> np.ndarray:
        """Return distances of sky maps [pc], by default round ones.

        Raises `InputError` if they do not increase, or end beyond the map, or ``nside``
        is no resolution or finer than the store's.
        """
        assert isinstance(self.rays, PixelRays)
        if nside is not None and (nside_of(12 * nside**2) is None):
            raise InputError(f"nside must be a power of 2, got {nside}")
        if nside is not None and nside > self.rays.nside:
            raise InputError(
                f"{self.path} has pixels of nside {self.rays.nside}: choose this or a "
                f"coarser one, got {nside}"
            )
        chosen = even_distances(self.box) if distances is None else distances
        edges = np.asarray(chosen, dtype=np.float64)
        check_distances(edges)
        if edges[-1] > self.rays.nodes[-1]:
            raise InputError(
                f"distances extend to {edges[-1]:g} pc, where no sight line is still "
                "inside the map: choose distances up to its furthest corner, "
                f"{self.rays.distance[-1]:.6g} pc away"
            )
        return edges

    def sky_maps(
        self, distances: Distances = None, nside: int | None = None
    ) -> SkyMaps:
        """Return sky maps at distances of files, interpolated from a store's curves."""
        if self.read_maps is not None:
            maps = self.read_maps()
            if nside not in (None, maps.nside):
                raise InputError(f"{self.path} has sky maps of nside {maps.nside} only")
            return maps.out_to(distances)
        if not isinstance(self.rays, PixelRays):
            return super().sky_maps(distances, nside)
        edges = self.checked_distances(distances, nside)
        rays = self.rays
        if self.read_curves is not None:
            rays = PixelRays.of(self.read_curves(), self.box)
        towards = Places.of_points(pixel_directions(nside or rays.nside))
        arrays = {
            name: np.empty((len(edges), len(towards)), dtype=np.float32)
            for name in rays.arrays
        }
        for row, edge in enumerate(edges):
            if nside in (None, rays.nside):
                moments = {name: rays.sky(name, edge) for name in arrays}
            else:
                places = towards.at(np.full(len(towards), edge))
                moments = self.moments(places, rays.arrays, integrated=True)
            for name, values in moments.items():
                arrays[str(name)][row] = values
        last = self.last_star(towards)
        return SkyMaps(distances=edges, arrays=arrays, last_star=last, meta=self.meta)

    def lines(self, directions: Directions | None = None) -> list[LineOfSight]:
        """Return curves towards directions, by default towards much dust and stars."""
        # With the readers of tables, which a query does without.
        from pipelines.maps.lines import informed_directions, with_stars

        if self.cells is None or not isinstance(self.rays, PixelRays):
            return super().lines(directions)
        stars = None
        if self.run is not None:
            from pipelines.catalog.schema import read_stars

            stars = read_stars(self.run / "stars.parquet")
        chosen = [*directions] if directions else informed_directions(self.rays)
        places = Places.of_points(unit_vectors(*np.array(chosen).T))
        curves = self.rays.curves(self.rays.arrays, places)
        ends = self.reach(places)
        for (lon, lat), end in zip(chosen, ends, strict=True):
            if not end > 0:
                raise outside(lon, lat)
        last = self.last_star(places)
        found = []
        for row, (lon, lat) in enumerate(chosen):
            within = self.rays.distance <= ends[row] * (1 + 1e-9)
            line = LineOfSight(
                l=lon,
                b=lat,
                distance=self.rays.distance[within],
                arrays={name: values[row, within] for name, values in curves.items()},
                last_star=float(last[row]),
            )
            found.append(line if stars is None else with_stars(line, stars))
        return found


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
            distances = np.asarray(reader.array("distance")[...], dtype=np.float64)
            rays = PixelRays(
                take=reader.take,
                box=cells.box,
                nside=int(described["nside"]),
                distance=distances,
                arrays=tuple(name.removeprefix("extinction_") for name in names),
                known=nodes_of(group, distances),
            )
    except KeyError as error:
        raise InputError(f"{path} is not a map of this program: {error}") from error
    draws = None
    if count := int(attributes.get("samples", 0)):
        samples = Once(partial(_whole, _samples_last, path, marker))
        draws = SampledRays(read=samples, grids=cells.grids)
    return Stored(
        path=Path(path),
        **_stated({**attributes["provenance"], **(described or {})}),
        cells=cells,
        rays=rays,
        draws=draws,
        sample_count=count,
        read_cube=Once(partial(_whole, read_zarr, path, marker)),
        read_curves=None
        if rays is None
        else Once(partial(_whole, read_curves, path, marker)),
        read_columns=Once(partial(_whole, read_columns, path, marker)),
    )


def _samples_last(path: AnyPath) -> list[np.ndarray]:
    """Read samples by level, ``(x, y, z, s)``: those of a cell are neighbours."""
    return [np.ascontiguousarray(level.T) for level in read_samples(path)]


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
