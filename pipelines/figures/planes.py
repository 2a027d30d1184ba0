"""A map in a box: extinction through it from above and the side, density in a plane."""

from __future__ import annotations

import numpy as np

from pipelines.figures.box import (
    Panel,
    Plane,
    draw_panels,
    finest_at,
    nearest,
    plane_of,
)
from pipelines.figures.integrals import (
    crossed,
    density_name,
    integral,
    relative_error,
    tells_more,
)
from pipelines.figures.page import DOUBLE, Page
from pipelines.figures.scales import colour_scale, spans_decades
from pipelines.figures.style import (
    band_of,
    density_label,
    extinction_label,
    signed_text,
)
from pipelines.maps.columns import Columns, Ends, near_the_sun
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
        The integral and its std from posterior samples (`pipelines.products.columns`),
        beside them the relative error where that says more.
        Without it the value is the integral of the median density where the cube has
        one (the mean of a lognormal grows without bound off all sight lines), and
        beside it stands the sum of the cells' std: an upper bound of the integral's.
    width
        Of the page [mm]; under 120 the panels are stacked.
    log
        Logarithmic colours.
    band
        Name of the extinction; that of the provenance if ``None``.
    """
    ends = float(cube.z[0]), float(cube.z[-1])
    return _through(cube, columns, "z", ends, width=width, log=log, band=band)


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
    ends = near_the_sun(getattr(cube, along), within)
    return _through(cube, columns, along, ends, width=width, log=log, band=band)


def density_slice(
    cube: Cube,
    truth: Cube | None = None,
    *,
    axis: str = "z",
    at: float = 0.0,
    width: float = DOUBLE,
    log: bool = False,
    band: str | None = None,
) -> Page:
    """Draw the density in the plane of cells nearest to ``axis = at`` [pc].

    Of nested cubes in the cells of the finest that the plane passes.
    Truth (if given), map, std and relative error. The map is the median where the cube
    has it, else the mean. Truth and map have one colour scale. Pale and hatched is what
    no sight line passes through: there the map is its prior, and does not set colours.
    Other parameters are those of `face_on`.

    Raises
    ------
    ValueError
        If ``at`` lies outside the cube.
    """

    cube = finest_at(cube, axis, at)

    def take(name: str) -> np.ndarray:
        return plane_of(cube, name, axis, at)

    name, plane = density_name(cube.arrays), Plane(cube=cube, along=axis)
    seen = take("support") > 0 if "support" in cube.arrays else None
    named = band_of(cube.meta) if band is None else band
    factor, label = density_label(take(name), cube.unit, named)
    what = "median " if name == "p50" else ""
    image, limits = take(name) * factor, seen
    images, panels = [image], []
    if truth is not None:
        # Its own grid may be another, and it is known everywhere.
        true, limits = plane_of(truth, density_name(truth.arrays), axis, at), None
        images.append(true * factor)
    scale = colour_scale("value", *images, seen=limits, log=log)
    if truth is not None:
        other, text = Plane(cube=truth, along=axis), f"true {label}"
        panels.append(Panel(plane=other, image=images[1], scale=scale, label=text))
    panels.append(
        Panel(plane=plane, image=image, scale=scale, label=f"{what}{label}", seen=seen)
    )
    if "std" in cube.arrays:
        factor, label = density_label(take("std"), cube.unit, "", "std of the density")
        panels.append(_panel(plane, "error", take("std") * factor, label, seen, log))
        label = "std of ln(density)" if "p16" in cube.arrays else "std / density"
        error = relative_error(take, cube.arrays)
        panels.append(_panel(plane, "ratio", error, label, seen, log))
    place = getattr(cube, axis)[nearest(cube, axis, at)]
    columns = 2 if len(panels) == 4 else min(len(panels), 3)
    notes = [f"${axis}$ = {signed_text(place)} pc"]
    return draw_panels(panels, notes, width=width, columns=columns)


def _through(
    cube: Cube,
    columns: Columns | None,
    along: str,
    ends: Ends,
    *,
    width: float,
    log: bool | None,
    band: str | None,
) -> Page:
    """The integral along an axis and its std."""
    if columns is None:
        images = _of_cube(cube, along, ends)
    else:
        images, ends = _of_columns(columns, along), (columns.low, columns.high)
    plane, seen = Plane(cube=cube, along=along), crossed(cube, along, ends)
    named = band_of(cube.meta) if band is None else band
    arrays = {} if columns is None else columns.arrays
    notes = [f"{signed_text(ends[0])} pc < ${along}$ < {signed_text(ends[1])} pc"]
    if log is None and (log := spans_decades(images[0][0], seen)):
        notes.append("logarithmic colours")
    panels = [
        _panel(plane, kind, image, extinction_label(named, what), seen, log)
        for (image, what), kind in zip(images, ("value", "error"))
    ]
    if tells_more(arrays, seen):
        error = relative_error(arrays.__getitem__, arrays)
        panels.append(_panel(plane, "ratio", error, "std of ln(extinction)", seen, log))
    return draw_panels(panels, notes, width=width, columns=len(panels))


def _of_columns(columns: Columns, along: str) -> list[tuple[np.ndarray, str]]:
    if columns.along != along:
        raise ValueError(f"expected columns along {along}, got {columns.along}")
    name, what = ("p50", "median") if "p50" in columns.arrays else ("mean", "mean")
    images = [(columns.arrays[name], f"{what} extinction")]
    if np.isfinite(columns.arrays["std"]).any():
        images.append((columns.arrays["std"], "std of the extinction"))
    return images


def _of_cube(cube: Cube, along: str, ends: Ends) -> list[tuple[np.ndarray, str]]:
    name = density_name(cube.arrays)
    what = "extinction of the median density" if name == "p50" else "extinction"
    images = [(integral(cube, name, along, ends), what)]
    if "std" in cube.arrays:
        bound = integral(cube, "std", along, ends)
        images.append((bound, "std of the extinction at most"))
    return images


def _panel(
    plane: Plane,
    kind: str,
    image: np.ndarray,
    label: str,
    seen: np.ndarray | None,
    log: bool,
) -> Panel:
    scale = colour_scale(kind, image, seen=seen, log=log)
    return Panel(plane=plane, image=image, scale=scale, label=label, seen=seen)
