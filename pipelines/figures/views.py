"""The extinction through a whole box, seen from above and from the side."""

from __future__ import annotations

from functools import partial

import numpy as np

from pipelines.figures.box import Panel, Plane, draw_panels
from pipelines.figures.integrals import Through, density_name, near_the_sun
from pipelines.figures.labels import band_of, extinction_label
from pipelines.figures.page import DOUBLE, Page
from pipelines.figures.scales import (
    Scale,
    error_scale,
    log_scale,
    scale_where,
    signed_scale,
    spans_decades,
)
from pipelines.figures.style import signed_text
from pipelines.maps.columns import Columns
from pipelines.maps.cube import Cube


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
        The integral and its std from posterior samples (`pipelines.products.density`).
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
    through = Through.of(cube, "z", columns)
    return _integrated(through, columns, width=width, log=log, band=band)


def edge_on(
    cube: Cube,
    columns: Columns | None = None,
    *,
    width: float = DOUBLE,
    log: bool | None = None,
    band: str | None = None,
    along: str = "y",
    within: float | None = None,
) -> Page:
    """Draw the extinction through the box along y (or x), with z upwards.

    Parameters are those of `face_on`, but colours are logarithmic by themselves where
    linear ones would show the plane alone. Without columns a box that is wider than
    2 kpc is cut to 500 pc on either side of the Sun, or ``within`` [pc].
    """
    ends = columns or near_the_sun(cube, along, within)
    through = Through.of(cube, along, ends)
    return _integrated(through, columns, width=width, log=log, band=band)


def _integrated(
    through: Through,
    columns: Columns | None,
    *,
    width: float,
    log: bool | None,
    band: str | None,
) -> Page:
    cube, along, seen = through.cube, through.along, through.seen
    named = band_of(cube.meta) if band is None else band
    images = _of_cube(through) if columns is None else _of_columns(columns, along)
    notes = [
        f"{signed_text(through.low)} pc < ${along}$ < {signed_text(through.high)} pc"
    ]
    if log is None and (log := spans_decades(images[0][0], seen)):
        notes.append("logarithmic colours")
    panels = [
        Panel(
            plane=Plane.of(cube, along),
            image=image,
            scale=_scale(image, seen, number > 0, log),
            label=extinction_label(named, what),
            seen=seen,
        )
        for number, (image, what) in enumerate(images)
    ]
    return draw_panels(panels, notes, width=width, across=len(panels))


def _of_columns(columns: Columns, along: str) -> list[tuple[np.ndarray, str]]:
    if columns.along != along:
        raise ValueError(f"expected columns along {along}, got {columns.along}")
    value = "p50" if "p50" in columns.arrays else "mean"
    what = {"p50": "median extinction", "mean": "mean extinction"}[value]
    panels = [(columns.arrays[value], what)]
    if np.isfinite(columns.arrays["std"]).any():
        panels.append((columns.arrays["std"], "std of the extinction"))
    return panels


def _of_cube(through: Through) -> list[tuple[np.ndarray, str]]:
    name = density_name(through.cube)
    what = "extinction of the median density" if name == "p50" else "extinction"
    panels = [(through.integral(name), what)]
    if "std" in through.cube.arrays:
        panels.append((through.integral("std"), "std of the extinction at most"))
    return panels


def _scale(
    image: np.ndarray, seen: np.ndarray | None, spread: bool, log: bool
) -> Scale:
    if log:
        return scale_where(partial(log_scale, spread=spread), seen, image)
    return scale_where(error_scale if spread else signed_scale, seen, image)
