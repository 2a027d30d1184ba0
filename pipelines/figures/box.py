"""A map in a box: extinction from above and the side, density in a plane, two maps."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipelines.cubes.cube import AXES, Cube
from pipelines.cubes.cuts import cut_box
from pipelines.cubes.sky import Columns, Ends, near_the_sun
from pipelines.figures.integrals import (
    chosen,
    crossed,
    density_name,
    extinction_panels,
    finest_at,
    integral,
    nearest,
    plane_of,
    plane_seen,
    ratio,
    regridded,
    shared_range,
    tells_more,
)
from pipelines.figures.planes import Panel, draw_panels
from pipelines.figures.scales import colour_scale, spans_decades
from pipelines.figures.style import (
    DOUBLE,
    Page,
    band_of,
    density_label,
    extinction_label,
    signed_text,
)

# Letters of a map's name that fit above a panel.
_LETTERS = 24


def face_on(
    cube: Cube, columns: Columns | None = None, *, log: bool = False, **look: Any
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
    log
        Logarithmic colours.
    look
        ``width`` of the page [mm] (180; under 120 the panels are stacked); ``panel``,
        the only one to draw: ``mean``, ``median``, ``std`` or ``relative error``;
        ``vmin``, ``vmax`` and ``cmap`` of the first panel, as in `colour_scale`.

    Raises
    ------
    MissingError
        If there is no such panel.
    """
    ends = float(cube.z[0]), float(cube.z[-1])
    return _through(cube, columns, "z", ends, log=log, **look)


def edge_on(
    cube: Cube,
    columns: Columns | None = None,
    *,
    along: str = "y",
    within: float | None = None,
    log: bool | None = None,
    **look: Any,
) -> Page:
    """Draw the extinction through the box along y (or x), with z upwards.

    Parameters are those of `face_on`, but colours are logarithmic by themselves where
    linear ones would show the plane alone. Without columns a box that is wider than
    2 kpc is cut to 500 pc on either side of the Sun, or ``within`` [pc].
    """
    ends = near_the_sun(getattr(cube, along), within)
    return _through(cube, columns, along, ends, log=log, **look)


def _through(
    cube: Cube,
    columns: Columns | None,
    along: str,
    ends: Ends,
    *,
    log: bool | None,
    width: float = DOUBLE,
    panel: str | None = None,
    **colours: Any,
) -> Page:
    """Draw the integral along an axis and its std."""
    if columns is None:
        name = density_name(cube.arrays)
        arrays = {name: integral(cube, name, along, ends)}
    elif columns.along != along:
        raise ValueError(f"expected columns along {along}, got {columns.along}")
    else:
        arrays, ends = columns.arrays, (columns.low, columns.high)
    seen, default = crossed(cube, along, ends), ["mean", "truth", "std"]
    if tells_more(arrays, seen):
        default.append("relative error")
    shown = chosen(extinction_panels(arrays, band_of(cube.meta)), default, panel)
    notes = [f"{signed_text(ends[0])} pc < ${along}$ < {signed_text(ends[1])} pc"]
    if log is None and (log := spans_decades(shown[0].image, seen)):
        notes.append("logarithmic colours")
    panels = []
    for kind, image, label in shown:
        given = {} if panels else colours
        scale = colour_scale(kind, image, seen=seen, log=log, **given)
        plane = {"cube": cube, "along": along, "image": image, "seen": seen}
        panels.append(Panel(**plane, scale=scale, label=label))
    return draw_panels(panels, notes, width=width, columns=len(panels))


def density_slice(
    cube: Cube,
    truth: Cube | None = None,
    *,
    axis: str = "z",
    at: float = 0.0,
    log: bool = False,
    width: float = DOUBLE,
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
    name = density_name(cube.arrays)
    image, seen = plane_of(cube, name, axis, at), plane_seen(cube, axis, at)
    what = "mean density" if name == "mean" else "density"
    factor, label = density_label(image, cube.unit, band_of(cube.meta), what)
    images, limits = [image * factor], seen
    if truth is not None:
        # Its own grid may be another, and it is known everywhere.
        true, limits = plane_of(truth, density_name(truth.arrays), axis, at), None
        images.append(true * factor)
    scale = colour_scale("value", *images, seen=limits, log=log, **colours)
    look: dict[str, Any] = {"along": axis, "scale": scale}
    known = {"mean": Panel(cube=cube, image=images[0], label=label, seen=seen, **look)}
    if truth is not None:
        label = f"true {label.removeprefix('mean ')}"
        true = Panel(cube=truth, image=images[1], label=label, **look)
        known = {"truth": true, **known}
    panels = chosen(known, known, panel)
    place = getattr(cube, axis)[nearest(cube, axis, at)]
    notes = [f"${axis}$ = {signed_text(place)} pc"]
    return draw_panels(panels, notes, width=width, columns=len(panels))


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
    shared = {name: shared_range(cube, other, name) for name in AXES}
    low, high = shared["z"]
    if columns is not None and (columns.low, columns.high) != (low, high):
        raise ValueError(
            f"expected columns from {low:g} to {high:g} pc, which both maps cover, got "
            f"{columns.low:g} to {columns.high:g} pc"
        )
    part = cut_box(cube, **{name: shared[name] for name in AXES if name != axis})
    second = regridded(other, part, factor)
    own, named = density_name(cube.arrays), band_of(cube.meta)
    short = [name if len(name) <= _LETTERS else f"{name[:_LETTERS]}…" for name in names]
    # Extinctions between the centres of cells along z.
    held, theirs = cut_box(part, z=(low, high)), cut_box(second, z=(low, high))
    through, std = integral(held, own, "z"), None
    if columns is not None:
        kept = np.ix_(np.isin(cube.y, part.y), np.isin(cube.x, part.x))
        through, std = columns.arrays["mean"][kept], columns.arrays["std"][kept]
    above = _row(
        {"cube": part, "along": "z", "seen": crossed(held, "z", (low, high))},
        through,
        integral(theirs, "density", "z"),
        std,
        names=short,
        label=extinction_label(named),
        log=log,
    )
    plane = plane_of(part, own, axis, at)
    unit, label = density_label(plane, part.unit, named)
    below = _row(
        {"cube": part, "along": axis, "seen": plane_seen(part, axis, at)},
        plane * unit,
        plane_of(second, "density", axis, at) * unit,
        None,
        names=short,
        label=label,
        log=log,
    )
    times = f" × {factor:g}" if factor != 1.0 else ""
    place = getattr(part, axis)[nearest(part, axis, at)]
    steps = dict.fromkeys(row[0].step_text for row in (above, below))
    notes = [
        f"differences: {names[0]} minus {names[1]}{times}",
        *([f"σ: std of {names[0]}"] if len(above) > len(below) else []),
        f"above: {signed_text(low)} pc < $z$ < {signed_text(high)} pc",
        f"below: ${axis}$ = {signed_text(place)} pc",
        f"circles every {' and '.join(steps)}",
    ]
    panels = [*above, *below, *[None] * (len(above) - len(below))]
    return draw_panels(panels, notes, width=width, columns=len(above), small=True)


def _row(
    plane: dict[str, Any],
    first: np.ndarray,
    second: np.ndarray,
    std: np.ndarray | None,
    *,
    names: list[str],
    label: str,
    log: bool,
) -> list[Panel]:
    """Return panels of two images, their difference, and that over a std if known."""
    seen, difference = plane["seen"], first - second
    value = colour_scale("value", first, second, seen=seen, log=log)
    shown = [
        (first, value, f"{names[0]}\n{label}"),
        (second, value, f"{names[1]}\n{label}"),
        (
            difference,
            colour_scale("difference", difference, seen=seen),
            f"difference\n{label[label.rindex('[') :]}",
        ),
    ]
    if std is not None and np.isfinite(std).any():
        sigmas = ratio(difference, std)
        scale = colour_scale("deviation", sigmas)
        shown.append((sigmas, scale, "difference / $\\sigma$"))
    return [Panel(image=i, scale=s, label=text, **plane) for i, s, text in shown]
