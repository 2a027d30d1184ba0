"""The verb that tells a run as one page."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli.reporting import OUT, OVERWRITE, reporting


@click.command()
@click.argument("run", type=OUT)
@click.option("-o", "--output", required=True, type=OUT, help="HTML file to write.")
@click.option(
    "--3d/--no-3d",
    "three_d",
    default=True,
    help="The interactive view of the density, which takes about 5 MB.",
)
@click.option("--nside", type=int, help="Resolution of the sky maps.")
@OVERWRITE
@reporting
def report(
    run: Path,
    output: Path,
    three_d: bool,
    nside: int | None,
    overwrite: bool,
) -> None:
    """Write a report of RUN: one HTML file that opens anywhere, without a network.

    A verdict with all warnings, maps, a 3-D view, lines of sight, limits; and folded:
    how held-out stars are predicted, what was mapped, convergence, provenance.
    """
    from pipelines.report import write_report

    written = write_report(
        run,
        output,
        three_d=three_d,
        nside=nside,
        overwrite=overwrite,
    )
    click.echo(str(written))
