"""One plane of a box: its values, the Sun, circles of distance, what no star sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from pipelines.figures.page import NARROW, Page, above, sheet
from pipelines.figures.scales import Scale
from pipelines.figures.style import HATCH, NORMAL, SMALL, length_unit, outline
from pipelines.maps.cube import Cube

TOWARDS = {
    "x": r"towards $l = 0°$",
    "y": r"towards $l = 90°$",
    "z": r"towards $b = +90°$",
}
_ARRAY_AXIS = {"z": 0, "y": 1, "x": 2}
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_CIRCLES = 4
# How opaque the white is over what no sight line passes, and what headers say of it.
_PALE = 0.68
UNSEEN = "pale, hatched: no sight line passes, only the prior"
# Below this ratio of height to width panels are stacked.
FLAT = 0.55


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """Two axes of a cube, seen along the third.

    ``across`` and ``up`` name the axes, ``horizontal`` and ``vertical`` are the
    coordinates of the cells [pc].
    """

    across: str
    up: str
    horizontal: np.ndarray
    vertical: np.ndarray

    @classmethod
    def of(cls, cube: Cube, along: str) -> Plane:
        """The plane across an axis: from the north pole, or with z upwards."""
        across, up = {"z": ("x", "y"), "y": ("x", "z"), "x": ("y", "z")}[along]
        return cls(
            across=across,
            up=up,
            horizontal=getattr(cube, across),
            vertical=getattr(cube, up),
        )

    @property
    def edges(self) -> tuple[float, float, float, float]:
        """Left, right, bottom and top of the outermost cells [pc]."""
        return (*edges_of(self.horizontal), *edges_of(self.vertical))

    @property
    def aspect(self) -> float:
        """Height over width."""
        left, right, bottom, top = self.edges
        return (top - bottom) / (right - left)

    @property
    def unit(self) -> tuple[float, str]:
        """Factor from pc, and the unit, of the axes."""
        return length_unit(max(abs(edge) for edge in self.edges))


def array_axis(along: str) -> int:
    """Which axis of a cube's arrays lies along x, y or z."""
    return _ARRAY_AXIS[along]


def edges_of(centres: np.ndarray) -> tuple[float, float]:
    """Outer edges of the first and the last cell [pc]."""
    half = (centres[-1] - centres[0]) / (len(centres) - 1) / 2
    return float(centres[0] - half), float(centres[-1] + half)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """An image (up, across) of a plane; ``seen`` is where sight lines pass."""

    plane: Plane
    image: np.ndarray
    scale: Scale
    label: str
    seen: np.ndarray | None = None


def draw_panels(
    panels: Sequence[Panel], notes: list[str], *, width: float, across: int
) -> Page:
    """A page of panels, ``across`` of them side by side or stacked where they are flat.

    ``notes`` stand at the top, with what is not seen.
    """
    aspect = panels[0].plane.aspect
    columns = across if aspect > FLAT and width >= NARROW else 1
    if any(panel.seen is not None and not panel.seen.all() for panel in panels):
        notes = [*notes, UNSEEN]
    page, every = sheet(len(panels), aspect, columns=columns, width=width, notes=notes)
    for number, (axes, panel) in enumerate(zip(every, panels)):
        draw_plane(
            axes,
            panel.plane,
            panel.image,
            panel.scale,
            panel.label,
            seen=panel.seen,
            first=number % columns == 0,
            hints=columns < 3,
        )
    return page


def draw_plane(
    axes: Axes,
    plane: Plane,
    image: np.ndarray,
    scale: Scale,
    label: str,
    *,
    seen: np.ndarray | None = None,
    first: bool = True,
    hints: bool = True,
    small: bool = False,
) -> None:
    """Draw an image (up, across) with its bar above; pale and hatched where not seen.

    ``first`` panels have a label up the side; ``hints`` say where the axes point to;
    ``small`` panels have fewer numbers.
    """
    factor, unit = plane.unit
    left, right, bottom, top = (edge * factor for edge in plane.edges)
    drawn = scale.draw(axes, image, (left, right, bottom, top))
    _draw_circles(axes, plane, named=not small)
    axes.plot(0, 0, "o", mfc="white", mec="black", ms=4.5, mew=0.7)
    axes.plot(0, 0, "o", color="black", ms=1.2)
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    put = ((plane.across, axes.set_xlabel), (plane.up, axes.set_ylabel))
    for name, set_label in put:
        if name == plane.up and not first:
            continue
        room = hints and (name == plane.across or plane.aspect > FLAT)
        hint = f"  ({TOWARDS[name]} $\\rightarrow$)" if room else ""
        set_label(f"${name}$ [{unit}]{hint}", fontsize=NORMAL, labelpad=2.0)
    axes.xaxis.set_major_locator(
        MaxNLocator(4 if small else 6, steps=[1, 2, 2.5, 5, 10])
    )
    ticks = 4 if small else 6 if plane.aspect > FLAT else 3
    axes.yaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10]))
    axes.tick_params(labelsize=SMALL)
    bar = axes.figure.colorbar(
        drawn,
        cax=above(axes),
        orientation="horizontal",
        extend=scale.extend,
        extendfrac=0.03,
        ticklocation="top",
    )
    label_bar(bar, scale, label, small=small)
    if seen is not None and not seen.all():
        veil(axes, ~seen, (left, right, bottom, top), clip=None)


def label_bar(bar: Any, scale: Scale, label: str, *, small: bool = False) -> None:
    """Label and ticks of a horizontal colour bar."""
    signed = not scale.logarithmic and (scale.norm.vmin or 0.0) < 0
    if signed and scale.norm.vmin != -(scale.norm.vmax or 0.0):
        label += ", blue: negative"
    bar.set_label(label, fontsize=SMALL if small else NORMAL, labelpad=2.0)
    bar.ax.tick_params(labelsize=SMALL, width=0.5, length=2.0, pad=1.5)
    bar.outline.set_linewidth(0.5)
    if isinstance(scale.norm, LogNorm):
        _tick_decades(bar.ax, scale.norm)
    else:
        bar.ax.xaxis.set_major_locator(
            MaxNLocator(3 if small else 5, steps=[1, 2, 2.5, 5, 10])
        )


def _tick_decades(axes: Axes, norm: LogNorm) -> None:
    """Plain numbers on a logarithmic bar: the fewer decades, the more of them."""
    decades = np.log10(float(norm.vmax or 1.0) / float(norm.vmin or 1.0))
    steps = (1.0, 2.0, 5.0) if decades < 1.7 else (1.0, 3.0) if decades < 2.5 else (1,)
    axes.xaxis.set_major_locator(LogLocator(subs=steps))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def veil(
    axes: Axes, hidden: np.ndarray, extent: tuple[float, float, float, float], clip: Any
) -> None:
    """Pale and hatch where ``hidden`` (up, across); ``clip`` bounds it if given."""
    white = np.ones((*hidden.shape, 4))
    white[..., 3] = _PALE * hidden
    drawn = axes.imshow(
        white, origin="lower", extent=extent, interpolation="nearest", zorder=0.5
    )
    left, right, bottom, top = extent
    rows, columns = hidden.shape
    # Twice every edge: hatching begins where cells do, not at their centres.
    edges = np.linspace(left, right, columns + 1), np.linspace(bottom, top, rows + 1)
    places = [np.repeat(each, 2)[1:-1] for each in edges]
    doubled = hidden.repeat(2, axis=0).repeat(2, axis=1)
    with mpl.rc_context({"hatch.linewidth": HATCH}):
        hatched = axes.contourf(
            *places, doubled, levels=[0.5, 1.5], colors="none", hatches=["////"]
        )
    hatched.set_edgecolor((0.5, 0.5, 0.5, 0.7))
    hatched.set_linewidth(0.0)
    if clip is not None:
        drawn.set_clip_path(clip)
        hatched.set_clip_path(clip)


def circle_text(plane: Plane) -> str:
    """How far the circles are apart, with the unit."""
    factor, unit = plane.unit
    return f"{nice_step(max(map(abs, plane.edges))) * factor:.4g} {unit}"


def _draw_circles(axes: Axes, plane: Plane, *, named: bool) -> None:
    left, right, bottom, top = plane.edges
    factor, unit = plane.unit
    reach = max(-left, right, -bottom, top)
    step = nice_step(reach)
    angle = np.linspace(0, 2 * np.pi, 361)
    for radius in np.arange(step, reach * 1.42, step):
        axes.plot(
            radius * np.cos(angle) * factor,
            radius * np.sin(angle) * factor,
            color="black",
            linewidth=0.4,
            linestyle=(0, (5, 4)),
            alpha=0.55,
        )
        height = min(radius * np.sin(np.pi / 4), 0.65 * top)
        width = np.sqrt(radius**2 - height**2)
        if named and 0 < width < 0.86 * right and 0 < height < 0.93 * top:
            axes.annotate(
                f"{radius * factor:.4g} {unit}",
                (width * factor, height * factor),
                fontsize=SMALL - 1,
                ha="center",
                va="center",
                path_effects=outline(1.6),
            )


def nice_step(reach: float) -> float:
    """A round number, of which about four make the reach."""
    rough = reach / _CIRCLES
    power = 10.0 ** np.floor(np.log10(rough))
    return float(power * next(step for step in _STEPS if step * power >= rough))
