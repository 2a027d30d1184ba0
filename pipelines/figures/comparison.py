"""Two maps side by side, their difference, and that in standard deviations."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pipelines.cubes.cube import Cube
from pipelines.cubes.cuts import cut_box
from pipelines.cubes.sky import Columns
from pipelines.figures.box import Panel, Plane, draw_panels, nearest, plane_of
from pipelines.figures.integrals import (
    Ends,
    crossed,
    density_name,
    integral,
    ratio,
)
from pipelines.figures.page import DOUBLE, Page
from pipelines.figures.regridding import regridded, shared_range
from pipelines.figures.scales import colour_scale
from pipelines.figures.style import (
    band_of,
    density_label,
    extinction_label,
    signed_text,
)

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
) -> Page:
    """Draw two maps, their difference, and that over the first one's std.

    All of it within the box that both cover. First row: extinction along z, over the
    first one's own std of the integral (from ``columns``; none without). Second row:
    density in a plane, whose averages over cells have no std. Numbers are those of
    `pipelines.compare`.

    Parameters
    ----------
    cube, other
        Maps or truths on any grids: the second is brought to the first one's.
    columns
        Of the first map, along z over the `shared_range`.
    names
        What the maps are called.
    factor
        Multiplies the second, to bring it to the first one's band.
    axis, at, width, log
        As in `density_slice`.

    Raises
    ------
    ValueError
        If the maps have no cells in common, or the columns have other ends.
    """
    shared = {name: shared_range(cube, other, name) for name in "xyz"}
    low, high = shared["z"]
    if columns is not None and (columns.low, columns.high) != (low, high):
        raise ValueError(
            f"expected columns from {low:g} to {high:g} pc, which both maps cover, got "
            f"{columns.low:g} to {columns.high:g} pc"
        )
    part = cut_box(cube, **{name: shared[name] for name in "xyz" if name != axis})
    on_grid = regridded(other, part, factor)
    named = band_of(cube.meta)
    above = _through(part, on_grid, shared["z"], extinction_label(named))
    if columns is not None:
        kept = np.ix_(np.isin(cube.y, part.y), np.isin(cube.x, part.x))
        value, std = (columns.arrays[name][kept] for name in ("mean", "std"))
        above = replace(above, first=value, std=std)
    below = _in_plane(part, on_grid, axis, at, named)
    place = getattr(part, axis)[nearest(part, axis, at)]
    steps = dict.fromkeys(pair.plane.step_text for pair in (above, below))
    times = f" × {factor:g}" if factor != 1.0 else ""
    notes = [
        f"differences: {names[0]} minus {names[1]}{times}",
        f"above: {signed_text(low)} pc < $z$ < {signed_text(high)} pc",
        f"below: ${axis}$ = {signed_text(place)} pc",
        f"circles every {' and '.join(steps)}",
    ]
    short = [name if len(name) <= _LETTERS else f"{name[:_LETTERS]}…" for name in names]
    rows = _row(above, short, log), _row(below, short, log)
    across = len(rows[0])
    if across > len(rows[1]):
        notes.insert(1, f"σ: std of {names[0]}")
    panels = [*rows[0], *rows[1], *[None] * (across - len(rows[1]))]
    return draw_panels(panels, notes, width=width, columns=across, small=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Two images of one plane: ``seen`` is where sight lines of the first pass."""

    plane: Plane
    first: np.ndarray
    second: np.ndarray
    std: np.ndarray | None = None
    seen: np.ndarray | None
    label: str


def _through(cube: Cube, other: Cube, ends: Ends, label: str) -> _Pair:
    """Both maps along z between the centres of cells."""
    return _Pair(
        plane=Plane(cube=cube, along="z"),
        first=integral(cut_box(cube, z=ends), density_name(cube.arrays), "z"),
        second=integral(cut_box(other, z=ends), "density", "z"),
        seen=crossed(cut_box(cube, z=ends), "z", ends),
        label=label,
    )


def _in_plane(cube: Cube, other: Cube, axis: str, at: float, band: str) -> _Pair:
    first = plane_of(cube, density_name(cube.arrays), axis, at)
    factor, label = density_label(first, cube.unit, band)
    seen = plane_of(cube, "support", axis, at) > 0 if "support" in cube.arrays else None
    return _Pair(
        plane=Plane(cube=cube, along=axis),
        first=first * factor,
        second=plane_of(other, "density", axis, at) * factor,
        seen=seen,
        label=label,
    )


def _row(pair: _Pair, names: list[str], log: bool) -> list[Panel]:
    """Panels of two images, their difference, and that over the std if there is one."""
    seen, label = pair.seen, pair.label
    difference = pair.first - pair.second
    value = colour_scale("value", pair.first, pair.second, seen=seen, log=log)
    apart = colour_scale("difference", difference, seen=seen)
    shown = [
        (pair.first, value, f"{names[0]}\n{label}"),
        (pair.second, value, f"{names[1]}\n{label}"),
        (difference, apart, f"difference\n{label[label.rindex('[') :]}"),
    ]
    if pair.std is not None and np.isfinite(pair.std).any():
        sigmas = ratio(difference, pair.std)
        limits = colour_scale("deviation", sigmas)
        shown.append((sigmas, limits, "difference / $\\sigma$"))
    return [
        Panel(plane=pair.plane, image=image, scale=scale, label=text, seen=seen)
        for image, scale, text in shown
    ]
