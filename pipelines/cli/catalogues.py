"""Verbs for catalogues and for fetching maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipelines.base.errors import InputError
from pipelines.cli.reporting import (
    CONFIG,
    OUT,
    OVERWRITE,
    SETTINGS,
    output,
    reporting,
)

_REGISTRY = "DUSTMAP_REGISTRY"
_WORKERS = click.option("--workers", default=1, help="Threads for sorting.")


@click.command()
@output("Parquet table to make.")
@click.option("--truth", type=OUT, help="Also write the true density as zarr.")
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
    """Make a mock galaxy: dust, stars with realistic errors, and the truth.

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
    """A command whose help ends with the list of presets."""

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
    help="Source of a canonical column, e.g. distance=dist_pc:pc or "
    "extinction=3.1*ebv:mag; a number is a constant. Repeatable.",
)
@click.option("--save-preset", type=OUT, help="Save the mapping, for --preset.")
@click.option("--where", metavar="EXPR", help="Select rows, e.g. 'snr > 20'.")
@click.option("--keep", multiple=True, metavar="COLUMN", help="Keep a further column.")
@click.option("--max-bad", default=0.5, help="Largest share of faulty rows.")
@click.option("--band", help="A_V, A_G, E(B-V), ...  [default: that of the first SRC]")
@click.option("--declare-band", help="Band if neither a preset nor SRC states it.")
@click.option(
    "--repeats",
    type=click.Choice(["keep", "first", "error"]),
    default="keep",
    help="For objects in several SRC by source_id: keep all, keep the first, or refuse "
    "them. Repeats within one SRC are faulty.",
)
@click.option("--any-range", is_flag=True, help="Accept medians of unusual size.")
@_WORKERS
@click.option(
    "--merge",
    metavar="NSIDE,WIDTH",
    help="As `dustmap merge`; needs a folder.",
)
@OVERWRITE
@reporting
def ingest(sources: tuple[Path, ...], output: Path, **options: Any) -> None:
    """Read catalogues into a table of stars for fit and predict.

    SRC: a CSV, ECSV, FITS, VOTable, parquet or HDF5 file, or a folder of such files.

    \b
    Canonical columns: l b [deg] (or ra dec, or x y z [pc]), distance [pc] (or
    parallax [mas]), extinction, extinction_error [mag]; optional source_id,
    distance_error, parallax_error, and *_lower / *_upper bounds.
    Units are never guessed: give them in the file, a preset or --map.
    """
    _ingested(sources, output, "ingest", options)


@click.command()
@click.argument("stars", type=OUT)
@output("Folder to make.")
@click.option(
    "--cells",
    "merge",
    required=True,
    metavar="NSIDE,WIDTH",
    help="HEALPix pixels and the width of distance bins, e.g. 256,25pc.",
)
@_WORKERS
@OVERWRITE
@reporting
def merge(stars: Path, output: Path, **options: Any) -> None:
    """Merge the STARS of each pixel and distance bin into one pseudo-observation.

    For catalogues with many stars in each voxel of the map: choose cells smaller than
    voxels. Column `members` has the number of stars; outliers remain separate. The same
    as `dustmap ingest STARS --merge NSIDE,WIDTH`.
    """
    # Distances and extinctions were checked when STARS was made.
    _ingested([stars], output, "merge", options | {"any_range": True})


def _ingested(
    sources: tuple[Path, ...] | list[Path],
    output: Path,
    verb: str,
    options: dict[str, Any],
) -> None:
    from pipelines.base.progress import Progress
    from pipelines.catalog.ingest import ingest as run

    with Progress(description=verb, unit="rows") as progress:
        report = run(list(sources), output, progress=progress.update, **options)
    click.echo(str(report))


@click.command()
@click.argument("name", required=False)
@click.option(
    "--registry",
    envvar=_REGISTRY,
    help=f"File or URL with a list of maps.  [default: ${_REGISTRY}]",
)
@click.option("-o", "--output", type=OUT, help="Path.  [default: the map's name]")
@OVERWRITE
@reporting
def fetch(
    name: str | None, registry: str | None, output: Path | None, overwrite: bool
) -> None:
    """Download the published map NAME and verify it; without NAME list all maps.

    \b
    dustmap fetch --registry maps.toml
    dustmap fetch near --registry https://example.org/maps.toml -o near.zarr

    The same command continues an interrupted download.
    """
    from pipelines.storage.fetching import fetch as run
    from pipelines.storage.fetching import read_registry

    if not registry:
        raise InputError(
            f"no registry of maps is given: use --registry FILE, or ${_REGISTRY}"
        )
    maps = read_registry(registry)
    if name is None:
        for known in maps.values():
            click.echo(f"{known.name}: {known.description or known.file}")
        return
    if name not in maps:
        raise InputError(
            f"{registry} has no map {name!r}: choose one of {', '.join(maps)}"
        )
    chosen = maps[name]
    made = run(chosen, output or Path(chosen.product), overwrite=overwrite)
    click.echo(str(made))
    click.echo(f"cite: {chosen.citation}", err=True)
