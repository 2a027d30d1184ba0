"""Two maps at the same places, and how they agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from scipy.stats import spearmanr

from pipelines.base.measurement import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Two maps at the same places, all of shape ``(n,)``.

    ``own``, ``std`` and ``other`` are extinctions [mag] or densities [mag/pc].
    """

    distance: np.ndarray
    own: np.ndarray
    std: np.ndarray
    other: np.ndarray

    def select(self, rows: np.ndarray) -> Pairs:
        """Some of the places."""
        return Pairs(
            distance=self.distance[rows],
            own=self.own[rows],
            std=self.std[rows],
            other=self.other[rows],
        )


def figures_of(pairs: Pairs) -> Row:
    """Correlations, slope and differences of own against other."""
    own, other = pairs.own, pairs.other
    varied = np.ptp(own) > 0 and np.ptp(other) > 0
    difference = own - other
    return {
        "places": len(own),
        "correlation": float(np.corrcoef(own, other)[0, 1]) if varied else np.nan,
        "rank correlation": float(cast(Any, spearmanr(own, other)).statistic)
        if varied
        else np.nan,
        "slope": float(np.cov(own, other)[0, 1] / other.var(ddof=1))
        if varied
        else np.nan,
        "ratio of means": float(own.mean() / other.mean()) if other.mean() else np.nan,
        "mean difference": float(difference.mean()),
        "RMS difference": float(np.sqrt(np.mean(difference**2))),
        "scatter of the other": float(other.std()),
        "median std of the map": float(np.median(pairs.std)),
        "within 1 std": float(np.mean(np.abs(difference) <= pairs.std)),
        "within 2 std": float(np.mean(np.abs(difference) <= 2 * pairs.std)),
    }
