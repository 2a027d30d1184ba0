"""The verb that keeps posterior samples in a small file, and draws them again."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.base.errors import InputError
from pipelines.cli.reporting import OUT, OVERWRITE, reporting


@click.command()
@click.argument("source", type=OUT)
@click.option("-o", "--output", type=OUT, help="File of samples to write, of a run.")
@click.option(
    "--tolerance",
    type=float,
    help="Rms error of the field, in the prior's standard deviation (0.001).",
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
    """Keep the posterior samples of a run in a small file, or draw cubes of them.

    SOURCE is a run folder, or for --zarr also a file that -o wrote: it holds the white
    noise's seed and what the data added to it, and needs no run folder beside it.
    """
    from pipelines.redraw import open_samples, write_sample_cubes, write_samples
    from pipelines.redraw.writing import TOLERANCE
    from pipelines.run.folder import read_run

    if output is None and zarr_ is None:
        raise InputError("name an output: -o FILE for a file of samples, --zarr STORE")
    if output is None and tolerance is not None:
        raise InputError("--tolerance is that of the file of samples: name one with -o")
    if zarr_ is None and count is not None:
        raise InputError("--count is a number of cubes: name a store with --zarr")
    if output is not None:
        if source.is_file():
            raise InputError(f"{source} is a file: -o takes the folder of a run")
        chosen = TOLERANCE if tolerance is None else tolerance
        report = write_samples(source, output, tolerance=chosen, overwrite=overwrite)
        click.echo(str(report))
    if zarr_ is not None:
        opened = open_samples(source) if source.is_file() else read_run(source)
        written = write_sample_cubes(zarr_, opened, count=count, overwrite=overwrite)
        click.echo(f"{written} density cubes: {zarr_}")
