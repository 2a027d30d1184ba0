"""The baseline of a map, extinctions kriged without a grid, beside the map."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NAME = "grid-free kriging"


class Baseline(NamedTuple):
    """Noise-free extinctions [mag], ``(n,)``, and their standard deviations."""

    kriging: np.ndarray
    kriging_std: np.ndarray


def baseline_score(
    found: Baseline, observed: np.ndarray, predicted: np.ndarray | None = None
) -> dict[str, float]:
    """Return the baseline's RMSE [mag] and the excess error of a map.

    ``excess`` is the mean difference of squared errors, map minus baseline, in its own
    standard errors.
    """
    squared = (found.kriging - observed) ** 2
    score = {"rmse_kriging": float(squared.mean() ** 0.5)}
    if predicted is None or len(observed) < 2:
        return score
    difference = (predicted - observed) ** 2 - squared
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return {**score, "excess": float(difference.mean() / error) if error > 0 else 0.0}


def is_worse(score: dict[str, float]) -> bool:
    """Return true if the map is worse than the baseline by two standard errors."""
    return score.get("excess", 0.0) > 2


def in_words(score: dict[str, float]) -> str:
    """Describe the baseline's error and the map's excess over it, if any."""
    said = f"RMSE without a map: {NAME} {score['rmse_kriging']:.4g} mag"
    if not is_worse(score):
        return said
    return (
        f"{said}: the map, {score['rmse']:.4g}, loses to it "
        f"({score['excess']:.1f} standard errors)"
    )
