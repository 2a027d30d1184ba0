"""A small view from above, for a notebook's line about a map."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from dustmap.functionals import PointValues
from pipelines.base.geometry import Box
from pipelines.figures.integrals import density_name, integral
from pipelines.figures.style import SMALL, band_symbol, length_unit
from pipelines.formats.zarr import is_zarr, read_columns
from pipelines.maps.cube import Cube
from pipelines.run.folder import Run

# Pixels of a side at most, and layers that a run's density is added up from.
_PIXELS, _LAYERS = 128, 24
_INCHES, _DPI = 2.8, 100


def thumbnail(
    path: Path, box: Box, band: str, *, run: Run | None = None, cube: Cube | None = None
) -> bytes | None:
    """The extinction through the box from above, as PNG; ``None`` if it takes long.

    A store has it; of a ``run`` it is that of the parameters' mode, of a ``cube`` that
    of its median or mean.
    """
    if run is not None:
        # The published engine would pay a solve for every column.
        image = _of_run(run) if run.plan.is_full_batch else None
    elif cube is not None:
        image = integral(cube, density_name(cube.arrays), "z")
    elif is_zarr(path):
        columns = read_columns(path, verify=False).get("z")
        arrays = {} if columns is None else columns.arrays
        image = arrays.get("p50", arrays.get("mean"))
    else:
        image = None
    return None if image is None else _drawn(image, box, band)


def _of_run(run: Run) -> np.ndarray:
    """Of the mode: one product of the grids, at a few points of every column."""
    (x0, y0, z0), (x1, y1, z1) = run.box.lower, run.box.upper
    longest = max(x1 - x0, y1 - y0)
    across, up = (max(int(_PIXELS * s / longest), 2) for s in (x1 - x0, y1 - y0))
    step = (z1 - z0) / _LAYERS
    x, y = np.linspace(x0, x1, across), np.linspace(y0, y1, up)
    z = z0 + step * (np.arange(_LAYERS) + 0.5)
    mesh = np.stack(np.meshgrid(y, x, z, indexing="ij"), axis=-1)[..., [1, 0, 2]]
    points = PointValues(torch.as_tensor(mesh.reshape(-1, 3)))
    density = run.posterior.model.at(points).apply(run.posterior.mean)
    image = density.to(torch.float64).cpu().numpy().reshape(up, across, _LAYERS)
    return step * image.sum(axis=2)


def _drawn(image: np.ndarray, box: Box, band: str) -> bytes:
    every = tuple(slice(None, None, -(-size // _PIXELS)) for size in image.shape)
    (low, bottom, _), (high, top, _) = box.lower, box.upper
    factor, unit = length_unit(max(map(abs, (low, high, bottom, top))))
    figure = Figure(figsize=(_INCHES, _INCHES), layout="constrained")
    axes = figure.subplots()
    shown = axes.imshow(
        image[every],
        origin="lower",
        extent=(factor * low, factor * high, factor * bottom, factor * top),
        cmap="cividis",
        vmin=0.0,
        vmax=float(np.nanpercentile(image, 99.5)) or None,
    )
    axes.plot(0, 0, "o", ms=3, mfc="white", mec="black", mew=0.5)
    axes.tick_params(labelsize=SMALL)
    axes.set_xlabel(f"x [{unit}]", fontsize=SMALL)
    axes.set_ylabel(f"y [{unit}]", fontsize=SMALL)
    bar = figure.colorbar(shown, ax=axes, orientation="horizontal", aspect=30)
    bar.ax.tick_params(labelsize=SMALL)
    what = band_symbol(band) or "extinction"
    bar.set_label(f"{what} along z [mag]", fontsize=SMALL)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_DPI)
    return stream.getvalue()
