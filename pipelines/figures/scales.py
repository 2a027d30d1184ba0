"""Colour scales of dust, errors, differences and ratios; colour bars; hatching.

Limits are percentiles, robust to outliers; arrows on the colour bar mark values beyond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap, LogNorm, Normalize
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation, blended_transform_factory

from pipelines.base.errors import InputError
from pipelines.figures.style import NORMAL, RANGE, SMALL, TICKS

UNMAPPED = "0.72"
STEPS = [1, 2, 2.5, 5, 10]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A colour map with its limits; ``extend`` as for matplotlib's colour bars."""

    cmap: Colormap
    norm: Normalize
    extend: str

    @property
    def look(self) -> dict[str, Any]:
        """Keywords of ``imshow`` and ``pcolormesh``."""
        return {"cmap": self.cmap, "norm": self.norm}

    def shown(self, image: np.ndarray) -> np.ndarray:
        """Return the image with values <= 0 as the lowest on a logarithmic scale."""
        if isinstance(self.norm, LogNorm):
            return np.where(image <= 0, float(self.norm.vmin or 1.0) / 10, image)
        return image


def colour_scale(
    kind: str,
    *images: np.ndarray,
    seen: np.ndarray | None = None,
    log: bool = False,
    vmin: float | None = None,
    vmax: float | None = None,
    cmap: str | None = None,
) -> Scale:
    """Return one scale for all ``images``.

    The kind ``value`` is linear from pale to dark, including zero; negative, unphysical
    values are blue, as strong as positive values of equal size. The others are
    ``error``, standard deviations from zero up, ``spread``, those between their
    percentiles, ``ratio``, relative errors, at most 3, ``difference``, red above zero,
    blue below, and ``deviation``, differences in standard deviations, to 3.

    ``seen`` masks cells with sight lines, which alone set the limits: samples of the
    prior have single cells far above all measured ones. With ``log`` the colours of
    values and errors are logarithmic, over three decades at most; zero and negative
    values have the lowest colour, marked by the bar's arrow. ``vmin`` and ``vmax`` are
    other limits, ``cmap`` is the name of another one of matplotlib's colour maps.

    Raises `InputError` if the limits leave no range, or the colour map is unknown.
    """
    every, log = _finite(images), log and kind in ("value", "error")
    low, high = _limits(_finite(images, seen), kind, log=log)
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
    usual = {"error": "YlGnBu", "ratio": "BuPu", "spread": "cividis"}
    colours = mpl.colormaps[cmap or usual.get(kind, "RdBu_r")]
    if cmap is None and kind == "value":
        colours = _signed(0.0, 1.0) if log else _signed(low, high)
    below, beyond = bool((every < low).any()), bool((every > high).any())
    if low == -high:
        below = beyond = below or beyond
    return Scale(
        cmap=colours.with_extremes(bad=UNMAPPED, under=colours(0)),
        norm=LogNorm(low, high) if log else Normalize(low, high),
        extend=("neither", "max", "min", "both")[2 * below + beyond],
    )


def add_bar(
    axes: Axes,
    image: Any,
    scale: Scale,
    label: str,
    *,
    below: bool = False,
    share: float = 1.0,
    few: bool = False,
) -> None:
    """Add a horizontal colour bar above or below a panel, over a share of its width.

    With ``few``, small bars have fewer numbers and smaller letters.
    """
    figure: Any = axes.figure
    panel: Any = axes.transAxes
    low, high = scale.norm.vmin or 0.0, scale.norm.vmax or 0.0
    if low < 0 and low != -high:
        label += ", blue: negative"
    # In inches from the panel's edge, independent of its size: 0.08 thick.
    edge = ScaledTranslation(0.0, 0.0 if below else 1.0, panel)
    place = blended_transform_factory(panel, figure.dpi_scale_trans + edge)
    bounds = (0.5 - share / 2, -0.2 if below else 0.05, share, 0.08)
    bar = figure.colorbar(
        image,
        cax=axes.inset_axes(bounds, transform=place),
        orientation="horizontal",
        extend=scale.extend,
        extendfrac=0.03,
        ticklocation="bottom" if below else "top",
    )
    bar.set_label(label, fontsize=SMALL if few else NORMAL, labelpad=3.5)
    bar.ax.tick_params(**TICKS)
    bar.outline.set_linewidth(0.5)
    axis = bar.ax.xaxis
    if isinstance(scale.norm, LogNorm):
        decades = np.log10(high / low)
        steps = (1, 2, 5) if decades < 1.7 else (1, 3) if decades < 2.5 else (1,)
        axis.set_major_locator(LogLocator(subs=steps))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")
    else:
        axis.set_major_locator(MaxNLocator(3 if few else 5, steps=STEPS))
        # Avoid a common factor, which would overlap the bar's label.
        bar.ax.ticklabel_format(axis="x", style="plain", useOffset=False)


def veil(axes: Axes, hidden: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """Make cells pale and hatched by the mask ``hidden`` (up, across), with edges."""
    white = np.ma.masked_equal(hidden.astype(float), 0.0)
    pale = {"cmap": ListedColormap(["white"]), "alpha": 0.68, "rasterized": True}
    axes.pcolormesh(x, y, white, zorder=0.5, **pale)
    # Repeat every edge: hatching begins at the edges of cells, not at their centres.
    edges = (np.repeat(each, 2)[1:-1] for each in (x, y))
    doubled = hidden.repeat(2, axis=0).repeat(2, axis=1)
    hatched = axes.contourf(
        *edges, doubled, levels=[0.5, 1.5], colors="none", hatches=["////"]
    )
    hatched.set(edgecolor=(0.5, 0.5, 0.5, 0.7), linewidth=0.0)


def spans_decades(image: np.ndarray, seen: np.ndarray | None) -> bool:
    """Return true if the range of the seen values is too wide for linear colours.

    Their 99th percentile is then more than 15 times the median.
    """
    shown = _finite([image], seen)
    if not shown.size or shown.min() <= 0:
        return False
    low, high = np.percentile(shown, (50, 99))
    return bool(high > 15 * low)


def _finite(images: Sequence[np.ndarray], seen: np.ndarray | None = None) -> np.ndarray:
    """Return the finite values, of the seen cells if there are any."""
    if seen is not None and seen.any():
        images = [image[seen] for image in images]
    return np.concatenate([image[np.isfinite(image)] for image in images])


def _limits(finite: np.ndarray, kind: str, *, log: bool) -> tuple[float, float]:
    """Return the limits of a kind, robust against outliers."""
    if log:
        positive = finite[finite > 0] if (finite > 0).any() else np.array([0.1, 1.0])
        low, high = np.percentile(positive, RANGE).tolist()
        low = max(low, high / 1000)
        return (low, high) if low < high else (low / 2, high * 2)
    if not finite.size:
        finite = np.array([0.0, 1.0])
    if kind in ("value", "spread"):
        low, high = np.percentile(finite, RANGE).tolist()
        if low == high:
            low, high = float(finite.min(initial=0.0)), float(finite.max(initial=0.0))
        if kind == "value":
            low, high = min(low, 0.0), max(high, 0.0)
        return (low, high) if low < high else (0.0, 1.0)
    size = np.abs(finite)
    high = float(np.percentile(size, 99)) or float(size.max()) or 1.0
    # Larger deviations, and ratios, saturate.
    if kind == "deviation":
        high = 3.0
    elif kind == "ratio":
        high = min(high, 3.0)
    return (0.0 if kind in ("error", "ratio") else -high), high


def _signed(low: float, high: float) -> Colormap:
    """Return colours from pale to dark from zero, or from ``low`` > 0; blue below."""
    first = max(low, 0.0)
    reach = max(-low, high - first)
    levels = 512
    values = low + (np.arange(levels) + 0.5) / levels * (high - low)
    positive = mpl.colormaps["magma_r"](np.clip((values - first) / reach, 0, 1) * 0.92)
    negative = mpl.colormaps["Blues"](np.clip(-values / reach, 0, 1) * 0.75 + 0.25)
    return ListedColormap(np.where(values[:, None] < 0, negative, positive).tolist())
