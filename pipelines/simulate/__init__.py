"""A mock galaxy: a catalogue of stars and the density that they look through."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dustmap import __version__
from pipelines.base.errors import InputError
from pipelines.catalog.schema import Stars, write_stars
from pipelines.config import SimulateConfig
from pipelines.formats.zarr import write_zarr
from pipelines.maps.cube import Cube
from pipelines.maps.truth import truth_extinction
from pipelines.simulate.catalogue import Losses, draw_sample, measure
from pipelines.simulate.galaxy import Galaxy, make_galaxy

__all__ = ["SimulationReport", "mock", "simulate"]

_UNITS = {
    "extinction_true": "mag",
    "density_true": "mag pc-1",
    "distance_true": "pc",
    "magnitude": "mag",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReport:
    """What was made.

    ``shape`` and ``spacing`` [pc] of the truth along x, y, z; ``plane_extinction`` is
    the 16, 50, 84 and 100% quantile of A_V [mag] in the plane b = 0 out to
    ``plane_distance`` [pc].
    """

    output: Path
    truth: Path | None
    stars: int
    losses: Losses
    shape: tuple[int, int, int]
    spacing: tuple[float, float, float]
    plane_distance: float
    plane_extinction: tuple[float, float, float, float]
    median_distance: float
    median_extinction: float
    median_error: float
    outliers: int

    def __str__(self) -> str:
        low, middle, high, most = self.plane_extinction
        lost = self.losses
        lines = [
            f"{self.stars} stars in {self.output}: median distance "
            f"{self.median_distance:.0f} pc, A_V {self.median_extinction:.2f} mag, "
            f"error {self.median_error:.3f} mag, {self.outliers} outliers",
            f"not seen of {lost.drawn} drawn: {lost.too_faint} too faint, "
            f"{lost.poor_parallax} with a poor parallax, {lost.dimmed} behind dust; "
            f"{lost.surplus} seen but not wanted",
            f"dust on {' x '.join(map(str, self.shape))} points every "
            f"{' x '.join(f'{step:.3g}' for step in self.spacing)} pc; A_V in the "
            f"plane to {self.plane_distance:.0f} pc: {middle:.2f} mag "
            f"({low:.2f} to {high:.2f} for 68%, at most {most:.2f})",
        ]
        if self.truth is not None:
            lines.append(f"true density in {self.truth}")
        return "\n".join(lines)


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
    stars = Stars(**columns, extra=extra, units=_UNITS, meta=_provenance(config))
    return stars, galaxy, losses


def simulate(
    config: SimulateConfig, output: Path, *, truth: Path | None, overwrite: bool
) -> SimulationReport:
    """Write a mock catalogue, and the true density if wanted.

    Parameters
    ----------
    config
        The galaxy, the stars and their errors.
    output
        The catalogue (parquet): the canonical columns, ``extinction_true`` [mag],
        ``density_true`` [mag/pc] at the true position, ``distance_true`` [pc],
        ``magnitude`` [mag] and ``outlier``; ``distance_error`` [pc] where the parallax
        has an error.
    truth
        Where the density goes (zarr), if anywhere.
    overwrite
        Whether existing outputs may be replaced.

    Raises
    ------
    InputError
        If an output exists or cannot be written, or no star can be seen.
    """
    _refuse_occupied(output, truth, overwrite=overwrite)
    stars, galaxy, losses = mock(config)
    if truth is not None:
        write_zarr(truth, _documented(galaxy, stars.meta), overwrite=overwrite)
    write_stars(output, stars, overwrite=overwrite)
    return _report(config, output, truth, stars, galaxy.cube, losses)


def _provenance(config: SimulateConfig) -> dict[str, Any]:
    return {
        "program": "dustmap simulate",
        "version": __version__,
        "configuration": config.model_dump(mode="json"),
        "extinction_band": "A_V",
    }


def _documented(galaxy: Galaxy, meta: dict[str, Any]) -> Cube:
    cube = galaxy.cube
    structures = {
        "clouds": [cloud.describe() for cloud in galaxy.clouds],
        "cavities": [cavity.describe() for cavity in galaxy.cavities],
    }
    return Cube(
        x=cube.x, y=cube.y, z=cube.z, arrays=cube.arrays, meta={**meta, **structures}
    )


def _refuse_occupied(output: Path, truth: Path | None, *, overwrite: bool) -> None:
    """Refuse before the work what the writers would refuse after it."""
    if truth is not None and truth.resolve() == output.resolve():
        raise InputError(f"{output} is named both for the stars and for the truth")
    for path in (output, truth):
        if path is None:
            continue
        if path.exists() and not overwrite:
            raise InputError(
                f"{path} exists: choose another output or pass --overwrite"
            )
        if not path.parent.is_dir():
            raise InputError(f"{path.parent} is not a folder: make it first ({path})")


def _report(
    config: SimulateConfig,
    output: Path,
    truth: Path | None,
    stars: Stars,
    cube: Cube,
    losses: Losses,
) -> SimulationReport:
    reach = min(1000.0, config.truth.half_x, config.truth.half_y)
    longitudes = np.arange(0.0, 360.0, 2.0)
    plane = truth_extinction(cube, longitudes, np.zeros(180), np.full(180, reach))
    low, middle, high, most = np.quantile(plane, (0.16, 0.5, 0.84, 1))
    density = cube.arrays["density"]
    return SimulationReport(
        output=output,
        truth=truth,
        stars=len(stars),
        losses=losses,
        shape=(density.shape[2], density.shape[1], density.shape[0]),
        spacing=cube.spacing,
        plane_distance=reach,
        plane_extinction=(float(low), float(middle), float(high), float(most)),
        median_distance=float(np.median(stars.extra["distance_true"])),
        median_extinction=float(np.median(stars.extra["extinction_true"])),
        median_error=float(np.median(np.asarray(stars.extinction_error))),
        outliers=int(stars.extra["outlier"].sum()),
    )
