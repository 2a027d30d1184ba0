"""Maps of the sky, columns and lines of sight: extinctions that were integrated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.base.pixels import nside_of
from pipelines.base.quantiles import KINDS

Ends = tuple[float, float]

REGRESSION = "isotonic_regression"
"""Key of the provenance: the changes that make extinctions non-decreasing."""
ESTIMATE = "estimate"
"""Key of the provenance: ``map``, or ``kriged`` where kriging adds to extinctions."""

_STATISTICS = {
    "mean": "posterior mean",
    "std": "posterior std",
    "p2_5": "posterior 2.5% quantile",
    "p16": "posterior 16% quantile",
    "p50": "posterior median",
    "p84": "posterior 84% quantile",
    "p97_5": "posterior 97.5% quantile",
}


def statistic_title(name: str, quantity: str) -> str:
    """Return a title of the array ``name``: a statistic of a quantity."""
    return f"{_STATISTICS[name]} of the {quantity}" if name in _STATISTICS else name


def check_distances(distances: np.ndarray) -> None:
    """Raise an `InputError` unless these are positive, increasing distances [pc]."""
    rising = distances.ndim == 1 and bool((np.diff(distances) > 0).all())
    if not (rising and len(distances) > 0 and distances[0] > 0):
        raise InputError(
            f"distances must be positive and increasing [pc], got {distances.tolist()}"
        )


def sky_outside(maps: np.ndarray, distances: np.ndarray) -> list[str]:
    """Return the share of the sky where ``maps (n, npix)`` are NaN, by distance."""
    parts = zip(np.isnan(maps).mean(axis=1), distances, strict=True)
    # Two digits, without an exponent.
    shares = ((float(f"{100 * part:.2g}"), at) for part, at in parts if part)
    return [f"{share:g}% of the sky at {at:g} pc" for share, at in shares]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Cumulative extinction from the observer by pixel and distance, as stores have it.

    Parameters
    ----------
    distances
        Increasing distances [pc], shape ``(k,)``.
    nodes
        Numbers of the distances at which all but the mean are known, ``(j,)``.
    arrays
        ``mean`` of shape ``(npix, k)``, and ``std`` and quantiles of a positive density
        of shape ``(npix, j)`` [mag]. Pixels are HEALPix, NESTED, Galactic; NaN beyond
        the map. The last node of a pixel has the values at its last distance. Between
        nodes quantities rise in proportion to the mean or, of a density that may be
        negative, to the distance.
    last_star
        End of the last stretch of each ray that the sight line of a star crosses [pc],
        shape ``(npix,)``.
    meta
        Provenance of these alone.
    """

    distances: np.ndarray
    nodes: np.ndarray
    arrays: dict[str, np.ndarray]
    last_star: np.ndarray
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def nside(self) -> int:
        """HEALPix resolution."""
        return math.isqrt(len(self.last_star) // 12)

    def out_to(self, reach: float) -> Curves:
        """Return the curves to the first node at or beyond ``reach`` [pc]."""
        beyond = np.flatnonzero(self.distances[self.nodes] >= reach * (1 - 1e-12))
        nodes = self.nodes[: beyond[0] + 1] if len(beyond) else self.nodes
        count = {"mean": nodes[-1] + 1}
        arrays = {
            name: values[:, : count.get(name, len(nodes))]
            for name, values in self.arrays.items()
        }
        distances = self.distances[: count["mean"]]
        return replace(self, distances=distances, nodes=nodes, arrays=arrays)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkyMaps:
    """Cumulative extinction from the observer out to a list of distances.

    Parameters
    ----------
    distances
        Increasing distances [pc], shape ``(n,)``; at 0 the extinction is 0.
    arrays
        Name to array of shape ``(n, npix)`` [unit]: ``mean`` and ``std`` of the
        *integral* along the ray through each pixel's centre, and of a positive density
        its quantiles ``p2_5`` to ``p97_5``. Pixels are HEALPix, NESTED, Galactic; NaN
        where the ray leaves the map before the distance.
    meta
        Provenance: JSON-serialisable.
    last_star
        End of the last stretch of each ray that the sight line of a star crosses [pc],
        shape ``(npix,)``, 0 without any; beyond it the map extrapolates. ``None`` if
        unknown.
    beyond_box, prior_share
        Of a map that its prior continues, by distance and pixel: whether the place is
        outside the box, and the share of the mean that the prior has beyond the last
        star.
    """

    distances: np.ndarray
    arrays: dict[str, np.ndarray]
    unit: str = "mag"
    meta: dict[str, Any] = field(default_factory=dict)
    last_star: np.ndarray | None = None
    beyond_box: np.ndarray | None = None
    prior_share: np.ndarray | None = None

    def __post_init__(self) -> None:
        check_distances(self.distances)
        if not {"mean"} <= set(self.arrays) <= set(KINDS):
            raise InputError(
                f"arrays must be mean and maybe {', '.join(KINDS[1:])}; got "
                f"{', '.join(self.arrays) or 'none'}"
            )
        pixels = self.arrays["mean"].shape[-1]
        if nside_of(pixels) is None:
            raise InputError(
                f"got {pixels} pixels, expected 12 nside² with nside a power of two"
            )
        expected = len(self.distances), pixels
        for name, array in self.arrays.items():
            if array.shape != expected:
                raise InputError(
                    f"array {name!r} has shape {array.shape}, expected {expected}"
                )
        if self.last_star is not None and len(self.last_star) != pixels:
            raise InputError(
                f"last_star has {len(self.last_star)} pixels, expected {pixels}"
            )

    @property
    def nside(self) -> int:
        """HEALPix resolution."""
        nside = nside_of(self.mean.shape[1])
        assert nside is not None, "checked when made"
        return nside

    @property
    def mean(self) -> np.ndarray:
        """Mean of the integral."""
        return self.arrays["mean"]

    @property
    def median(self) -> np.ndarray | None:
        """Median of the integral, of a positive density."""
        return self.arrays.get("p50")

    def at(self, name: str, distances: np.ndarray) -> np.ndarray:
        """Interpolate an array linearly, from zero at the Sun: (distance, pixel)."""
        known = np.concatenate([[0.0], self.distances])
        upper = np.clip(np.searchsorted(known, distances), 1, len(known) - 1)
        array = self.arrays[name]
        high = array[upper - 1]
        if np.array_equal(known[upper], distances):
            return high
        share = (distances - known[upper - 1]) / (known[upper] - known[upper - 1])
        low = np.concatenate([np.zeros_like(array[:1]), array])[upper - 1]
        # At a known distance the value beyond does not matter, be it known or not.
        part = share[:, None]
        return np.where(part == 1, high, low + part * (high - low))

    def out_to(self, distances: Sequence[float] | np.ndarray | None) -> SkyMaps:
        """Return maps to other distances [pc], by default to six of their own.

        Raises `InputError` if a distance lies beyond the last of the maps.
        """
        known = self.distances
        if distances is None:
            even = np.linspace(0, len(known), 7)[1:].astype(int)
            chosen = known[np.unique(np.maximum(even, 1)) - 1]
        else:
            chosen = np.array(sorted(distances))
        if chosen[-1] > known[-1] or chosen[0] <= 0:
            raise InputError(
                f"the map knows extinctions out to {known[-1]:g} pc: choose distances "
                f"up to that, got {chosen.tolist()}"
            )
        arrays = {name: self.at(name, chosen) for name in self.arrays}
        gone = {"beyond_box": None, "prior_share": None}
        return replace(self, distances=chosen, arrays=arrays, **gone)


def outside(l: float, b: float) -> InputError:  # noqa: E741
    """Return the error for a sight line that leaves a map at the Sun."""
    return InputError(
        f"the sight line towards l = {l:g}, b = {b:g} deg is outside the map from the "
        "Sun on: choose a direction that its box holds"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOfSight:
    """Cumulative extinction along one direction, and the stars near it.

    ``l, b`` [deg]; ``distance`` [pc] along the ray; ``arrays`` are ``mean``, ``std``
    and, if the posterior has samples, ``p2_5`` to ``p97_5`` [mag]; ``truth`` [mag] is
    the true extinction where it is known. ``star_distance`` [pc], ``star_extinction``
    and ``star_error`` [mag] describe the stars within ``radius`` [deg]. ``last_star``
    [pc] is the end of the last stretch that the sight line of a star crosses, if known.
    """

    l: float  # noqa: E741  the field's name for Galactic longitude
    b: float
    distance: np.ndarray
    arrays: dict[str, np.ndarray]
    star_distance: np.ndarray = field(default_factory=lambda: np.zeros(0))
    star_extinction: np.ndarray = field(default_factory=lambda: np.zeros(0))
    star_error: np.ndarray = field(default_factory=lambda: np.zeros(0))
    radius: float = 0.0
    truth: np.ndarray | None = None
    last_star: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The *integral* of the density along ``x``, ``y`` or ``z``, with its own error.

    It extends from ``low`` to ``high`` [pc]. ``arrays`` are ``mean``, ``std`` and, for
    a positive density, ``p2_5`` to ``p97_5`` of the integral [mag], in which errors of
    neighbouring cells partly cancel. Their shape is (up, across): (y, x) along z,
    (z, x) along y, (z, y) along x.
    """

    along: str
    low: float
    high: float
    arrays: dict[str, np.ndarray]


def even_distances(box: Box) -> np.ndarray:
    """Return about six even, round distances [pc] out to the box's furthest face."""
    reach = float(np.abs([box.lower, box.upper]).max())
    power = 10.0 ** math.floor(math.log10(reach / 6))
    rounds = (factor * power for factor in (1, 2, 2.5, 5, 10))
    step = max(step for step in rounds if step <= reach / 6 * 1.0001)
    return step * np.arange(1, math.floor(reach / step + 1e-9) + 1)


def near_the_sun(centres: np.ndarray) -> Ends:
    """Return ends of columns along x or y [pc], at most 500 pc from the Sun.

    Through kiloparsecs every column meets the dust of the plane. Boxes up to 2 kpc
    wide, and boxes without the Sun, are not cut.
    """
    low, high = float(centres[0]), float(centres[-1])
    ends = max(low, -500.0), min(high, 500.0)
    return ends if high - low > 2000 and ends[0] < ends[1] else (low, high)
