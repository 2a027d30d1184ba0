"""What images of boxes and of the sky share: a colour bar, and hatching."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
    ScalarFormatter,
)

from pipelines.figures.page import bar_axes
from pipelines.figures.scales import Scale
from pipelines.figures.style import HATCH, NORMAL, SMALL

STEPS = [1, 2, 2.5, 5, 10]
# How opaque the white is over what no sight line passes.
_PALE = 0.68

Extent = tuple[float, float, float, float]


def add_bar(
    drawn: Any, scale: Scale, label: str, *, away: float, share: float = 1.0, few=False
) -> None:
    """Add a horizontal colour bar above a panel, or below it if ``away`` < 0 [mm]."""
    bar = drawn.axes.figure.colorbar(
        drawn,
        cax=bar_axes(drawn.axes, away, share),
        orientation="horizontal",
        extend=scale.extend,
        extendfrac=0.03,
        ticklocation="top" if away > 0 else "bottom",
    )
    low, high = float(scale.norm.vmin or 0.0), float(scale.norm.vmax or 0.0)
    if low < 0 and low != -high:
        label += ", blue: negative"
    bar.set_label(label, fontsize=SMALL if few else NORMAL, labelpad=2.0)
    bar.ax.tick_params(labelsize=SMALL, width=0.5, length=2.0, pad=1.5)
    bar.outline.set_linewidth(0.5)
    axis = bar.ax.xaxis
    axis.set_major_locator(MaxNLocator(3 if few else 5, steps=STEPS))
    if isinstance(scale.norm, LogNorm):
        decades = np.log10(high / low)
        steps = (1, 2, 5) if decades < 1.7 else (1, 3) if decades < 2.5 else (1,)
        axis.set_major_locator(LogLocator(subs=steps))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        # Without a common factor, which would stand on the bar's label.
        plain = ScalarFormatter(useOffset=False)
        plain.set_scientific(False)
        axis.set_major_formatter(plain)


def veil(axes: Axes, hidden: np.ndarray, extent: Extent, clip: Any = None) -> None:
    """Pale and hatch where ``hidden`` (up, across) is true."""
    white = np.ones((*hidden.shape, 4))
    white[..., 3] = _PALE * hidden
    pale = axes.imshow(
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
        pale.set_clip_path(clip)
        hatched.set_clip_path(clip)
