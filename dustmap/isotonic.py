r"""Non-decreasing curves along rays that are nearest to given ones.

The extinction A, inferred separately at every distance, may decrease along a ray. Draws
are coupled by rank: a draw of rank p has the quantile :math:`q_p(d)` at all distances.
Each is replaced by

.. math::
   \arg\min_x \sum_d \frac{(\ln x_d - \ln q_p(d))^2}{\operatorname{var} \ln A(d)}
   \quad\text{with}\quad x_1 \le x_2 \le \ldots ,

the isotonic regression of its logarithm, by pooling adjacent violators (Ayer et al.
1955, Ann. Math. Stat. 26, 641). All ranks have the same weights, so that ranks keep
their order: the result is the sequence of ordered distributions of ln A nearest in the
weighted 2-Wasserstein distance. Well-constrained distances change least; with A instead
of ln A, the long tails at other distances would dominate.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from dustmap.linalg.compiled_tasks import compiled, in_parallel, thread_count


def non_decreasing(
    curves: Float[np.ndarray, "k m"],
    variances: Float[np.ndarray, " m"],
    starts: Int[np.ndarray, " r+1"],
) -> Float[np.ndarray, "k m"]:
    """Return the isotonic regression of every curve on every ray; O(k m).

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
    found = np.array(curves, dtype=np.float64)
    given = np.asarray(variances, dtype=np.float64), np.asarray(starts), found
    threads = thread_count(10 * found.size)
    cuts = np.linspace(0, len(starts) - 1, threads + 1).astype(int)
    in_parallel(lambda n: _pool(cuts[n], cuts[n + 1], *given), threads)
    return found


@compiled
def _pool(first, last, variances, starts, curves):
    """Replace the curves on the rays from ``first`` to ``last``."""
    longest = 0
    for r in range(first, last):
        longest = max(longest, starts[r + 1] - starts[r])
    level, weight = np.empty(longest), np.empty(longest)
    stop = np.empty(longest, dtype=np.int64)
    for curve in curves:
        for r in range(first, last):
            blocks = 0
            for m in range(starts[r], starts[r + 1]):
                if not variances[m] > 0:
                    continue
                level[blocks], weight[blocks] = curve[m], 1 / variances[m]
                stop[blocks] = m + 1
                while blocks > 0 and level[blocks - 1] > level[blocks]:
                    share = weight[blocks] / (weight[blocks - 1] + weight[blocks])
                    level[blocks - 1] *= (level[blocks] / level[blocks - 1]) ** share
                    weight[blocks - 1] += weight[blocks]
                    stop[blocks - 1] = stop[blocks]
                    blocks -= 1
                blocks += 1
            m = starts[r]
            for block in range(blocks):
                for n in range(m, stop[block]):
                    if variances[n] > 0:
                        curve[n] = level[block]
                m = stop[block]
