"""Two maps side by side, their difference, and that in standard deviations."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from astropy import units as u
from matplotlib.axes import Axes

from pipelines.figures.box import Plane, circle_text, draw_plane
from pipelines.figures.integrals import density_name
from pipelines.figures.labels import band_of, density_label, extinction_label
from pipelines.figures.page import DOUBLE, NARROW, Page, sheet
from pipelines.figures.regridding import (
    common_cells,
    cropped,
    regridded,
    shared_height,
)
from pipelines.figures.scales import (
    difference_scale,
    log_scale,
    scale_where,
    signed_scale,
)
from pipelines.figures.slices import plane_of
from pipelines.figures.style import SMALL, signed_text
from pipelines.maps.columns import Columns
from pipelines.maps.cube import Cube

_SIGMAS = 3.0
_COLUMNS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Two pictures of one plane: ``seen`` is where sight lines of the first pass."""

    plane: Plane
    first: np.ndarray
    second: np.ndarray
    std: np.ndarray | None
    seen: np.ndarray | None
    label: str
    title: str


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
        Of the first map, along z between the heights of `shared_height`. They are the
        *median of the integral*, which is more than the integral of the median: with an
        ``other`` that is a median itself they are used for the std only.
    names
        What the maps are called.
    factor
        Multiplies the second, to bring it to the first one's band.
    axis, at, width, log, band
        As in `density_slice`.

    Raises
    ------
    ValueError
        If the maps have no cells in common.
    """
    named = band_of(cube.meta) if band is None else band
    on_grid = regridded(other, cube, factor)
    if not np.isfinite(on_grid.arrays["density"]).any():
        raise ValueError(f"{names[1]} covers no cell of {names[0]}")
    cells = common_cells(on_grid, "xyz".replace(axis, ""))
    cube, on_grid = cropped(cube, cells), cropped(on_grid, cells)
    if columns is not None:
        place = cells.get("y", slice(None)), cells.get("x", slice(None))
        arrays = {name: array[place] for name, array in columns.arrays.items()}
        columns = replace(columns, arrays=arrays)
    pairs = [
        _through(cube, other, on_grid, columns, named),
        _in_plane(cube, on_grid, axis, at, named),
    ]
    note = f"differences: {names[0]} minus {names[1]}"
    note += f" × {factor:g}" if factor != 1.0 else ""
    circles = " and ".join(dict.fromkeys(circle_text(pair.plane) for pair in pairs))
    notes = [note, f"σ: std of {names[0]}", pairs[0].title, pairs[1].title]
    page, every = sheet(
        2 * _COLUMNS,
        pairs[0].plane.aspect,
        columns=_COLUMNS if width >= NARROW else _COLUMNS // 2,
        width=width,
        notes=[*notes, f"circles every {circles}"],
        labelled=True,
    )
    for number, pair in enumerate(pairs):
        row = every[_COLUMNS * number : _COLUMNS * (number + 1)]
        _draw_row(row, pair, names, log)
    return page


def _through(
    cube: Cube, other: Cube, on_grid: Cube, columns: Columns | None, band: str
) -> _Pair:
    """Extinction along z between the ends that both have, at cell centres."""
    low, high = shared_height(cube, other)
    part = (cube.z >= low) & (cube.z <= high)
    to_mag = (u.Unit(cube.unit) * u.pc).to(u.mag)
    first, second = (
        np.asarray(np.trapezoid(values[part], cube.z[part], axis=0)) * to_mag
        for values in (cube.arrays[density_name(cube)], on_grid.arrays["density"])
    )
    if columns is not None and (columns.low, columns.high) != (low, high):
        raise ValueError(
            f"expected columns from {low:g} to {high:g} pc, which both maps cover, got "
            f"{columns.low:g} to {columns.high:g} pc"
        )
    if columns is not None and density_name(other) != "p50":
        first = columns.arrays.get("p50", columns.arrays["mean"])
    support = cube.arrays.get("support")
    return _Pair(
        plane=Plane.of(cube, "z"),
        first=first,
        second=second,
        std=None if columns is None else columns.arrays["std"],
        seen=None if support is None else support[part].sum(axis=0) > 0,
        label=extinction_label(band),
        title=f"above: {signed_text(low)} pc < $z$ < {signed_text(high)} pc",
    )


def _in_plane(cube: Cube, other: Cube, axis: str, at: float, band: str) -> _Pair:
    first = plane_of(cube, density_name(cube), axis, at)
    factor, label = density_label(first, cube.unit, band)
    std = plane_of(cube, "std", axis, at) * factor if "std" in cube.arrays else None
    seen = plane_of(cube, "support", axis, at) > 0 if "support" in cube.arrays else None
    centres = getattr(cube, axis)
    height = centres[np.abs(centres - at).argmin()]
    return _Pair(
        plane=Plane.of(cube, axis),
        first=first * factor,
        second=plane_of(other, "density", axis, at) * factor,
        std=std,
        seen=seen,
        label=label,
        title=f"below: ${axis}$ = {signed_text(height)} pc",
    )


def _draw_row(row: list[Axes], pair: _Pair, names: tuple[str, str], log: bool) -> None:
    make = log_scale if log else signed_scale
    scale = scale_where(make, pair.seen, pair.first, pair.second)
    difference = pair.first - pair.second
    apart = scale_where(difference_scale, pair.seen, difference)
    panels = [
        (pair.first, scale, f"{names[0]}: {pair.label}"),
        (pair.second, scale, f"{names[1]}: {pair.label}"),
        (difference, apart, f"difference {pair.label[pair.label.rindex('[') :]}"),
    ]
    if pair.std is not None and np.isfinite(pair.std).any():
        known = np.where(pair.std > 0, pair.std, np.nan)
        reach = difference_scale(difference / known, reach=_SIGMAS)
        panels.append((difference / known, reach, "difference / $\\sigma$"))
    else:
        row[-1].set_axis_off()
        row[-1].text(
            0.5, 0.5, f"no std of the\nintegral in {names[0]}", ha="center",
            va="center", fontsize=SMALL, transform=row[-1].transAxes,
        )  # fmt: skip
    for number, (axes, panel) in enumerate(zip(row, panels)):
        draw_plane(
            axes, pair.plane, *panel, seen=pair.seen, first=number == 0, hints=False,
            small=True,
        )  # fmt: skip
