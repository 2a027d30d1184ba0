"""Verbs on whole files: verify and fetch."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.base.errors import InputError
from pipelines.cli.reporting import OUT, OVERWRITE, reporting

_VARIABLE = "DUSTMAP_REGISTRY"


@click.command()
@click.argument("path", type=OUT)
@reporting
def verify(path: Path) -> None:
    """Check a run folder (also of a fit that is not finished), checkpoint, zarr store,
    FITS, HEALPix or parquet file for damage."""
    from pipelines.verify import verify as check

    click.echo(check(path))


@click.command()
@click.argument("name", required=False)
@click.option(
    "--registry",
    envvar=_VARIABLE,
    help=f"File or URL that lists maps.  [default: ${_VARIABLE}]",
)
@click.option("-o", "--output", type=OUT, help="Where to.  [default: the map's name]")
@OVERWRITE
@reporting
def fetch(
    name: str | None, registry: str | None, output: Path | None, overwrite: bool
) -> None:
    """Download the published map NAME and verify it; without NAME list those there are.

    \b
    dustmap fetch --registry maps.toml
    dustmap fetch near --registry https://example.org/maps.toml -o near.zarr

    An interrupted download goes on with the same command.
    """
    from pipelines.storage.fetching import fetch as run_fetch
    from pipelines.storage.fetching import read_registry

    if not registry:
        raise InputError(
            f"no registry of maps is given: --registry FILE, or ${_VARIABLE}"
        )
    maps = read_registry(registry)
    if name is None:
        for known in maps.values():
            click.echo(f"{known.name}: {known.description or known.file}")
        return
    if name not in maps:
        raise InputError(f"{registry} has no map {name!r}; it has {', '.join(maps)}")
    made = run_fetch(
        maps[name], output or Path(maps[name].product), overwrite=overwrite
    )
    click.echo(str(made))
    click.echo(f"cite: {maps[name].citation}", err=True)
