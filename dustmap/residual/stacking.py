r"""Extinctions of stars by the map and by kriging together.

Where prior or grid err, the neighbours of a star predict its extinction as well as the
map does, and with other errors. The stack is

.. math::
   E = (1 - w) E_\mathrm{map} + w E_\mathrm{kriging}, \qquad
   \ln \frac{w}{1 - w} = a_0 + a_1 \ln \frac{s_\mathrm{map}}{s_\mathrm{kriging}}
       + a_2 \ln \frac{E_\mathrm{map}}{s_\mathrm{map}} ,

with standard deviations s. The coefficients minimise the mean absolute difference from
measurements that neither prediction has seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.special import expit
from torch import Tensor

from dustmap.residual.covariance import rays_to
from dustmap.residual.learning import LocalMeanKriging

# Prior means of the coefficients; the prior has standard deviations of one, and counts
# as much as one measurement.
_EXPECTED = (-1.0, 0.0, 0.0)
# Least extinction over its error.
_LEAST_RATIO = 1e-2

Column = Float[np.ndarray, " n"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedKriging:
    """Kriging from all known stars, and the coefficients of its share.

    ``gain`` is the fraction by which the stack lowers the map's mean absolute error for
    unseen measurements.
    """

    kriging: LocalMeanKriging
    coefficients: Float[np.ndarray, "3"]
    gain: float

    def without_last(self, count: int) -> StackedKriging:
        """Return the stack without the last stars."""
        return replace(self, kriging=self.kriging.without_last(count))

    def factor(self, places: Float[Tensor, "m 3"], mean: Column, std: Column) -> Column:
        """Return the factor on extinctions ``mean`` to places [pc], with errors std."""
        rays = rays_to(places, torch.from_numpy(mean), 0.0)
        other, variance = (part.numpy() for part in self.kriging.predict(rays))
        found = _share(self.coefficients, mean, std, np.sqrt(variance))
        return 1 + found * (other / np.maximum(mean, _LEAST_RATIO * std) - 1)


def learn_stack(
    kriging: LocalMeanKriging, mean: Column, std: Column, observed: Column
) -> StackedKriging | None:
    """Learn the share of kriging; return ``None`` if the stack gains less than 1%.

    The last stars of ``kriging`` were measured as ``observed``, and the map, which has
    not seen them, predicts ``mean`` and ``std`` [mag]. From fewer than 200 of them no
    share is learnt.
    """
    count = len(observed)
    if count < 200:
        return None
    places = kriging.observed[-count:]
    found = kriging.without_last(count).predict(places)
    other, variance = (part.numpy() for part in found)
    spread = np.sqrt(variance)

    def error(coefficients: Float[np.ndarray, "3"]) -> float:
        share = _share(coefficients, mean, std, spread)
        return float(np.abs(observed - mean - share * (other - mean)).mean())

    alone = float(np.abs(observed - mean).mean())

    def loss(coefficients: Float[np.ndarray, "3"]) -> float:
        prior = ((coefficients - _EXPECTED) ** 2).sum() / 2
        return error(coefficients) / alone + prior / count

    best = minimize(loss, np.array(_EXPECTED), method="Nelder-Mead").x
    gain = 1 - error(best) / alone
    if gain < 0.01:
        return None
    return StackedKriging(kriging=kriging, coefficients=best, gain=gain)


def _share(
    coefficients: Float[np.ndarray, "3"], mean: Column, std: Column, spread: Column
) -> Column:
    """Return the share of kriging with standard deviations ``spread``."""
    relative = np.log(np.maximum(mean, _LEAST_RATIO * std) / std)
    logarithms = np.stack([np.ones_like(std), np.log(std / spread), relative])
    # One by one, so that the bits do not depend on the number of places.
    return expit(sum(a * x for a, x in zip(coefficients, logarithms, strict=True)))
