"""A mock galaxy: a catalogue of stars and the true density."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dustmap import __version__
from pipelines.base.errors import InputError
from pipelines.base.progress import doing
from pipelines.catalog.schema import Stars, write_stars
from pipelines.config import SimulateConfig, load_config
from pipelines.config.simulation import Galaxy
from pipelines.cubes.cube import Cube
from pipelines.formats.zarr import write_zarr
from pipelines.simulate.dust import make_dust
from pipelines.simulate.stars import Losses, draw_sample, measure
from pipelines.storage.atomic import AnyPath, check_output

__all__ = ["Simulation", "check_outputs", "simulate"]

_UNITS = {
    "extinction_true": "mag",
    "density_true": "mag pc-1",
    "distance_true": "pc",
    "magnitude": "mag",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A mock catalogue, and its true dust.

    ``stars`` have the canonical columns, ``extinction_true`` [mag], ``density_true``
    [mag/pc] at the true position, ``distance_true`` [pc], ``magnitude`` [mag] and
    ``outlier``; ``distance_error`` [pc] if the parallax has an error. ``truth`` is the
    true density [mag/pc], whose ``meta`` lists clouds and cavities; ``losses`` count
    drawn stars, and those missing in the catalogue.
    """

    stars: Stars
    truth: Cube
    losses: Losses

    def write(
        self, output: AnyPath, *, truth: AnyPath | None = None, overwrite: bool = False
    ) -> None:
        """Write the catalogue (parquet), and the true density (zarr) to ``truth``."""
        check_outputs(output, truth, overwrite=overwrite)
        if truth is not None:
            write_zarr(truth, self.truth, overwrite=overwrite)
        write_stars(Path(output), self.stars, overwrite=overwrite)

    def __str__(self) -> str:
        """Summarise stars, losses and the grid."""
        stars, cube = self.stars, self.truth
        median = {name: np.median(stars.extra[name]) for name in _UNITS}
        error = np.median(np.asarray(stars.extinction_error))
        shape = " x ".join(str(len(axis)) for axis in (cube.x, cube.y, cube.z))
        step = " x ".join(f"{step:.3g}" for step in cube.spacing)
        return (
            f"{len(stars)} stars: median distance {median['distance_true']:.0f} pc, "
            f"A_V {median['extinction_true']:.2f} mag, error {error:.3f} mag, "
            f"{stars.extra['outlier'].sum()} outliers\n{self.losses}\n"
            f"dust on {shape} points every {step} pc"
        )


def simulate(config: SimulateConfig, **further: Any) -> Simulation:
    """Make a galaxy and its catalogue, reproducible from the seed.

    The dust, the stars and their measurement have separate random streams, so a larger
    catalogue is drawn in the same galaxy. ``further`` are values of
    `pipelines.config.simulation.Galaxy`.

    Raises `InputError` if hardly any star is visible, or one of ``further`` is unknown
    or out of its range.
    """
    galaxy = load_config(Galaxy, settings=further)
    dust, sample, noise = np.random.default_rng(config.seed).spawn(3)
    doing("the dust")
    cube = make_dust(config, galaxy, dust)
    doing("the stars")
    drawn, losses = draw_sample(config, galaxy, cube, sample)
    columns = measure(config, galaxy, cube, drawn, noise)
    extra = {name: columns.pop(name) for name in (*_UNITS, "outlier")}
    meta = {
        "program": "dustmap simulate",
        "version": __version__,
        "configuration": {**config.model_dump(mode="json"), **galaxy.model_dump()},
        "extinction_band": "A_V",
    }
    return Simulation(
        stars=Stars(**columns, extra=extra, units=_UNITS, meta=meta),
        truth=replace(cube, meta={**meta, **cube.meta}),
        losses=losses,
    )


def check_outputs(output: AnyPath, truth: AnyPath | None, *, overwrite: bool) -> None:
    """Raise an `InputError` if catalogue or truth cannot be written."""
    paths = [Path(path) for path in (output, truth) if path is not None]
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputError(
            f"{output} is named both for the stars and for the truth: name two paths"
        )
    for path in paths:
        check_output(path, overwrite=overwrite)
