"""A map in a box: extinction through it from above and the side, density in a plane."""

from __future__ import annotations

from typing import Any

from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import Columns, Ends, near_the_sun
from pipelines.figures.box import (
    Panel,
    Plane,
    draw_panels,
    finest_at,
    nearest,
    plane_of,
)
from pipelines.figures.integrals import (
    chosen,
    crossed,
    density_name,
    extinction_panels,
    integral,
    tells_more,
)
from pipelines.figures.page import DOUBLE, Page
from pipelines.figures.scales import colour_scale, spans_decades
from pipelines.figures.style import (
    band_of,
    density_label,
    signed_text,
)


def face_on(
    cube: Cube,
    columns: Columns | None = None,
    *,
    width: float = DOUBLE,
    log: bool = False,
    panel: str | None = None,
    **colours: Any,
) -> Page:
    """Draw the mean extinction through the box, seen from the north Galactic pole.

    Parameters
    ----------
    cube
        The map: its axes, ``support``, and its density where there are no columns.
    columns
        The integral and its std from posterior samples (`columns`),
        beside them the relative error where that says more. Without it the mean, the
        integral of the mean density, stands alone.
    width
        Of the page [mm]; under 120 the panels are stacked.
    log
        Logarithmic colours.
    panel
        The only panel to draw: ``mean``, ``median``, ``std`` or ``relative error``.
    colours
        ``vmin``, ``vmax`` and ``cmap`` of the first panel, as in `colour_scale`.

    Raises
    ------
    MissingError
        If there is no such panel.
    """
    ends = float(cube.z[0]), float(cube.z[-1])
    look = {"width": width, "log": log, "panel": panel, **colours}
    return _through(cube, columns, "z", ends, **look)


def edge_on(
    cube: Cube,
    columns: Columns | None = None,
    *,
    width: float = DOUBLE,
    log: bool | None = None,
    along: str = "y",
    within: float | None = None,
    panel: str | None = None,
    **colours: Any,
) -> Page:
    """Draw the extinction through the box along y (or x), with z upwards.

    Parameters are those of `face_on`, but colours are logarithmic by themselves where
    linear ones would show the plane alone. Without columns a box that is wider than
    2 kpc is cut to 500 pc on either side of the Sun, or ``within`` [pc].
    """
    ends = near_the_sun(getattr(cube, along), within)
    look = {"width": width, "log": log, "panel": panel, **colours}
    return _through(cube, columns, along, ends, **look)


def density_slice(
    cube: Cube,
    truth: Cube | None = None,
    *,
    axis: str = "z",
    at: float = 0.0,
    width: float = DOUBLE,
    log: bool = False,
    panel: str | None = None,
    **colours: Any,
) -> Page:
    """Draw the mean density in the plane of cells nearest to ``axis = at`` [pc].

    Of nested cubes in the cells of the finest that the plane passes; beside it the
    ``truth``, if given, on one colour scale. Its std is left out: cubes hold that of
    densities at points, which is larger than that of averages over cells. Pale and
    hatched is what no sight line passes through: there the map is its prior, and does
    not set colours. Other parameters are those of `face_on`, with the panels ``mean``
    and ``truth``.

    Raises
    ------
    ValueError
        If ``at`` lies outside the cube.
    MissingError
        If there is no such panel.
    """
    cube = finest_at(cube, axis, at)
    name, plane = density_name(cube.arrays), Plane(cube=cube, along=axis)
    image = plane_of(cube, name, axis, at)
    seen = plane_of(cube, "support", axis, at) > 0 if "support" in cube.arrays else None
    what = "mean density" if name == "mean" else "density"
    factor, label = density_label(image, cube.unit, band_of(cube.meta), what)
    images, limits = [image * factor], seen
    if truth is not None:
        # Its own grid may be another, and it is known everywhere.
        true, limits = plane_of(truth, density_name(truth.arrays), axis, at), None
        images.append(true * factor)
    scale = colour_scale("value", *images, seen=limits, log=log, **colours)
    own = Panel(plane=plane, image=images[0], scale=scale, label=label, seen=seen)
    known = {"mean": own}
    if truth is not None:
        other, label = (
            Plane(cube=truth, along=axis),
            f"true {label.removeprefix('mean ')}",
        )
        true = Panel(plane=other, image=images[1], scale=scale, label=label)
        known = {"truth": true, "mean": own}
    panels = chosen(known, known, panel)
    place = getattr(cube, axis)[nearest(cube, axis, at)]
    notes = [f"${axis}$ = {signed_text(place)} pc"]
    return draw_panels(panels, notes, width=width, columns=len(panels))


def _through(
    cube: Cube,
    columns: Columns | None,
    along: str,
    ends: Ends,
    *,
    width: float,
    log: bool | None,
    panel: str | None,
    **colours: Any,
) -> Page:
    """The integral along an axis and its std."""
    if columns is None:
        name = density_name(cube.arrays)
        arrays = {name: integral(cube, name, along, ends)}
    elif columns.along != along:
        raise ValueError(f"expected columns along {along}, got {columns.along}")
    else:
        arrays, ends = columns.arrays, (columns.low, columns.high)
    plane, seen = Plane(cube=cube, along=along), crossed(cube, along, ends)
    known = extinction_panels(arrays, band_of(cube.meta))
    default = ["mean", "truth", "std"]
    if tells_more(arrays, seen):
        default.append("relative error")
    shown = chosen(known, default, panel)
    notes = [f"{signed_text(ends[0])} pc < ${along}$ < {signed_text(ends[1])} pc"]
    if log is None and (log := spans_decades(shown[0].image, seen)):
        notes.append("logarithmic colours")
    panels = []
    for kind, image, label in shown:
        given = {} if panels else colours
        scale = colour_scale(kind, image, seen=seen, log=log, **given)
        own = Panel(plane=plane, image=image, scale=scale, label=label, seen=seen)
        panels.append(own)
    return draw_panels(panels, notes, width=width, columns=len(panels))
