"""Calibration of stated uncertainties: z-scores, coverage, and both by bins.

Observations have Gaussian errors [mag]; the map predicts noise-free extinctions [mag]
by mean and standard deviation, or by quantiles. Callers must drop stars without a
prediction (NaN).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import numpy as np
from jaxtyping import Float
from scipy.special import log_ndtr, logsumexp, ndtri, ndtri_exp

from dustmap.memory import row_blocks
from pipelines.base.quantiles import QUANTILES, places_between

LEVELS = (0.50, 0.68, 0.90, 0.95)

Column = Float[np.ndarray, " n"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The fraction of stars inside central intervals of one level.

    ``error``, ``sqrt(level (1 - level) / n)``, is the binomial standard deviation of
    ``held`` at the stated level: a lower limit, as stars behind one cloud are not
    independent.
    """

    level: float
    held: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Observed against predicted extinction of some stars.

    ``bias`` is the mean of observed minus predicted, ``rmse`` its root mean square and
    ``scatter`` 1.4826 times its median absolute deviation [mag], noise of the
    observation included. ``chi2`` is the mean of z², one if errors are as stated.
    """

    stars: int
    bias: float
    rmse: float
    scatter: float
    z_mean: float
    z_std: float
    chi2: float
    coverage: tuple[Coverage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Stars with ``low <= value < high``; the last of several bins includes its end."""

    low: float
    high: float
    calibration: Calibration


def z_scores(observed: Column, error: Column, mean: Column, std: Column) -> Column:
    """Return ``(observed - mean) / sqrt(std² + error²)`` for a normal prediction.

    Raises `ValueError` if a star has neither a standard deviation nor an error.
    """
    width = np.hypot(std, error)
    if (width == 0).any():
        raise ValueError(
            f"{int((width == 0).sum())} stars have neither an error nor a standard "
            "deviation: leave them out, they have no z-score"
        )
    return (observed - mean) / width


def z_scores_lognormal(
    observed: Column, error: Column, quantiles: Mapping[str, Column]
) -> Column:
    """Return ``Φ⁻¹(u)``, with u the predicted probability below the observation.

    With x(t) the prediction's quantile at probability Φ(t), interpolated linearly in
    ln x and t, and an observation ``x(t) + error e``,
    ``u = ∫ Φ((observed - x(t)) / error) φ(t) dt`` by the trapezoidal rule in
    logarithms, accurate for outliers. For errors far below the width of the prediction
    z is exact to 0.02. Stars without foreground dust have quantiles of zero and a
    normal distribution.

    Raises `ValueError` if an error is not positive.
    """
    if not (error > 0).all():
        raise ValueError(
            f"errors must be positive, {int((~(error > 0)).sum())} stars have none"
        )
    names = [name for name in QUANTILES if name in quantiles]
    dark = quantiles["p50"] == 0
    logs = np.stack([np.log(np.where(dark, 1.0, quantiles[name])) for name in names])
    # Between eight standard deviations on either side.
    nodes = np.linspace(-8, 8, 401)
    weights = -(nodes**2) / 2 - np.log(np.exp(-(nodes**2) / 2).sum())
    left, share = places_between(nodes, names)
    found = np.empty(len(observed))
    # Some ten arrays of a number for each node.
    for part in row_blocks(len(observed), 80 * len(nodes)):
        low, high = logs[left, part], logs[left + 1, part]
        dust = np.exp(low + share[:, None] * (high - low)).T
        dust[dark[part]] = 0.0
        away = (observed[part, None] - dust) / error[part, None]
        below, above = (
            cast(Column, logsumexp(log_ndtr(side) + weights, axis=1)).clip(max=0)
            for side in (away, -away)
        )
        # Only the smaller tail retains significant digits.
        found[part] = np.where(below < above, ndtri_exp(below), -ndtri_exp(above))
    return found


def coverage(z: Column, levels: Sequence[float] = LEVELS) -> tuple[Coverage, ...]:
    """Return fractions of stars inside the central intervals, one per level."""
    distance = np.abs(z)
    return tuple(
        Coverage(
            level=level,
            held=float(np.mean(distance <= ndtri((1 + level) / 2))),
            error=float(np.sqrt(level * (1 - level) / len(z))),
        )
        for level in levels
    )


def calibrate(
    residual: Column, z: Column, levels: Sequence[float] = LEVELS
) -> Calibration:
    """Compute the calibration of stars; ``residual`` is observed − predicted [mag].

    Raises `ValueError` if there are no stars, or a number is not finite.
    """
    if not len(z) or len(z) != len(residual):
        raise ValueError(
            f"expected as many residuals as z-scores and at least one, got "
            f"{len(residual)} and {len(z)}"
        )
    if not (np.isfinite(z).all() and np.isfinite(residual).all()):
        raise ValueError("residuals and z-scores must be finite: leave the others out")
    return Calibration(
        stars=len(z),
        bias=float(residual.mean()),
        rmse=float(np.sqrt(np.mean(residual**2))),
        # Of a normal distribution this is the standard deviation.
        scatter=float(1.4826 * np.median(np.abs(residual - np.median(residual)))),
        z_mean=float(z.mean()),
        z_std=float(z.std()),
        chi2=float(np.mean(z**2)),
        coverage=coverage(z, levels),
    )


def by_bins(
    value: Column, edges: Sequence[float] | Column, residual: Column, z: Column
) -> list[Bin]:
    """Compute calibrations by bins of any value, without empty bins."""
    found = []
    for low, high in pairwise(edges):
        last = high == edges[-1]
        chosen = (value >= low) & ((value <= high) if last else (value < high))
        if chosen.any():
            inside = calibrate(residual[chosen], z[chosen])
            found.append(Bin(low=float(low), high=float(high), calibration=inside))
    return found


def even_edges(value: Column, count: int) -> Column:
    """Return edges of at most ``count`` equally full bins; fewer for ties."""
    edges = np.unique(np.quantile(value, np.linspace(0, 1, count + 1)))
    return edges if len(edges) > 1 else np.array([edges[0], edges[0]])
