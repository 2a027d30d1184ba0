"""All figures of a run in one folder."""

from __future__ import annotations

import json
from pathlib import Path

from pipelines.errors import InputError
from pipelines.export.healpix import read_healpix
from pipelines.export.zarr import read_zarr
from pipelines.figures import (
    edge_on,
    face_on,
    history,
    lines_of_sight,
    save_figure,
    sky,
)
from pipelines.products import lines_of_sight as find_lines
from pipelines.products import map_cube, sky_maps
from pipelines.run import Run, read_run


def plot_run(run: Path, folder: Path, *, nside: int | None = None) -> list[Path]:
    """Face-on, edge-on, sky, lines of sight and convergence as PNG files.

    Exports that lie in the run folder are used; what is missing is computed.
    """
    fitted = read_run(run)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: choose a folder for the figures")
    folder.mkdir(parents=True, exist_ok=True)
    stored = fitted.path / "map.zarr"
    cube = read_zarr(stored) if stored.exists() else map_cube(fitted)
    stored = fitted.path / "map.healpix.fits"
    use_stored = stored.exists() and nside is None
    maps = read_healpix(stored) if use_stored else sky_maps(fitted, nside=nside)
    figures = {
        "face_on": face_on(cube),
        "edge_on": edge_on(cube),
        "sky": sky(maps),
        "lines_of_sight": lines_of_sight(find_lines(fitted)),
    }
    records = _records(fitted)
    if any("seconds" in record for record in records):
        figures["convergence"] = history(records)
    paths = []
    for name, figure in figures.items():
        path = folder / f"{name}.png"
        save_figure(figure, path)
        paths.append(path)
    return paths


def _records(run: Run) -> list[dict]:
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]
