"""Panels of a box: a plane's image with the Sun, circles of distance, colour bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle
from matplotlib.ticker import MaxNLocator

from pipelines.cubes.cube import AXES, Cube
from pipelines.figures.page import (
    BOX,
    DOUBLE,
    INCH,
    LABEL,
    NARROW,
    SINGLE,
    Page,
    panel_width,
    sheet,
    wrapped,
)
from pipelines.figures.scales import STEPS, Extent, Scale, add_bar, veil
from pipelines.figures.style import NORMAL, SMALL, length_unit, outline

_TOWARDS = {
    "x": r"towards $l = 0°$",
    "y": r"towards $l = 90°$",
    "z": r"towards $b = +90°$",
}
# Circles from the Sun to the farthest edge, at most.
_CIRCLES = 4
_UNSEEN = "pale, hatched: no sight line passes, only the prior"
# Distance of the names of circles [mm].
_NAME = 8.5
# Below this width two small panels are side by side, above it four [mm].
_NARROW_SMALL = 160.0
# Below this ratio of height to width panels are stacked.
_FLAT = 0.55
# Finest cells across the figure of a slice, at most.
_MOST_CELLS = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """Two axes of a cube, seen from the north pole or with z upwards."""

    cube: Cube
    along: str

    @property
    def names(self) -> tuple[str, str]:
        """The horizontal and the vertical axis."""
        across, up = (axis for axis in "xyz" if axis != self.along)
        return across, up

    @property
    def extent(self) -> Extent:
        """Left, right, bottom and top edges of the outermost cells [pc]."""
        (left, right), (bottom, top) = map(self._edges, self.names)
        return left, right, bottom, top

    def _edges(self, name: str) -> tuple[float, float]:
        centres = getattr(self.cube, name)
        half = (centres[-1] - centres[0]) / (len(centres) - 1) / 2
        return float(centres[0] - half), float(centres[-1] + half)

    @property
    def aspect(self) -> float:
        """Height over width."""
        left, right, bottom, top = self.extent
        return (top - bottom) / (right - left)

    @property
    def unit(self) -> tuple[float, str]:
        """Factor from pc, and the unit, of the axes."""
        return length_unit(max(map(abs, self.extent)))

    @property
    def step(self) -> float:
        """Distance between circles [pc], a round number."""
        reach = max(map(abs, self.extent))
        return float(MaxNLocator(_CIRCLES, steps=STEPS).tick_values(0.0, reach)[1])

    @property
    def step_text(self) -> str:
        """Distance between circles with its unit."""
        factor, unit = self.unit
        return f"{self.step * factor:.4g} {unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """An image (up, across) of a plane; ``seen`` is where sight lines pass."""

    plane: Plane
    image: np.ndarray
    scale: Scale
    label: str
    seen: np.ndarray | None = None


def array_axis(along: str) -> int:
    """Which axis of a cube's arrays lies along x, y or z."""
    return "zyx".index(along)


def plane_of(cube: Cube, name: str, axis: str, at: float) -> np.ndarray:
    """The plane of cells nearest to ``axis = at`` [pc], shape (up, across)."""
    plane = cube.arrays[name].take(nearest(cube, axis, at), axis=array_axis(axis))
    return np.asarray(plane, dtype=np.float64)


def finest_at(cube: Cube, axis: str, at: float) -> Cube:
    """Three planes around ``axis = at``, with the finest cells that a level has there.

    A cube of one level as it is. Where a plane leaves a finer level, coarser ones are
    interpolated.
    """
    known = [
        level
        for level in cube.levels
        if getattr(level, axis)[0] <= at <= getattr(level, axis)[-1]
        and max(np.ptp(a) for a in (cube.x, cube.y, cube.z))
        <= _MOST_CELLS * min(level.spacing)
    ]
    if len(known) < 2:
        return cube
    level, axes = known[-1], {}
    for name, step in zip(AXES, level.spacing, strict=True):
        centres = getattr(cube, name)
        axes[name] = np.arange(centres[0], centres[-1] + 1e-6 * step, step)
        if name == axis:
            middle = round((at - centres[0]) / step)
            around = np.clip(middle, 1, len(axes[name]) - 2) + np.arange(-1, 2)
            axes[name] = axes[name][around]
    z, y, x = np.meshgrid(axes["z"], axes["y"], axes["x"], indexing="ij")
    points = np.stack([x, y, z], axis=-1)
    arrays = {name: cube.sample(name, points) for name in cube.arrays}
    return replace(cube, **axes, arrays=arrays, finer=())


def nearest(cube: Cube, axis: str, at: float) -> int:
    """Index of the cells nearest to ``axis = at`` [pc].

    Raises
    ------
    ValueError
        If ``at`` lies outside the cube.
    """
    centres = getattr(cube, axis)
    half = (centres[1] - centres[0]) / 2
    if not centres[0] - half <= at <= centres[-1] + half:
        raise ValueError(
            f"the map spans {centres[0] - half:g} to {centres[-1] + half:g} pc along "
            f"{axis}: there is no slice at {at:g} pc"
        )
    return int(np.abs(centres - at).argmin())


def draw_panels(
    panels: Sequence[Panel | None],
    notes: Sequence[str],
    *,
    width: float,
    columns: int,
    small: bool = False,
) -> Page:
    """Draw a page of panels, row by row; ``None`` leaves a place free.

    Fewer ``columns`` where the page is narrow or panels are flat; a single panel has a
    narrower page. ``notes`` stand at the top. ``small`` panels have fewer numbers.
    """
    drawn = [panel for panel in panels if panel is not None]
    aspect = drawn[0].plane.aspect
    if width < (_NARROW_SMALL if small else NARROW):
        columns = columns // 2 if small else 1
    elif aspect <= _FLAT and not small:
        columns = 1
    elif len(panels) == 1:
        width = min(width, (SINGLE + DOUBLE) / 2)
    if not small and any(p.seen is not None and not p.seen.all() for p in drawn):
        notes = [*notes, _UNSEEN]
    margins = BOX._replace(between=11.0) if small else BOX
    wide = panel_width(margins, columns, width) + margins.between - 2.0
    size = SMALL if small else NORMAL
    labels = [wrapped(panel.label, wide, size) for panel in drawn]
    lines = max(label.count("\n") for label in labels)
    margins = margins._replace(top=margins.top + LABEL * lines)
    names = iter(labels)
    page, every = sheet(
        len(panels), aspect, margins, columns=columns, width=width, notes=notes
    )
    for number, (axes, panel) in enumerate(zip(every, panels)):
        if panel is None:
            axes.remove()
            continue
        hints = not small and columns < 3
        _name_axes(axes, panel.plane, first=number % columns == 0, hints=hints)
        _draw(axes, replace(panel, label=next(names)), small)
        if number % columns and panel.plane.extent == drawn[0].plane.extent:
            # The numbers of the first panel serve the row.
            axes.tick_params(labelleft=False)
    return page


def _draw(axes: Axes, panel: Panel, small: bool) -> None:
    """Draw the image with its bar above, the Sun and circles; hatch what is unseen."""
    plane = panel.plane
    factor, _ = plane.unit
    left, right, bottom, top = (edge * factor for edge in plane.extent)
    extent = left, right, bottom, top
    drawn = panel.scale.draw(axes, panel.image, extent)
    axes.plot(0, 0, "o", mfc="white", mec="black", ms=4.5, mew=0.7)
    axes.plot(0, 0, "o", color="black", ms=1.2)
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    _draw_circles(axes, plane, named=not small)
    axes.xaxis.set_major_locator(MaxNLocator(4 if small else 6, steps=STEPS))
    ticks = 4 if small else 6 if plane.aspect > _FLAT else 3
    axes.yaxis.set_major_locator(MaxNLocator(ticks, steps=STEPS))
    axes.tick_params(labelsize=SMALL)
    add_bar(drawn, panel.scale, panel.label, away=1.2, few=small)
    if panel.seen is not None and not panel.seen.all():
        veil(axes, ~panel.seen, extent)


def _name_axes(axes: Axes, plane: Plane, *, first: bool, hints: bool) -> None:
    """Label the axes, with directions if ``hints``; the vertical one if ``first``."""
    unit = plane.unit[1]
    setters = [axes.set_xlabel, axes.set_ylabel][: 1 + first]
    for name, set_label in zip(plane.names, setters):
        room = hints and (name == plane.names[0] or plane.aspect > _FLAT)
        hint = f"  ({_TOWARDS[name]} $\\rightarrow$)" if room else ""
        set_label(f"${name}$ [{unit}]{hint}", fontsize=NORMAL, labelpad=2.0)


def _draw_circles(axes: Axes, plane: Plane, *, named: bool) -> None:
    factor, unit = plane.unit
    _, right, _, top = plane.extent
    reach = max(map(abs, plane.extent))
    # Names so far apart [pc], along the diagonal, do not touch.
    wide = axes.get_window_extent().width / axes.figure.dpi * INCH
    apart = _NAME * (plane.extent[1] - plane.extent[0]) / wide
    last = -np.inf
    line = {"fill": False, "lw": 0.4, "ls": (0, (5, 4)), "alpha": 0.55}
    for radius in np.arange(plane.step, reach * 1.42, plane.step):
        axes.add_patch(Circle((0, 0), radius * factor, **line))
        height = min(radius * np.sin(np.pi / 4), 0.65 * top)
        width = np.sqrt(radius**2 - height**2)
        inside = 0 < width < 0.86 * right and 0 < height < 0.93 * top
        if named and inside and radius - last >= apart:
            last = radius
            axes.text(
                width * factor, height * factor, f"{radius * factor:.4g} {unit}",
                fontsize=SMALL - 1, ha="center", va="center", path_effects=outline(1.6),
            )  # fmt: skip
