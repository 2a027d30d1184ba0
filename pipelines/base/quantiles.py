"""The quantiles that maps hold, and any other from these."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri

if TYPE_CHECKING:
    from dustmap.posterior import Moments

# Probabilities by the name of their column: the median and one sigma.
QUANTILES = {"p16": 0.15865525, "p50": 0.5, "p84": 0.84134475}
NAMES = tuple(QUANTILES)
KINDS = ("mean", "std", *NAMES)
# Half the width of the central 95% interval, in standard deviations.
WIDTH_95 = float(ndtri(0.975))


def summaries(moments: Moments, *, quantiles: bool | None = None) -> dict:
    """``mean``, ``std`` and, of a positive density, ``p16 p50 p84`` of each quantity.

    ``quantiles`` true gives those of any density.
    """
    found = {"mean": moments.mean.numpy(), "std": moments.std.numpy()}
    if moments.log_mean is not None if quantiles is None else quantiles:
        found |= {n: moments.quantile(p).numpy() for n, p in QUANTILES.items()}
    return found


def log_normal(
    p16: np.ndarray, p50: np.ndarray, p84: np.ndarray, probability: float
) -> np.ndarray:
    r"""A quantile of a positive posterior, by the rule the three were made with.

    .. math:: q_p = p_{50}\, e^{z_p s}, \qquad s = \tfrac12 \ln (p_{84} / p_{16})

    with :math:`z_p` the standard normal quantile. What is zero everywhere stays so.
    """
    seen = (p16 > 0) & (p84 > 0)
    ratio = np.where(seen, p84, 1.0) / np.where(seen, p16, 1.0)
    quantile = p50 * np.exp(ndtri(probability) * 0.5 * np.log(ratio))
    return np.where(seen | np.isnan(p50), quantile, p50)


def normal(mean: np.ndarray, std: np.ndarray, probability: float) -> np.ndarray:
    """A quantile of a posterior whose field may be negative."""
    return mean + ndtri(probability) * std
