"""Read an archive of samples: what a fit left behind, without its run folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import zarr

from dustmap.posterior import Posterior
from pipelines.base.errors import InputError
from pipelines.formats.zarr_arrays import (
    RESIDUAL,
    is_samples,
    level_name,
    read_array,
)
from pipelines.model.plan import Plan
from pipelines.run.folder import Run, posterior_model
from pipelines.run.residual import residual_from
from pipelines.samples.fields import StoredFields
from pipelines.samples.writing import VERSION
from pipelines.storage.atomic import check_manifest


def check_samples(path: Path) -> str:
    """Compare a store with its manifest; one line on what it is."""
    files = len(check_manifest(path))
    group = zarr.open_group(path, mode="r", zarr_format=3)
    name = str(cast(list[str], group.attrs["arrays"])[0])
    levels = sorted(place for place in group if place.startswith("level_"))
    places = [f"{level}/{name}" for level in levels] or [name]
    shapes = [cast(zarr.Array, group[place]).shape for place in places]
    shape = shapes[0]
    cells = " and ".join(" x ".join(str(n) for n in reversed(s[1:])) for s in shapes)
    return (
        f"{path}: zarr store, {name} of {shape[0]} posterior samples on {cells} cells "
        f"(x y z); {files} files match their SHA-256"
    )


def read_samples(
    path: str | os.PathLike[str], *, device: torch.device | None = None
) -> Run:
    """Read an archive after comparing it with its manifest, as the run it is of.

    Raises
    ------
    InputError
        If it is absent, altered, or holds no more than density cubes.
    """
    source = Path(path)
    if not is_samples(source):
        raise InputError(
            f"{source} is no store of samples: expected one that `dustmap samples RUN "
            "-o STORE` wrote"
        )
    check_manifest(source)
    group = zarr.open_group(source, mode="r", zarr_format=3)
    record: dict[str, Any] = dict(group.attrs)
    if record["version"] != VERSION or "plan" not in record:
        raise InputError(
            f"{source} holds density cubes alone, or samples of another version "
            f"({record['version']}, this program reads {VERSION}): write it again with "
            "`dustmap samples RUN -o STORE`"
        )
    plan = Plan.from_dict(record["plan"])
    model = posterior_model(
        plan,
        dtype=getattr(torch, record["dtype"]),
        device=device or torch.device("cpu"),
        seed=int(record["fit"]["seed"]),
        of_fields=True,
    )
    field, cubes, supports = StoredFields(plan, model), [], []
    for level, grid in enumerate(field.grids):
        place = level_name(level, len(field.grids))
        arrays = cast(zarr.Group, group[place]) if place else group
        central = read_array(arrays, f"central_{field.name}")[None]
        samples = np.concatenate([central, read_array(arrays, field.name)])
        cubes.append(samples.transpose(0, 3, 2, 1))
        support = read_array(arrays, "support").T[grid.at_grid]
        supports.append(torch.from_numpy(support.copy()))
    rows = field.parameters(cubes)
    residual = None
    if RESIDUAL in group:
        residual = residual_from(read_array(group, RESIDUAL).tobytes())
    return Run(
        path=source,
        plan=plan,
        posterior=Posterior(
            model=model, mean=rows[0], samples=rows[1:], residual=residual
        ),
        support=supports[0],
        finer_support=tuple(supports[1:]),
        summary=record["summary"],
        provenance=record["fit"],
    )
