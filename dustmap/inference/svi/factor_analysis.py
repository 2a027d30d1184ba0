r"""The best low-rank precision of all: the factor analysis of Λ.

What of the bound depends on S is ``−½ tr(S Λ) + ½ ln |S|``, up to a constant
``−KL(N(0, Λ) ‖ N(0, S⁻¹))``: with ``S⁻¹ = diag(d) + U Uᵀ`` the likelihood of a factor
analysis whose sample covariance is Λ, with loadings U and specific variances d. It is
maximised by expectation–maximisation (Rubin & Thayer 1982, Psychometrika 47, 69), which
never lowers it: with ``B = Uᵀ S`` (k × P)

``U ← Λ Bᵀ (I − B U + B Λ Bᵀ)⁻¹``,
``d ← diag((I − U B) Λ (I − U B)ᵀ + U (I − B U_before) Uᵀ)``.

At its end the diagonal of ``S⁻¹`` is that of Λ, as it is after a projection.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.svi.low_rank import LowRankGaussian


def analyse_factors(
    start: LowRankGaussian,
    columns: Float[Tensor, "p n"],
    *,
    tolerance: float = 1e-5,
    max_rounds: int = 500,
) -> tuple[LowRankGaussian, bool]:
    """Maximise the bound over U and d, given ``Λ = I + A Aᵀ``; whether it converged.

    Cost: ``O(P n k)`` a round.

    Parameters
    ----------
    start
        Where to begin; mean and number of columns stay. Λ projected is a good place.
    columns
        A, as :meth:`LowRankGaussian.data_precision` of all data.
    tolerance
        A round that adds less to the bound is the last [nats].
    max_rounds
        Limit on rounds.
    """
    q, value = start, covariance_bound(start, columns)
    if not q.columns.shape[1]:
        return q, True
    for _ in range(max_rounds):
        moved = _round(q, columns)
        after = covariance_bound(moved, columns)
        rise = after - value
        # Rounding alone lowers it, at the top.
        if rise > 0:
            q, value = moved, after
        if rise <= tolerance:
            return q, True
    return q, False


def covariance_bound(q: LowRankGaussian, columns: Float[Tensor, "p n"]) -> float:
    """``−½ tr(S Λ) + ½ ln |S|`` with ``Λ = I + A Aᵀ``."""
    fit = q.trace() + q.quadratic(columns.mT).sum()
    return float(0.5 * (q.log_determinant() - fit))


def _round(q: LowRankGaussian, columns: Tensor) -> LowRankGaussian:
    B = q.covariance_times(q.columns.mT)
    projected = B @ columns
    spread = B.mT + columns @ projected.mT
    left = torch.eye(len(B), dtype=B.dtype, device=B.device) - B @ q.columns
    left = (left + left.mT) / 2
    U = torch.linalg.solve(left + B @ spread, spread.mT).mT
    # Sums of squares, that d stays positive where it is far below the diagonal of Λ.
    own = 1 - 2 * (U * B.mT).sum(dim=1) + ((U @ (B @ B.mT)) * U).sum(dim=1)
    missed = ((columns - U @ projected) ** 2).sum(dim=1)
    diagonal = own + missed + ((U @ left) * U).sum(dim=1)
    return replace(q, diagonal=diagonal, columns=U)
