r"""Answers at places whose distances have errors: mixtures along the sight line.

With the normal distribution p(d) of a distance and the map's :math:`F(x \mid d)`, of
mean m(d) and standard deviation s(d), the answer is :math:`\int F(x \mid d)\, p(d)\,
\mathrm dd`; its variance is that of m plus the mean of s². The map is asked at 13
distances, and linear between them; F is normal on either side of the median, or
log-normal if its 68% interval is positive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord
from numpy.lib.recfunctions import append_fields
from scipy.special import ndtr, ndtri

from dustmap.memory import row_blocks
from pipelines.base.quantiles import QUANTILES

if TYPE_CHECKING:
    from pipelines.query.map import DustMap

Asked = dict[str, tuple[dict[str, u.Quantity], np.ndarray]]
"""Moments by kind, and flags, of each quantity."""
# Offsets in the error of the distance.
_OFFSETS = np.array([-4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4])
_FINE = np.linspace(-4, 4, 81)
_BETWEEN = np.array([np.interp(_FINE, _OFFSETS, node) for node in np.eye(13)])
_SHARES = np.exp(-(_FINE**2) / 2) / np.exp(-(_FINE**2) / 2).sum()


def averaged(
    dust: DustMap, coords: SkyCoord, errors: np.ndarray, asked: Asked
) -> Asked:
    """Return moments averaged over errors of distances [pc], with further flags.

    Distances outside the map are left out (``part_outside``), as are missing errors
    (``no_distance_error``). No distance is below 2% of its mean.
    """
    sphere: Any = coords.spherical
    frame, center = coords.frame.replicate_without_data(), sphere.distance.to(u.pc)
    unknown = np.isnan(errors)
    along = center[:, None] + np.where(unknown, 0.0, errors)[:, None] * _OFFSETS * u.pc
    along = np.maximum(along, 0.02 * center[:, None])
    found: Asked = {}
    for what, (parts, flags) in asked.items():
        mixed, of_all = [], dust.extinction
        if what == "density":
            # It is undefined at infinity.
            of_all, along = dust.density, np.where(np.isinf(along), np.nan, along)
        # Moments at fine offsets.
        for rows in row_blocks(max(len(errors), 1), 2**14):
            angles = sphere.lon[rows, None], sphere.lat[rows, None]
            whole = of_all(SkyCoord(*angles, along[rows], frame=frame))
            held = {"mean": whole.mean, "std": whole.std, **whole.quantiles}
            at = {kind: part.value for kind, part in held.items() if part is not None}
            mixed.append(_mixed(at, parts))
        names = (*parts, "part_outside")
        means = {name: np.concatenate([each[name] for each in mixed]) for name in names}
        marks = {"no_distance_error": unknown & ~np.isnan(center.value)}
        marks["part_outside"] = means.pop("part_outside")
        flags = append_fields(flags, [*marks], [*marks.values()], usemask=False)
        found[what] = {k: means[k] * part.unit for k, part in parts.items()}, flags
    return found


def _mixed(held: dict[str, np.ndarray], kinds: Iterable[str]) -> dict[str, np.ndarray]:
    """Return moments from those at the offsets ``(n, 13)``, and ``part_outside``."""
    gaps = np.any(np.isnan([*held.values()]), axis=0)
    outside = gaps[:, 6]
    shares = np.where(gaps @ _BETWEEN > 0, 0.0, _SHARES)
    shares[outside] = np.nan
    shares /= shares.sum(axis=1, keepdims=True)
    fine: dict[str, Any] = {
        kind: np.where(gaps, 0.0, part) @ _BETWEEN for kind, part in held.items()
    }
    unknown = np.full_like(shares, np.nan)
    mean, std = fine.get("mean", unknown), fine.get("std", unknown)
    average = (shares * mean).sum(axis=1)
    variance = (shares * (std**2 + (mean - average[:, None]) ** 2)).sum(axis=1)
    found = {"mean": average, "std": np.sqrt(variance)}
    for kind in {*kinds} - {*found}:
        chance = 0.5 if kind == "median" else QUANTILES.get(kind)
        found[kind] = _quantile(fine, shares, chance or float(kind[1:]) / 100)
    return {**found, "part_outside": np.any(gaps, axis=1) & ~outside}


def _quantile(
    fine: dict[str, np.ndarray], shares: np.ndarray, chance: float
) -> np.ndarray:
    """Solve F(x) = chance by bisection, ``(n,)``."""
    ends = np.array([fine[kind] for kind in ("p16", "p50", "p84")])
    positive = ((ends > 0) | (shares == 0)).all(axis=(0, 2))[:, None]
    ends = np.where(positive, np.log(np.where(ends > 0, ends, 1.0)), ends)
    low, high = np.maximum(np.diff(ends, axis=0), 1e-12)
    z, middle = ndtri(chance), ends[1]
    parts = middle + z * (low if z < 0 else high)
    # The quantile lies between those of the parts.
    first = np.where(shares == 0, np.inf, parts).min(axis=1)
    last = np.where(shares == 0, -np.inf, parts).max(axis=1)
    for _ in range(25):
        x = (first + last)[:, None] / 2
        deviates = (x - middle) / np.where(x < middle, low, high)
        less = (shares * ndtr(deviates)).sum(axis=1) < chance
        first, last = np.where(less, x[:, 0], first), np.where(less, last, x[:, 0])
    found = np.where(positive[:, 0], np.exp(last), last)
    return np.where(np.isnan(shares[:, 0]), np.nan, found)
