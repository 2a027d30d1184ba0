"""A run exported to every format asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.bands import Conversion, convert, converted
from pipelines.export.choices import Choices, Targets
from pipelines.export.citation import write_citation
from pipelines.export.cube import Cube, SkyMaps
from pipelines.export.fits import write_fits
from pipelines.export.healpix import write_healpix
from pipelines.export.integrated import Integrated
from pipelines.export.shells import write_shells
from pipelines.export.zarr import write_zarr
from pipelines.products import (
    default_distances,
    integrated,
    map_cube,
    provenance,
)
from pipelines.products.cuts import cut_box, cut_distance, cut_sphere, reach_of_cube
from pipelines.products.reach import checked_distances, checked_nside
from pipelines.products.shells import checked_edges, shell_maps
from pipelines.run import Run, read_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written, in which band, and what it was converted by."""

    paths: list[Path]
    band: str
    change: Conversion | None


def export_run(
    run: Path,
    targets: Targets,
    choices: Choices | None = None,
    *,
    overwrite: bool = False,
) -> Exported:
    """Write the products whose path is given.

    Raises
    ------
    InputError
        If the run is incomplete, an output exists or a choice makes no sense, before
        anything is computed.
    """
    choices = Choices() if choices is None else choices
    choices.check(targets)
    fitted = read_run(run)
    targets.check(overwrite=overwrite)
    _check_reach(fitted, choices)
    meta = provenance(fitted)
    change = choices.change(meta)
    if change is not None:
        meta = converted(meta, change)
    if targets.zarr is not None or targets.fits is not None:
        _write_cube(fitted, targets, choices, change, overwrite=overwrite)
    if targets.healpix is not None:
        _write_sky(fitted, targets.healpix, choices, change, meta, overwrite=overwrite)
    if targets.shells is not None:
        edges = _array(choices.shell_edges)
        shells = shell_maps(fitted, edges=edges, nside=choices.nside)
        shells = shells if change is None else convert(shells, change)
        write_shells(targets.shells, shells, overwrite=overwrite)
    for path in targets.citations:
        write_citation(path, meta["citation"], overwrite=overwrite)
    return Exported(paths=targets.paths, band=meta["extinction_band"], change=change)


def _check_reach(run: Run, choices: Choices) -> None:
    if choices.nside is not None:
        checked_nside(choices.nside)
    if choices.distances is not None:
        checked_distances(run, np.asarray(choices.distances))
    if choices.shell_edges is not None:
        checked_edges(run, np.asarray(choices.shell_edges))


def _write_cube(
    run: Run,
    targets: Targets,
    choices: Choices,
    change: Conversion | None,
    *,
    overwrite: bool,
) -> None:
    """The density, and with zarr the integrated extinction."""
    cube, reach = _cut(map_cube(run), choices)
    cube = cube if change is None else convert(cube, change)
    if targets.fits is not None:
        write_fits(targets.fits, cube, overwrite=overwrite)
    if targets.zarr is not None:
        found = _integrated(run, choices, change)
        if reach is not None:
            found = cut_distance(found, reach)
        write_zarr(targets.zarr, cube, found, overwrite=overwrite)


def _cut(cube: Cube, choices: Choices) -> tuple[Cube, float | None]:
    """The part that is wanted, and how far it reaches [pc] if it was cut."""
    if not choices.box and choices.sphere is None:
        return cube, None
    noted: dict[str, Any] = {}
    if choices.box:
        cube = cut_box(cube, **choices.box)
        noted |= cube.meta["cut"]
    if choices.sphere is not None:
        cube = cut_sphere(cube, choices.sphere)
        noted |= cube.meta["cut"]
    cube = replace(cube, meta={**cube.meta, "cut": noted})
    reach = reach_of_cube(cube)
    return cube, reach if choices.sphere is None else min(reach, choices.sphere)


def _write_sky(
    run: Run,
    path: Path,
    choices: Choices,
    change: Conversion | None,
    meta: dict[str, Any],
    *,
    overwrite: bool,
) -> None:
    """Integrated extinction at a few distances, with quantiles where there are any."""
    distances = _array(choices.distances)
    distances = default_distances(run) if distances is None else distances
    found = _integrated(run, choices, change, distances)
    write_healpix(path, SkyMaps.of(found, meta), overwrite=overwrite)


def _integrated(
    run: Run,
    choices: Choices,
    change: Conversion | None,
    distances: np.ndarray | None = None,
) -> Integrated:
    found = integrated(run, nside=choices.nside, distances=distances)
    return found if change is None else convert(found, change)


def _array(numbers: Any) -> np.ndarray | None:
    return None if numbers is None else np.asarray(numbers, dtype=np.float64)
