"""The verb that asks a run at the rows of a table."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli.reporting import OUT, OVERWRITE, reporting


@click.command()
@click.argument("run", type=OUT)
@click.argument("stars", type=OUT)
@click.option("-o", "--output", required=True, type=OUT, help="Parquet table to make.")
@OVERWRITE
@reporting
def predict(run: Path, stars: Path, output: Path, overwrite: bool) -> None:
    """Extinction and density, with std, at the place of every row of STARS.

    One row per row of the input, in its order; stars outside the map get NaN and
    inside = false.
    """
    from pipelines.run.predict import predict as predict_

    _, rows, inside = predict_(run, stars, output, overwrite=overwrite)
    click.echo(f"{rows} rows, {inside} inside the map, in {output}")
