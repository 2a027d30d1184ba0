r"""Non-decreasing curves along rays that are nearest to given ones.

The extinction A, inferred separately at every distance, may decrease along a ray. Draws
are coupled by rank: a draw of rank p has the quantile :math:`q_p(d)` at all distances.
Each is replaced by

.. math::
   \arg\min_x \sum_d \frac{(\ln x_d - \ln q_p(d))^2}{\operatorname{var} \ln A(d)}
   \quad\text{with}\quad x_1 \le x_2 \le \ldots ,

the isotonic regression of its logarithm (Ayer et al. 1955, Ann. Math. Stat. 26, 641).
All ranks have the same weights, so that ranks keep their order: the result is the
sequence of ordered distributions of ln A nearest in the weighted 2-Wasserstein
distance. Well-constrained distances change least; with A instead of ln A, the long
tails at other distances would dominate.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import isotonic_regression


def non_decreasing(
    curves: Float[np.ndarray, "k m"],
    variances: Float[np.ndarray, " m"],
    starts: Int[np.ndarray, " r+1"],
) -> Float[np.ndarray, "k m"]:
    """Return the isotonic regression of every curve on every ray.

    Parameters
    ----------
    curves
        Positive values of k curves at places, outwards on one ray after another.
    variances
        Variances of the logarithms at the places. Where one is zero (at the observer)
        or NaN (outside the box) values are unchanged.
    starts
        The first place of every ray, followed by the number of places.
    """
    found, known = np.array(curves, dtype=np.float64), np.flatnonzero(variances > 0)
    ray = np.searchsorted(starts, known, side="right")
    falls = (np.diff(found[:, known]) < 0) & (np.diff(ray) == 0)
    for k, values in enumerate(found):
        for number in np.unique(ray[1:][falls[k]]):
            own = known[slice(*np.searchsorted(ray, [number, number + 1]))]
            fit = isotonic_regression(np.log(values[own]), weights=1 / variances[own])
            values[own] = np.exp(fit.x)
    return found
