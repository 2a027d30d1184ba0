"""Figures of a box: extinction face-on and edge-on, density slices, comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.ticker import MaxNLocator

from pipelines.cubes.cube import AXES, Cube, cut_box
from pipelines.cubes.sky import Columns, near_the_sun
from pipelines.figures import scales, style
from pipelines.figures.integrals import (
    array_axis,
    chosen,
    crossed,
    density_name,
    extinction_panels,
    finest_at,
    nearest,
    plane_of,
    plane_seen,
    prefers_relative_error,
    ratio,
    regridded,
    shared_range,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """An image (up, across) of two axes of a cube; ``seen`` masks crossed cells.

    The view is ``along`` the third axis, from the north pole or with z upwards.
    """

    cube: Cube
    along: str
    image: np.ndarray
    scale: scales.Scale
    label: str
    seen: np.ndarray | None = None

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Left, right, bottom and top edges of the outermost cells [pc]."""
        edges = []
        for name in AXES:
            if name != self.along:
                centres = getattr(self.cube, name)
                half = (centres[-1] - centres[0]) / (len(centres) - 1) / 2
                edges += [float(centres[0] - half), float(centres[-1] + half)]
        left, right, bottom, top = edges
        return left, right, bottom, top

    @property
    def aspect(self) -> float:
        """Height over width."""
        left, right, bottom, top = self.extent
        return (top - bottom) / (right - left)

    @property
    def unit(self) -> tuple[float, str]:
        """The factor from pc, and the unit of the axes."""
        return style.length_unit(max(map(abs, self.extent)))

    @property
    def step(self) -> float:
        """Distance between circles [pc], round; at most four reach the edge."""
        ticks = MaxNLocator(4, steps=scales.STEPS)
        return float(ticks.tick_values(0.0, max(map(abs, self.extent)))[1])


@style.styled
def face_on(cube: Cube, columns: Columns | None = None, **look: Any) -> Figure:
    """Draw the mean extinction through the box, seen from the north Galactic pole.

    ``columns`` hold the integral and its std from posterior samples, drawn with the
    relative error if more informative. Without columns only the integral of the cube's
    mean density is drawn: cells where it is NaN add nothing, which is noted, and lines
    of such cells alone are left out. ``look`` is ``panel``, a single one to draw:
    ``mean``, ``median``, ``std`` or ``relative error``; and ``vmin``, ``vmax`` and
    ``cmap`` of the first panel, as in `colour_scale`.

    Raises `MissingError` if there is no such panel.
    """
    return _through(cube, columns, "z", **look)


@style.styled
def edge_on(cube: Cube, columns: Columns | None = None, **look: Any) -> Figure:
    """Draw the extinction through the box along y, with z upwards.

    Parameters are those of `face_on`; colours are logarithmic if linear ones would show
    the plane alone. Without columns a box wider than 2 kpc is cut to 500 pc on either
    side of the Sun.
    """
    return _through(cube, columns, "y", **look)


def _through(
    cube: Cube,
    columns: Columns | None,
    along: str,
    *,
    panel: str | None = None,
    **colours: Any,
) -> Figure:
    """Draw the integral along an axis and its std."""
    if columns is None:
        ends = float(cube.z[0]), float(cube.z[-1])
        if along == "y":
            ends = near_the_sun(cube.y)
        name = density_name(cube.arrays)
        # Outside of a map's sphere cells are NaN, on almost every line.
        known = np.isfinite(cube.arrays[name])
        filled = np.where(known, cube.arrays[name], 0.0)
        filled = replace(cube, arrays={name: filled}, finer=())
        image = filled.integral(name, along, ends)
        image = np.where(known.any(axis=array_axis(along)), image, np.nan)
        arrays, partial = {name: image}, not known.all()
    elif columns.along != along:
        raise ValueError(f"expected columns along {along}, got {columns.along}")
    else:
        arrays, ends, partial = columns.arrays, (columns.low, columns.high), False
    seen, default = crossed(cube, along, ends), ["mean", "truth", "std"]
    if prefers_relative_error(arrays, seen):
        default.append("relative error")
    shown = chosen(extinction_panels(arrays, style.band_of(cube.meta)), default, panel)
    low, high = map(style.signed_text, ends)
    notes = [f"{low} pc < ${along}$ < {high} pc"]
    if log := along == "y" and scales.spans_decades(shown[0].image, seen):
        notes.append("logarithmic colours")
    if partial:
        notes.append("of the part of each line within the map")
    panels = []
    for kind, image, label in shown:
        given = {} if panels else colours
        scale = scales.colour_scale(kind, image, seen=seen, log=log, **given)
        plane = {"cube": cube, "along": along, "image": image, "seen": seen}
        panels.append(Panel(**plane, scale=scale, label=label))
    return _drawn(panels, notes)


@style.styled
def density_slice(
    cube: Cube,
    truth: Cube | None = None,
    *,
    axis: str = "z",
    at: float = 0.0,
    panel: str | None = None,
    **colours: Any,
) -> Figure:
    """Draw the mean density in the plane of cells nearest to ``axis = at`` [pc].

    Nested cubes are drawn in the finest cells in the plane, and the ``truth``, if
    given, on the same colour scale. The std is omitted: cubes hold that of densities at
    points, which is larger than that of averages over cells. Cells without sight lines
    are pale and hatched: there the map is its prior, and does not set colours. Other
    parameters are those of `face_on`, with the panels ``mean`` and ``truth``.

    Raises `ValueError` if ``at`` lies outside the cube; `MissingError` if there is no
    such panel.
    """
    cube = finest_at(cube, axis, at)
    name = density_name(cube.arrays)
    image, seen = plane_of(cube, name, axis, at), plane_seen(cube, axis, at)
    what = "mean density" if name == "mean" else "density"
    band = style.band_of(cube.meta)
    factor, label = style.density_label(image, cube.unit, band, what)
    shown = {"mean": (cube, image * factor, label, seen)}
    if truth is not None:
        # It may have another grid, and is known everywhere.
        true = plane_of(truth, density_name(truth.arrays), axis, at) * factor
        true_label = f"true {label.removeprefix('mean ')}"
        shown = {"truth": (truth, true, true_label, None), **shown}
    limits = seen if truth is None else None
    images = [image for _, image, _, _ in shown.values()]
    scale = scales.colour_scale("value", *images, seen=limits, **colours)
    panels = [
        Panel(cube=of, along=axis, image=image, scale=scale, label=label, seen=seen)
        for of, image, label, seen in chosen(shown, shown, panel)
    ]
    place = getattr(cube, axis)[nearest(cube, axis, at)]
    return _drawn(panels, [f"${axis}$ = {style.signed_text(place)} pc"])


@style.styled
def compare(
    cube: Cube,
    other: Cube,
    *,
    columns: Columns | None = None,
    names: tuple[str, str] = ("map", "other"),
    axis: str = "z",
    at: float = 0.0,
) -> Figure:
    """Draw two maps and their difference, also relative to the first one's std.

    Panels cover the common box. First row: extinction along z, relative to the first
    one's std of the integral (only with its ``columns`` along z over the
    `shared_range`). Second row: density in a plane, as in `density_slice`, without the
    std of averages over cells. Numbers are those of `pipelines.compare`. Maps or truths
    may be on any grids: the second is regridded to the first.

    Raises `ValueError` if the maps have no cells in common, or the columns have other
    ends.
    """
    shared = {name: shared_range(cube, other, name) for name in AXES}
    low, high = shared["z"]
    if columns is not None and (columns.low, columns.high) != (low, high):
        raise ValueError(
            f"expected columns over {low:g} to {high:g} pc, which both maps cover, got "
            f"{columns.low:g} to {columns.high:g} pc"
        )
    part = cut_box(cube, **{name: shared[name] for name in AXES if name != axis})
    second = regridded(other, part)
    own, band = density_name(cube.arrays), style.band_of(cube.meta)
    # Extinctions between the centres of cells along z.
    held, theirs = cut_box(part, z=(low, high)), cut_box(second, z=(low, high))
    through, std = held.integral(own, "z"), None
    if columns is not None:
        kept = np.ix_(np.isin(cube.y, part.y), np.isin(cube.x, part.x))
        through, std = columns.arrays["mean"][kept], columns.arrays["std"][kept]
    plane = plane_of(part, own, axis, at)
    unit, density = style.density_label(plane, part.unit, band)
    beside = plane_of(second, "density", axis, at) * unit
    column, seen = style.extinction_label(band), crossed(held, "z", (low, high))
    rows = [
        ("z", seen, through, theirs.integral("density", "z"), column),
        (axis, plane_seen(part, axis, at), plane * unit, beside, density),
    ]
    # Longer names would not fit above a panel.
    first, last = (name if len(name) <= 24 else f"{name[:24]}…" for name in names)
    panels = []
    for along, seen, mine, its, label in rows:
        value = scales.colour_scale("value", mine, its, seen=seen)
        apart = mine - its
        difference = scales.colour_scale("difference", apart, seen=seen)
        panels += [
            Panel(cube=part, along=along, seen=seen, image=image, scale=scale, label=t)
            for image, scale, t in (
                (mine, value, f"{first}\n{label}"),
                (its, value, f"{last}\n{label}"),
                (apart, difference, f"difference\n{label[label.rindex('[') :]}"),
            )
        ]
    place = getattr(part, axis)[nearest(part, axis, at)]
    steps = (f"{p.step * p.unit[0]:.4g} {p.unit[1]}" for p in panels[::3])
    notes = [
        f"differences: {names[0]} minus {names[1]}",
        f"above: {style.signed_text(low)} pc < $z$ < {style.signed_text(high)} pc",
        f"below: ${axis}$ = {style.signed_text(place)} pc",
        f"circles every {' and '.join(dict.fromkeys(steps))}",
    ]
    if std is not None and np.isfinite(std).any():
        image, label = ratio(panels[2].image, std), "difference / $\\sigma$"
        scale = scales.colour_scale("deviation", image)
        panels.insert(3, replace(panels[2], image=image, scale=scale, label=label))
        notes.insert(1, f"σ: std of {names[0]}")
    return _drawn(panels, notes, small=True)


def _drawn(
    panels: Sequence[Panel], notes: Sequence[str], *, small: bool = False
) -> Figure:
    """Draw a page of panels with ``notes`` at the top.

    Flat panels are stacked; a single panel has a narrower page. ``small`` panels are in
    two rows and have fewer numbers.
    """
    flat, width, columns = panels[0].aspect <= 0.55, style.PAGE, len(panels)
    if small:
        columns = -(-len(panels) // 2)
    elif flat:
        columns = 1
    elif len(panels) == 1:
        width = 0.75 * style.PAGE
    if not small and any(p.seen is not None and not p.seen.all() for p in panels):
        notes = [*notes, "pale, hatched: no sight line passes, only the prior"]
    if any(np.isnan(panel.image).any() for panel in panels):
        notes = [*notes, "grey: outside the map"]
    size = style.SMALL if small else style.NORMAL
    room = 0.95 * width / columns
    labels = [style.wrapped(panel.label, room, size) for panel in panels]
    figure, every = style.page(
        len(panels),
        columns,
        aspect=max(panel.aspect for panel in panels),
        lines=1 + max(label.count("\n") for label in labels),
        width=width,
        notes=notes,
    )
    for number, (axes, panel, label) in enumerate(zip(every, panels, labels)):
        factor, unit = panel.unit
        left, right, bottom, top = extent = [edge * factor for edge in panel.extent]
        pixels = {"origin": "lower", "extent": extent, "interpolation": "nearest"}
        shown = panel.scale.shown(panel.image)
        image = axes.imshow(shown, **pixels, **panel.scale.look)
        axes.plot(0, 0, "o", mfc="white", mec="black", ms=4.5, mew=0.7)
        axes.plot(0, 0, "o", color="black", ms=1.2)
        axes.set(xlim=(left, right), ylim=(bottom, top))
        _draw_circles(axes, panel, named=not small)
        ticks = 4 if small else 6
        axes.xaxis.set_major_locator(MaxNLocator(ticks, steps=scales.STEPS))
        ticks = 3 if flat and not small else ticks
        axes.yaxis.set_major_locator(MaxNLocator(ticks, steps=scales.STEPS))
        scales.add_bar(axes, image, panel.scale, label, few=small)
        if panel.seen is not None and not panel.seen.all():
            rows, cells = panel.seen.shape
            x = np.linspace(left, right, cells + 1)
            scales.veil(axes, ~panel.seen, x, np.linspace(bottom, top, rows + 1))
        names = [f"${name}$ [{unit}]" for name in AXES if name != panel.along]
        if not small and columns < 3:
            poles = {"x": "$l = 0°$", "y": "$l = 90°$", "z": "$b = +90°$"}
            towards = [poles[name] for name in AXES if name != panel.along]
            names[0] += f"  (towards {towards[0]} $\\rightarrow$)"
            names[1] += "" if flat else f"  (towards {towards[1]} $\\rightarrow$)"
        axes.set(xlabel=names[0], ylabel="" if number % columns else names[1])
        if number % columns and panel.extent == panels[0].extent:
            # Only the first panel of a row has numbers.
            axes.tick_params(labelleft=False)
    return figure


def _draw_circles(axes: Axes, panel: Panel, *, named: bool) -> None:
    """Draw circles around the Sun, with labels along the diagonal if they fit."""
    factor, unit = panel.unit
    _, right, _, top = panel.extent
    for radius in np.arange(panel.step, 1.42 * max(map(abs, panel.extent)), panel.step):
        circle = Circle((0, 0), radius * factor, fill=False, lw=0.4, alpha=0.55)
        circle.set_linestyle((0, (5, 4)))
        axes.add_patch(circle)
        up = min(radius * np.sin(np.pi / 4), 0.65 * top)
        across = np.sqrt(radius**2 - up**2)
        if named and 0 < across < 0.86 * right and 0 < up < 0.93 * top:
            look = {"ha": "center", "va": "center", "path_effects": style.outline(1.6)}
            name = f"{radius * factor:.4g} {unit}"
            place = across * factor, up * factor
            axes.text(*place, name, fontsize=style.SMALL - 1, **look)
