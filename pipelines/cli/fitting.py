"""Verbs of runs: fit, status, config, regress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipelines.cli.reporting import (
    CONFIG,
    NAMES,
    OUT,
    OVERWRITE,
    REQUIRE,
    SETTINGS,
    check_verdict,
    output,
    refuse,
    reporting,
)


@click.command()
@click.argument("stars", type=OUT)
@output("Run folder to make.")
@CONFIG
@SETTINGS
@click.option("--resume", is_flag=True, help="Continue a stopped fit into RUN.")
@REQUIRE
@OVERWRITE
@reporting
def fit(
    stars: Path,
    output: Path,
    config: Path | None,
    overrides: tuple[str, ...],
    require: str | None,
    overwrite: bool,
    resume: bool,
) -> None:
    """Fit a map to STARS. Without a configuration all settings are automatic.

    \b
    The keys that are --set most often:
      data.max_distance=2000      stars and box end there [pc]
      box.spacing=25              size of the grid's cells [pc]
      prior.lengthscale=60        size of clouds [pc], instead of learning it
      inference.samples=8         posterior samples: fewer are faster
      budget.memory_gib=16        most memory, which limits the grid

    `dustmap config` prints every key with its default. A fit saves checkpoints every
    few minutes and on SIGTERM, SIGUSR1 and Ctrl-C, after which it ends with status 75:
    the same command with --resume continues.
    """
    from pipelines.base.allocation import keep_freed_memory

    keep_freed_memory()
    from pipelines.config import FitConfig, load_config
    from pipelines.fit import fit as run
    from pipelines.fit.launch import processes

    settings = load_config(FitConfig, config, overrides)
    with processes() as group:
        report = run(
            stars, output, settings, group=group, overwrite=overwrite, resume=resume
        )
        if not group.first:
            return
    click.echo(str(report))
    check_verdict(report.verdict, require)


@click.command(name="config")
@click.option("--simulate", "simulation", is_flag=True, help="That of simulate.")
@reporting
def config_(simulation: bool) -> None:
    """Print the configuration of fit: every key, its meaning and default, as TOML."""
    from pipelines.config import FitConfig, SimulateConfig, describe

    click.echo(describe(SimulateConfig if simulation else FitConfig))


@click.command()
@click.argument("run", type=OUT)
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@reporting
def status(run: Path, as_json: bool) -> None:
    """Show the status of the fit into RUN: under way, finished, stopped or dead.

    What is finished, also a regression, a comparison or a map.zarr, is compared with
    the hashes in its manifest.
    """
    import json

    from pipelines.run.status import describe, status_of

    found = status_of(run)
    click.echo(json.dumps(found, indent=1) if as_json else describe(found))


@click.command()
@click.argument("table", type=OUT)
@output("Run folder to make.")
@click.option("--target", required=True, metavar="COLUMN", help="Column to predict.")
@click.option(
    "--inputs", type=NAMES, help="Input columns.  [default: all other numbers]"
)
@click.option(
    "--likelihood", default="gaussian", help="gaussian, or student-t for outliers."
)
@click.option("--method", default="auto", help="auto, exact, neighbours, grid or svgp.")
@click.option("--whitening", default="cholesky", help="Of svgp: cholesky or ciq.")
@click.option("--noise", metavar="COLUMN", help="Standard deviations of the target.")
@click.option("--seed", default=0)
@click.option(
    "--test-fraction", default=0.2, help="Share of the rows held out, at random."
)
@click.option(
    "--split-column", metavar="COLUMN", help="1 for rows to test, 0 to fit, instead."
)
@REQUIRE
@OVERWRITE
@reporting
def regress(table: Path, output: Path, require: str | None, **settings: Any) -> None:
    """Predict one column of TABLE from others with a Gaussian process.

    TABLE: any format that ingest reads. Method, kernel, scales and noise are automatic
    and printed; RUN holds metrics.json and predictions.parquet of the test rows,
    plot.png and summary.txt.
    """
    from pipelines.regress import regress_table

    if settings["split_column"] is not None:
        refuse(("test_fraction",), "does not go with --split-column")
    report = regress_table(table, output, **settings)
    click.echo(str(report))
    check_verdict(report.verdict, require)
