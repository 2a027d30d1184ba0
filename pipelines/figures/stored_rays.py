"""Rays of a map store's integrated extinctions."""

from __future__ import annotations

import healpy
import numpy as np

from pipelines.export.cube import LineOfSight
from pipelines.export.integrated import Integrated
from pipelines.export.profile import Profile

_OUTER = 1.959964


def along_rays(stored: Integrated, name: str, distances: np.ndarray) -> np.ndarray:
    """Interpolate an integrated array linearly to distances: (distance, pixel)."""
    known = np.concatenate([[0.0], stored.distance])
    upper = np.clip(np.searchsorted(known, distances), 1, len(known) - 1)
    share = (distances - known[upper - 1]) / (known[upper] - known[upper - 1])
    array = stored.arrays[name]
    zero = np.zeros((len(array), 1), dtype=array.dtype)
    values = np.concatenate([zero, array], axis=1)
    low, high = values[:, upper - 1].T, values[:, upper].T
    # At a known distance what lies beyond does not matter, be it known or not.
    part = share[:, None]
    return np.where(part == 1, high, low + part * (high - low))


def ray_of(stored: Integrated, l: float, b: float) -> LineOfSight:  # noqa: E741
    """The ray of the pixel that holds a direction, as far as the map goes."""
    pixel = healpy.ang2pix(stored.nside, l, b, lonlat=True, nest=True)
    known = np.isfinite(stored.arrays["mean"][pixel])
    arrays = {n: a[pixel, known].astype(np.float64) for n, a in stored.arrays.items()}
    nothing = np.zeros(0)
    common = {
        "l": l,
        "b": b,
        "distance": stored.distance[known],
        "mean": arrays["mean"],
        "std": arrays["std"],
        "star_distance": nothing,
        "star_extinction": nothing,
        "star_error": nothing,
        "radius": 0.0,
    }
    last = float(stored.last_star[pixel])
    if "p50" not in arrays:
        return LineOfSight(**common)
    width = np.log(arrays["p84"] / arrays["p16"]) / 2 * _OUTER
    outer = (arrays["p50"] * np.exp(-width), arrays["p50"] * np.exp(width))
    inner = (arrays["p16"], arrays["p84"])
    median = arrays["p50"]
    return Profile(**common, median=median, inner=inner, outer=outer, last_star=last)
