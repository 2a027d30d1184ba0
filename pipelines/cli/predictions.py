"""The verb that asks a run at the rows of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipelines.cli.queries import change_of, tell_answers
from pipelines.cli.reporting import (
    OUT,
    OVERWRITE,
    band_options,
    reporting,
    target_options,
)


@click.command()
@click.argument("run", type=OUT)
@click.argument("table", type=OUT)
@target_options
@click.option("--prefix", default="", help="Put before the names of answers.")
@click.option(
    "-o",
    "--output",
    required=True,
    type=OUT,
    help="Table to make: .parquet, .csv, .ecsv, .fits or .vot.",
)
@band_options
@OVERWRITE
@reporting
def predict(
    run: Path,
    table: Path,
    mappings: tuple[str, ...],
    preset: str | None,
    prefix: str,
    output: Path,
    overwrite: bool,
    **bands: Any,
) -> None:
    """Extinction and density, with std and quantiles, at the rows of TABLE.

    Every row is kept, with all of its columns, as by `dustmap query RUN TABLE`.
    """
    from pipelines.maps.opening import open_run
    from pipelines.query.map import of_answers
    from pipelines.query.table import QueryOptions
    from pipelines.query.targets import TargetTable

    dust = of_answers(open_run(run))
    dust = dust.converted(change_of(dust, bands))
    wanted = QueryOptions(prefix=prefix)
    targets = TargetTable(table, mappings, preset=preset)
    tell_answers(dust, targets, wanted, output, overwrite=overwrite)
