#!/usr/bin/env python3
"""Draw sky slices of a map.

MAP is a run, a zarr store, a FITS cube or HEALPix maps. Of a run or a cube the density
on the sphere at each --distance is drawn, of HEALPix maps the extinction out to it,
unless --quantity says otherwise; beside an extinction stands its standard deviation
where MAP has it. With --from it is what lies between two distances. Grey is outside
the map; where it is pale and hatched no star looks, and the map is the prior.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from pipelines.base.errors import InputError
from pipelines.cli.reporting import LENGTH
from pipelines.figures.cuts import (
    QUANTITIES,
    SHOWS,
    Cut,
    compared_panels,
    cut_panels,
)
from pipelines.figures.sky import (
    MOLLWEIDE,
    UNSEEN,
    Projection,
    gnomonic,
    orthographic,
    sky_panels,
)
from pipelines.figures.style import save_figure
from pipelines.maps.opening import open_answers

_PATH = click.Path(path_type=Path)


@click.command(help=__doc__)
@click.argument("source", metavar="MAP", type=_PATH)
@click.option("--distance", "distances", required=True, multiple=True, type=LENGTH,
              metavar="PC", help="How far from the Sun [pc]; repeat it for a strip of "
              "panels.")  # fmt: skip
@click.option("--from", "near", default=0.0, type=LENGTH,
              metavar="PC", help="Begin there, not at the Sun: extinction between the "
              "two, or mean density.")  # fmt: skip
@click.option("--quantity", type=click.Choice(QUANTITIES), help="What is drawn.")
@click.option("--show", "shows", multiple=True, type=click.Choice(SHOWS),
              help="Of it; may be repeated. Default: value, and the std of an "
              "extinction where known.")  # fmt: skip
@click.option("--sample", default=0, help="Number of the posterior sample to show.")
@click.option("--projection", "kind", default="mollweide",
              type=click.Choice(("mollweide", "orthographic", "gnomonic")))  # fmt: skip
@click.option("--centre", default="0,0", metavar="L,B",
              help="Of the other projections, Galactic [deg].")  # fmt: skip
@click.option("--field", default=30.0, help="Width of a gnomonic field [deg].")
@click.option("--compare", "other", type=_PATH, help="Another map, and the difference.")
@click.option("--factor", type=float, help="Multiplies the other map's values, to "
              "bring them to the band of MAP; known bands are converted.")  # fmt: skip
@click.option("--log", is_flag=True, help="Logarithmic colours.")
@click.option("--band", help="Convert to this band.")
@click.option("--declare-band", help="State the map's band if it is not known.")
@click.option("--nside", default=64, type=click.IntRange(min=1, max=4096),
              help="HEALPix "
              "resolution of what is not interpolated between cells, a power of two "
              "(64).")  # fmt: skip
@click.option("--width", default=180.0, type=click.FloatRange(min=80, max=400),
              help="Of the page [mm].")  # fmt: skip
@click.option("--dpi", default=300.0, type=click.FloatRange(min=30, max=2400))
@click.option("-o", "--output", type=_PATH,
              help="PNG, PDF or SVG to write (replaced if it exists); by default a PNG "
              "named after MAP and the distance, in the current folder.")  # fmt: skip
def main(source: Path, **options: Any) -> None:
    """Turn the library's errors into one line and an exit status."""
    try:
        written = draw(source, **options)
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        click.echo(f"failed: {error}", err=True)
        sys.exit(1)
    click.echo(f"wrote {written}")


def draw(
    path: Path,
    *,
    distances: tuple[float, ...],
    quantity: str | None = None,
    near: float = 0.0,
    shows: tuple[str, ...] = (),
    sample: int = 0,
    nside: int = 64,
    kind: str = "mollweide",
    centre: str = "0,0",
    field: float = 30.0,
    other: Path | None = None,
    factor: float | None = None,
    log: bool = False,
    band: str | None = None,
    declare_band: str | None = None,
    width: float = 180.0,
    dpi: float = 300.0,
    output: Path | None = None,
) -> Path:
    """Draw the slices and return where they are."""
    if nside & (nside - 1):
        raise InputError(f"--nside must be a power of two, got {nside}")
    if not (min(distances) > 0 and near >= 0):
        raise InputError("--distance is positive, and --from not negative")
    projection = projection_of(kind, centre, field)
    source = open_answers(path).in_band(band, declare_band)
    if quantity is None:
        only_sky = source.fit is None and not source.kinds(integrated=False)
        quantity = "extinction" if only_sky else "density"
    cut = Cut(
        quantity=quantity,
        distance=distances[0],
        near=near,
        sample=sample,
        nside=nside,
    )
    if other is None:
        panels, columns = cut_panels(source, cut, distances, shows)
    else:
        second = open_answers(other).converted(None, factor or 1.0)
        second, scale = second.beside(source, convert=factor is None)
        panels, columns = compared_panels(source, second, cut, distances, scale)
    if len(panels) == len(distances) > 1:
        columns = min(len(panels), 3)
    figure = sky_panels(
        panels,
        projection=projection,
        columns=columns,
        width=width,
        log=log,
        dpi=dpi,
        notes=[UNSEEN] if any(panel.seen is not None for panel in panels) else [],
    )
    ends = "-".join(f"{d:g}" for d in distances)
    place = output or Path(f"{path.resolve().stem}_{quantity}_{ends}pc.png")
    save_figure(figure, place, dpi=dpi)
    return place


def projection_of(kind: str, centre: str, field: float) -> Projection:
    """The projection that was asked for."""
    try:
        l, b = (float(part) for part in centre.split(","))  # noqa: E741
    except ValueError:
        l, b = 0.0, 99.0  # noqa: E741
    if not -90 <= b <= 90:
        raise InputError(
            f"--centre takes Galactic longitude and latitude [deg] as L,B, got "
            f"{centre!r}"
        )
    if kind == "mollweide":
        return MOLLWEIDE
    if kind == "orthographic":
        return orthographic(l, b)
    try:
        return gnomonic(l, b, field)
    except ValueError as error:
        raise InputError(f"--field: {error}") from error


if __name__ == "__main__":
    main()
