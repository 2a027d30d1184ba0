"""The verb that compares a run with stars and with other maps."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import click

from pipelines.base.errors import InputError
from pipelines.cli.reporting import OUT, OVERWRITE, reporting


@click.command()
@click.argument("run", type=OUT)
@click.argument("reference")
@click.option("-o", "--output", required=True, type=OUT, help="Folder to make.")
@click.option(
    "--factor",
    type=float,
    help="What turns values of the reference into the band of the map.",
)
@click.option(
    "--integrated/--differential",
    default=None,
    help="What a map of the package dustmaps gives.",
)
@click.option(
    "--query",
    "queries",
    multiple=True,
    metavar="KEY=VALUE",
    help="Keyword for a map of the package dustmaps, such as mode=median.",
)
@click.option(
    "--points",
    default=5000,
    show_default=True,
    help="Cells drawn to compare maps in.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the cells drawn.")
@OVERWRITE
@reporting
def compare(
    run: Path,
    reference: str,
    output: Path,
    queries: tuple[str, ...],
    overwrite: bool,
    **chosen: Any,
) -> None:
    """Compare the map of RUN with REFERENCE, in tables, figures and words.

    REFERENCE is a table of stars (from `dustmap ingest`; those that were fitted are
    left out), the word held-out, another map (zarr, FITS, npz or run), or
    dustmaps:NAME for a map of the package dustmaps.
    """
    from pipelines.compare.dispatch import CompareOptions
    from pipelines.compare.dispatch import compare as compare_

    query = dict(_pair(text) for text in queries)
    options = CompareOptions(query=query, **chosen)
    found, written = compare_(run, reference, output, options, overwrite=overwrite)
    click.echo(str(found))
    for path in written:
        click.echo(str(path))


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise InputError(f"--query takes KEY=VALUE, got {text!r}")
    if value.lower() in ("true", "false"):
        return key, value.lower() == "true"
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value
