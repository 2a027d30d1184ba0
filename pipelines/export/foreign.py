"""Export of another program's map to the formats of a run's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.base.errors import InputError
from pipelines.cubes.cube import Cube, cut_box, cut_sphere
from pipelines.export.exporters import Exported, export_run
from pipelines.export.options import ExportOptions, Targets
from pipelines.formats.fits import write_fits
from pipelines.formats.images import Field, Source
from pipelines.formats.zarr import write_zarr
from pipelines.maps.answers import Answers
from pipelines.maps.foreign import extinctions_along
from pipelines.maps.opening import PACKAGE, form_of, open_answers
from pipelines.maps.places import Places

_CUBES = {"zarr": write_zarr, "fits": write_fits}


def export_map(
    path: str | Path,
    targets: Targets,
    options: ExportOptions | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    **stated: Any,
) -> Exported:
    """Write products of a run (`export_run`), or of another program's map.

    The latter's carry its origin as ``maps`` in their provenance.

    Raises `InputError` as `export_run` does, or if no product is named, or the map
    lacks what one needs.
    """
    options = options or ExportOptions()
    if not str(path).startswith(PACKAGE) and form_of(Path(path)) != "foreign":
        if stated:
            raise InputError("--unit, --map-of and the like are not for a run")
        how = {"overwrite": overwrite, "resume": resume}
        return export_run(Path(path), targets, options, **how)
    if resume:
        raise InputError("--resume is for a run: no cells of another map are kept")
    if not targets:
        raise InputError(f"name a product of {path}, such as --zarr map.zarr")
    if options.fill is not None:
        raise InputError(
            "--fill continues a run's map in its export: to continue another program's "
            "map, query it with --fill"
        )
    options.check(targets, overwrite=overwrite)
    bands = options.band, options.declare_band
    by = {"curve": options.curve, "r_v": options.r_v}
    found = open_answers(path, **stated).in_band(*bands, **by)
    done = Exported(map=found)
    for name, target in ((n, p) for n, each in targets.items() for p in each):
        done.paths.append(target)
        if name in _CUBES:
            cube, more = _cut(found, options), {}
            if name == "zarr":
                more["samples"] = _samples(found, cube, options.samples)
                if "mean" in found.kinds(integrated=True):
                    far = found.extent * np.arange(1, 81) / 80
                    curves = found.sky_maps(far.tolist(), options.nside)
                    endless = np.full(curves.mean.shape[1], np.inf)
                    more["integrated"] = replace(curves, last_star=endless)
            _CUBES[name](target, cube, **more, overwrite=overwrite)
            continue
        if name == "healpix":
            maps = found.sky_maps(options.distances, options.nside)
            done.write_sky(target, maps, options, overwrite=overwrite)
        elif name == "image":
            wcs = (options.field or Field()).wcs()
            source = Source.of(wcs)
            # The distances and the provenance, of few pixels.
            maps = found.sky_maps(options.distances, nside=1)
            far = maps.distances
            values = extinctions_along(found, source.directions, far)
            of_image = far, wcs, source, maps.meta
            done.write_image(target, values, *of_image, overwrite=overwrite)
        else:
            raise NotImplementedError(f"{name} of another program's map")
    return done


def _cut(found: Answers, options: ExportOptions) -> Cube:
    """Return the density within the cuts."""
    if not (options.spacing or options.box or options.sphere):
        return found.cube()
    cube = found.sampled(options.spacing, options.box)
    if options.box and not options.spacing:
        cube = cut_box(cube, **options.box)
    return cube if options.sphere is None else cut_sphere(cube, options.sphere)


def _samples(found: Answers, cube: Cube, count: int | None) -> list[np.ndarray]:
    """Return the first samples of the density at a cube's points, if asked for."""
    if count is None:
        return []
    drawn = found.samples(Places.of_points(cube.points), integrated=False)
    if not 1 <= count <= drawn.shape[1]:
        raise InputError(
            f"{found.path} holds {drawn.shape[1]} samples, got --samples {count}: "
            "choose at most the former"
        )
    return [drawn.T[:count].reshape(count, *cube.points.shape[:3]).astype("f4")]
