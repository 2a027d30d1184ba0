"""Colour scales of dust, its errors, differences and ratios; their bars; hatching.

Limits are percentiles, robust to outliers; arrows on the colour bar mark values beyond.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap, LogNorm, Normalize
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
    ScalarFormatter,
)

from pipelines.base.errors import InputError
from pipelines.figures.style import HATCH, INCH, NORMAL, SMALL, axes_width

UNMAPPED = "0.72"
# Thickness of a colour bar; narrower ones than the second have fewer numbers [mm].
_BAR, _FEW = 2.0, 42.0
_LEVELS = 512
_ROBUST = (0.5, 99.5)
_HIGH = 99.0
_DECADES = 3.0
# The 99th percentile over the median above which colours are logarithmic.
_LARGE = 15.0
# Relative errors above this, and differences in standard deviations, saturate.
_REACH = 3.0
# Colour maps of all kinds but values and differences.
_COLOURS = {"error": "YlGnBu", "ratio": "BuPu", "spread": "cividis"}
STEPS = [1, 2, 2.5, 5, 10]
# How opaque the white is over what no sight line passes.
_PALE = 0.68
Extent = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A colour map with its limits; ``extend`` as matplotlib's colour bars have it."""

    cmap: Colormap
    norm: Normalize
    extend: str

    def draw(self, axes: Any, image: np.ndarray, extent: tuple[float, ...]) -> Any:
        """Draw an image; on a logarithmic scale values <= 0 get the lowest colour."""
        if isinstance(self.norm, LogNorm):
            image = np.where(image <= 0, float(self.norm.vmin or 1.0) / 10, image)
        return axes.imshow(
            image,
            origin="lower",
            extent=extent,
            cmap=self.cmap,
            norm=self.norm,
            interpolation="nearest",
        )


def colour_scale(
    kind: str,
    *images: np.ndarray,
    seen: np.ndarray | None = None,
    log: bool = False,
    vmin: float | None = None,
    vmax: float | None = None,
    cmap: str | None = None,
) -> Scale:
    """One scale for all ``images``.

    Parameters
    ----------
    kind
        ``value``: linear from pale to dark, widened to contain zero; negative values
        are blue, as strong as positive values of equal size, so that an unphysical
        value cannot be mistaken for little dust. ``error``: standard deviations from
        zero up; ``spread``: those between their percentiles. ``ratio``: relative
        errors, at most 3. ``difference``: red above zero, blue below. ``deviation``:
        differences in standard deviations, to 3.
    seen
        Where sight lines pass; only there do values set the limits. A prior's samples
        have single cells far above all measured ones.
    log
        Logarithmic colours for values and errors, over three decades at most; zero and
        negative values have the lowest colour and are marked by the bar's arrow.
    vmin, vmax, cmap
        Limits, and the name of one of matplotlib's colour maps, instead of the above.

    Raises
    ------
    InputError
        If the limits leave no range, or there is no such colour map.
    """
    every = _finite(images)
    shown = every
    if seen is not None and seen.any():
        shown = _finite([image[seen] for image in images])
    log = log and kind in ("value", "error")
    low, high = _limits(shown, kind, log=log)
    low, high = low if vmin is None else vmin, high if vmax is None else vmax
    if not low < high or (log and low <= 0):
        least = "above 0 and " if log else ""
        raise InputError(
            f"colours from {low:g} to {high:g}: choose --vmin {least}below --vmax"
        )
    if cmap is not None and cmap not in mpl.colormaps:
        raise InputError(
            f"{cmap!r} is not a colour map of matplotlib: choose one such as magma_r, "
            "viridis or cividis with --cmap"
        )
    colours = mpl.colormaps[cmap or _COLOURS.get(kind, "RdBu_r")]
    if cmap is None and kind == "value":
        colours = _signed(0.0, 1.0) if log else _signed(low, high)
    below = bool(every.size) and every.min() < low
    beyond = bool(every.size) and every.max() > high
    if low == -high:
        below = beyond = below or beyond
    extend = "max" if beyond else "neither"
    if below:
        extend = "both" if beyond else "min"
    return Scale(
        cmap=colours.with_extremes(bad=UNMAPPED, under=colours(0)),
        norm=LogNorm(low, high) if log else Normalize(low, high),
        extend=extend,
    )


def add_bar(
    drawn: Any, scale: Scale, label: str, *, away: float, share: float = 1.0, few=False
) -> None:
    """Add a horizontal colour bar above a panel, or below it if ``away`` < 0 [mm]."""
    axes = drawn.axes
    axes.apply_aspect()
    tall = axes.get_position().height * axes.figure.get_figheight() * INCH
    lower = 1 + away / tall if away > 0 else (away - _BAR) / tall
    bar = axes.figure.colorbar(
        drawn,
        cax=axes.inset_axes(((1 - share) / 2, lower, share, _BAR / tall)),
        orientation="horizontal",
        extend=scale.extend,
        extendfrac=0.03,
        ticklocation="top" if away > 0 else "bottom",
    )
    low, high = float(scale.norm.vmin or 0.0), float(scale.norm.vmax or 0.0)
    if low < 0 and low != -high:
        label += ", blue: negative"
    bar.set_label(label, fontsize=SMALL if few else NORMAL, labelpad=3.0)
    bar.ax.tick_params(labelsize=SMALL, width=0.5, length=2.0, pad=1.5)
    bar.outline.set_linewidth(0.5)
    axis = bar.ax.xaxis
    few = few or axes_width(bar.ax) < _FEW
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


def spans_decades(image: np.ndarray, seen: np.ndarray | None) -> bool:
    """Return whether the range of the seen values is too wide for linear colours."""
    shown = _finite([image if seen is None or not seen.any() else image[seen]])
    if not shown.size or shown.min() <= 0:
        return False
    low, high = np.percentile(shown, (50, 99))
    return bool(high > _LARGE * low)


def _finite(images: Any) -> np.ndarray:
    return np.concatenate([image[np.isfinite(image)] for image in images])


def _limits(finite: np.ndarray, kind: str, *, log: bool) -> tuple[float, float]:
    """Return the limits of a kind, robust against outliers."""
    if log:
        positive = finite[finite > 0] if (finite > 0).any() else np.array([0.1, 1.0])
        low, high = np.percentile(positive, _ROBUST).tolist()
        low = max(low, high / 10**_DECADES)
        return (low, high) if low < high else (low / 2, high * 2)
    if not finite.size:
        low, high = 0.0, 1.0
    elif kind in ("value", "spread"):
        low, high = np.percentile(finite, _ROBUST).tolist()
        if high == low:
            low, high = min(0.0, float(finite.min())), max(0.0, float(finite.max()))
        low, high = (low, high) if high > low else (0.0, 1.0)
    else:
        size = finite if kind in ("error", "ratio") else np.abs(finite)
        low, high = 0.0, float(np.percentile(size, _HIGH)) or float(size.max()) or 1.0
    if kind == "value":
        return min(low, 0.0), max(high, 0.0)
    if kind == "ratio":
        return 0.0, min(high, _REACH)
    if kind in ("difference", "deviation"):
        high = _REACH if kind == "deviation" else high
        return -high, high
    return low, high


def _signed(low: float, high: float) -> Colormap:
    """Pale to dark from zero, or from ``low`` above it; blue below zero."""
    first = max(low, 0.0)
    reach = max(-low, high - first)
    values = low + (np.arange(_LEVELS) + 0.5) / _LEVELS * (high - low)
    positive = mpl.colormaps["magma_r"](np.clip((values - first) / reach, 0, 1) * 0.92)
    negative = mpl.colormaps["Blues"](np.clip(-values / reach, 0, 1) * 0.75 + 0.25)
    colours = np.where(values[:, None] < 0, negative, positive)
    return ListedColormap(colours.tolist())
