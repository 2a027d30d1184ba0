#!/usr/bin/env python3
"""Draw the density of a map on spheres around the Sun.

MAP is a run, a zarr store or a FITS cube; `dustmap plot --kind sky` draws extinctions.
Grey is outside the map; where it is pale and hatched no star looks, and the map is the
prior.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from pipelines.base.errors import InputError
from pipelines.cli.reporting import LENGTH
from pipelines.figures.cuts import SHOWS, density_panels
from pipelines.figures.sky import sky_panels
from pipelines.figures.style import save_figure
from pipelines.maps.opening import open_answers

_PATH = click.Path(path_type=Path)


@click.command(help=__doc__)
@click.argument("source", metavar="MAP", type=_PATH)
@click.option("--distance", "distances", required=True, multiple=True, type=LENGTH,
              metavar="PC", help="How far from the Sun [pc]; repeat it for a strip of "
              "panels.")  # fmt: skip
@click.option("--show", "shows", multiple=True, type=click.Choice(list(SHOWS)),
              default=["value"],
              help="What is drawn of it; may be repeated.")  # fmt: skip
@click.option("--sample", default=0, help="Number of the posterior sample to show.")
@click.option("--nside", default=64, type=click.IntRange(min=1, max=4096),
              help="HEALPix "
              "resolution of what is not interpolated between cells, a power of two "
              "(64).")  # fmt: skip
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
    shows: tuple[str, ...] = ("value",),
    sample: int = 0,
    nside: int = 64,
    dpi: float = 300.0,
    output: Path | None = None,
) -> Path:
    """Draw the slices and return where they are."""
    if nside & (nside - 1):
        raise InputError(f"--nside must be a power of two, got {nside}")
    if not min(distances) > 0:
        raise InputError("--distance is positive")
    source = open_answers(path)
    panels = density_panels(source, distances, shows, sample=sample, nside=nside)
    columns = len(shows) if len(shows) > 1 else min(len(panels), 3)
    figure = sky_panels(panels, columns=columns)
    ends = "-".join(f"{d:g}" for d in distances)
    place = output or Path(f"{path.resolve().stem}_density_{ends}pc.png")
    save_figure(figure, place, dpi=dpi)
    return place


if __name__ == "__main__":
    main()
