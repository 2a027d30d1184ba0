r"""A rational function that is ``λ^{-1/2}`` on an interval.

``λ^{-1/2} = (2/π) ∫_0^∞ ds / (λ + s²)``, and with the substitution
``s = √m · sn(v)/cn(v)`` of modulus ``k'² = 1 − m/M`` the trapezoidal rule converges as
``exp(−2π² Q / (log(M/m) + 3))`` for λ between m and M (Hale, Higham & Trefethen 2008,
SIAM J. Numer. Anal. 46, 2505, method 3; their complex arguments by Jacobi's imaginary
transformation).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import ellipj, ellipkm1
from torch import Tensor

# Points that are always enough for the tolerances that float64 can tell.
_MOST = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class RootQuadrature:
    """``λ^{-1/2} ≈ Σ_q weights_q / (λ + shifts_q)`` for ``lower ≤ λ ≤ upper``.

    ``error`` is the largest relative error on the interval, as evaluated there.
    """

    shifts: Float[Tensor, " q"]
    weights: Float[Tensor, " q"]
    error: float

    @classmethod
    def build(cls, lower: float, upper: float, points: int) -> RootQuadrature:
        """The rule of so many points.

        Raises
        ------
        ValueError
            If the interval is not positive.
        """
        if not 0 < lower <= upper < math.inf:
            raise ValueError(
                "a root takes eigenvalues with 0 < lower <= upper, got lower "
                f"{lower} and upper {upper}"
            )
        shifts, weights = _rule(lower, upper, points)
        grid = np.geomspace(lower, upper, 40 * points)
        values = (weights / (grid[:, None] + shifts)).sum(axis=1)
        return cls(
            shifts=torch.from_numpy(shifts),
            weights=torch.from_numpy(weights),
            error=float(np.abs(1 - np.sqrt(grid) * values).max()),
        )

    @classmethod
    def within(
        cls, lower: float, upper: float, rtol: float, *, least: int = 1
    ) -> RootQuadrature:
        """The shortest rule, of at least so many points, with error ≤ ``rtol``.

        Raises
        ------
        ValueError
            If none is accurate enough in float64.
        """
        for points in range(least, _MOST + 1):
            rule = cls.build(lower, upper, points)
            if rule.error <= rtol:
                return rule
        raise ValueError(
            f"no quadrature of up to {_MOST} points has a relative error of "
            f"{rtol:.1e} between {lower:.3g} and {upper:.3g} (reached "
            f"{rule.error:.1e}): ask for a looser tolerance or add a nugget"
        )


def _rule(lower: float, upper: float, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Shifts and weights; those beyond the middle follow by ``s ↦ √(m M) / s``."""
    ratio = lower / upper
    period = float(ellipkm1(ratio))
    half = (points + 1) // 2
    middles = (np.arange(half) + 0.5) * period / points
    # Near v = K' the functions cancel; the reflection of the other half is exact.
    sn, cn, dn, _ = ellipj(middles, 1 - ratio)
    s = math.sqrt(lower) * sn / cn
    slope = math.sqrt(lower) * dn / cn**2
    rest = points - half
    mirrored = math.sqrt(lower * upper) / s[:rest]
    slopes = math.sqrt(lower * upper) / s[:rest] ** 2 * slope[:rest]
    s = np.concatenate([s, mirrored[::-1]])
    slope = np.concatenate([slope, slopes[::-1]])
    return s**2, 2 * period / (math.pi * points) * slope
