"""Export of a map store: copies, parts, other bands, and other formats."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from healpy import nside2resol

from pipelines.bands import Conversion, wanted_conversion
from pipelines.base.errors import InputError
from pipelines.base.progress import doing
from pipelines.cubes.cube import (
    AXES,
    Cube,
    Level,
    cut_box,
    cut_sphere,
    field_unit,
    reach_of_cube,
)
from pipelines.cubes.sky import Curves, Ends, SkyMaps, even_distances, sky_outside
from pipelines.export.options import EXPORTERS, ExportOptions, Targets
from pipelines.formats.fits import write_fits
from pipelines.formats.healpix import ORDERINGS, write_healpix
from pipelines.formats.images import Field, pixel_side, write_images
from pipelines.formats.zarr import SAMPLES, write_zarr
from pipelines.maps.opening import open_answers
from pipelines.maps.places import Places
from pipelines.maps.rays import PixelRays
from pipelines.maps.stored import Stored
from pipelines.run.record import STORE
from pipelines.storage.atomic import atomic_directory


def with_change(meta: dict[str, Any], change: Conversion | None) -> dict[str, Any]:
    """Return a provenance with the conversion, if any, and its citations."""
    if change is None:
        return meta
    meta = {**meta, "extinction_band": change.target}
    meta["band_conversions"] = [change.as_dict()]
    if cited := meta.get("citation"):
        works = {"band": change.target, "extinction_curve": change.cited}
        meta["citation"] = {**cited, **works}
    return meta


@dataclass(frozen=True, kw_only=True)
class Products:
    """What is exported of a store, in the user's band; read on first use.

    Writers add ``notes`` for the user, `export` the written ``paths``.
    """

    answers: Stored
    options: ExportOptions
    change: Conversion | None = None
    paths: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def store(self) -> Path:
        """The folder of the map store."""
        run = self.answers.run
        return self.answers.path if run is None else run / STORE

    @property
    def factor(self) -> float:
        """Factor on the store's values."""
        return 1.0 if self.change is None else self.change.factor

    @property
    def is_whole(self) -> bool:
        """True if the store itself is asked for."""
        options = self.options
        cut = options.box or options.sphere or options.spacing
        return not cut and self.change is None

    @cached_property
    def levels(self) -> list[Level]:
        """Densities and samples within the cuts, and columns if there are none."""
        options, cube = self.options, self.answers.cube()
        names = [f"{SAMPLES}_{n}" for n in range(self.answers.sample_count)]
        if self.answers.draws is not None:
            # Samples are cut like all other arrays.
            whole = [
                replace(level, arrays={**level.arrays, **dict(zip(names, drawn.T))})
                for level, drawn in zip(cube.levels, self.answers.draws.read())
            ]
            cube = replace(whole[0], finer=tuple(whole[1:]))
        columns = self.answers.read_columns()
        if options.spacing:
            cube = resampled(cube, options.spacing, options.box)
        if options.box:
            cube = cut_box(cube, **options.box)
        if options.sphere is not None:
            cube = cut_sphere(cube, options.sphere)
        if options.spacing or options.box or options.sphere:
            columns = []
        levels = []
        for number, level in enumerate(cube.levels):
            arrays = {
                name: self.factor * values if field_unit(name, "mag") else values
                for name, values in level.arrays.items()
            }
            samples = [arrays.pop(name) for name in names]
            by_axis = {
                along: replace(
                    one, arrays={n: self.factor * x for n, x in one.arrays.items()}
                )
                for along, one in (columns[number] if columns else {}).items()
            }
            changed = replace(
                level, arrays=arrays, meta=with_change(level.meta, self.change)
            )
            drawn = np.array(samples, dtype=np.float32)
            levels.append(Level(cube=changed, columns=by_axis, samples=drawn))
        return levels

    @property
    def cube(self) -> Cube:
        """The density of all levels."""
        coarsest, *finer = (level.cube for level in self.levels)
        return replace(coarsest, finer=tuple(finer))

    @cached_property
    def curves(self) -> Curves:
        """Extinctions by pixel and distance, as far as the density."""
        assert self.answers.read_curves is not None
        curves, options = self.answers.read_curves(), self.options
        if options.box or options.sphere:
            reach = min(reach_of_cube(self.cube), options.sphere or np.inf)
            curves = curves.out_to(reach)
        arrays = {name: self.factor * x for name, x in curves.arrays.items()}
        return replace(curves, arrays=arrays)

    def sky_maps(self, distances: Any, nside: int | None = None) -> SkyMaps:
        """Return extinctions out to distances [pc], interpolated."""
        maps = self.answers.sky_maps(distances, nside)
        arrays = {n: np.float32(self.factor) * x for n, x in maps.arrays.items()}
        meta = with_change(maps.meta, self.change)
        return replace(maps, arrays=arrays, meta=meta)

    def note_outside(self, path: Path, maps: SkyMaps) -> None:
        """Note the part of the sky outside the maps, if any."""
        if parts := sky_outside(maps.mean, maps.distances):
            self.notes.append(f"{path.name}: outside the map is {', '.join(parts)}")


def export(
    source: Path,
    targets: Targets,
    options: ExportOptions | None = None,
    *,
    overwrite: bool = False,
) -> Products:
    """Write products of a run or its map store to paths, by names in `EXPORTERS`.

    Without any path the default products are written beside the store.

    Raises `InputError` before any product is made, if this is no run or store, an
    output exists, or an option is invalid.
    """
    options = options or ExportOptions()
    answers = open_answers(source)
    if not isinstance(answers, Stored) or not (source.is_dir() and answers.rays):
        raise InputError(f"{source} is no run and no map store: export one of these")
    folder = answers.run or answers.path.parent
    if not targets:
        usual = {name: exporter.usual for name, exporter in EXPORTERS.items()}
        targets = {name: [folder / file] for name, file in usual.items() if file}
    options.check(targets, overwrite=overwrite)
    bands = answers.band, options.band, options.declare_band
    by = {name: getattr(options, name) for name in ("curve", "r_v", "at_av")}
    change = wanted_conversion(*bands, **by)
    products = Products(answers=answers, options=options, change=change)
    if targets.get("healpix") or targets.get("image"):
        answers.checked_distances(options.distances, options.nside)
    assert answers.cells is not None
    finest = min(answers.cells.grids.grids[-1].spacing)
    if options.spacing is not None and options.spacing < finest * (1 - 1e-9):
        raise InputError(
            f"--spacing {options.spacing:g} is finer than the map's cells of "
            f"{finest:g} pc"
        )
    for path in targets.get("zarr", ()):
        if path.resolve() == products.store.resolve():
            raise InputError(f"{path} is the map itself: choose another output")
    for name in EXPORTERS:
        for path in targets.get(name, ()):
            doing(path.name)
            _WRITERS[name](products, path, overwrite=overwrite)
            products.paths.append(path)
    return products


def resampled(
    cube: Cube, spacing: float, within: Mapping[str, Ends] | None = None
) -> Cube:
    """Return a cube interpolated at points ``spacing`` [pc] apart.

    They count from the box's lower corner, restricted to the ranges ``within`` of x, y
    and z. Raises `InputError` if this leaves fewer than two points along an axis.
    """
    axes = []
    for name in AXES:
        centres = getattr(cube, name)
        low, high = float(centres[0]), float(centres[-1])
        count = math.floor((high - low) / spacing + 1e-9) + 1
        axis = low + spacing * np.arange(count)
        first, last = (within or {}).get(name, (low, high))
        axes.append(axis[(axis >= first - 1e-9) & (axis <= last + 1e-9)])
        if len(axes[-1]) < 2:
            raise InputError(
                f"--spacing {spacing:g} leaves {len(axes[-1])} points along {name} "
                f"between {max(low, first):g} and {min(high, last):g} pc, expected 2 "
                "or more"
            )
    x, y, z = axes
    empty = Cube(x=x, y=y, z=z, arrays={}, unit=cube.unit, meta=cube.meta)
    points = empty.points
    arrays = {
        name: cube.sample(name, points).astype(np.float32) for name in cube.arrays
    }
    return replace(empty, arrays=arrays)


def _zarr(products: Products, path: Path, *, overwrite: bool) -> None:
    """Write a store: a copy, or a part of it in another band."""
    if products.is_whole:
        with atomic_directory(path, overwrite=overwrite) as folder:
            shutil.copytree(products.store, folder, dirs_exist_ok=True)
        return
    levels = products.levels
    samples = [level.samples for level in levels if len(level.samples)]
    columns = [level.columns for level in levels if level.columns]
    more = {"columns": columns, "samples": samples, "overwrite": overwrite}
    write_zarr(path, products.cube, products.curves, **more)


def _fits(products: Products, path: Path, *, overwrite: bool) -> None:
    """Write the density, and the mean of the integrated extinction."""
    write_fits(path, products.cube, products.curves, overwrite=overwrite)


def _healpix(products: Products, path: Path, *, overwrite: bool) -> None:
    """Write integrated extinction at a few distances."""
    options = products.options
    maps = products.sky_maps(options.distances, options.nside)
    order = options.ordering or ORDERINGS[0]
    write_healpix(path, maps, ordering=order, overwrite=overwrite)
    products.note_outside(path, maps)


def _image(products: Products, path: Path, *, overwrite: bool) -> None:
    """Write integrated extinction on the pixels of a WCS."""
    answers, options = products.answers, products.options
    assert isinstance(answers.rays, PixelRays)
    side, view = math.degrees(nside2resol(answers.rays.nside)), options.field or Field()
    pixel = max(0.5, side) if view.pixel is None else view.pixel
    if view.header is None and pixel < side * (1 - 1e-6):
        raise InputError(
            f"--pixel {pixel:g} is finer than the map's pixels of {side:.3g} deg"
        )
    wcs = replace(view, pixel=pixel).wcs()
    chosen = options.distances
    if chosen is None:
        # The farthest of the usual distances with nine tenths of the image in the box.
        row, column = np.indices(wcs.array_shape)
        sky = wcs.pixel_to_world(column, row).galactic
        some = np.isfinite(sky.l.deg)
        l, b = sky.l.deg[some], sky.b.deg[some]  # noqa: E741
        towards = Places(l=l, b=b, distance=np.full(len(l), np.inf), shape=l.shape)
        usual, ends = even_distances(answers.box), answers.reach(towards)
        held = (ends[:, None] >= usual * (1 - 1e-6)).mean(axis=0) >= 0.9
        chosen = (usual[held] if held.any() else usual[:1])[-1:]
        products.notes.append(f"{path.name}: to {chosen[0]:g} pc (--distances chooses)")
    maps = products.sky_maps(chosen)
    write_images(path, maps, wcs, overwrite=overwrite)
    if side > (shown := pixel_side(wcs)) * (1 + 1e-6):
        products.notes.append(
            f"{path.name}: its pixels of {shown:.2g} deg are interpolated between rays "
            f"{side:.2g} deg apart"
        )
    products.note_outside(path, maps)


_WRITERS = {"zarr": _zarr, "fits": _fits, "healpix": _healpix, "image": _image}
