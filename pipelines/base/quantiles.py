"""The quantiles of maps, and interpolation between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dustmap.isotonic import Ranked
    from dustmap.moments import Moments

# Probabilities by the name of their column: the median, one sigma and 95%.
QUANTILES = {
    "p2_5": 0.025,
    "p16": 0.15865525,
    "p50": 0.5,
    "p84": 0.84134475,
    "p97_5": 0.975,
}
NAMES = tuple(QUANTILES)
KINDS = ("mean", "std", *NAMES)
# Half the width of the central 95% interval, in standard deviations.
WIDTH_95 = 1.959963984540054


def summaries(moments: Moments | Ranked, *, quantiles: bool | None = None) -> dict:
    """Return mean, std and, for a positive density, `QUANTILES` of each quantity.

    With ``quantiles`` any density has them.
    """
    found = {"mean": moments.mean, "std": moments.std}
    if moments.positive if quantiles is None else quantiles:
        wanted = moments.quantiles(list(QUANTILES.values()))
        found |= dict(zip(QUANTILES, wanted, strict=True))
    return {name: np.asarray(values) for name, values in found.items()}


def quantile(
    mean: np.ndarray, std: np.ndarray, probability: float, *, positive: bool
) -> np.ndarray:
    r"""Return a quantile of normal or, if ``positive``, log-normal distributions.

    With :math:`σ^2 = ln(1 + std^2 / mean^2)` a log-normal quantile is
    :math:`mean exp(σ z_p - σ^2 / 2)`.
    """
    from scipy.special import ndtri

    if not positive:
        return mean + ndtri(probability) * std
    variance = np.log1p((std / np.where(mean > 0, mean, 1.0)) ** 2)
    return mean * np.exp(ndtri(probability) * np.sqrt(variance) - variance / 2)


def interpolated_quantile(
    arrays: Mapping[str, np.ndarray], probability: float
) -> np.ndarray:
    r"""Interpolate a quantile of a positive posterior between the stored ones.

    Their logarithms are interpolated, and extrapolated, linearly in the standard normal
    quantile :math:`z_p`. Values that are all zero remain zero. Of a normal posterior,
    whose field may be negative, it follows from ``mean`` and ``std``.
    """
    from scipy.special import ndtri

    if "p50" not in arrays:
        return arrays["mean"] + ndtri(probability) * arrays["std"]
    names = [name for name in NAMES if name in arrays]
    left, share = places_between(ndtri(probability), names)
    low, high = (arrays[names[side]] for side in (int(left), int(left) + 1))
    seen = (low > 0) & (high > 0)
    ratio = np.where(seen, high, 1.0) / np.where(seen, low, 1.0)
    return np.where(seen | np.isnan(low), low * ratio**share, arrays["p50"])


def places_between(
    normals: np.ndarray | float, names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the left neighbour among `QUANTILES`, and the fractional offset.

    Offsets outside the first and the last name are below 0 and above 1.
    """
    from scipy.special import ndtri

    z = ndtri([QUANTILES[name] for name in names])
    left = np.clip(np.searchsorted(z, normals) - 1, 0, len(z) - 2)
    return left, (normals - z[left]) / (z[left + 1] - z[left])
