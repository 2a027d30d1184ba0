"""A mock galaxy: a catalogue of stars and the true density."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from dustmap import __version__
from pipelines.base.errors import InputError
from pipelines.catalog.schema import Stars, write_stars
from pipelines.config import SimulateConfig
from pipelines.cubes.cube import Cube, truth_extinction
from pipelines.formats.zarr import write_zarr
from pipelines.simulate.catalogue import Losses, draw_sample, measure
from pipelines.simulate.galaxy import Galaxy, make_galaxy
from pipelines.storage.atomic import check_output

__all__ = ["SimulationReport", "mock", "simulate"]

_UNITS = {
    "extinction_true": "mag",
    "density_true": "mag pc-1",
    "distance_true": "pc",
    "magnitude": "mag",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReport:
    """How many stars are in the catalogue, what was lost, and a summary to print."""

    stars: int
    losses: Losses
    summary: str

    def __str__(self) -> str:
        return self.summary


def mock(config: SimulateConfig) -> tuple[Stars, Galaxy, Losses]:
    """Make a galaxy and its catalogue in memory; the same seed gives the same.

    The dust, the stars and their measurement have random streams of their own: a
    larger catalogue is drawn in the same galaxy.
    """
    dust, sample, noise = np.random.default_rng(config.seed).spawn(3)
    galaxy = make_galaxy(config, dust)
    drawn, losses = draw_sample(config, galaxy.cube, sample)
    columns = measure(config, galaxy.cube, drawn, noise)
    extra = {name: columns.pop(name) for name in (*_UNITS, "outlier")}
    meta = {
        "program": "dustmap simulate",
        "version": __version__,
        "configuration": config.model_dump(mode="json"),
        "extinction_band": "A_V",
    }
    return Stars(**columns, extra=extra, units=_UNITS, meta=meta), galaxy, losses


def simulate(
    config: SimulateConfig, output: Path, *, truth: Path | None, overwrite: bool
) -> SimulationReport:
    """Write a mock catalogue, and the true density if wanted.

    Parameters
    ----------
    output
        The catalogue (parquet): the canonical columns, ``extinction_true`` [mag],
        ``density_true`` [mag/pc] at the true position, ``distance_true`` [pc],
        ``magnitude`` [mag] and ``outlier``; ``distance_error`` [pc] where the parallax
        has an error.
    truth
        Where the density goes (zarr), if anywhere.

    Raises
    ------
    InputError
        If an output exists or cannot be written, or no star can be seen.
    """
    if truth is not None and truth.resolve() == output.resolve():
        raise InputError(f"{output} is named both for the stars and for the truth")
    for path in filter(None, (output, truth)):
        check_output(path, overwrite=overwrite)
    stars, galaxy, losses = mock(config)
    if truth is not None:
        clouds = [asdict(cloud) for cloud in galaxy.clouds]
        cavities = [asdict(cavity) for cavity in galaxy.cavities]
        meta = {**stars.meta, "clouds": clouds, "cavities": cavities}
        write_zarr(truth, replace(galaxy.cube, meta=meta), overwrite=overwrite)
    write_stars(output, stars, overwrite=overwrite)
    lines = [
        _describe_stars(stars, output),
        str(losses),
        _describe_dust(galaxy.cube),
        *([] if truth is None else [f"true density in {truth}"]),
    ]
    return SimulationReport(stars=len(stars), losses=losses, summary="\n".join(lines))


def _describe_stars(stars: Stars, output: Path) -> str:
    return (
        f"{len(stars)} stars in {output}: median distance "
        f"{np.median(stars.extra['distance_true']):.0f} pc, A_V "
        f"{np.median(stars.extra['extinction_true']):.2f} mag, error "
        f"{np.median(np.asarray(stars.extinction_error)):.3f} mag, "
        f"{stars.extra['outlier'].sum()} outliers"
    )


def _describe_dust(cube: Cube) -> str:
    """The grid, and quantiles of A_V in the plane b = 0 out to at most a kiloparsec."""
    reach = min(1000.0, cube.x[-1], cube.y[-1])
    longitudes = np.arange(0.0, 360.0, 2.0)
    plane = truth_extinction(cube, longitudes, np.zeros(180), np.full(180, reach))
    low, middle, high, most = np.quantile(plane, (0.16, 0.5, 0.84, 1))
    shape = " x ".join(str(len(axis)) for axis in (cube.x, cube.y, cube.z))
    return (
        f"dust on {shape} points every "
        f"{' x '.join(f'{step:.3g}' for step in cube.spacing)} pc; A_V in the plane to "
        f"{reach:.0f} pc: {middle:.2f} mag ({low:.2f} to {high:.2f} for 68%, at most "
        f"{most:.2f})"
    )
