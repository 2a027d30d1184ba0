"""The verb of generic regression."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipelines.cli.reporting import OUT, OVERWRITE, REQUIRE, check_verdict, reporting


@click.command()
@click.argument("table", type=OUT)
@click.option("-o", "--output", required=True, type=OUT, help="Run folder to make.")
@click.option("--target", required=True, metavar="COLUMN", help="What to predict.")
@click.option(
    "--inputs", metavar="A,B,...", help="Columns to predict it from; all other numbers."
)
@click.option(
    "--likelihood",
    default="gaussian",
    show_default=True,
    help="gaussian, student-t (outliers) or bernoulli (two classes).",
)
@click.option(
    "--method",
    default="auto",
    show_default=True,
    help="auto, exact, neighbours or svgp (inducing points).",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--test-fraction",
    type=float,
    default=0.2,
    show_default=True,
    help="Share of the rows held out, at random.",
)
@click.option(
    "--split-column", metavar="COLUMN", help="1 for rows to test, 0 to fit, instead."
)
@REQUIRE
@OVERWRITE
@reporting
def regress(
    table: Path, output: Path, inputs: str | None, require: str | None, **settings: Any
) -> None:
    """Predict one column of TABLE from others by a Gaussian process.

    TABLE: CSV (also .gz) or parquet. Method, kernel, scales and noise are chosen and
    printed; RUN gets metrics.json and predictions.parquet of the test rows, plot.png
    and summary.txt.
    """
    from pipelines.regress import regress_table

    names = None
    if inputs is not None:
        names = [name.strip() for name in inputs.split(",") if name.strip()]
    report = regress_table(table, output, inputs=names, **settings)
    click.echo(str(report))
    check_verdict(report.verdict, require)
