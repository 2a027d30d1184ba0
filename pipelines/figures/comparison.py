"""Two maps side by side, their difference, and that in standard deviations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipelines.figures.box import Panel, Plane, draw_panels, nearest, plane_of
from pipelines.figures.integrals import crossed, density_name, integral, ratio
from pipelines.figures.labels import band_of, density_label, extinction_label
from pipelines.figures.page import DOUBLE, Page
from pipelines.figures.regridding import regridded, shared_range
from pipelines.figures.scales import colour_scale
from pipelines.figures.style import signed_text
from pipelines.maps.columns import Columns
from pipelines.maps.cube import Cube
from pipelines.products.cuts import cut_box

_COLUMNS = 4
# Letters of a map's name that fit above a panel.
_LETTERS = 24


def compare(
    cube: Cube,
    other: Cube,
    *,
    columns: Columns | None = None,
    names: tuple[str, str] = ("map", "other"),
    factor: float = 1.0,
    axis: str = "z",
    at: float = 0.0,
    width: float = DOUBLE,
    log: bool = False,
    band: str | None = None,
) -> Page:
    """Draw two maps, their difference, and that over the first one's std.

    All of it within the box that both cover. First row: extinction along z, over the
    first one's own std of the integral (from ``columns``; none without). Second row:
    density in a plane. Numbers are those of `pipelines.compare`.

    Parameters
    ----------
    cube, other
        Maps or truths on any grids: the second is brought to the first one's.
    columns
        Of the first map, along z over the `shared_range`. They are the *median of the
        integral*, which is more than the integral of the median: with an ``other`` that
        is a median itself they are used for the std only.
    names
        What the maps are called.
    factor
        Multiplies the second, to bring it to the first one's band.
    axis, at, width, log, band
        As in `density_slice`.

    Raises
    ------
    ValueError
        If the maps have no cells in common, or the columns have other ends.
    """
    named = band_of(cube.meta) if band is None else band
    shared = {name: shared_range(cube, other, name) for name in "xyz"}
    low, high = shared["z"]
    if columns is not None and (columns.low, columns.high) != (low, high):
        raise ValueError(
            f"expected columns from {low:g} to {high:g} pc, which both maps cover, got "
            f"{columns.low:g} to {columns.high:g} pc"
        )
    part = cut_box(cube, **{name: shared[name] for name in "xyz" if name != axis})
    if columns is not None:
        kept = np.ix_(np.isin(cube.y, part.y), np.isin(cube.x, part.x))
        arrays = {name: array[kept] for name, array in columns.arrays.items()}
        columns = replace(columns, arrays=arrays)
    on_grid = regridded(other, part, factor)
    median = density_name(other) == "p50"
    short = [name if len(name) <= _LETTERS else f"{name[:_LETTERS]}…" for name in names]
    above = _through(part, on_grid, columns, (low, high), median=median)
    below = _in_plane(part, on_grid, axis, at)
    planes = [Plane(cube=part, along="z"), Plane(cube=part, along=axis)]
    factor_text = f" × {factor:g}" if factor != 1.0 else ""
    place = getattr(part, axis)[nearest(part, axis, at)]
    steps = " and ".join(dict.fromkeys(plane.step_text for plane in planes))
    notes = [
        f"differences: {names[0]} minus {names[1]}{factor_text}",
        f"σ: std of {names[0]}",
        f"above: {signed_text(low)} pc < $z$ < {signed_text(high)} pc",
        f"below: ${axis}$ = {signed_text(place)} pc",
        f"circles every {steps}",
    ]
    scale, label = density_label(below[0], cube.unit, named)
    panels = [
        *_row(planes[0], *above, short, extinction_label(named), log=log),
        *_row(planes[1], *below, short, label, log=log, factor=scale),
    ]
    return draw_panels(panels, notes, width=width, columns=_COLUMNS, small=True)


_Row = tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]


def _through(
    cube: Cube,
    other: Cube,
    columns: Columns | None,
    ends: tuple[float, float],
    *,
    median: bool,
) -> _Row:
    """Both maps along z between the centres of cells, the std, and what is seen."""
    cube, other = cut_box(cube, z=ends), cut_box(other, z=ends)
    first = integral(cube, density_name(cube), "z")
    if columns is not None and not median:
        first = columns.arrays.get("p50", columns.arrays["mean"])
    std = None if columns is None else columns.arrays["std"]
    return first, integral(other, "density", "z"), std, crossed(cube, "z", ends)


def _in_plane(cube: Cube, other: Cube, axis: str, at: float) -> _Row:
    """Both maps in a plane, the std, and what is seen."""

    def take(name: str) -> np.ndarray | None:
        return plane_of(cube, name, axis, at) if name in cube.arrays else None

    first, support = plane_of(cube, density_name(cube), axis, at), take("support")
    seen = None if support is None else support > 0
    return first, plane_of(other, "density", axis, at), take("std"), seen


def _row(
    plane: Plane,
    first: np.ndarray,
    second: np.ndarray,
    std: np.ndarray | None,
    seen: np.ndarray | None,
    names: list[str],
    label: str,
    *,
    log: bool,
    factor: float = 1.0,
) -> list[Panel | str]:
    """Panels of two images, times ``factor``, their difference, and that over std."""
    first, second = first * factor, second * factor
    difference = first - second
    value = colour_scale("value", first, second, seen=seen, log=log)
    apart = colour_scale("difference", difference, seen=seen)
    unit = label[label.rindex("[") :]
    shown = [
        (first, value, f"{names[0]}\n{label}"),
        (second, value, f"{names[1]}\n{label}"),
        (difference, apart, f"difference\n{unit}"),
    ]
    if std is not None and np.isfinite(std).any():
        sigmas = ratio(difference, std * factor)
        limits = colour_scale("deviation", sigmas)
        shown.append((sigmas, limits, "difference / $\\sigma$"))
    panels: list[Panel | str] = [
        Panel(plane=plane, image=image, scale=scale, label=text, seen=seen)
        for image, scale, text in shown
    ]
    if len(panels) < _COLUMNS:
        panels.append(f"no std of the\nintegral in {names[0]}")
    return panels
