"""Density cubes of posterior samples as one zarr store, written sample by sample."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import zarr

from dustmap.functionals import PointValues
from dustmap.models.base import ForwardModel
from dustmap.models.rowwise import RowwiseGaussian
from pipelines.base.errors import InputError
from pipelines.maps.cube import AXES, FRAME
from pipelines.model.plan import Plan
from pipelines.products.provenance import provenance
from pipelines.redraw.reading import StoredSamples
from pipelines.run.folder import Run
from pipelines.storage.atomic import atomic_directory, check_manifest, write_manifest

KIND = "dustmap samples"
_VERSION, _CHUNK, _ROWS = 1, 64, 1 << 21


def write_sample_cubes(
    path: Path,
    source: StoredSamples | Run,
    *,
    count: int | None = None,
    overwrite: bool = False,
) -> int:
    """Write ``density`` with the dimensions ``sample z y x`` [mag/pc]; how many.

    Of a file of samples one is decoded at a time. At its own points the grid resolves
    the field, so that no sub-grid scatter is added there.

    Parameters
    ----------
    count
        The first so many samples; all by default.

    Raises
    ------
    InputError
        If there are no samples or fewer than ``count``, or ``path`` exists.
    """
    draws, model, held = _opened(source)
    wanted = held if count is None else count
    if not 1 <= wanted <= held:
        raise InputError(
            f"{source.path} holds {held} samples; {wanted} cannot be written"
        )
    if path.is_dir() and any(path.iterdir()) and not (path / "zarr.json").is_file():
        raise InputError(f"{path} is a folder and no zarr store: choose another path")
    with atomic_directory(path, overwrite=overwrite) as temporary:
        group = zarr.create_group(
            store=temporary, zarr_format=3, attributes=_attributes(source)
        )
        array = _laid_out(group, source.plan, wanted)
        for number, eps in zip(range(wanted), draws):
            array[number] = density_cube(source.plan, model, eps)
        # See `pipelines.formats.zarr`: zarr warns that version 3 has not settled this.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Consolidated metadata", UserWarning)
            zarr.consolidate_metadata(temporary, zarr_format=3)
        write_manifest(temporary)
    return wanted


def density_cube(plan: Plan, model: ForwardModel, eps: torch.Tensor) -> np.ndarray:
    """The density of one sample at the grid's points, ``(z, y, x)`` [mag/pc]."""
    points = plan.grid.points()
    if isinstance(model, RowwiseGaussian):
        # At its inducing points the published engine needs no solve.
        values = model.whitening.colour(eps) + model.mean(points)
    else:
        parts = PointValues(points).chunks(_ROWS)
        values = torch.cat([model.at(part).apply(eps) for _, part in parts])
    cube = values.cpu().numpy().reshape(plan.grid.shape).transpose(2, 1, 0)
    return np.ascontiguousarray(cube, dtype=np.float32)


def is_sample_cubes(path: str | os.PathLike[str]) -> bool:
    """Whether a zarr store says that it is one of these."""
    try:
        record = json.loads((Path(path) / "zarr.json").read_text())
        return record["attributes"]["kind"] == KIND
    except (OSError, ValueError, KeyError, TypeError):
        return False


def check_sample_cubes(path: Path) -> str:
    """Compare a store with its manifest; one line on what it is."""
    files = len(check_manifest(path))
    group = zarr.open_group(path, mode="r", zarr_format=3)
    shape = cast(zarr.Array, group["density"]).shape
    cells = " x ".join(str(n) for n in reversed(shape[1:]))
    return (
        f"{path}: zarr store, density of {shape[0]} samples on {cells} cells (x y z); "
        f"{files} files match their SHA-256"
    )


def _opened(
    source: StoredSamples | Run,
) -> tuple[Iterable[torch.Tensor], ForwardModel, int]:
    if isinstance(source, Run):
        samples = source.posterior.samples
        return samples, source.posterior.model, len(samples)
    return source.draws(), source.model, len(source)


def _attributes(source: StoredSamples | Run) -> Any:
    return {
        "kind": KIND,
        "version": _VERSION,
        "title": "Posterior samples of a three-dimensional map of interstellar dust",
        "unit": "mag pc-1",
        "arrays": ["density"],
        "frame": FRAME,
        # Of a run it takes path, plan and provenance, which a file has, too.
        "provenance": provenance(cast(Run, source)),
    }


def _laid_out(group: zarr.Group, plan: Plan, count: int) -> zarr.Array:
    """Coordinates, and the array that the cubes go into: a chunk is of one sample."""
    axes = {name: plan.grid.axis(d).numpy() for d, name in enumerate(AXES)}
    for name, values in axes.items():
        group.create_array(
            name,
            data=values,
            dimension_names=(name,),
            attributes={"units": "pc", "long_name": FRAME["axes"][name]},
        )
    group.create_array("sample", data=np.arange(count), dimension_names=("sample",))
    shape = (count, *reversed(plan.grid.shape))
    return group.create_array(
        "density",
        shape=shape,
        chunks=(1, *(min(_CHUNK, n) for n in shape[1:])),
        dtype=np.float32,
        dimension_names=("sample", "z", "y", "x"),
        attributes={"units": "mag pc-1", "long_name": "extinction density"},
        fill_value=np.nan,
        config={"write_empty_chunks": True},
    )
