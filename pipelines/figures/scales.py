"""Scales of colour: of dust, its errors, differences and ratios; and logarithmic ones.

All are robust to outliers; what lies beyond the limits is told by the bar's arrows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import Colormap, ListedColormap, LogNorm, Normalize

UNMAPPED = "0.72"
_LEVELS = 512
_ROBUST = (0.5, 99.5)
_HIGH = 99.0
_DECADES = 3.0
# The 99th percentile over the median above which colours are logarithmic.
_LARGE = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A colour map with its limits; ``extend`` as matplotlib's colour bars have it."""

    cmap: Colormap
    norm: Normalize
    extend: str

    @classmethod
    def of(cls, cmap: Colormap | str, norm: Normalize, values: np.ndarray) -> Scale:
        """The scale of some finite values, with arrows where they lie beyond."""
        if isinstance(cmap, str):
            cmap = mpl.colormaps[cmap].with_extremes(bad=UNMAPPED)
        below = values.size and values.min() < (norm.vmin or 0.0)
        beyond = values.size and values.max() > (norm.vmax or 0.0)
        return cls(cmap=cmap, norm=norm, extend=_extend(below, beyond))

    @property
    def logarithmic(self) -> bool:
        """Whether zero and what is negative have no colour of their own."""
        return isinstance(self.norm, LogNorm)

    def draw(self, axes: Any, image: np.ndarray, extent: tuple[float, ...]) -> Any:
        """The image in these colours; what has no logarithm is the lowest one."""
        if self.logarithmic:
            image = np.where(image <= 0, float(self.norm.vmin or 1.0) / 10, image)
        return axes.imshow(
            image,
            origin="lower",
            extent=extent,
            cmap=self.cmap,
            norm=self.norm,
            interpolation="nearest",
        )


def signed_scale(*images: np.ndarray) -> Scale:
    """One linear scale for dust in all ``images``.

    Limits are the 0.5 and 99.5 percentiles, widened to contain zero. From zero up the
    colours go from pale to dark; below zero they turn blue, equally strong for
    equally large values, so that an unphysical value cannot be mistaken for little
    dust.
    """
    finite = _finite(images)
    if not finite.any():
        finite = np.array([0.0, 1.0])
    low, high = (float(value) for value in np.percentile(finite, _ROBUST))
    low, high = min(low, 0.0), max(high, 0.0)
    if high == low:
        low, high = min(float(finite.min()), 0.0), max(float(finite.max()), 0.0)
    reach = max(-low, high)
    values = low + (np.arange(_LEVELS) + 0.5) / _LEVELS * (high - low)
    positive = mpl.colormaps["magma_r"](np.clip(values / reach, 0, 1) * 0.92)
    negative = mpl.colormaps["Blues"](np.clip(-values / reach, 0, 1) * 0.75 + 0.25)
    colours = ListedColormap(np.where(values[:, None] < 0, negative, positive).tolist())
    return Scale.of(
        colours.with_extremes(bad=UNMAPPED), Normalize(low, high), values=finite
    )


def spread_scale(image: np.ndarray) -> Scale:
    """A linear scale for standard deviations that need not begin at zero."""
    finite = _finite([image])
    if not finite.size:
        finite = np.array([0.0, 1.0])
    low, high = (float(value) for value in np.percentile(finite, _ROBUST))
    if high == low:
        low, high = min(0.0, low), max(high, float(finite.max())) or 1.0
    return Scale.of("cividis", Normalize(low, high), finite)


def error_scale(image: np.ndarray) -> Scale:
    """A linear scale for standard deviations from zero up, in other colours."""
    finite = _finite([image])
    return Scale.of("YlGnBu", Normalize(0.0, _reach(finite)), finite)


def ratio_scale(image: np.ndarray, reach: float = 3.0) -> Scale:
    """Relative errors from zero to at most ``reach``, where little more is known."""
    finite = _finite([image])
    return Scale.of("BuPu", Normalize(0.0, min(_reach(finite), reach)), finite)


def difference_scale(*images: np.ndarray, reach: float | None = None) -> Scale:
    """A linear scale around zero, red above and blue below.

    It ends at ``reach`` if given, as differences in standard deviations do.
    """
    finite = np.abs(_finite(images))
    reach = reach or _reach(finite)
    scale = Scale.of("RdBu_r", Normalize(-reach, reach), finite)
    return replace(scale, extend="both" if scale.extend == "max" else "neither")


def log_scale(*images: np.ndarray, spread: bool = False) -> Scale:
    """A logarithmic scale over at most three decades below the 99.5th percentile.

    What is zero or negative has no logarithm: it is drawn as the lowest colour, and the
    bar ends in an arrow. ``spread`` takes the colours of standard deviations.
    """
    finite = _finite(images)
    positive = finite[finite > 0]
    if not positive.size:
        positive = np.array([0.1, 1.0])
    low, high = (float(v) for v in np.percentile(positive, _ROBUST))
    low = max(low, high / 10**_DECADES)
    if low == high:
        low, high = low / 2, high * 2
    colours = mpl.colormaps["YlGnBu" if spread else "magma_r"]
    listed = ListedColormap(colours(np.linspace(0.0, 1.0 if spread else 0.92, _LEVELS)))
    coloured = listed.with_extremes(bad=UNMAPPED, under=listed(0))
    return Scale.of(coloured, LogNorm(low, high), finite)


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
    rest = Scale.of(scale.cmap, scale.norm, _finite(images)).extend
    below, beyond = ({scale.extend, rest} & {end, "both"} for end in ("min", "max"))
    return replace(scale, extend=_extend(below, beyond))


def spans_decades(image: np.ndarray, seen: np.ndarray | None) -> bool:
    """Whether what is seen spans so much that linear colours show little of it."""
    shown = _finite([image if seen is None or not seen.any() else image[seen]])
    if not shown.size or shown.min() <= 0:
        return False
    low, high = np.percentile(shown, (50, 99))
    return bool(high > _LARGE * low)


def _finite(images: Any) -> np.ndarray:
    return np.concatenate([image[np.isfinite(image)] for image in images])


def _reach(finite: np.ndarray) -> float:
    """The 99th percentile of values from zero up, or what is there instead."""
    high = float(np.percentile(finite, _HIGH)) if finite.size else 0.0
    return high or (float(finite.max()) if finite.size else 0.0) or 1.0


def _extend(below: Any, beyond: Any) -> str:
    if below:
        return "both" if beyond else "min"
    return "max" if beyond else "neither"
