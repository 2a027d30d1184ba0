"""Verbs for products of a map: export, plot, view, compare."""

from __future__ import annotations

import ast
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from pipelines.base.errors import InputError
from pipelines.base.progress import Ticker
from pipelines.cli.reporting import (
    ANGLE,
    ANGLES,
    DIRECTION,
    DUSTMAPS_GIVES,
    FACTOR,
    LENGTH,
    LENGTHS,
    NEW,
    ONE_BAND,
    OUT,
    OVERWRITE,
    Parsed,
    band_options,
    output,
    reporting,
    together,
)
from pipelines.export.options import EXPORTERS, ExportOptions, parse_box

_PRODUCTS = [
    click.option(f"--{name}", type=NEW, multiple=True, help=exporter.help)
    for name, exporter in EXPORTERS.items()
]


@click.command()
@click.argument("source", metavar="RUN_OR_MAP", type=OUT)
@together(*_PRODUCTS)
@click.option("--distances", type=LENGTHS, help="Distances of HEALPix maps and images.")
@click.option("--nside", type=int, help="Resolution of HEALPix maps.")
@click.option("--ordering", type=click.Choice(["nested", "ring"]), help="Of pixels.")
@click.option("--projection", help="Of images: CAR, ZEA, TAN, AIT, ...  [default: CAR]")
@click.option("--center", "centre", type=DIRECTION, help="Of images.  [default: 0,0]")
@click.option(
    "--field", "size", type=ANGLES, help="Of images: the whole sky, or 20,20."
)
@click.option("--pixel", type=ANGLE, help="Side of their pixels, the map's or wider.")
@click.option("--header", type=OUT, help="FITS file or cards, instead of all four.")
@ONE_BAND()
@band_options
@click.option(
    "--box",
    type=Parsed("box", parse_box),
    metavar="x=LO:HI,y=...",
    help="Only the density in this box [pc]; of the zarr extinctions to its corners.",
)
@click.option("--sphere", type=LENGTH, help="Only the density within this distance.")
@click.option("--spacing", type=LENGTH, help="Wider cells of the density.")
@OVERWRITE
@reporting
def export(source: Path, overwrite: bool, **chosen: Any) -> None:
    """Write the map of a run or a map store in other formats, with citations.

    By default map.fits and map.healpix.fits are written beside map.zarr.
    """
    from pipelines.export.exporters import export as export_map
    from pipelines.formats.images import Field

    chosen = {name: value for name, value in chosen.items() if value is not None}
    targets = {name: paths for name in EXPORTERS if (paths := chosen.pop(name))}
    names = ("projection", "centre", "size", "pixel", "header")
    view = {name: chosen.pop(name) for name in names if name in chosen}
    if "header" in view and len(view) > 1:
        raise InputError(
            "--header gives projection, center, field and pixels: drop these"
        )
    options = ExportOptions(field=Field(**view) if view else None, **chosen)
    done = export_map(source, targets, options, overwrite=overwrite)
    if done.change is not None:
        click.echo(done.change.summary(), err=True)
    for note in done.notes:
        click.echo(f"note: {note}", err=True)
    for path in done.paths:
        click.echo(str(path))


@click.command()
@click.argument("source", metavar="RUN_OR_MAP")
@output("Folder for figures.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    help="face-on, near, edge-on, sky, los, slice or compare; by default all with "
    "data. Repeatable.",
)
@click.option(
    "--format", "form", type=click.Choice(("png", "pdf", "svg")), default="png"
)
@click.option("--dpi", type=click.FloatRange(min=30, max=2400), default=300.0)
@click.option("--panel", help="Only mean, median, std or relative-error, as there are.")
@click.option("--vmin", type=float, help="Lower limit of the colours of map or panel.")
@click.option("--vmax", type=float, help="Upper limit of these colours.")
@click.option("--cmap", help="Colour map by matplotlib's name, such as viridis.")
@click.option(
    "--distance", "distances", multiple=True, type=LENGTH, help="sky, repeatable."
)
@click.option("--nside", type=int, help="sky: resolution of the maps.")
@click.option("--x", type=LENGTH, help="slice: the plane x = PC.")
@click.option("--y", type=LENGTH, help="slice: the plane y = PC.")
@click.option("--z", type=LENGTH, help="slice: the plane z = PC; 0.")
@click.option(
    "--direction", "directions", multiple=True, type=DIRECTION, help="los, repeatable."
)
@click.option("--other", help="compare: a second map: a run, map.zarr, map.fits, .npz.")
@click.option("--factor", type=FACTOR, help="compare: factor to the first map's band.")
@click.option(
    "--other-integrated/--other-differential", default=None, help=DUSTMAPS_GIVES
)
@reporting
def plot(
    source: str,
    output: Path,
    kinds: tuple[str, ...],
    form: str,
    directions: tuple[tuple[float, float], ...],
    distances: tuple[float, ...],
    **look: Any,
) -> None:
    """Draw RUN_OR_MAP: a run folder, an exported map.zarr, map.fits or HEALPix maps, an
    .npz cube, or a map of the package dustmaps (dustmaps:edenhofer2023).

    Extinctions are drawn with their standard deviations; densities are means, which
    integrate to the extinction. Figures in the folder are replaced.
    """
    from pipelines.figures.registry import PlotOptions
    from pipelines.figures.registry import plot as draw

    planes = {axis: at for axis in "xyz" if (at := look.pop(axis)) is not None}
    if len(planes) > 1:
        raise InputError("a slice is one plane: give one of --x, --y and --z")
    axis, at = next(iter(planes.items()), ("z", 0.0))
    options = PlotOptions(
        axis=axis,
        at=at,
        distances=sorted(set(distances)) or None,
        directions=list(directions) or None,
        **look,
    )
    paths, left_out = draw(source, output, kinds=kinds, options=options, form=form)
    for path in paths:
        click.echo(str(path))
    for kind, reason in left_out.items():
        click.echo(f"left out: {kind}: {reason}", err=True)


@click.command()
@click.argument("source", metavar="RUN_OR_MAP")
@click.option("-o", "--output", type=NEW, help="HTML file to write.")
@click.option("--stars", type=OUT, help="Table of stars to show; a run has its own.")
@click.option(
    "--serve", is_flag=True, help="Serve the page here, with curves of any direction."
)
@click.option("--port", type=int, default=8765, help="Of --serve; 0 is any free one.")
@OVERWRITE
@reporting
def view(
    source: str,
    output: Path | None,
    serve: bool,
    port: int,
    stars: Path | None,
    overwrite: bool,
) -> None:
    """Write RUN_OR_MAP as one HTML page that opens in any browser, without a network.

    Planes of the density and its surfaces in space, the extinction on the sky, and the
    curve with its intervals towards any direction, with stars and distances of clouds.
    Of a run also its verdict with all warnings, held-out stars, convergence, what was
    mapped, and provenance.
    """
    from pipelines.maps.opening import open_answers
    from pipelines.view.page import view_page, write_view
    from pipelines.view.server import make_server

    if (output is None) != serve:
        raise InputError("give a file to write, -o map.html, or --serve")
    answers = open_answers(source)
    command = shlex.join(["dustmap", *sys.argv[1:]])
    given: dict[str, Any] = {"stars": stars, "command": command}
    if output is not None:
        click.echo(str(write_view(answers, output, overwrite=overwrite, **given)))
        return
    page = view_page(answers, served=True, **given)
    with make_server(answers, page, port) as server:
        click.echo(f"http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)")
        # A bare ticker says nothing while the page waits.
        with Ticker(), suppress(KeyboardInterrupt):
            server.serve_forever()


def _keyword(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise ValueError(f"--query expects KEY=VALUE, got {text!r}")
    if value.lower() in ("true", "false"):
        return key, value.lower() == "true"
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


@click.command()
@click.argument("run", type=OUT)
@click.argument("reference")
@output("Folder to make.")
@click.option(
    "--factor", type=FACTOR, help="Factor from the reference to the band of the map."
)
@click.option("--integrated/--differential", default=None, help=DUSTMAPS_GIVES)
@click.option(
    "--query",
    multiple=True,
    type=Parsed("key=value", _keyword),
    help="Keyword for a map of the package dustmaps, such as mode=median.",
)
@click.option(
    "--points",
    type=click.IntRange(min=1),
    help="Random cells to compare maps in.  [default: 5000]",
)
@click.option("--seed", type=int, help="Seed of the random cells.  [default: 0]")
@OVERWRITE
@reporting
def compare(
    run: Path,
    reference: str,
    output: Path,
    query: tuple[tuple[str, Any], ...],
    **options: Any,
) -> None:
    """Compare the map of RUN with REFERENCE, in tables, figures and words.

    REFERENCE is a table of stars (from `dustmap ingest`; fitted ones are skipped), the
    word held-out, another map (zarr, FITS, npz or run), or a map of the package
    dustmaps (dustmaps:edenhofer2023, or dustmaps:MODULE.CLASS).
    """
    from pipelines.compare import compare as run_comparison

    comparison, written = run_comparison(
        run, reference, output, query=dict(query), **options
    )
    click.echo(str(comparison))
    for path in written:
        click.echo(str(path))
