"""Extinctions that were integrated beforehand, between distances and along rays."""

from __future__ import annotations

from collections.abc import Sequence

import healpy
import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.quantiles import between
from pipelines.cubes.sky import LineOfSight, SkyMaps

_DISTANCES = 6


def extinction_at(maps: SkyMaps, name: str, distances: np.ndarray) -> np.ndarray:
    """Interpolate an array linearly, from zero at the Sun: (distance, pixel)."""
    known = np.concatenate([[0.0], maps.distances])
    upper = np.clip(np.searchsorted(known, distances), 1, len(known) - 1)
    share = (distances - known[upper - 1]) / (known[upper] - known[upper - 1])
    array = maps.arrays[name]
    values = np.concatenate([np.zeros_like(array[:1]), array])
    low, high = values[upper - 1], values[upper]
    # At a known distance the value beyond does not matter, be it known or not.
    part = share[:, None]
    return np.where(part == 1, high, low + part * (high - low))


def maps_at(maps: SkyMaps, distances: Sequence[float] | None) -> SkyMaps:
    """The same maps out to other distances [pc]; six of their own if ``None``.

    Raises
    ------
    InputError
        If a distance lies beyond the last of the maps.
    """
    known = maps.distances
    if distances is None:
        last = np.linspace(0, len(known), _DISTANCES + 1)[1:].astype(int)
        wanted = known[np.unique(last) - 1]
    else:
        wanted = np.array(sorted(distances))
    if wanted[-1] > known[-1] or wanted[0] <= 0:
        raise InputError(
            f"the map knows extinctions out to {known[-1]:g} pc: choose distances up "
            f"to that, got {wanted.tolist()}"
        )
    arrays = {name: extinction_at(maps, name, wanted) for name in maps.arrays}
    return SkyMaps(
        distances=wanted,
        mean=arrays.pop("mean"),
        std=arrays.pop("std"),
        quantiles=arrays,
        last_star=maps.last_star,
        meta=maps.meta,
    )


def ray_of(maps: SkyMaps, l: float, b: float) -> LineOfSight:  # noqa: E741
    """The ray of the pixel that holds a direction, as far as the map goes."""
    pixel = healpy.ang2pix(
        healpy.npix2nside(maps.mean.shape[1]), l, b, lonlat=True, nest=True
    )
    known = np.isfinite(maps.mean[:, pixel])
    found = {n: a[known, pixel].astype(np.float64) for n, a in maps.arrays.items()}
    median = inner = outer = None
    if "p50" in found:
        median, inner = found["p50"], (found["p16"], found["p84"])
        outer = between(found, 0.025), between(found, 0.975)
    nothing = np.zeros(0)
    return LineOfSight(
        l=l,
        b=b,
        distance=maps.distances[known],
        mean=found["mean"],
        std=found["std"],
        star_distance=nothing,
        star_extinction=nothing,
        star_error=nothing,
        radius=0.0,
        median=median,
        inner=inner,
        outer=outer,
        last_star=None if maps.last_star is None else float(maps.last_star[pixel]),
    )


def informed_rays(maps: SkyMaps, count: int = 6) -> list[tuple[float, float]]:
    """Directions ``l, b`` [deg] of much extinction that stars look far along.

    One of every stretch of longitude: where the extinction out to the last star, times
    its distance, is largest; in the Galactic plane where no sight line passes.
    """
    assert maps.last_star is not None
    pixels = np.arange(len(maps.last_star))
    l, b = healpy.pix2ang(  # noqa: E741
        healpy.npix2nside(len(pixels)), pixels, nest=True, lonlat=True
    )
    upper = np.searchsorted(maps.distances, maps.last_star)
    upper = np.minimum(upper, len(maps.distances) - 1)
    worth = np.nan_to_num(maps.last_star * maps.mean[upper, pixels])
    order = np.lexsort((-np.abs(b), worth))
    best = dict(zip((l * count // 360)[order].astype(int), order.tolist()))
    return [(float(l[best[i]]), float(b[best[i]])) for i in range(count)]
