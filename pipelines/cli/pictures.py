"""The verb that draws a map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipelines.base.errors import InputError
from pipelines.cli.reporting import LENGTH, OUT, band_options, reporting


class _Kind(click.ParamType):
    """A figure by its name in the registry, which is heavy to import."""

    name = "kind"

    def convert(self, value: str, param: Any, ctx: Any) -> str:
        if value not in _kinds():
            self.fail(f"{value!r} is not one of {', '.join(_kinds())}", param, ctx)
        return value

    def get_metavar(self, *_: Any, **__: Any) -> str:
        return f"[{'|'.join(_kinds())}]"


def _kinds() -> list[str]:
    from pipelines.figures.registry import KINDS

    return list(KINDS)


@click.command()
@click.argument("source", metavar="RUN_OR_MAP", type=OUT)
@click.option("-o", "--output", required=True, type=OUT, help="Folder for figures.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=_Kind(),
    help="What to draw; may be repeated. Default: all that RUN_OR_MAP has data for.",
)
@click.option(
    "--format", "form", type=click.Choice(("png", "pdf", "svg")), default="png"
)
@click.option("--dpi", type=click.FloatRange(min=30, max=2400), default=300.0)
@click.option(
    "--width",
    type=click.FloatRange(min=80, max=400),
    default=180.0,
    help="Of the page [mm]: 88 is a journal's column, 180 (the default) two.",
)
@click.option(
    "--log/--linear",
    default=None,
    help="Colours; linear, but edge-on logarithmic where the plane outshines the rest.",
)
@click.option(
    "--within",
    type=click.FloatRange(min=0, min_open=True),
    metavar="PC",
    help="edge-on: look through |y| < PC; 500 where the box is wider than 2 kpc. "
    "slice: show what lies so near the Sun. near: the finest grid that reaches so far.",
)
@click.option("--panel", metavar="NAME", help="face-on, near, edge-on, slice, sky: "
              "this panel alone: mean, median, std or relative-error.")  # fmt: skip
@click.option("--vmin", type=float, help="Where the colours of the map, or of --panel, "
              "begin, in the unit of the colour bar.")  # fmt: skip
@click.option("--vmax", type=float, help="Where they end.")
@click.option("--cmap", help="Their colour map, by matplotlib's name, as viridis.")
@click.option("--distance", "distances", multiple=True, type=LENGTH, metavar="PC",
              help="sky: how far out [pc]; may be repeated.")  # fmt: skip
@click.option("--nside", type=int, help="sky: resolution of the maps.")
@click.option("--x", type=LENGTH, metavar="PC", help="slice: the plane x = PC.")
@click.option("--y", type=LENGTH, metavar="PC", help="slice: the plane y = PC.")
@click.option("--z", type=LENGTH, metavar="PC", help="slice: the plane z = PC; 0.")
@click.option("--direction", "directions", multiple=True, metavar="L,B",
              help="los: Galactic direction [deg]; may be repeated.")  # fmt: skip
@click.option(
    "--other",
    help="compare: a second run, map, truth, .npz, or dustmaps:MODULE.CLASS.",
)
@click.option(
    "--factor",
    type=float,
    help="compare: multiplies the second map, to bring it to the band of the first; "
    "without it, known bands are converted.",
)
@click.option(
    "--other-integrated/--other-differential",
    default=None,
    help="compare: what a map of dustmaps gives, extinctions or densities.",
)
@band_options
@reporting
def plot(
    source: Path,
    output: Path,
    kinds: tuple[str, ...],
    form: str,
    directions: tuple[str, ...],
    x: float | None,
    y: float | None,
    z: float | None,
    distances: tuple[float, ...],
    **look: Any,
) -> None:
    """Draw RUN_OR_MAP: a run folder, or an exported map.zarr, map.fits or HEALPix maps.

    Extinctions stand beside their standard deviations; densities are means, which add
    up to the extinction. Figures in the folder are replaced.
    """
    from pipelines.figures.registry import PlotOptions
    from pipelines.figures.registry import plot as draw

    axis, at = _plane({"x": x, "y": y, "z": z})
    options = PlotOptions(
        axis=axis,
        at=at,
        distances=sorted(set(distances)) or None,
        directions=[_direction(text) for text in directions] or None,
        **look,
    )
    paths, left_out = draw(source, output, kinds=kinds, options=options, form=form)
    for path in paths:
        click.echo(str(path))
    for kind, reason in left_out.items():
        click.echo(f"left out: {kind}: {reason}", err=True)


def _plane(given: dict[str, float | None]) -> tuple[str, float]:
    chosen = [(axis, at) for axis, at in given.items() if at is not None]
    if len(chosen) > 1:
        raise InputError("a slice is one plane: give one of --x, --y and --z")
    return chosen[0] if chosen else ("z", 0.0)


def _direction(text: str) -> tuple[float, float]:
    try:
        l, b = (float(part) for part in text.split(","))  # noqa: E741
    except ValueError:
        l, b = float("nan"), 0.0  # noqa: E741
    if not (-360 <= l <= 360 and -90 <= b <= 90):
        raise InputError(
            f"--direction takes Galactic longitude and latitude [deg] as L,B, got "
            f"{text!r}"
        )
    return l, b
