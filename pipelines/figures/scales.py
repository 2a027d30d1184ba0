"""Further scales of colour: of differences, of ratios, and logarithmic ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import matplotlib as mpl
import numpy as np
from matplotlib.colors import ListedColormap, LogNorm, Normalize

from pipelines.figures.style import UNMAPPED, Scale

_ROBUST = 99.0
_DECADES = 3.0
# The 99th percentile over the median above which colours are logarithmic.
_LARGE = 15.0
_EXTEND = {
    (False, False): "neither",
    (True, False): "min",
    (False, True): "max",
    (True, True): "both",
}


def scale_where(
    make: Callable[..., Scale], seen: np.ndarray | None, *images: np.ndarray
) -> Scale:
    """The scale of what lies where ``seen``; arrows of its bar tell of all the rest.

    A few samples of a prior have single cells far above all that was measured: they
    must not set the colours of a map.
    """
    if seen is None or not seen.any():
        return make(*images)
    scale = make(*(np.where(seen, image, np.nan) for image in images))
    finite = np.concatenate([image[np.isfinite(image)] for image in images])
    low, high = scale.norm.vmin, scale.norm.vmax
    if not finite.size or low is None or high is None:
        return scale
    below = scale.extend in ("min", "both") or finite.min() < low
    beyond = scale.extend in ("max", "both") or finite.max() > high
    return replace(scale, extend=_EXTEND[bool(below), bool(beyond)])


def spans_decades(image: np.ndarray, seen: np.ndarray | None) -> bool:
    """Whether what is seen spans so much that linear colours show little of it."""
    shown = image if seen is None or not seen.any() else image[seen]
    shown = shown[np.isfinite(shown)]
    if not shown.size or shown.min() <= 0:
        return False
    low, high = np.percentile(shown, (50, 99))
    return bool(high > _LARGE * low)


def difference_scale(*images: np.ndarray) -> Scale:
    """A linear scale around zero, red above and blue below, robust to outliers."""
    finite = np.abs(np.concatenate([i[np.isfinite(i)] for i in images]))
    reach = float(np.percentile(finite, _ROBUST)) if finite.size else 0.0
    reach = reach or (float(finite.max()) if finite.size else 0.0) or 1.0
    beyond = bool(finite.size) and finite.max() > reach
    return Scale(
        cmap=mpl.colormaps["RdBu_r"].with_extremes(bad=UNMAPPED),
        norm=Normalize(-reach, reach),
        extend="both" if beyond else "neither",
    )


def fixed_difference_scale(image: np.ndarray, reach: float) -> Scale:
    """The same with a given reach: differences in standard deviations."""
    finite = np.abs(image[np.isfinite(image)])
    return Scale(
        cmap=mpl.colormaps["RdBu_r"].with_extremes(bad=UNMAPPED),
        norm=Normalize(-reach, reach),
        extend="both" if finite.size and finite.max() > reach else "neither",
    )


def error_scale(image: np.ndarray) -> Scale:
    """A linear scale for standard deviations from zero up, robust to outliers.

    Like the dust's it goes from pale to dark, in other colours.
    """
    finite = image[np.isfinite(image)]
    high = float(np.percentile(finite, _ROBUST)) if finite.size else 0.0
    high = high or (float(finite.max()) if finite.size else 0.0) or 1.0
    return Scale(
        cmap=mpl.colormaps["YlGnBu"].with_extremes(bad=UNMAPPED),
        norm=Normalize(0.0, high),
        extend="max" if finite.size and finite.max() > high else "neither",
    )


def ratio_scale(image: np.ndarray, reach: float = 3.0) -> Scale:
    """Relative errors from zero to at most ``reach``, where little more is known."""
    finite = image[np.isfinite(image)]
    high = min(float(np.percentile(finite, _ROBUST)) if finite.size else 1.0, reach)
    high = high or 1.0
    return Scale(
        cmap=mpl.colormaps["BuPu"].with_extremes(bad=UNMAPPED),
        norm=Normalize(0.0, high),
        extend="max" if finite.size and finite.max() > high else "neither",
    )


def log_scale(*images: np.ndarray, spread: bool = False) -> Scale:
    """A logarithmic scale over at most three decades below the 99.5th percentile.

    What is zero or negative has no logarithm: it is drawn as the lowest colour, and the
    bar ends in an arrow. ``spread`` takes the colours of standard deviations.
    """
    finite = np.concatenate([image[np.isfinite(image)] for image in images])
    positive = finite[finite > 0]
    if not positive.size:
        positive = np.array([0.1, 1.0])
    low, high = (float(v) for v in np.percentile(positive, (0.5, 99.5)))
    low = max(low, high / 10**_DECADES)
    if low == high:
        low, high = low / 2, high * 2
    colours = mpl.colormaps["YlGnBu" if spread else "magma_r"]
    listed = ListedColormap(colours(np.linspace(0.0, 1.0 if spread else 0.92, 512)))
    below = bool(finite.size) and finite.min() < low
    beyond = bool(finite.size) and finite.max() > high
    return Scale(
        cmap=listed.with_extremes(bad=UNMAPPED, under=listed(0)),
        norm=LogNorm(low, high),
        extend=_EXTEND[bool(below), bool(beyond)],
    )
