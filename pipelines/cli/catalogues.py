"""Verbs that make and read catalogues: simulate, ingest, merge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipelines.cli.reporting import OUT, OVERWRITE, reporting


def _print_simulation_keys(context: click.Context, _: Any, wanted: bool) -> None:
    """Answer ``--help-config`` like ``--help``: whatever else is on the line."""
    from pipelines.config import SimulateConfig, describe

    if wanted and not context.resilient_parsing:
        click.echo(describe(SimulateConfig))
        context.exit()


@click.command()
@click.option("-o", "--output", required=True, type=OUT, help="Parquet table to make.")
@click.option("--truth", type=OUT, help="Also write the true density as zarr.")
@click.option("--stars", type=int, help="Number of stars.")
@click.option("--seed", type=int, help="Seed of every random draw.")
@click.option("-c", "--config", type=OUT, help="TOML configuration.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE")
@click.option(
    "--help-config",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_simulation_keys,
    help="Print every key and its default.",
)
@OVERWRITE
@reporting
def simulate(
    output: Path,
    truth: Path | None,
    stars: int | None,
    seed: int | None,
    config: Path | None,
    overrides: tuple[str, ...],
    overwrite: bool,
) -> None:
    """Make a mock galaxy: dust, stars, realistic errors; the truth is kept."""
    from pipelines.config import SimulateConfig, load_config
    from pipelines.simulate import check_outputs
    from pipelines.simulate import simulate as run

    flags = [f"stars={stars}"] if stars is not None else []
    flags += [f"seed={seed}"] if seed is not None else []
    settings = load_config(SimulateConfig, config, [*overrides, *flags])
    check_outputs(output, truth, overwrite=overwrite)
    made = run(settings)
    made.write(output, truth=truth, overwrite=overwrite)
    click.echo(f"{made}\nstars in {output}")
    if truth is not None:
        click.echo(f"true density in {truth}")


class _NamingPresets(click.Command):
    """Its help ends with the surveys that have a preset."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from pipelines.catalog.presets import list_presets, load_preset

        with formatter.section("Presets"):
            formatter.write_dl([(n, load_preset(n).title) for n in list_presets()])


@click.command(cls=_NamingPresets)
@click.argument("sources", nargs=-1, required=True, type=OUT, metavar="SRC...")
@click.option(
    "-o",
    "--output",
    required=True,
    type=OUT,
    help="Table to make: NAME.parquet, or a folder of partitions, sorted over the sky.",
)
@click.option("--preset", help="Survey preset, by name (see below) or as TOML.")
@click.option(
    "--map",
    "mappings",
    multiple=True,
    metavar="CANONICAL=COLUMN[:UNIT]",
    help="Where a canonical column comes from, e.g. distance=dist_pc:pc or "
    "extinction=3.1*ebv:mag; a number stands for a constant. Repeatable.",
)
@click.option(
    "--save-preset",
    type=OUT,
    metavar="TOML",
    help="Save what was mapped, for --preset with other files of this form.",
)
@click.option("--where", metavar="EXPR", help="Keep rows that fulfil, e.g. 'snr > 20'.")
@click.option("--keep", multiple=True, metavar="COLUMN", help="Carry a column along.")
@click.option(
    "--max-bad",
    type=float,
    default=0.5,
    show_default=True,
    metavar="FRACTION",
    help="Refuse the input if more of its rows are faulty.",
)
@click.option(
    "--band",
    metavar="BAND",
    help="Convert extinctions to this band, e.g. A_V, A_G, E(B-V).  [default: that of "
    "the first SRC]",
)
@click.option(
    "--declare-band",
    metavar="BAND",
    help="State the band of extinctions where neither a preset nor SRC does.",
)
@click.option(
    "--repeats",
    type=click.Choice(["keep", "first", "error"]),
    default="keep",
    show_default=True,
    help="What happens to objects of one source_id in several SRC: keep all, keep that "
    "of the first SRC, or refuse them. Repeats within one SRC are faulty.",
)
@click.option(
    "--any-range",
    is_flag=True,
    help="Accept medians of distances, extinctions and their errors that suggest "
    "another unit.",
)
@click.option(
    "--workers",
    type=int,
    default=1,
    show_default=True,
    help="Threads that sort; the result is the same for any number.",
)
@click.option(
    "--merge",
    metavar="NSIDE,WIDTH",
    help="Merge the stars of each HEALPix pixel and distance bin into one (see "
    "`dustmap merge`); needs a folder.",
)
@OVERWRITE
@reporting
def ingest(sources: tuple[Path, ...], output: Path, **options: Any) -> None:
    """Read catalogues into the table that fit and predict take.

    SRC: a CSV, ECSV, FITS, VOTable, parquet or HDF5 file, or a folder of such files.

    \b
    Canonical columns: l b [deg] (or ra dec, or x y z [pc]), distance [pc] (or
    parallax [mas]), extinction, extinction_error [mag]; optional source_id,
    distance_error, parallax_error, and *_lower / *_upper bounds.
    Units are never guessed: give them in the file, a preset or --map.
    """
    from pipelines.base.progress import Progress
    from pipelines.catalog.ingest import ingest as run

    with Progress(description="ingest", unit="rows") as progress:
        report = run(list(sources), output, progress=progress.update, **options)
    click.echo(str(report))


@click.command()
@click.argument("stars", type=OUT)
@click.option("-o", "--output", required=True, type=OUT, help="Folder to make.")
@click.option(
    "--cells",
    required=True,
    metavar="NSIDE,WIDTH",
    help="HEALPix pixels and the width of bins of distance, e.g. 256,25pc.",
)
@click.option("--workers", type=int, default=1, show_default=True, help="Threads.")
@OVERWRITE
@reporting
def merge(stars: Path, output: Path, cells: str, **options: Any) -> None:
    """Merge the STARS of each pixel and distance bin into one pseudo-observation.

    For catalogues with many stars in each voxel of the map: choose cells smaller than
    that. Column `members` has the number of stars; outliers stay by themselves. The
    same as `dustmap ingest STARS --merge NSIDE,WIDTH`.
    """
    from pipelines.base.progress import Progress
    from pipelines.catalog.ingest import ingest as run

    with Progress(description="merge", unit="rows") as progress:
        # Their distances and extinctions were taken once.
        options |= {"merge": cells, "any_range": True, "progress": progress.update}
        report = run([stars], output, **options)
    click.echo(str(report))
