"""The verb that archives posterior samples, and writes density cubes of them."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.base.errors import InputError
from pipelines.cli.reporting import OUT, OVERWRITE, reporting


@click.command()
@click.argument("source", type=OUT)
@click.option("-o", "--output", type=OUT, help="Archive to write, of a run.")
@click.option(
    "--tolerance",
    type=float,
    help="Rms rounding error, in the prior's standard deviation (0.001).",
)
@click.option("--zarr", "zarr_", type=OUT, help="Density cubes of the samples as zarr.")
@click.option("--count", type=int, help="Only the first so many cubes.")
@OVERWRITE
@reporting
def samples(
    source: Path,
    output: Path | None,
    tolerance: float | None,
    zarr_: Path | None,
    count: int | None,
    overwrite: bool,
) -> None:
    """Archive the posterior samples of a run, or write density cubes of them.

    SOURCE is a run folder, or for --zarr also an archive that -o wrote: a zarr store
    of the samples themselves, rounded and compressed, which needs no run beside it.
    """
    from pipelines.formats.zarr_arrays import is_samples
    from pipelines.run.folder import read_run
    from pipelines.samples import read_samples, write_sample_cubes, write_samples
    from pipelines.samples.writing import TOLERANCE

    if output is None and zarr_ is None:
        raise InputError(
            "name an output: -o STORE for an archive, --zarr STORE for cubes"
        )
    if output is None and tolerance is not None:
        raise InputError("--tolerance is that of the archive: name one with -o")
    if zarr_ is None and count is not None:
        raise InputError("--count is a number of cubes: name a store with --zarr")
    if output is not None and is_samples(source):
        raise InputError(f"{source} is an archive: -o takes the folder of a run")
    run = read_samples(source) if is_samples(source) else read_run(source)
    if output is not None:
        chosen = TOLERANCE if tolerance is None else tolerance
        report = write_samples(run, output, tolerance=chosen, overwrite=overwrite)
        click.echo(str(report))
    if zarr_ is not None:
        written = write_sample_cubes(zarr_, run, count=count, overwrite=overwrite)
        click.echo(f"{written} density cubes: {zarr_}")
