"""The verb that writes the map of a run."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli.reporting import OUT, OVERWRITE, reporting
from pipelines.errors import InputError


@click.command()
@click.argument("run", type=OUT)
@click.option(
    "--zarr", "zarr_", type=OUT, help="Density and integrated extinction as zarr v3."
)
@click.option("--fits", "fits_", type=OUT, help="Density cube as FITS.")
@click.option("--healpix", "healpix_", type=OUT, help="Integrated extinction, HEALPix.")
@click.option("--shells", "shells_", type=OUT, help="Density in HEALPix shells.")
@click.option(
    "--citation",
    "citations",
    type=OUT,
    multiple=True,
    help="Whom to cite: NAME.cff or NAME.bib; may be repeated.",
)
@click.option(
    "--distances", metavar="PC,PC,...", help="Distances of the HEALPix maps [pc]."
)
@click.option("--shell-edges", metavar="PC,PC,...", help="Edges of the shells [pc].")
@click.option("--nside", type=int, help="Resolution of all that is on HEALPix pixels.")
@click.option("--band", help="Convert to this band: A_G, E(B-V), A(550 nm), ...")
@click.option("--from-band", help="The catalogue's band, where it is not known.")
@click.option("--curve", help="Extinction curve of dust_extinction.  [default: G23]")
@click.option("--r-v", type=float, help="R_V of the curve.  [default: 3.1]")
@click.option(
    "--box",
    metavar="x=LO:HI,y=...",
    help="Only the density in this box [pc]; extinction of the zarr only as far as the "
    "box's farthest corner.",
)
@click.option(
    "--sphere",
    type=float,
    metavar="PC",
    help="Only what is within this distance: density, and extinction of the zarr.",
)
@OVERWRITE
@reporting
def export(
    run: Path,
    zarr_: Path | None,
    fits_: Path | None,
    healpix_: Path | None,
    shells_: Path | None,
    citations: tuple[Path, ...],
    distances: str | None,
    shell_edges: str | None,
    nside: int | None,
    band: str | None,
    from_band: str | None,
    curve: str | None,
    r_v: float | None,
    box: str | None,
    sphere: float | None,
    overwrite: bool,
) -> None:
    """Write the map of RUN: density, integrated extinction, and whom to cite.

    Without a choice of outputs they are written into RUN: map.zarr, map.fits,
    map.healpix.fits, CITATION.cff and CITATION.bib.
    """
    from pipelines.export.all import export_run
    from pipelines.export.choices import Choices, Targets, parse_box

    targets = Targets(
        zarr=zarr_, fits=fits_, healpix=healpix_, shells=shells_, citations=citations
    )
    choices = Choices(
        distances=_numbers("--distances", distances),
        shell_edges=_numbers("--shell-edges", shell_edges),
        nside=nside,
        band=band,
        from_band=from_band,
        curve=curve,
        r_v=r_v,
        box={} if box is None else parse_box(box),
        sphere=sphere,
    )
    done = export_run(
        run,
        targets if targets.paths else Targets.inside(run),
        choices,
        overwrite=overwrite,
    )
    if done.change is not None:
        click.echo(done.change.summary(), err=True)
    for path in done.paths:
        click.echo(str(path))


def _numbers(option: str, text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"{option} takes numbers in pc separated by commas, got {text!r}"
        ) from None
