"""The extinction through a whole box, seen from above and from the side."""

from __future__ import annotations

import numpy as np
from astropy import units as u

from pipelines.export.columns import Columns
from pipelines.export.cube import Cube
from pipelines.figures.box import (
    FLAT,
    Plane,
    array_axis,
    draw_plane,
    draw_unseen,
    edges_of,
)
from pipelines.figures.labels import band_of, extinction_label
from pipelines.figures.page import (
    DOUBLE,
    NARROW,
    Page,
    header_height,
    header_lines,
    sheet,
    write_header,
)
from pipelines.figures.scales import error_scale, log_scale
from pipelines.figures.style import Scale, signed_scale, signed_text


def face_on(
    cube: Cube,
    columns: Columns | None = None,
    *,
    width: float = DOUBLE,
    log: bool = False,
    band: str | None = None,
) -> Page:
    """Draw the extinction through the box, seen from the north Galactic pole.

    Parameters
    ----------
    cube
        The map: its axes, ``support``, and its density where there are no columns.
    columns
        The integral and its std from posterior samples (`pipelines.products.columns`).
        Without it the value is the integral of the median density where the cube has
        one (the mean of a lognormal grows without bound where no star looks), and
        beside it stands the sum of the cells' std: an upper bound of the integral's.
    width
        Of the page [mm]; under 120 the panels are stacked.
    log
        Logarithmic colours.
    band
        Name of the extinction; that of the provenance if ``None``.
    """
    return _integrated(cube, columns, "z", width=width, log=log, band=band)


def edge_on(
    cube: Cube,
    columns: Columns | None = None,
    *,
    width: float = DOUBLE,
    log: bool = False,
    band: str | None = None,
    along: str = "y",
) -> Page:
    """Draw the extinction through the box along y (or x), with z upwards.

    Parameters are those of `face_on`.
    """
    return _integrated(cube, columns, along, width=width, log=log, band=band)


def _integrated(
    cube: Cube,
    columns: Columns | None,
    along: str,
    *,
    width: float,
    log: bool,
    band: str | None,
) -> Page:
    plane = Plane.of(cube, along)
    named = band_of(cube.meta) if band is None else band
    panels = _of_cube(cube, along) if columns is None else _of_columns(columns, along)
    drawn = [
        (image, _scale(image, number > 0, log), extinction_label(named, what))
        for number, (image, what) in enumerate(panels)
    ]
    beside = plane.aspect > FLAT and width >= NARROW
    notes = [_extent_note(cube, columns, along)]
    seen = None
    if "support" in cube.arrays:
        seen = cube.arrays["support"].sum(axis=array_axis(along)) > 0
        if not seen.all():
            notes.append("dotted: beyond it no sight line passes, only the prior")
    page, every = sheet(
        len(drawn),
        plane.aspect,
        columns=len(drawn) if beside else 1,
        width=width,
        header=header_height(header_lines(len(notes), width)),
    )
    for number, (axes, (image, scale, label)) in enumerate(zip(every, drawn)):
        first = number == 0 or not beside
        draw_plane(axes, plane, image, scale, label, first=first)
        if seen is not None:
            draw_unseen(axes, plane, seen, hatch=False)
    write_header(page, notes)
    return page


def _of_columns(columns: Columns, along: str) -> list[tuple[np.ndarray, str]]:
    if columns.along != along:
        raise ValueError(f"expected columns along {along}, got {columns.along}")
    value = "p50" if "p50" in columns.arrays else "mean"
    what = {"p50": "median extinction", "mean": "mean extinction"}[value]
    panels = [(columns.arrays[value], what)]
    if np.isfinite(columns.arrays["std"]).any():
        panels.append((columns.arrays["std"], "std of the extinction"))
    return panels


def _of_cube(cube: Cube, along: str) -> list[tuple[np.ndarray, str]]:
    name = density_name(cube)
    step = cube.spacing["xyz".index(along)]
    to_mag = (u.Unit(cube.unit) * u.pc).to(u.mag) * step
    axis = array_axis(along)
    what = "extinction of the median density" if name == "p50" else "extinction"
    panels = [(cube.arrays[name].sum(axis=axis, dtype=np.float64) * to_mag, what)]
    if "std" in cube.arrays:
        most = cube.arrays["std"].sum(axis=axis, dtype=np.float64) * to_mag
        panels.append((most, "std of the extinction at most"))
    return panels


def _scale(image: np.ndarray, spread: bool, log: bool) -> Scale:
    if log:
        return log_scale(image, spread=spread)
    return error_scale(image) if spread else signed_scale(image)


def _extent_note(cube: Cube, columns: Columns | None, along: str) -> str:
    if columns is None:
        low, high = edges_of(getattr(cube, along))
    else:
        low, high = columns.low, columns.high
    return f"{signed_text(low)} pc < ${along}$ < {signed_text(high)} pc"


def density_name(cube: Cube) -> str:
    """The array that is shown as a cube's density: median, mean or truth."""
    for name in ("p50", "mean", "density"):
        if name in cube.arrays:
            return name
    raise ValueError(
        f"the cube has arrays {sorted(cube.arrays)}; expected p50, mean or density"
    )
