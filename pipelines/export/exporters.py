"""Export of a run's map to files of every format."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pipelines.bands import Conversion, wanted_conversion
from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.progress import doing
from pipelines.base.quantiles import KINDS
from pipelines.cubes.cube import (
    Cube,
    cut_box,
    cut_distance,
    cut_sphere,
    field_unit,
    reach_of_cube,
)
from pipelines.cubes.sky import Columns, SkyMaps, sky_outside
from pipelines.export.options import EXPORTERS, ExportOptions, Targets
from pipelines.formats.fits import write_fits
from pipelines.formats.healpix import ORDERINGS, write_healpix
from pipelines.formats.images import Field, Source, pixel_side, write_images
from pipelines.formats.zarr import write_zarr
from pipelines.maps import sky
from pipelines.maps.answers import Answers
from pipelines.maps.density import (
    density_samples,
    map_and_columns,
    map_cube,
    usual_ends,
)
from pipelines.maps.integrals import integrals_along, stack_of
from pipelines.maps.places import Places
from pipelines.maps.provenance import provenance
from pipelines.maps.stored import of_cube, of_sky_maps
from pipelines.run.folder import Run, read_run
from pipelines.run.held_out import read_held_out
from pipelines.run.verdict import verdict

Product = TypeVar("Product", Cube, SkyMaps)
Converted = TypeVar("Converted", Cube, SkyMaps, Columns)


def in_band(product: Converted, change: Conversion | None) -> Converted:
    """Return a product in another band, with the change in its provenance.

    The provenance of `Columns` is that of their cube.
    """
    if change is None:
        return product
    if isinstance(product, Cube) and product.finer:
        return product.each(lambda level: in_band(level, change))
    arrays = {
        name: values * change.factor if field_unit(name, "mag") else values
        for name, values in product.arrays.items()
    }
    if isinstance(product, Columns):
        return replace(product, arrays=arrays)
    return replace(product, arrays=arrays, meta=with_change(product.meta, change))


def with_change(meta: dict[str, Any], change: Conversion) -> dict[str, Any]:
    """Return a provenance with the conversion, and its citations."""
    meta = {**meta, "extinction_band": change.target}
    meta["band_conversions"] = [change.as_dict()]
    if cited := meta.get("citation"):
        works = {"band": change.target, "extinction_curve": change.cited}
        meta["citation"] = {**cited, **works}
    return meta


@dataclass(frozen=True, kw_only=True)
class RunProducts:
    """The arrays of a run's products, in the user's band; computed on first use.

    ``names`` are the requested products, ``change`` is that of the band. Writers add
    ``notes`` for the user, `export_run` the written ``paths``.
    """

    names: frozenset[str]
    run: Run
    options: ExportOptions
    change: Conversion | None = None
    paths: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @cached_property
    def density(self) -> tuple[Cube, list[Columns]]:
        """The density within the cuts, and columns through the box if there are none.

        The provenance states the cuts.
        """
        options, columns = self.options, {}
        if options.spacing or options.box or options.sphere:
            cut = {"spacing": options.spacing, "within": options.box}
            cube = map_cube(self.run, **cut)
            if options.box:
                cube = cut_box(cube, **options.box)
            if options.sphere is not None:
                cube = cut_sphere(cube, options.sphere)
        else:
            cube, columns = map_and_columns(self.run, usual_ends(self.run))
        shown = [in_band(one, self.change) for one in columns.values()]
        return in_band(cube, self.change), shown

    @property
    def factor(self) -> float:
        """Factor on the run's values."""
        return 1.0 if self.change is None else self.change.factor

    def integrals(
        self, directions: np.ndarray, edges: np.ndarray
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the run's integrals ``(e, n)``, and which estimate of them it is."""
        stack, estimate = stack_of(self.run, self.options.estimate)
        found, regression = integrals_along(self.run, directions, edges, stack)
        found = {name: self.factor * values for name, values in found.items()}
        return found, {"estimate": estimate, **regression}

    def judged(self, product: Product, answers: Answers) -> Product:
        """Return a product with the verdict on it in its provenance.

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
            predicted |= {kind: found[kind] / self.factor for kind in known}
            law = None if run.posterior.residual is None else run.posterior.residual.law
            found = held.by(predicted, law)
            score = found.score(positive=run.plan.is_lognormal)
        said = {"verdict": str(verdict(run.summary["converged"], score))}
        return replace(product, meta={**product.meta, **said})

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
        return in_band(sky.integrated(self.run, distances=every, **how), self.change)

    def write_sky(
        self, path: Path, maps: SkyMaps, options: ExportOptions, *, overwrite: bool
    ) -> None:
        """Write maps on HEALPix pixels."""
        order = options.ordering or ORDERINGS[0]
        write_healpix(path, maps, ordering=order, overwrite=overwrite)
        self.note_outside(path, maps.mean, maps.distances)

    def note_outside(self, path: Path, maps: np.ndarray, distances: np.ndarray) -> None:
        """Note the part of the sky outside the maps ``(e, n)``, if any."""
        if parts := sky_outside(maps, distances):
            self.notes.append(f"{path.name}: outside the map is {', '.join(parts)}")


def export_run(
    run: Path,
    targets: Targets,
    options: ExportOptions | None = None,
    *,
    overwrite: bool = False,
) -> RunProducts:
    """Write products to paths by their names in `EXPORTERS`.

    Without any path the default products are written into the run's folder.

    Raises `InputError` before any computation, if the run is incomplete, an output
    exists, or an option is invalid.
    """
    options = options or ExportOptions()
    if not targets:
        usual = {name: exporter.usual for name, exporter in EXPORTERS.items()}
        targets = {name: [run / file] for name, file in usual.items() if file}
    fitted = read_run(run)
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
    stated = str(provenance(fitted)["extinction_band"])
    bands = stated, options.band, options.declare_band
    by = {name: getattr(options, name) for name in ("curve", "r_v", "at_av")}
    change = wanted_conversion(*bands, **by)
    names = frozenset(name for name, paths in targets.items() if paths)
    products = RunProducts(names=names, run=fitted, options=options, change=change)
    for name in EXPORTERS:
        for path in targets.get(name, ()):
            doing(path.name)
            _WRITERS[name](products, path, overwrite=overwrite)
            products.paths.append(path)
    return products


def _zarr(products: RunProducts, path: Path, *, overwrite: bool) -> None:
    """Write the density and the integrated extinction."""
    cube, columns = products.density
    found = products.curves()
    samples, count = [], products.options.samples
    if count is not None:
        scale = np.float32(products.factor)
        drawn = (density_samples(products.run, each, count) for each in cube.levels)
        samples = [scale * values for values in drawn]
    cube = products.judged(cube, of_cube(path, cube, found))
    more = {"columns": columns, "samples": samples}
    write_zarr(path, cube, found, **more, overwrite=overwrite)


def _fits(products: RunProducts, path: Path, *, overwrite: bool) -> None:
    """Write the density, and the mean of the integrated extinction."""
    cube, curves = products.density[0], products.curves()
    curves = replace(curves, arrays={"mean": curves.mean})
    cube = products.judged(cube, of_cube(path, cube, curves))
    write_fits(path, cube, curves, overwrite=overwrite)


def _healpix(products: RunProducts, path: Path, *, overwrite: bool) -> None:
    """Write integrated extinction at a few distances."""
    maps = products.integrated("healpix")
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
        chosen = (usual[held] if held.any() else usual[:1])[-1:]
        products.notes.append(f"{path.name}: to {chosen[0]:g} pc (--distances chooses)")
    edges = np.asarray(chosen, dtype=np.float64)
    found, estimate = products.integrals(vectors, edges)
    meta = provenance(run)
    if products.change is not None:
        meta = with_change(meta, products.change)
    meta = {**meta, **estimate}
    write_images(path, found, edges, wcs, source, meta, overwrite=overwrite)
    if source.side > (side := pixel_side(wcs)):
        products.notes.append(
            f"{path.name}: its pixels of {side:.2g} deg are interpolated between rays "
            f"{source.side:.2g} deg apart"
        )
    products.note_outside(path, found["mean"], edges)


_WRITERS = {"zarr": _zarr, "fits": _fits, "healpix": _healpix, "image": _image}
