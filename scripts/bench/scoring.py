"""How good predictions of extinction and density are. Numpy alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

# Half-widths of intervals of 68% and 95% in standard deviations.
WIDTHS = (1.0, 1.96)
_COLUMNS = ("mean", "std", "p2_5", "p16", "p50", "p84", "p97_5")
Columns = Mapping[str, np.ndarray]


def coverage(interval: np.ndarray, true: np.ndarray) -> tuple[float, float]:
    """Fractions inside intervals ``(4, T)``: ends at 68%, then at 95%."""
    low68, high68, low95, high95 = interval
    return (
        float(np.mean((low68 <= true) & (true <= high68))),
        float(np.mean((low95 <= true) & (true <= high95))),
    )


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Of two columns; NaN where one has no scatter."""
    if len(one) < 2 or not one.std() or not other.std():
        return float("nan")
    return float(np.corrcoef(one, other)[0, 1])


def read_prediction(columns: Columns) -> dict[str, np.ndarray]:
    """Point estimates are means; intervals by quantiles where there are any.

    Without the quantiles p2_5 and p97_5 the interval of 95% follows from p16, p50 and
    p84 by stretching both halves 1.96 times, in the logarithm where all are positive. A
    map without posterior samples has none.
    """
    found: dict[str, np.ndarray] = {}
    for quantity in ("extinction", "density"):
        held = {
            name: columns[f"{quantity}_{name}"]
            for name in _COLUMNS
            if f"{quantity}_{name}" in columns
        }
        found[quantity] = held["mean"]
        if np.isnan(held["std"]).all():
            continue  # of a map without samples
        quantiles = [held[name] for name in ("p16", "p50", "p84") if name in held]
        if "p2_5" in held:
            ends = ("p16", "p84", "p2_5", "p97_5")
            found[f"{quantity}_interval"] = np.stack([held[name] for name in ends])
        elif len(quantiles) == 3:
            found[f"{quantity}_interval"] = stretched(*quantiles)
        else:
            found[f"{quantity}_interval"] = normal_interval(held["mean"], held["std"])
    return found


def stretched(low: np.ndarray, middle: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Intervals ``(4, T)`` from the quantiles p16, p50, p84."""
    positive = bool((low > 0).all())
    a, m, b = (np.log(x) if positive else x for x in (low, middle, high))
    ends = np.stack([end for w in WIDTHS for end in (m + w * (a - m), m + w * (b - m))])
    return np.exp(ends) if positive else ends


def normal_interval(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Symmetric intervals, shape ``(4, T)``."""
    return np.stack([mean + s * w * std for w in WIDTHS for s in (-1, 1)])
