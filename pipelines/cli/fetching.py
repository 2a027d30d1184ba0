"""The verb that fetches published maps."""

from __future__ import annotations

import os
from pathlib import Path

import click

from pipelines.base.errors import InputError
from pipelines.cli.reporting import OUT, OVERWRITE, reporting

_VARIABLE = "DUSTMAP_REGISTRY"


@click.command()
@click.argument("name", required=False)
@click.option(
    "--registry",
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
    from pipelines.base.progress import Progress
    from pipelines.storage.fetching import fetch as run_fetch
    from pipelines.storage.fetching import read_registry

    place = registry or os.environ.get(_VARIABLE)
    if not place:
        raise InputError(
            "which maps there are stands in a registry: --registry FILE, or "
            f"${_VARIABLE}"
        )
    maps = read_registry(place)
    if name is None:
        for known in maps.values():
            click.echo(f"{known.name}: {known.description or known.file}")
        return
    if name not in maps:
        raise InputError(f"{place} has no map {name!r}; it has {', '.join(maps)}")
    wanted = maps[name]
    with Progress(description=f"fetching {wanted.file}", unit="bytes") as progress:
        done = 0

        def on_bytes(have: int) -> None:
            nonlocal done
            progress.update(have - done)
            done = have

        made = run_fetch(
            wanted,
            output or Path(wanted.product),
            overwrite=overwrite,
            progress=on_bytes,
        )
    click.echo(str(made))
    click.echo(f"cite: {wanted.citation}", err=True)
