"""Verbs of a fit: fit, config, status."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipelines.base.errors import InputError
from pipelines.cli.reporting import OUT, OVERWRITE, REQUIRE, check_verdict, reporting

if TYPE_CHECKING:
    from pipelines.config import FitConfig
    from pipelines.fit.quick import QuickReport


@click.command()
@click.argument("tables", type=OUT, nargs=-1, required=True, metavar="STARS")
@click.option("-o", "--output", required=True, type=OUT, help="Run folder to make.")
@click.option("-c", "--config", type=OUT, help="TOML configuration.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override one key, e.g. --set box.spacing=50. Repeatable.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on where a fit into RUN stopped; begin if there is none.",
)
@click.option(
    "--resume-anyway",
    "anyway",
    is_flag=True,
    help="Resume even if the configuration, catalogue or version has changed.",
)
@click.option(
    "--quick",
    "is_quick",
    is_flag=True,
    help="No map: held-out stars from their neighbours alone, into RUN.quick.json.",
)
@REQUIRE
@OVERWRITE
@reporting
def fit(
    tables: tuple[Path, ...],
    output: Path,
    config: Path | None,
    overrides: tuple[str, ...],
    is_quick: bool,
    require: str | None,
    **options: bool,
) -> None:
    """Fit a map to STARS. Without a configuration everything is chosen and printed.

    `dustmap config` prints every key with its default. A fit saves itself every few
    minutes and on SIGTERM, SIGUSR1 and Ctrl-C, with which it ends with status 75:
    the same command with --resume goes on. With --quick no map is made: the figures
    of held-out stars that any map has to beat, in seconds.
    """
    from pipelines.base.allocation import keep_freed_memory
    from pipelines.config import FitConfig, load_config
    from pipelines.fit import fit as run
    from pipelines.fit.launch import processes

    if len(tables) > 1:
        named = " ".join(map(str, tables))
        raise InputError(
            f"a fit takes one table of stars: join these first, by `dustmap ingest "
            f"{named} -o all.parquet`, which converts them to one band and counts "
            "objects that are in both"
        )
    stars = next(iter(tables))
    settings = load_config(FitConfig, config, overrides)
    if is_quick:
        click.echo(str(_quick(stars, output, settings, require=require, **options)))
        return
    keep_freed_memory()
    with processes() as group:
        report = run(stars, output, settings, group=group, **options)
        if not group.first:
            return
    click.echo(str(report))
    check_verdict(report.verdict, require)


def _quick(
    stars: Path, output: Path, settings: FitConfig, *, overwrite: bool, **refused: Any
) -> QuickReport:
    """Refuses what only a fit of a map can do."""
    from pipelines.fit.quick import quick

    if any(refused.values()):
        raise InputError("--quick makes no map: leave out --resume and --require")
    return quick(stars, output, settings, overwrite=overwrite)


@click.command(name="config")
@click.option("--simulate", "simulation", is_flag=True, help="Of simulate instead.")
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
    """How far the fit into RUN is: under way, finished, stopped or dead."""
    import json

    from pipelines.run.status import describe, status_of

    found = status_of(run)
    click.echo(json.dumps(found, indent=1) if as_json else describe(found))
