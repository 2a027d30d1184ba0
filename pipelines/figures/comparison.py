"""Two maps side by side: their difference, in standard deviations, and cell by cell."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from astropy import units as u
from matplotlib.axes import Axes

from pipelines.export.columns import Columns
from pipelines.export.cube import Cube
from pipelines.figures.agreement import common_cells, cropped, regridded, shared_height
from pipelines.figures.box import Plane, circle_text, draw_plane, draw_unseen
from pipelines.figures.labels import band_of, density_label, extinction_label
from pipelines.figures.page import (
    DOUBLE,
    NARROW,
    Page,
    header_height,
    header_lines,
    sheet,
    write_header,
)
from pipelines.figures.pairs import draw_deviations, draw_pairs
from pipelines.figures.scales import (
    difference_scale,
    fixed_difference_scale,
    log_scale,
    scale_where,
)
from pipelines.figures.slices import plane_of
from pipelines.figures.style import SMALL, signed_scale, signed_text
from pipelines.figures.views import density_name

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

    @property
    def deviation(self) -> np.ndarray | None:
        """First minus second over the first one's std."""
        if self.std is None or not np.isfinite(self.std).any():
            return None
        known = self.std > 0
        difference = self.first - self.second
        return np.where(known, difference / np.where(known, self.std, 1.0), np.nan)


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
    density in a plane. Third row: pairs of values where sight lines of the first pass,
    with statistics, and the differences in standard deviations.

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
        columns = _cropped_columns(columns, cells)
    pairs = [
        _through(cube, other, on_grid, columns, named),
        _in_plane(cube, on_grid, axis, at, named),
    ]
    note = f"differences: {names[0]} minus {names[1]}"
    note += f" × {factor:g}" if factor != 1.0 else ""
    circles = " and ".join(dict.fromkeys(circle_text(pair.plane) for pair in pairs))
    notes = [note, f"σ: std of {names[0]}", pairs[0].title, pairs[1].title]
    notes.append(f"circles every {circles}")
    page, every = sheet(
        3 * _COLUMNS,
        pairs[0].plane.aspect,
        columns=_COLUMNS if width >= NARROW else _COLUMNS // 2,
        width=width,
        header=header_height(header_lines(len(notes), width)),
        labelled=True,
    )
    write_header(page, notes)
    for number, pair in enumerate(pairs):
        row = every[_COLUMNS * number : _COLUMNS * (number + 1)]
        _draw_row(row, pair, names, log)
    _draw_last(every[2 * _COLUMNS :], pairs, names)
    return page


def _cropped_columns(columns: Columns, cells: dict[str, slice]) -> Columns:
    place = cells.get("y", slice(None)), cells.get("x", slice(None))
    arrays = {name: array[place] for name, array in columns.arrays.items()}
    return replace(columns, arrays=arrays)


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
    name = density_name(cube)
    first = plane_of(cube, name, axis, at)
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
    images = [pair.first, pair.second]
    scale = scale_where(log_scale if log else signed_scale, pair.seen, *images)
    difference = pair.first - pair.second
    panels = [
        (pair.first, scale, f"{names[0]}: {pair.label}"),
        (pair.second, scale, f"{names[1]}: {pair.label}"),
        (
            difference,
            scale_where(difference_scale, pair.seen, difference),
            f"difference {_unit(pair.label)}",
        ),
    ]
    if pair.deviation is not None:
        reach = fixed_difference_scale(pair.deviation, _SIGMAS)
        panels.append((pair.deviation, reach, "difference / $\\sigma$"))
    for number, (axes, panel) in enumerate(zip(row, panels)):
        draw_plane(axes, pair.plane, *panel, first=number == 0, hints=False, small=True)
        if pair.seen is not None:
            draw_unseen(axes, pair.plane, pair.seen)
    if pair.deviation is None:
        _say(row[-1], f"no std of the\nintegral in {names[0]}")


def _draw_last(row: list[Axes], pairs: list[_Pair], names: tuple[str, str]) -> None:
    for axes, pair in zip(row[:2], pairs):
        seen = np.ones(pair.first.shape, bool) if pair.seen is None else pair.seen
        draw_pairs(axes, pair.second[seen], pair.first[seen], names, pair.label)
    for axes, pair in zip(row[2:], pairs):
        if pair.deviation is None:
            _say(axes, "no std")
            continue
        seen = np.ones(pair.first.shape, bool) if pair.seen is None else pair.seen
        draw_deviations(axes, pair.deviation[seen], pair.label.split(" [")[0])


def _say(axes: Axes, text: str) -> None:
    axes.set_axis_off()
    axes.text(
        0.5, 0.5, text, ha="center", va="center", fontsize=SMALL,
        transform=axes.transAxes,
    )  # fmt: skip


def _unit(label: str) -> str:
    return label[label.rindex("[") :]
