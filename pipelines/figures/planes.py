"""Planes of a box: an image with the Sun, circles of distance and a colour bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle
from matplotlib.ticker import MaxNLocator

from pipelines.cubes.cube import Cube
from pipelines.figures.scales import STEPS, Extent, Scale, add_bar, veil
from pipelines.figures.style import (
    DOUBLE,
    NARROW,
    NORMAL,
    SINGLE,
    SMALL,
    Margins,
    Page,
    axes_width,
    length_unit,
    outline,
    sheet,
)

_TOWARDS = {
    "x": r"towards $l = 0°$",
    "y": r"towards $l = 90°$",
    "z": r"towards $b = +90°$",
}
# With a colour bar above each panel.
_MARGINS = Margins(left=14.0, right=4.0, between=9.5, top=10.5, bottom=9.5)
# Circles from the Sun to the farthest edge, at most; distance of their names [mm].
_CIRCLES, _NAME = 4, 8.5
_UNSEEN = "pale, hatched: no sight line passes, only the prior"
# Below this width two small panels are side by side, above it four [mm].
_NARROW_SMALL = 160.0
# Below this ratio of height to width panels are stacked.
_FLAT = 0.55


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """An image (up, across) of two axes of a cube; ``seen``: where sight lines pass.

    It is looked at ``along`` the third axis, from the north pole or with z upwards.
    """

    cube: Cube
    along: str
    image: np.ndarray
    scale: Scale
    label: str
    seen: np.ndarray | None = None

    @property
    def names(self) -> tuple[str, str]:
        """The horizontal and the vertical axis."""
        across, up = (axis for axis in "xyz" if axis != self.along)
        return across, up

    @property
    def extent(self) -> Extent:
        """Left, right, bottom and top edges of the outermost cells [pc]."""
        edges = []
        for name in self.names:
            centres = getattr(self.cube, name)
            half = (centres[-1] - centres[0]) / (len(centres) - 1) / 2
            edges += [float(centres[0] - half), float(centres[-1] + half)]
        left, right, bottom, top = edges
        return left, right, bottom, top

    @property
    def reach(self) -> float:
        """Distance of the farthest edge [pc]."""
        return max(map(abs, self.extent))

    @property
    def aspect(self) -> float:
        """Height over width."""
        left, right, bottom, top = self.extent
        return (top - bottom) / (right - left)

    @property
    def step(self) -> float:
        """Distance between circles [pc], a round number."""
        ticks = MaxNLocator(_CIRCLES, steps=STEPS).tick_values(0.0, self.reach)
        return float(ticks[1])

    @property
    def step_text(self) -> str:
        """Distance between circles with its unit."""
        factor, unit = length_unit(self.reach)
        return f"{self.step * factor:.4g} {unit}"


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
    aspect = drawn[0].aspect
    if width < (_NARROW_SMALL if small else NARROW):
        columns = columns // 2 if small else 1
    elif aspect <= _FLAT and not small:
        columns = 1
    elif len(panels) == 1:
        width = min(width, (SINGLE + DOUBLE) / 2)
    if not small and any(p.seen is not None and not p.seen.all() for p in drawn):
        notes = [*notes, _UNSEEN]
    margins = _MARGINS._replace(between=11.0) if small else _MARGINS
    size = SMALL if small else NORMAL
    labels, extra = margins.wrapped([p.label for p in drawn], columns, width, size)
    page, every = sheet(
        len(panels),
        aspect,
        margins._replace(top=margins.top + extra),
        columns=columns,
        width=width,
        notes=notes,
    )
    texts = iter(labels)
    for number, (axes, panel) in enumerate(zip(every, panels)):
        if panel is None:
            axes.remove()
            continue
        _draw(axes, panel, next(texts), small)
        unit = length_unit(panel.reach)[1]
        flat = panel.aspect <= _FLAT
        for name, upright in zip(panel.names, (False, True)):
            if upright and number % columns:
                continue
            hinted = not small and columns < 3 and not (upright and flat)
            hint = f"  ({_TOWARDS[name]} $\\rightarrow$)" if hinted else ""
            set_label = axes.set_ylabel if upright else axes.set_xlabel
            set_label(f"${name}$ [{unit}]{hint}", fontsize=NORMAL, labelpad=2.0)
        if number % columns and panel.extent == drawn[0].extent:
            # The numbers of the first panel serve the row.
            axes.tick_params(labelleft=False)
    return page


def _draw(axes: Axes, panel: Panel, label: str, small: bool) -> None:
    """Draw the image with its bar above, the Sun and circles; hatch what is unseen."""
    factor, _ = length_unit(panel.reach)
    left, right, bottom, top = (edge * factor for edge in panel.extent)
    drawn = panel.scale.draw(axes, panel.image, (left, right, bottom, top))
    axes.plot(0, 0, "o", mfc="white", mec="black", ms=4.5, mew=0.7)
    axes.plot(0, 0, "o", color="black", ms=1.2)
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    _draw_circles(axes, panel, named=not small)
    ticks = 4 if small else 6
    axes.xaxis.set_major_locator(MaxNLocator(ticks, steps=STEPS))
    ticks = ticks if small or panel.aspect > _FLAT else 3
    axes.yaxis.set_major_locator(MaxNLocator(ticks, steps=STEPS))
    axes.tick_params(labelsize=SMALL)
    add_bar(drawn, panel.scale, label, away=1.2, few=small)
    if panel.seen is not None and not panel.seen.all():
        veil(axes, ~panel.seen, (left, right, bottom, top))


def _draw_circles(axes: Axes, panel: Panel, *, named: bool) -> None:
    """Draw circles around the Sun, with names along the diagonal where they fit."""
    factor, unit = length_unit(panel.reach)
    left, right, _, top = panel.extent
    # Names so far apart [pc] do not touch.
    apart, last = _NAME * (right - left) / axes_width(axes), -np.inf
    for radius in np.arange(panel.step, panel.reach * 1.42, panel.step):
        circle = Circle((0, 0), radius * factor, fill=False, lw=0.4, alpha=0.55)
        circle.set_linestyle((0, (5, 4)))
        axes.add_patch(circle)
        height = min(radius * np.sin(np.pi / 4), 0.65 * top)
        width = np.sqrt(radius**2 - height**2)
        inside = 0 < width < 0.86 * right and 0 < height < 0.93 * top
        if named and inside and radius - last >= apart:
            last = radius
            axes.text(
                width * factor, height * factor, f"{radius * factor:.4g} {unit}",
                fontsize=SMALL - 1, ha="center", va="center", path_effects=outline(1.6),
            )  # fmt: skip
