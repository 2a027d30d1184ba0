"""The verb that writes the map of a run."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli.reporting import OUT, OVERWRITE, reporting
from pipelines.errors import InputError


@click.command()
@click.argument("run", type=OUT)
@click.option("--zarr", "zarr_", type=OUT, help="Density cube as zarr v3.")
@click.option("--fits", "fits_", type=OUT, help="Density cube as FITS.")
@click.option("--healpix", "healpix_", type=OUT, help="Cumulative extinction.")
@click.option(
    "--distances", metavar="PC,PC,...", help="Distances of the HEALPix maps [pc]."
)
@click.option("--nside", type=int, help="Resolution of the HEALPix maps.")
@OVERWRITE
@reporting
def export(
    run: Path,
    zarr_: Path | None,
    fits_: Path | None,
    healpix_: Path | None,
    distances: str | None,
    nside: int | None,
    overwrite: bool,
) -> None:
    """Write the map of RUN: density cubes and cumulative-extinction maps.

    Without a choice all three are written into RUN as map.zarr, map.fits and
    map.healpix.fits.
    """
    from pipelines.export.all import export_run

    if zarr_ is None and fits_ is None and healpix_ is None:
        zarr_, fits_ = run / "map.zarr", run / "map.fits"
        healpix_ = run / "map.healpix.fits"
    written = export_run(
        run,
        zarr=zarr_,
        fits=fits_,
        healpix=healpix_,
        distances=_numbers(distances),
        nside=nside,
        overwrite=overwrite,
    )
    for path in written:
        click.echo(str(path))


def _numbers(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"--distances takes numbers in pc separated by commas, got {text!r}"
        ) from None
