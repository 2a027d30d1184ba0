"""Maps of other programs, answered like exported ones.

Cubes on x, y, z are interpolated and integrated as `of_cube` does. Of maps on the sky a
bin's density is constant along the ray, so that the extinction is the sum of the bins
before it, linear within each: the numbers of the file at its own nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from astropy import units as u

from dustmap.memory import row_blocks
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box, unit_vectors
from pipelines.base.pixels import pixel_of, weights_around
from pipelines.base.quantiles import KINDS, QUANTILES
from pipelines.base.table import Facts
from pipelines.cubes.cube import AXES, Cube
from pipelines.cubes.sky import LineOfSight, SkyMaps, check_distances
from pipelines.formats.foreign import ForeignField, Stated, read_field
from pipelines.maps.answers import (
    Answers,
    Directions,
    Distances,
    Draws,
    Found,
    Kind,
    Kinds,
    MissingError,
    Rng,
    Sides,
    at_all_places,
)
from pipelines.maps.places import Places
from pipelines.maps.rays import PixelRays
from pipelines.maps.stored import Stored, of_cube
from pipelines.storage.digests import digest_of, visible_files

# Name of a sample before its number.
_SAMPLE = "sample_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shells(PixelRays):
    """Extinctions, or if not ``integrated`` densities, by pixel of the sky.

    Extinctions nearer than ``start`` [pc] are NaN.
    """

    field: ForeignField
    start: float = 0.0
    integrated: bool = True
    has_support: bool = False

    def at(self, names: Iterable[str], places: Places) -> dict[str, np.ndarray]:
        """Return values by name [mag or mag/pc], shape ``(n,)``."""
        if not self.integrated:
            return {name: self._density(name, places) for name in names}
        found = PixelRays.at(self, names, places)
        for values in found.values():
            values[places.distance < self.start * (1 - 1e-9)] = np.nan
        return found

    def support(self, places: Places) -> np.ndarray:
        """Return ones: the map does not say where its stars are."""
        return np.ones(len(places))

    def _density(self, name: str, places: Places) -> np.ndarray:
        """Return the density of each place's bin between pixels [mag/pc]."""
        found, edges = np.full(len(places), np.nan), self.field.edges
        if self.field.integrated:
            edges = np.append(0.0, self.distance)
        for rows, near in self._blocks(places):
            values = _values(self.field, False, name, near.pixels)
            far = places.distance[rows]
            step = np.searchsorted(edges, far, side="right") - 1
            # The last edge belongs to the last bin.
            step = np.where(far == edges[-1], len(edges) - 2, step)
            inside = (step >= 0) & (step < len(edges) - 1) & near.weights.any(axis=0)
            part = values[near.which, np.clip(step, 0, len(edges) - 2)]
            summed = np.where(near.weights > 0, near.weights * part, 0.0).sum(axis=0)
            found[rows] = np.where(inside, summed, np.nan)
        return found

    def pixel_of(self, places: Places) -> np.ndarray:
        """Return the pixel of each direction, −1 outside of the map."""
        pixels, weights = self._around(places.l, places.b)
        found = np.take_along_axis(pixels, np.argmax(weights, axis=0)[None], 0)[0]
        return np.where(weights.any(axis=0), found, -1)

    def _around(self, l: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # noqa: E741
        """Return pixels and weights: 4 of a regular grid, or the one that holds it."""
        if self.field.pixels is None:
            return _on_grid(self.field.axes["l"], self.field.axes["b"], l, b)
        nsides, pixels = self.field.pixels
        levels = np.unique(nsides)
        if len(levels) == 1 and len(pixels) == 12 * levels[0] ** 2:
            columns = np.empty(len(pixels), dtype=np.int64)
            columns[pixels] = np.arange(len(pixels))
            near, weights = weights_around(int(levels[0]), l, b)
            return columns[near], weights
        found = np.full(len(l), -1)
        for nside in levels:
            rows = np.flatnonzero(nsides == nside)
            rows = rows[np.argsort(pixels[rows])]
            wanted = pixel_of(int(nside), l, b)
            place = np.searchsorted(pixels[rows], wanted).clip(max=len(rows) - 1)
            found = np.where(pixels[rows][place] == wanted, rows[place], found)
        return np.maximum(found, 0)[None], (found >= 0)[None].astype(float)


def _on_grid(
    lons: np.ndarray,
    lats: np.ndarray,
    l: np.ndarray,  # noqa: E741
    b: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the corners around directions on a regular grid, and bilinear weights."""
    step, count = lons[1] - lons[0], len(lons)
    around = abs(step * count - 360.0) < 1e-3 * step
    places = np.mod(l - lons[0] + 1e-9, 360.0) - 1e-9, b - lats[0]
    x, y = places[0] / step, places[1] / (lats[1] - lats[0])
    # Poles and the ends of rows are within half a cell of the outermost centres.
    inside = (y >= -0.5 - 1e-9) & (y <= len(lats) - 0.5 + 1e-9)
    inside &= around | (x <= count - 0.5 + 1e-9) | (x >= 360.0 / step - 0.5 - 1e-9)
    if not around:
        x = np.where(x > count - 0.5 + 1e-9, 0.0, x).clip(0, count - 1)
    y = y.clip(0, len(lats) - 1)
    i, j = (np.floor(v).astype(int) for v in (x, y))
    p, q = x - i, y - j
    right, up = (i + 1) % count, np.minimum(j + 1, len(lats) - 1)
    pixels = np.stack(
        [j * count + i, j * count + right, up * count + i, up * count + right]
    )
    weights = np.stack([(1 - p) * (1 - q), p * (1 - q), (1 - p) * q, p * q])
    return pixels, np.where(inside, weights, 0.0)


def _values(
    field: ForeignField, integrated: bool, name: str, columns: np.ndarray
) -> np.ndarray:
    """Return a moment, or ``sample_3``, of pixels by distance, ``(u, k)``.

    They are extinctions to the edges of the bins [mag], or densities in them [mag/pc].
    """
    name, edges = name.removeprefix("extinction_"), field.edges
    array = field.arrays[name if name in field.arrays else "mean"]
    draws = array[:, columns].T[:, None] if array.ndim == 2 else array[columns]
    draws = np.asarray(draws, dtype=np.float64)
    if field.per_bin:
        draws = draws / np.diff(edges)
    draws = draws * field.unit.to(u.mag if field.integrated else u.mag / u.pc)
    if field.integrated and not integrated:
        draws = np.diff(draws, axis=-1, prepend=0.0) / np.diff(edges, prepend=0.0)
    elif integrated and not field.integrated:
        draws = np.cumsum(draws * np.diff(edges), axis=-1)
        if edges[0] > 0:
            first = np.zeros((*draws.shape[:2], 1))
            if field.inner is not None:
                inner = field.inner[columns].reshape(len(columns), -1, 1)
                first = first + inner * field.unit.to(u.mag / u.pc)
            draws = np.concatenate([first, first + draws], axis=-1)
    if array.ndim == 2:
        return draws[:, 0]
    if name.startswith(_SAMPLE):
        return draws[:, int(name.removeprefix(_SAMPLE))]
    if name in QUANTILES:
        return np.quantile(draws, QUANTILES[name], axis=1)
    return draws.mean(axis=1) if name == "mean" else draws.std(axis=1)


def extinctions_along(
    answers: Answers, directions: np.ndarray, distances: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the moments of extinctions that a map holds, ``(e, n)`` each [mag].

    ``directions`` are unit vectors ``(n, 3)``, ``distances`` [pc] have shape ``(e,)``.
    """
    kinds = answers.default_kinds(integrated=True)
    shape = (len(directions), len(distances))
    whole = {str(kind): np.empty(shape[::-1]) for kind in kinds}
    far = np.broadcast_to(distances, shape)
    for rows in row_blocks(len(directions), 1024 * len(distances)):
        places = Places.along(directions[rows], far[rows])
        found = answers.moments(places, kinds, integrated=True)
        for kind in kinds:
            whole[str(kind)][:, rows] = found[kind].reshape(places.shape).T
    return whole


@dataclass(frozen=True, kw_only=True, repr=False)
class Sampled(Answers):
    """A map without stored products, which are computed from answers at places."""

    def sampled(self, spacing: float | None, box: Sides = None) -> Cube:
        """Return the density at the points of a grid through the Sun [pc].

        Without a spacing the widest side of the box has 97 points. It raises a
        `MissingError` if the box, or the map's, is not bounded.
        """
        whole = (-self.extent, self.extent)
        sides = np.array([(box or {}).get(axis, whole) for axis in AXES])
        sides = np.clip(sides, *whole)
        if not np.isfinite(sides).all():
            raise MissingError(
                f"{self.path} does not say where it ends: give --box and --spacing"
            )
        step = spacing or float(np.ptp(sides, axis=1).max()) / 96
        low, high = np.ceil(sides[:, 0] / step), np.floor(sides[:, 1] / step)
        x, y, z = (step * np.arange(a, b + 1) for a, b in zip(low, high))
        cube = Cube(x=x, y=y, z=z, arrays={}, meta=self.about())
        places = Places.of_points(cube.points)
        found = self.moments(places, self.kinds(integrated=False), integrated=False)
        arrays = {str(n): places.restore(v).astype("f4") for n, v in found.items()}
        return replace(cube, arrays=arrays)

    def about(self) -> dict[str, Any]:
        """Return the provenance of products: the band, and the origin."""
        band = {"extinction_band": self.band} if self.band else {}
        return {**band, "maps": self.origins()}

    def cube(self) -> Cube:
        return self.sampled(None)

    def sky_maps(
        self, distances: Distances = None, nside: int | None = None
    ) -> SkyMaps:
        """Return extinctions at pixels' centres, by default at six distances.

        The default nside is 64.
        """
        chosen = distances
        if chosen is None:
            if not np.isfinite(self.extent):
                raise MissingError(
                    f"{self.path} does not say where it ends: --distances"
                )
            chosen = np.linspace(0.0, self.extent, 7)[1:]
        far = np.asarray(sorted(chosen), dtype=np.float64)
        check_distances(far)
        self._check_extinctions()
        import healpy  # here, for its import takes longer than a query

        nside = nside or 64
        pixels = np.arange(12 * nside**2)
        directions = np.stack(healpy.pix2vec(nside, pixels, nest=True), -1)
        found = extinctions_along(self, directions, far)
        arrays = {name: values.astype("f4") for name, values in found.items()}
        return SkyMaps(distances=far, arrays=arrays, meta=self.about())

    def lines(self, directions: Directions | None = None) -> list[LineOfSight]:
        """Return curves towards directions, by default six in the Galactic plane."""
        self._check_extinctions()
        lines = []
        for lon, lat in directions or [(60.0 * i, 0.0) for i in range(6)]:
            towards = unit_vectors(np.array([lon]), np.array([lat]))
            end = float(self.reach(Places.of_points(towards))[0])
            far = np.linspace(0.0, end, 201)[1:]
            found = extinctions_along(self, towards, far)
            arrays = {name: values[:, 0] for name, values in found.items()}
            lines.append(LineOfSight(l=lon, b=lat, distance=far, arrays=arrays))
        return lines

    def _check_extinctions(self) -> None:
        if "mean" not in self.kinds(integrated=True):
            raise self._lacks("mean extinction from the Sun", "another map")

    def last_star(self, places: Places) -> np.ndarray:
        """Return infinity: the map does not say where its last stars are."""
        return np.full(len(places), np.inf)


@dataclass(frozen=True, kw_only=True, repr=False)
class ForeignMap(Sampled, Stored):
    """A map of another program; ``since`` [pc] is where its extinctions begin.

    It answers the moments in its file and no others.
    """

    stated: Stated
    own_unit: str
    since: float = 0.0
    shells: Shells | None = None

    @property
    def facts(self) -> Facts:
        known = {"unit": self.own_unit, **origin_facts(self.stated)}
        if self.shells is None:
            return {**known, **super().facts}
        edges, held = self.shells.field.edges, self.kinds(integrated=False)
        return {
            **known,
            "distances [pc]": f"{edges[0]:g} to {edges[-1]:g}, {len(edges)} edges",
            "density": ", ".join(held) or "none",
            "integrated extinction": ", ".join(self.kinds(integrated=True)) or "none",
        }

    def origins(self) -> list[dict[str, Any]]:
        return [origin_of(self, self.stated, self.own_unit)]

    def kinds(self, *, integrated: bool) -> tuple[str, ...]:
        return () if integrated and self.since else super().kinds(integrated=integrated)

    def default_kinds(self, *, integrated: bool) -> tuple[Kind, ...]:
        held = self.kinds(integrated=integrated)
        return tuple(kind for kind in KINDS if kind in held)

    def quality(self, places: Places) -> dict[str, np.ndarray]:
        known = None if self.shells is None else self.shells.field.flags
        if known is None or self.shells is None:
            return {}
        pixel = self.shells.pixel_of(places)
        far, on = places.distance, pixel >= 0
        near = (far < known["nearest"][pixel]) | (far > known["farthest"][pixel])
        failed = on & ~known["converged"][pixel]
        return {"not_converged": failed, "unreliable": on & near}

    @property
    def has_samples(self) -> bool:
        return self.shells is not None and self.shells.field.samples > 0

    def samples(self, places: Places, *, integrated: bool, rng: Rng = None) -> Draws:
        if self.shells is None or not self.has_samples:
            raise InputError(
                f"{self.path} has no samples, only "
                f"{', '.join(self.kinds(integrated=integrated))}: choose one of these "
                "(--mode, mode=)"
            )
        numbers = np.arange(self.shells.field.samples)
        chosen = numbers if rng is None else rng.choice(numbers, 1)
        names = tuple(f"{_SAMPLE}{number}" for number in chosen)
        inside = self.box.contains(places.positions())
        read: Any = replace(self.shells, arrays=names, integrated=integrated)
        found = at_all_places(read.at(names, places.select(inside)), inside)
        drawn = np.stack([found[name] for name in names], axis=1)
        return drawn if rng is None else drawn[:, 0]

    def extinction_between(self, near: Places, far: Places) -> np.ndarray:
        """Return the extinction between places, also of a map that begins far away."""
        if not self.since or self.rays is None:
            return super().extinction_between(near, far)
        here, there = (self.rays.at(("mean",), end)["mean"] for end in (near, far))
        return there - here

    def _answers(self, places: Places, kinds: Kinds, integrated: bool) -> Found:
        held = self.kinds(integrated=integrated)
        what = "extinction" if integrated else "density"
        if missing := [str(kind) for kind in kinds if kind not in held]:
            why = f": it begins {self.since:g} pc away" if self.since else ""
            others = f"choose one of its {', '.join(held)} (--mode, mode=)"
            if not held:
                others = "ask for densities (--differential, integrated=False)"
            raise InputError(
                f"{self.path} has no {', '.join(missing)} of the {what}{why}: {others}"
            )
        return super()._answers(places, kinds, integrated)

    def cube(self) -> Cube:
        if self.shells is not None:
            return self.sampled(None)
        return replace(Stored.cube(self), meta=self.about())

    @property
    def extent(self) -> float:
        far = self.box.upper if self.shells is None else (self.shells.distance[-1],)
        return float(max(far))


def open_foreign(path: Path, stated: Stated) -> ForeignMap:
    """Open a map of another program; raises `InputError` as `read_field` does."""
    field = read_field(path, stated)
    shown = field.unit.to_string() + ("" if not field.per_bin else " (per bin / width)")
    own: dict[str, Any] = {"path": path, "stated": stated, "own_unit": shown}
    meta = {"extinction_band": field.band} if field.band else {}
    own |= {"band": field.band, "meta": meta}
    if "x" in field.axes:
        scale = field.unit.to(u.mag / u.pc)
        arrays = {
            name: np.multiply(array, scale, dtype=np.float32)
            for name, array in field.arrays.items()
        }
        x, y, z = (field.axes[axis] for axis in AXES)
        try:
            cube = Cube(x=x, y=y, z=z, arrays=arrays, meta=meta)
        except ValueError as error:
            raise InputError(f"{path} is no regular cube: {error}") from error
        made = of_cube(path, cube)
        # Only means add up, from a Sun that is in the map.
        known = "mean" in cube.arrays and np.isfinite(cube.sample("mean", np.zeros(3)))
        parts = {"cells": made.cells, "read_cube": made.read_cube}
        return ForeignMap(**own, **parts, rays=made.rays if known else None)
    edges = field.edges
    if not (np.diff(edges) > 0).all() or edges[0] < 0:
        raise InputError(f"{path}: its distances are not increasing from 0 pc")
    side = (3 * float(edges[-1]),) * 3
    inner = 0.0 if field.integrated else float(edges[0])
    # Only means add up, unless there are samples of sums and differences.
    means = tuple(name for name in field.arrays if field.samples or name == "mean")
    shells = Shells(
        take=partial(_values, field, True),
        box=Box(lower=tuple(-s for s in side), upper=side),
        nside=0,
        distance=edges[1:] if edges[0] == 0 else edges,
        arrays=tuple(field.arrays) if field.integrated else means,
        to_faces=False,
        field=field,
        start=inner,
    )
    held = means if field.integrated else tuple(field.arrays)
    cells: Any = replace(shells, arrays=held, integrated=False)
    since = inner if field.inner is None else 0.0
    return ForeignMap(**own, cells=cells, rays=shells, shells=shells, since=since)


def origin_facts(stated: Stated) -> Facts:
    """Return title and reference of a published map, and a factor of one."""
    named = {key: stated.facts[key] for key in ("title", "reference") if stated.map_of}
    return {**named, "factor": "1"}


def origin_of(answers: Answers, stated: Stated, unit: str) -> dict[str, Any]:
    """Return one of `Answers.origins`."""
    facts, path = stated.facts, answers.path
    return {
        "map": facts.get("title", path.name),
        "file": path.name,
        "reference": facts.get("reference", "not stated"),
        "sha256": _sha256(path, path.stat().st_mtime) if path.exists() else "",
        "unit": unit,
        "band": answers.band or "unknown",
        "factor": 1.0,
    }


@lru_cache
def _sha256(path: Path, _changed: float) -> str:
    """Return the SHA-256 of a file, or of the names and SHA-256 of a folder's files."""
    if path.is_file():
        return digest_of(path).sha256
    import hashlib

    parts = (
        f"{f.relative_to(path)} {digest_of(f).sha256}\n" for f in visible_files(path)
    )
    return hashlib.sha256("".join(parts).encode()).hexdigest()
