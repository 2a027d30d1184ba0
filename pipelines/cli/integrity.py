"""The verb that looks for damage."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli.reporting import OUT, reporting


@click.command()
@click.argument("path", type=OUT)
@reporting
def verify(path: Path) -> None:
    """Check a run folder (also of a fit that is not finished), checkpoint, zarr store,
    FITS, HEALPix or parquet file for damage."""
    from pipelines.verify import verify as check

    click.echo(check(path))
