"""The verb that writes the map of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipelines.base.errors import InputError
from pipelines.base.quantities import degrees, parsecs
from pipelines.cli.reporting import (
    ANGLE,
    LENGTH,
    OUT,
    OVERWRITE,
    band_options,
    fill_of,
    fill_options,
    reporting,
)
from pipelines.export.registry import EXPORTERS, usual_targets

if TYPE_CHECKING:
    from pipelines.formats.images import Field


def _products(command: Any) -> Any:
    """An option for every product that can be written."""
    for name, exporter in reversed(EXPORTERS.items()):
        option = click.option(f"--{name}", type=OUT, multiple=True, help=exporter.help)
        command = option(command)
    return command


@click.command()
@click.argument("run", type=OUT)
@_products
@click.option(
    "--distances",
    metavar="PC,PC,...",
    help="Distances of HEALPix maps and images [pc].  [default of images: the farthest "
    "round one that the box holds on 90% of it]",
)
@click.option("--shell-edges", metavar="PC,PC,...", help="Edges of the shells [pc].")
@click.option("--nside", type=int, help="Resolution of all that is on HEALPix pixels.")
@click.option(
    "--ordering",
    type=click.Choice(["nested", "ring"]),
    help="Of the pixels in HEALPix files; nested unless given.",
)
@click.option("--projection", help="Of images: CAR, ZEA, TAN, AIT, ...  [default: CAR]")
@click.option("--center", metavar="L,B", help="Of images.  [default: 0,0]")
@click.option(
    "--field",
    metavar="W,H",
    help="Size of images [deg].  [default: the whole sky, or 20,20]",
)
@click.option("--pixel", type=ANGLE, help="Side of their pixels [deg].  [default: 0.5]")
@click.option("--header", type=OUT, help="FITS file or cards that give all four.")
@fill_options
@band_options
@click.option(
    "--box",
    metavar="x=LO:HI,y=...",
    help="Only the density in this box [pc]; extinction of the zarr only as far as the "
    "box's farthest corner.",
)
@click.option(
    "--sphere",
    type=LENGTH,
    metavar="PC",
    help="Only what is within this distance: density, and extinction of the zarr.",
)
@click.option(
    "--spacing",
    type=LENGTH,
    metavar="PC",
    help="Cells of the density this far apart, finer than the grid's or coarser.",
)
@click.option(
    "--samples",
    type=int,
    metavar="N",
    help="Posterior samples of the density that the zarr store holds.",
)
@OVERWRITE
@reporting
def export(run: Path, overwrite: bool, **chosen: Any) -> None:
    """Write the map of RUN: density and integrated extinction, with whom to cite.

    Without a choice of outputs they are written into RUN: map.zarr, map.fits and
    map.healpix.fits.
    """
    from pipelines.export.exporters import export_run
    from pipelines.export.options import ExportOptions, parse_box

    outputs = {name: chosen.pop(name) for name in EXPORTERS}
    targets = {name: paths for name, paths in outputs.items() if paths}
    for name in ("distances", "shell_edges"):
        chosen[name] = _numbers(name, chosen[name])
    chosen["box"] = {} if chosen["box"] is None else parse_box(chosen["box"])
    chosen["field"] = _field(chosen)
    chosen["fill"], chosen["fill_beyond"] = fill_of(chosen)
    options = ExportOptions(**chosen)
    done = export_run(run, targets or usual_targets(run), options, overwrite=overwrite)
    if done.change is not None:
        click.echo(done.change.summary(), err=True)
    for note in done.notes:
        click.echo(f"note: {note}", err=True)
    for path in done.paths:
        click.echo(str(path))


def _field(chosen: dict[str, Any]) -> Field | None:
    """The part of the sky that images show, if it is given."""
    from pipelines.formats.images import Field

    names = {"center": "centre", "field": "size", "projection": "projection"}
    names |= {"pixel": "pixel", "header": "header"}
    given = {new: chosen.pop(old) for old, new in names.items()}
    given = {name: value for name, value in given.items() if value is not None}
    for name in {"centre", "size"} & set(given):
        given[name] = _pair(given[name])
    if "header" in given and len(given) > 1:
        raise InputError(
            "--header gives projection, center, field and pixels: drop these"
        )
    return Field(**given) if given else None


def _pair(text: str) -> tuple[float, float]:
    try:
        first, second = (degrees(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"expected two angles in degrees such as 120,-5, got {text!r}"
        ) from None
    return first, second


def _numbers(name: str, text: str | None) -> list[float] | None:
    try:
        return None if text is None else [parsecs(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"--{name.replace('_', '-')} takes numbers in pc separated by commas, got "
            f"{text!r}"
        ) from None
