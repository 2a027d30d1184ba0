"""Export of a run's map to files of every format."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import dustmap
from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.progress import doing
from pipelines.base.quantiles import KINDS
from pipelines.cubes.cube import Cube, cut_box, cut_distance, cut_sphere, reach_of_cube
from pipelines.cubes.sky import Columns, SkyMaps, sky_outside
from pipelines.export.options import EXPORTERS, ExportOptions, Targets
from pipelines.formats.fits import write_fits
from pipelines.formats.healpix import ORDERINGS, write_healpix
from pipelines.formats.images import Field, Source, pixel_side, write_images
from pipelines.formats.zarr import write_zarr
from pipelines.maps import sky
from pipelines.maps.answers import NOTHING, Answers
from pipelines.maps.continued import Continued, filled_cube
from pipelines.maps.converted import with_change
from pipelines.maps.density import (
    density_samples,
    map_and_columns,
    map_cube,
    usual_ends,
)
from pipelines.maps.integrals import integrals_along, stack_of
from pipelines.maps.places import Places
from pipelines.maps.provenance import provenance
from pipelines.maps.run_map import RunMap
from pipelines.maps.stored import of_cube, of_sky_maps
from pipelines.run.folder import Run, fit_of, read_run
from pipelines.run.held_out import read_held_out
from pipelines.run.verdict import verdict
from pipelines.saving.workspace import Workspace, claimed, unfinished

Product = TypeVar("Product", Cube, SkyMaps)


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A ``map`` in the user's band, the written ``paths``, ``notes`` for the user."""

    map: Answers
    paths: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def write_sky(
        self, path: Path, maps: SkyMaps, options: ExportOptions, *, overwrite: bool
    ) -> None:
        """Write maps on HEALPix pixels."""
        order = options.ordering or ORDERINGS[0]
        write_healpix(path, maps, ordering=order, overwrite=overwrite)
        self.note_outside(path, maps.mean, maps.distances)

    def write_image(
        self,
        path: Path,
        values: dict[str, np.ndarray],
        distances: np.ndarray,
        wcs: Any,
        source: Source,
        meta: dict[str, Any],
        *,
        overwrite: bool,
    ) -> None:
        """Write an image of the values ``(e, n)`` of its source's pixels."""
        write_images(path, values, distances, wcs, source, meta, overwrite=overwrite)
        if source.side > (side := pixel_side(wcs)):
            self.notes.append(
                f"{path.name}: its pixels of {side:.2g} deg are interpolated between "
                f"rays {source.side:.2g} deg apart"
            )
        self.note_outside(path, values["mean"], distances)

    def note_outside(self, path: Path, maps: np.ndarray, distances: np.ndarray) -> None:
        """Note the part of the sky outside the maps ``(e, n)``, if any."""
        if parts := sky_outside(maps, distances):
            self.notes.append(f"{path.name}: outside the map is {', '.join(parts)}")


@dataclass(frozen=True, kw_only=True)
class RunProducts(Exported):
    """The arrays of a run's products, in the user's band; computed on first use.

    ``names`` are the requested products. Writers add ``notes`` for the user,
    `export_run` the written ``paths``. ``work`` keeps parts of the density.
    """

    names: frozenset[str]
    run: Run
    options: ExportOptions
    work: Workspace | None = None

    @property
    def others(self) -> dict[str, Any]:
        """Origins of the filling map, if another program's, as ``maps``."""
        fill = self.options.fill
        origins = [] if fill is None else fill.origins()
        return {"maps": origins} if origins else {}

    @cached_property
    def density(self) -> tuple[Cube, list[Columns]]:
        """The density within the cuts, and columns through the box if there are none.

        The provenance states the cuts.
        """
        options, columns = self.options, {}
        if options.spacing or options.box or options.sphere:
            cut = {"spacing": options.spacing, "within": options.box}
            cube = map_cube(self.run, **cut, work=self.work)
            if options.box:
                cube = cut_box(cube, **options.box)
            if options.sphere is not None:
                cube = cut_sphere(cube, options.sphere)
        else:
            cube, columns = map_and_columns(self.run, usual_ends(self.run))
        shown = [self.map.convert(one) for one in columns.values()]
        return self.map.convert(cube), shown

    @cached_property
    def _continued(self) -> Continued:
        """The run, continued by the filling map."""
        other = self.options.fill
        assert other is not None
        for change in self.map.changes:
            # Of an unknown band it is in the run's.
            other = other if other.known_band else other.converted(change)
        return Continued.of(self.map, other, self.options.fill_beyond)

    @property
    def filled_cube(self) -> Cube:
        """The density, with holes filled from another map, if any."""
        cube = self.density[0]
        if self.options.fill is None:
            return cube
        return filled_cube(cube, self._continued.other)

    def filled(
        self, directions: np.ndarray, edges: np.ndarray, arrays: dict[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        """Return integrals ``(e, n)``, continued by the filling map, and origins."""
        if self.options.fill is None:
            return arrays, None
        whole = self._continued
        ends = np.maximum(whole.ends(Places.of_points(directions)), NOTHING)
        near, _ = self.integrals(directions, ends[None])
        return whole.rays(directions, edges, arrays, near)

    def integrals(
        self, directions: np.ndarray, edges: np.ndarray
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the run's integrals ``(e, n)``, and which estimate of them it is."""
        stack, estimate = stack_of(self.run, self.options.estimate)
        found, regression = integrals_along(self.run, directions, edges, stack)
        found = {name: self.map.factor * values for name, values in found.items()}
        return found, {"estimate": estimate, **regression}

    def judged(self, product: Product, answers: Answers) -> Product:
        """Return a product with the verdict on it, and `others`, in its provenance.

        The verdict judges the fit by the held-out stars within the product, with the
        product's own predictions, ``answers``, in the run's band.
        """
        run, held = self.run, read_held_out(self.run.path)
        known = [kind for kind in KINDS if kind in answers.kinds(integrated=True)]
        score = {}
        if held is not None and known:
            places = Places.along(unit_vectors(held.l, held.b), held.distance[:, None])
            found = answers.moments(places, known, integrated=True)
            predicted = dict.fromkeys(KINDS, np.full(len(held), np.nan))
            predicted |= {kind: found[kind] / self.map.factor for kind in known}
            law = None if run.posterior.residual is None else run.posterior.residual.law
            found = held.by(predicted, law)
            score = found.score(positive=run.plan.is_lognormal)
        said = {"verdict": str(verdict(run.summary["converged"], score))}
        return replace(product, meta={**product.meta, **said, **self.others})

    def curves(self) -> SkyMaps:
        """Return extinctions by pixel at every grid step, as far as the density."""
        options, found = self.options, self.integrated("curves")
        if options.box or options.sphere:
            reach = min(reach_of_cube(self.density[0]), options.sphere or np.inf)
            found = cut_distance(found, reach)
        return found

    def integrated(self, name: str) -> SkyMaps:
        """Return extinctions by pixel at the product's distances."""
        return self._rays.out_to(self._distances[name])

    @cached_property
    def _distances(self) -> dict[str, np.ndarray]:
        """Distances [pc] by product: every grid step for a store, few for sky maps."""
        chosen, found = self.options.distances, {}
        if self.names & {"zarr", "fits"}:
            found["curves"] = sky.ray_distances(self.run)
        if "healpix" in self.names:
            usual = sky.default_distances(self.run) if chosen is None else chosen
            found["healpix"] = np.asarray(usual, dtype=np.float64)
        return found

    @cached_property
    def _rays(self) -> SkyMaps:
        """Extinctions at the distances of all products, from one pass over the sky."""
        every = np.unique(np.concatenate(list(self._distances.values())))
        nside = self.options.nside
        if nside is None and "curves" not in self._distances:
            # Between few distances pixels are not interpolated.
            nside = sky.default_nside(self.run)
        how = {"nside": nside, "estimate": self.options.estimate}
        return self.map.convert(sky.integrated(self.run, distances=every, **how))


def export_run(
    run: Path,
    targets: Targets,
    options: ExportOptions | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
) -> RunProducts:
    """Write products to paths by their names in `EXPORTERS`.

    Without any path the default products are written into the run's folder. The density
    on cells of a given spacing, which may be hundreds of millions, is kept beside its
    first product until all are complete: ``resume`` goes on from it.

    Raises `InputError` before any computation, if the run is incomplete, an output
    exists, an option is invalid, or cells were kept and ``resume`` is false or they
    belong to another command.
    """
    options = options or ExportOptions()
    if not targets:
        usual = {name: exporter.usual for name, exporter in EXPORTERS.items()}
        targets = {name: [run / file] for name, file in usual.items() if file}
    fitted = read_run(run)
    cubes = (path for name in ("zarr", "fits") for path in targets.get(name, ()))
    first = next(cubes, None) if options.spacing else None
    # An interrupted export may replace what it has written.
    overwrite |= resume and first is not None and unfinished(first) is not None
    options.check(targets, overwrite=overwrite)
    stack_of(fitted, options.estimate)
    if options.nside is not None:
        sky.checked_nside(options.nside)
    if options.distances is not None:
        sky.checked_distances(fitted, options.distances)
    held = len(fitted.posterior.samples)
    if options.samples is not None and not 1 <= options.samples <= held:
        raise InputError(
            f"{run} holds {held} posterior samples, got --samples {options.samples}: "
            "choose at most the former"
        )
    by = {"curve": options.curve, "r_v": options.r_v}
    own = RunMap.of(fitted).in_band(options.band, options.declare_band, **by)
    names = frozenset(name for name, paths in targets.items() if paths)
    how = {"overwrite": overwrite, "resume": resume}
    with nullcontext() if first is None else claimed(first, **how) as work:
        if work is not None:
            asked = {name: list(map(str, paths)) for name, paths in targets.items()}
            asked |= {"run": fit_of(run), "version": dustmap.__version__}
            asked |= {"spacing": options.spacing, "box": str(options.box)}
            work.require(asked)
        given = {"names": names, "run": fitted, "options": options, "work": work}
        products = RunProducts(map=own, **given)
        for name, exporter in EXPORTERS.items():
            for path in targets.get(name, ()):
                doing(path.name)
                _WRITERS[name](products, path, overwrite=overwrite)
                products.paths.append(path)
                if options.fill is not None and "fill" not in exporter.options:
                    products.notes.append(
                        f"{path.name} holds the map alone: not filled"
                    )
    return products


def _zarr(products: RunProducts, path: Path, *, overwrite: bool) -> None:
    """Write the density and the integrated extinction."""
    cube, columns = products.density
    found = products.curves()
    samples, count = [], products.options.samples
    if count is not None:
        scale = np.float32(products.map.factor)
        drawn = (density_samples(products.run, each, count) for each in cube.levels)
        samples = [scale * values for values in drawn]
    cube = products.judged(cube, of_cube(path, cube, found))
    more = {"columns": columns, "samples": samples}
    write_zarr(path, cube, found, **more, overwrite=overwrite)


def _fits(products: RunProducts, path: Path, *, overwrite: bool) -> None:
    """Write the density, and the mean of the integrated extinction."""
    cube, curves = products.filled_cube, None
    # The curves of a filled cube are integrals through it.
    if products.options.fill is None:
        curves = products.curves()
        curves = replace(curves, arrays={"mean": curves.mean})
    cube = products.judged(cube, of_cube(path, cube, curves))
    write_fits(path, cube, curves, overwrite=overwrite)


def _healpix(products: RunProducts, path: Path, *, overwrite: bool) -> None:
    """Write integrated extinction at a few distances."""
    maps = products.integrated("healpix")
    towards = sky.pixel_directions(maps.nside)
    arrays, origin = products.filled(towards, maps.distances, maps.arrays)
    maps = replace(maps, arrays=arrays, filled=origin)
    maps = products.judged(maps, of_sky_maps(path, maps))
    products.write_sky(path, maps, products.options, overwrite=overwrite)


def _image(products: RunProducts, path: Path, *, overwrite: bool) -> None:
    """Write integrated extinction on the pixels of a WCS."""
    run, options = products.run, products.options
    wcs = (options.field or Field()).wcs()
    source = Source.of(wcs)
    vectors = source.directions
    chosen = options.distances
    if chosen is None:
        # The farthest of the usual distances with nine tenths of the image in the box.
        usual, ends = sky.default_distances(run), run.box.exits(vectors)
        held = (ends[:, None] >= usual * (1 - 1e-6)).mean(axis=0) >= 0.9
        # Beyond this map's end, a filling map continues it.
        held |= options.fill is not None
        chosen = (usual[held] if held.any() else usual[:1])[-1:]
        products.notes.append(f"{path.name}: to {chosen[0]:g} pc (--distances chooses)")
    edges = np.asarray(chosen, dtype=np.float64)
    found, estimate = products.integrals(vectors, edges)
    found, origin = products.filled(vectors, edges, found)
    if origin is not None:
        found["filled"] = origin
    meta = provenance(run)
    for change in products.map.changes:
        meta = with_change(meta, change)
    meta = {**meta, **products.others, **estimate}
    products.write_image(path, found, edges, wcs, source, meta, overwrite=overwrite)


_WRITERS = {"zarr": _zarr, "fits": _fits, "healpix": _healpix, "image": _image}
