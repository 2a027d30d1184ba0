"""Rays of a map store's integrated extinctions."""

from __future__ import annotations

from typing import NamedTuple

import healpy
import numpy as np

from pipelines.base.quantiles import WIDTH_95
from pipelines.maps.cube import LineOfSight
from pipelines.maps.integrated import Integrated


class Rays(NamedTuple):
    """Integrated arrays ``(npix, n)`` by name at distances [pc] along pixels' rays."""

    distance: np.ndarray
    arrays: dict[str, np.ndarray]

    @property
    def quantiles(self) -> bool:
        """Whether they are of a positive density."""
        return "p50" in self.arrays

    def at(self, name: str, distances: np.ndarray) -> np.ndarray:
        """Interpolate an array linearly, from zero at the Sun: (distance, pixel)."""
        known = np.concatenate([[0.0], self.distance])
        upper = np.clip(np.searchsorted(known, distances), 1, len(known) - 1)
        share = (distances - known[upper - 1]) / (known[upper] - known[upper - 1])
        array = self.arrays[name]
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
        return LineOfSight(**common, last_star=last)
    width = np.log(arrays["p84"] / arrays["p16"]) / 2 * WIDTH_95
    outer = (arrays["p50"] * np.exp(-width), arrays["p50"] * np.exp(width))
    inner = (arrays["p16"], arrays["p84"])
    median = arrays["p50"]
    return LineOfSight(
        **common, median=median, inner=inner, outer=outer, last_star=last
    )


def informed_rays(stored: Integrated, count: int = 6) -> list[tuple[float, float]]:
    """Directions ``l, b`` [deg] of much extinction that stars look far along.

    One of every stretch of longitude: where the extinction out to the last star, times
    its distance, is largest; ``b = 0`` in the middle where no star looks.
    """
    pixels = np.arange(len(stored.last_star))
    l, b = healpy.pix2ang(stored.nside, pixels, nest=True, lonlat=True)  # noqa: E741
    upper = np.searchsorted(stored.distance, stored.last_star)
    upper = np.minimum(upper, len(stored.distance) - 1)
    worth = stored.last_star * stored.arrays["mean"][pixels, upper]
    worth = np.where(np.isfinite(worth), worth, 0.0)
    width = 360.0 / count
    chosen = []
    for number in range(count):
        own = np.flatnonzero((l // width).astype(int) % count == number)
        best = own[np.argmax(worth[own])]
        found = (float(l[best]), float(b[best]))
        chosen.append(found if worth[best] > 0 else ((number + 0.5) * width, 0.0))
    return chosen
