"""The verb that draws a run."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli.reporting import OUT, reporting


@click.command()
@click.argument("run", type=OUT)
@click.option("-o", "--output", required=True, type=OUT, help="Folder for figures.")
@click.option("--nside", type=int, help="Resolution of the sky maps.")
@reporting
def plot(run: Path, output: Path, nside: int | None) -> None:
    """Draw the map of RUN: face-on, edge-on, sky, lines of sight, convergence."""
    from pipelines.figures.all import plot_run

    for path in plot_run(run, output, nside=nside):
        click.echo(str(path))
