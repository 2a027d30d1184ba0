"""Verbs that make and read catalogues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipelines.cli.reporting import (
    CONFIG,
    NEW,
    ONE_BAND,
    OUT,
    OVERWRITE,
    SETTINGS,
    output,
    reporting,
)


@click.command()
@output("Parquet table to make.")
@click.option("--truth", type=NEW, help="Also write the true density as zarr.")
@click.option("--stars", type=int, help="Number of stars.")
@click.option("--seed", type=int, help="Seed of every random draw.")
@CONFIG
@SETTINGS
@OVERWRITE
@reporting
def simulate(
    output: Path,
    truth: Path | None,
    config: Path | None,
    overrides: tuple[str, ...],
    overwrite: bool,
    **flags: int | None,
) -> None:
    """Make a mock galaxy: dust, stars, realistic errors; the truth is kept.

    `dustmap config --simulate` prints every key with its default.
    """
    from pipelines.config import SimulateConfig, load_config
    from pipelines.simulate import check_outputs
    from pipelines.simulate import simulate as run

    given = [f"{name}={value}" for name, value in flags.items() if value is not None]
    settings = load_config(SimulateConfig, config, [*overrides, *given])
    check_outputs(output, truth, overwrite=overwrite)
    made = run(settings)
    made.write(output, truth=truth, overwrite=overwrite)
    click.echo(f"{made}\nstars in {output}")
    if truth is not None:
        click.echo(f"true density in {truth}")


class _NamingPresets(click.Command):
    """A command whose help ends with the surveys that have a preset."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from pipelines.catalog.presets import list_presets, load_preset

        with formatter.section("Presets"):
            formatter.write_dl([(n, load_preset(n).title) for n in list_presets()])


@click.command(cls=_NamingPresets)
@click.argument("sources", nargs=-1, required=True, type=OUT, metavar="SRC...")
@output("Table to make: NAME.parquet, or a folder of partitions, sorted over the sky.")
@click.option("--preset", help="Survey preset, by name (see below) or as TOML.")
@click.option(
    "--map",
    "mappings",
    multiple=True,
    metavar="CANONICAL=COLUMN[:UNIT]",
    help="Source of a canonical column, e.g. distance=dist_pc:pc, "
    "extinction=3.1*ebv:mag or parallax=plx+0.03:mas; a number is a constant. "
    "Quote names that are no words: 'extinction=3.1*`my ebv`:mag'. Repeatable.",
)
@click.option("--save-preset", type=NEW, help="Save what was mapped, for --preset.")
@click.option("--where", metavar="EXPR", help="Keep rows that fulfil, e.g. 'snr > 20'.")
@click.option("--keep", multiple=True, metavar="COLUMN", help="Carry a column along.")
@click.option(
    "--max-bad",
    type=click.FloatRange(0, 1),
    default=0.5,
    help="Largest share of faulty rows.",
)
@ONE_BAND(help="A_V, A_G, ...  [default: that of the first SRC]")
@click.option("--declare-band", help="State the band where no preset nor SRC does.")
@click.option(
    "--repeats",
    type=click.Choice(["keep", "first"]),
    default="keep",
    help="Of objects of one source_id in several SRC keep all, or that of the first "
    "SRC. Of repeats within one SRC the most precise is kept.",
)
@click.option("--any-range", is_flag=True, help="Accept medians of unusual size.")
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, help="Threads that sort."
)
@OVERWRITE
@reporting
def ingest(sources: tuple[Path, ...], output: Path, **options: Any) -> None:
    """Read catalogues into the table that fit and predict take.

    SRC: a text table (CSV, TSV, ECSV, MRT, IPAC), FITS, VOTable, parquet or HDF5
    file, packed or not, or a folder of such files; FILE[TABLE] names one of several.

    \b
    Canonical columns: l b [deg] (or ra dec, or x y z [pc]), distance [pc] (or
    parallax [mas], or distance_modulus [mag]), extinction and extinction_error
    [mag]; optional source_id, distance_error, parallax_error,
    distance_modulus_error, *_lower / *_upper bounds, and *_error_lower /
    *_error_upper offsets.
    Units are never guessed: give them in the file, a preset or --map.
    """
    from pipelines.base.progress import Progress
    from pipelines.catalog.ingest import ingest as run

    with Progress(description="ingest", unit="rows") as progress:
        report = run(list(sources), output, progress=progress.update, **options)
    click.echo(str(report))
