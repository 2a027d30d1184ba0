"""Newton's step in a few parameters, damped to a trust region."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# Below this fraction of the largest eigenvalue an information is rounding.
_ROUNDING = 1e-12


def expected_gain(
    slope: Float[Tensor, " k"],
    information: Float[Tensor, "k k"],
    free: Bool[Tensor, " k"],
) -> float:
    """``½ gᵀ A⁻¹ g`` over the free directions."""
    inverse = torch.linalg.pinv(information[free][:, free], hermitian=True)
    return 0.5 * float(slope[free] @ inverse @ slope[free])


def trusted_step(
    slope: Float[Tensor, " k"],
    information: Float[Tensor, "k k"],
    free: Bool[Tensor, " k"],
    radius: float,
) -> Float[Tensor, " k"]:
    """``(A + λI)⁻¹ g``, λ the smallest that keeps every change within ``radius``.

    (Levenberg 1944; Moré & Sorensen 1983.) Directions that are not free stay.
    """
    step = torch.zeros_like(slope)
    if not bool(free.any()):
        return step
    values, vectors = torch.linalg.eigh(information[free][:, free])
    along = vectors.mT @ slope[free]

    def damped(shift: float) -> Tensor:
        return vectors @ (along / (values + shift))

    low = _ROUNDING * float(values.max()) + max(0.0, -2 * float(values.min()))
    if low == 0.0 or float(damped(low).abs().max()) > radius:
        high = float(along.norm()) / radius + low
        for _ in range(60):
            middle = 0.5 * (low + high)
            if float(damped(middle).abs().max()) > radius:
                low = middle
            else:
                high = middle
        low = high
    # Nothing to gain and nothing known: stay.
    step[free] = damped(low) if low > 0 else 0.0
    return step


def secant_information(
    information: Float[Tensor, "k k"],
    step: Float[Tensor, " k"],
    change: Float[Tensor, " k"],
) -> Float[Tensor, "k k"]:
    """A with the curvature that a step has seen: ``A s = g₀ − g₁`` (BFGS).

    (Nocedal & Wright 2006, eq. 6.19.) A step that saw less than a tenth of what A says
    was too long to tell, or not uphill: A stays.
    """
    seen, image = float(step @ change), information @ step
    said = float(step @ image)
    if not seen > 0.1 * said > 0:
        return information
    return (
        information
        - torch.outer(image, image) / said
        + torch.outer(change, change) / seen
    )


def standard_errors(information: Float[Tensor, "k k"]) -> Float[Tensor, " k"]:
    """``sqrt((A⁻¹)_ii)``; infinite along what A does not know."""
    values, vectors = torch.linalg.eigh(information)
    weights = torch.where(vectors**2 > _ROUNDING, vectors**2, 0.0)
    known = values > _ROUNDING * values.max()
    inverse = torch.where(known, 1 / torch.where(known, values, 1.0), torch.inf)
    parts = torch.where(weights > 0, weights * inverse, 0.0)
    return parts.sum(dim=1).sqrt()
