"""Write the posterior samples of a run as a zarr v3 store of labelled arrays.

=====================  ============  ==============================================
``log_density``        sample z y x  ln of the density in mag/pc, of a positive one,
or ``density``                       or the density [mag/pc]: rounded to ``step``
``central_…``          z y x         the same of the posterior mean (or mode) of ε
``support``            z y x         sight-line length per cell of the map [cells]
``residual``           byte          what neighbouring stars share, as safetensors
=====================  ============  ==============================================

A map with finer grids has these arrays in groups ``level_0``, ``level_1``, …, the
coarsest first, and the residual beside them. Rounded float32 have zeros for their last
bits, which blosc (zstd) packs away.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from torch import Tensor
from zarr.codecs import BloscCodec

from dustmap.functionals import PointValues
from pipelines.base.errors import InputError
from pipelines.formats.zarr_arrays import (
    RESIDUAL,
    SAMPLES,
    consolidate,
    level_groups,
    write_array,
)
from pipelines.maps.cube import AXES, FRAME, field_title
from pipelines.products.provenance import provenance
from pipelines.run.folder import Run
from pipelines.run.residual import residual_bytes
from pipelines.samples.fields import StoredFields
from pipelines.storage.atomic import atomic_directory, write_manifest

VERSION = 2
TOLERANCE = 1e-3
# Beyond this the rounding would show in the posterior's own standard deviation.
_FINEST, _COARSEST = 1e-6, 0.1
_CHUNK = 128
_COMPRESSION = BloscCodec(cname="zstd", clevel=9, shuffle="bitshuffle")
_ABOUT = {
    "log_density": ("ln(mag pc-1)", "natural logarithm of the extinction density"),
    "density": ("mag pc-1", "extinction density"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesReport:
    """What was written; ``before`` is the size of the run's tensors [bytes]."""

    output: Path
    samples: int
    size: int
    before: int
    step: float
    name: str

    def __str__(self) -> str:
        return (
            f"{self.samples} samples and the mean in {self.size / 1e6:.3g} MB, "
            f"{self.before / self.size:.3g} times less than the "
            f"{self.before / 1e6:.3g} MB of the run; {self.name} is rounded to "
            f"multiples of {self.step:.3g} {_ABOUT[self.name][0]}\n"
            f"samples: {self.output}"
        )


def write_samples(
    run: Run, output: Path, *, tolerance: float = TOLERANCE, overwrite: bool = False
) -> SamplesReport:
    """Write an archive of the samples, usable without the run.

    Parameters
    ----------
    tolerance
        Rms error of rounding, in the prior's standard deviation of the field; the
        worst is √3 times that.

    Raises
    ------
    InputError
        If the run has no samples, ``output`` exists, or the tolerance is out of range.
    """
    if not _FINEST <= tolerance <= _COARSEST:
        raise InputError(
            f"a tolerance lies between {_FINEST:g} and {_COARSEST:g} of the prior's "
            f"standard deviation, got {tolerance:g}"
        )
    posterior = run.posterior
    # A power of two, so that multiples of it end in zeros.
    step = 2.0 ** math.floor(math.log2(math.sqrt(12) * tolerance * run.plan.std))
    field = StoredFields(run.plan, posterior.model)
    record = {
        "tolerance": tolerance,
        "step": step,
        "dtype": str(posterior.mean.dtype).removeprefix("torch."),
        "plan": run.plan.as_dict(),
        "summary": run.summary,
        "fit": run.provenance,
    }

    def rounded(eps: Tensor) -> list[np.ndarray]:
        return [np.rint(cube.T / step) * step for cube in field.values(eps)]

    axes = [grid.axes for grid in field.grids]
    place = (output, run, field.name, axes, None, record, overwrite)
    with _store(*place) as (root, groups):
        for number, eps in enumerate(posterior.samples):
            for group, cube in zip(groups, rounded(eps), strict=True):
                group[field.name][number] = cube
        for group, grid, cube, support in zip(
            groups, field.grids, rounded(posterior.mean), run.supports, strict=True
        ):
            _write_central(group, field.name, cube, support.numpy()[grid.cells].T)
        if posterior.residual is not None:
            packed = np.frombuffer(residual_bytes(posterior.residual), np.uint8)
            write_array(
                root,
                RESIDUAL,
                packed,
                dimensions=("byte",),
                attributes={"long_name": "residual of neighbouring stars, safetensors"},
                chunks=packed.shape,
            )
    tensors = (posterior.mean, posterior.samples, *run.supports)
    return SamplesReport(
        output=output,
        samples=len(posterior.samples),
        size=sum(item.stat().st_size for item in output.rglob("*") if item.is_file()),
        before=sum(t.numel() * t.element_size() for t in tensors),
        step=step,
        name=field.name,
    )


def _write_central(
    group: zarr.Group, name: str, cube: np.ndarray, support: np.ndarray
) -> None:
    """The field of the mean or mode, and the support, of one level."""
    units, title = _ABOUT[name]
    about = {"units": units, "long_name": f"{title}, of the mean or mode"}
    crossed = {"units": "1", "long_name": field_title("support")}
    for array, values, attributes in (
        (f"central_{name}", cube.astype(np.float32), about),
        ("support", support, crossed),
    ):
        write_array(group, array, values, dimensions=AXES[::-1], attributes=attributes)


def write_sample_cubes(
    path: Path, run: Run, *, count: int | None = None, overwrite: bool = False
) -> int:
    """Write ``density`` with the dimensions ``sample z y x`` [mag/pc]; how many.

    At the grid points, with the correction by neighbouring stars, but without what
    remains unresolved. ``count`` takes the first so many samples; all by default.

    Raises
    ------
    InputError
        If there are no samples or fewer than ``count``, or ``path`` exists.
    """
    model, samples = run.posterior.model, run.posterior.samples[:count]
    field, grids = StoredFields(run.plan, model), run.plan.grids
    axes = [[grid.axis(d).numpy() for d in range(3)] for grid in grids]
    with _store(path, run, "density", axes, count, {}, overwrite) as (_, groups):
        if run.posterior.residual is not None:
            for group, grid in zip(groups, grids, strict=True):
                found, _ = run.posterior.sampled(PointValues(grid.points()))
                cubes = found[:count].reshape(-1, *grid.shape).numpy()
                group["density"][:] = cubes.transpose(0, 3, 2, 1)
            return len(samples)
        for number, eps in enumerate(samples):
            cubes = zip(groups, field.grids, field.values(eps), strict=True)
            for group, grid, cube in cubes:
                values = cube[grid.at_grid]
                if model.positive:
                    values = np.exp(values)
                group["density"][number] = values.T
    return len(samples)


@contextmanager
def _store(
    path: Path,
    run: Run,
    name: str,
    axes: list[list[np.ndarray]],
    count: int | None,
    record: dict[str, Any],
    overwrite: bool,
) -> Iterator[Any]:
    """A group, and in it one for each level with room for samples ``name``.

    ``axes`` are those of the levels. The store appears when it is whole.
    """
    held = len(run.posterior.samples)
    if not held:
        raise InputError(
            f"{run.path} has no posterior samples: fit with --set inference.samples=32"
        )
    count = held if count is None else count
    if not 1 <= count <= held:
        raise InputError(f"{run.path} holds {held} samples; {count} cannot be written")
    if path.is_dir() and any(path.iterdir()) and not (path / "zarr.json").is_file():
        raise InputError(f"{path} is a folder and no zarr store: choose another path")
    origin, (units, title) = provenance(run), _ABOUT[name]
    attributes: Any = {
        "kind": SAMPLES,
        "version": VERSION,
        "title": "Posterior samples of a three-dimensional map of interstellar dust",
        "unit": units,
        "arrays": [name],
        "frame": FRAME,
        "band": origin["extinction_band"],
        "citation": origin["citation"],
        "provenance": origin,
        **record,
    }
    with atomic_directory(path, overwrite=overwrite) as temporary:
        root = zarr.create_group(store=temporary, zarr_format=3, attributes=attributes)
        about: dict[str, Any] = {"long_name": "posterior sample"}
        numbers = np.arange(count)
        write_array(root, "sample", numbers, dimensions=("sample",), attributes=about)
        groups = level_groups(root, len(axes))
        for group, places in zip(groups, axes, strict=True):
            for axis, values in zip(AXES, places, strict=True):
                about = {"units": "pc", "long_name": FRAME["axes"][axis]}
                write_array(group, axis, values, dimensions=(axis,), attributes=about)
            shape = (count, *(len(values) for values in reversed(places)))
            group.create_array(
                name,
                shape=shape,
                # Of one sample each.
                chunks=(1, *(min(_CHUNK, n) for n in shape[1:])),
                dtype=np.float32,
                dimension_names=("sample", *AXES[::-1]),
                attributes={"units": units, "long_name": title},
                fill_value=np.nan,
                config={"write_empty_chunks": True},
                compressors=_COMPRESSION,
            )
        yield root, groups
        consolidate(temporary)
        write_manifest(temporary)
