"""The registry of figures, drawn into one folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from pipelines.base.errors import InputError
from pipelines.base.progress import doing
from pipelines.cubes.cube import Cube, field_unit
from pipelines.cubes.sky import near_the_sun
from pipelines.figures.box import compare, density_slice, edge_on, face_on
from pipelines.figures.integrals import shared_range
from pipelines.figures.sightlines import lines_of_sight
from pipelines.figures.sky import sky
from pipelines.figures.style import save_figure
from pipelines.maps.answers import Answers, Directions, MissingError, named
from pipelines.maps.opening import open_answers, open_other
from pipelines.maps.places import Places
from pipelines.maps.queried import QueriedMap


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotOptions:
    """Options of figures; ``None`` stands for defaults that depend on the map."""

    distances: Sequence[float] | None = None
    """Distances of the sky maps [pc]."""
    nside: int | None = None
    """HEALPix resolution of the sky maps."""
    axis: str = "z"
    """Axis at right angles to the slice."""
    at: float = 0.0
    """Place of the slice on this axis [pc]."""
    directions: Directions | None = None
    """Lines of sight ``l, b`` [deg]."""
    other: Any = None
    """Second map to compare with, as for `pipelines.maps.opening.open_other`."""
    factor: float | None = None
    """Factor from its values to the band of the first map; if ``None``, both are in one
    band as far as known."""
    other_integrated: bool | None = None
    """``True`` if its values are extinctions from the observer, ``False`` if
    densities; of objects with a query."""
    dpi: float = 300.0
    """Dots per inch of images."""
    panel: str | None = None
    """Single panel to draw of face-on, near, edge-on, slice and sky: ``mean``,
    ``median``, ``std`` or ``relative error``, if the figure has it."""
    vmin: float | None = None
    """Lower limit of the colours of their first panel, or of ``panel``."""
    vmax: float | None = None
    """Upper limit of these colours."""
    cmap: str | None = None
    """Their colour map, by matplotlib's name."""


def _look(options: PlotOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("panel", "vmin", "vmax", "cmap")}


def _face_on(source: Answers, options: PlotOptions) -> Figure:
    return face_on(source.cube(), source.columns("z"), **_look(options))


def _near(source: Answers, options: PlotOptions) -> Figure:
    cube = source.cube()
    if not cube.finer:
        raise MissingError(f"{source.path} has one grid, and no finer one near the Sun")
    level = cube.level_near_the_sun()
    columns = source.columns("z", level=level)
    return face_on(cube.levels[level], columns, **_look(options))


def _edge_on(source: Answers, options: PlotOptions) -> Figure:
    cube = source.cube()
    return edge_on(cube, source.columns("y", near_the_sun(cube.y)), **_look(options))


def _sky(source: Answers, options: PlotOptions) -> Figure:
    from pipelines.maps.prior_beyond import PriorBeyond

    with suppress(InputError):
        # Maps without a prior that is known outside of their box stay grey there.
        source = PriorBeyond.of(source)
    maps = source.sky_maps(options.distances, options.nside)
    return sky(maps, distances=options.distances, **_look(options))


def _lines(source: Answers, options: PlotOptions) -> Figure:
    # At 2400 dpi the 0.55 m of 30 lines have 52,000 pixels, of the 65,535 that
    # matplotlib draws.
    if (count := len(options.directions or ())) > 30:
        raise ValueError(f"a figure has at most 30 sight lines, got {count}")
    return lines_of_sight(source.lines(options.directions), band=source.known_band)


def _slice(source: Answers, options: PlotOptions) -> Figure:
    plane = {"axis": options.axis, "at": options.at}
    return density_slice(source.cube(), **plane, **_look(options))


def _second(source: Answers, options: PlotOptions) -> tuple[Answers, float]:
    """Open the map to compare with, and return the factor on its values."""
    if options.other is None:
        raise MissingError("compare needs a second map: name it with --other")
    chosen = {"factor": options.factor, "integrated": options.other_integrated}
    return open_other(options.other, source, **chosen)


def _compare(source: Answers, options: PlotOptions) -> Figure:
    second, times = _second(source, options)
    cube = source.cube()
    if isinstance(second, QueriedMap):
        # At points of the first map's grid.
        places = Places.of_points(cube.points)
        values = second.median_or_mean(places, integrated=False)
        arrays = {"mean": places.restore(values)}
        other = Cube(x=cube.x, y=cube.y, z=cube.z, arrays=arrays)
    else:
        other = second.cube().each(partial(_multiplied, factor=times))
    return compare(
        cube,
        other,
        columns=source.columns("z", shared_range(cube, other, "z")),
        names=(source.path.name, second.path.name),
        axis=options.axis,
        at=options.at,
    )


def _multiplied(cube: Cube, factor: float) -> Cube:
    arrays = {
        name: values * factor if field_unit(name, cube.unit) else values
        for name, values in cube.arrays.items()
    }
    return replace(cube, arrays=arrays)


# Name of the file, and drawing function, by name on the command line.
KINDS: dict[str, tuple[str, Callable[[Answers, PlotOptions], Figure]]] = {
    "face-on": ("face_on", _face_on),
    "near": ("near", _near),
    "edge-on": ("edge_on", _edge_on),
    "sky": ("sky", _sky),
    "los": ("lines_of_sight", _lines),
    "slice": ("slice", _slice),
    "compare": ("compare", _compare),
}


def check_used(kinds: Sequence[str], options: PlotOptions) -> None:
    """Raise `InputError` if an option is given that none of the kinds has."""
    if options.other is None:
        kinds = [kind for kind in kinds if kind != "compare"]
    for concerned, names in (
        (("sky",), ("distances", "nside")),
        (("los",), ("directions",)),
        (("slice", "compare"), ("axis", "at")),
        (("compare",), ("other", "factor", "other_integrated")),
    ):
        for name in () if set(concerned) & set(kinds) else names:
            if getattr(options, name) != getattr(PlotOptions(), name):
                raise InputError(
                    f"--{name.replace('_', '-')} is for {' and '.join(concerned)}"
                )


def draw(source: Answers, kind: str, options: PlotOptions) -> Figure:
    """Draw one figure of a map.

    Raises `InputError` if the kind is unknown, or the map lacks a product for it.
    """
    if kind not in KINDS:
        raise InputError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if options.panel is not None and kind in ("los", "compare"):
        raise MissingError(f"--panel does not apply to {kind}: leave it out")
    try:
        return KINDS[kind][1](source, options)
    except MissingError:
        raise
    except ValueError as error:
        raise InputError(f"{kind}: {error}") from error


def plot(
    path: str | Path,
    folder: Path,
    *,
    kinds: Sequence[str] = (),
    options: PlotOptions | None = None,
    form: str = "png",
) -> tuple[list[Path], dict[str, str]]:
    """Draw a run or an exported map into a folder, and replace figures there.

    Returns the files, and reasons for omitted figures unless their kind was requested.
    ``kinds`` are some of `KINDS`, by default all that the map allows; ``form`` is
    ``png``, ``pdf`` or ``svg``.

    Raises `InputError` if the map lacks a product for a requested kind, or no figure is
    drawn.
    """
    options = options or PlotOptions()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: choose a folder for the figures")
    check_used(kinds or list(KINDS), options)
    source = open_answers(path)
    paths, left_out = [], {}
    for kind in kinds or KINDS:
        doing(f"the figure {kind}")
        try:
            figure = draw(source, kind, options)
        except MissingError as reason:
            if kinds:
                raise
            left_out[kind] = str(reason)
            continue
        folder.mkdir(parents=True, exist_ok=True)
        paths.append(folder / f"{KINDS[kind][0]}.{form}")
        origins = source.origins()
        if kind == "compare":
            origins = [*origins, *_second(source, options)[0].origins()]
        about = "; ".join([*filter(None, [source.verdict]), *map(named, origins)])
        save_figure(figure, paths[-1], dpi=options.dpi, about=about)
    if options.other is None:
        left_out.pop("compare", None)
    left_out.pop("near", None)
    if not paths:
        reasons = "; ".join(dict.fromkeys(left_out.values()))
        raise InputError(f"{path} shows no figure: {reasons}")
    return paths, left_out
