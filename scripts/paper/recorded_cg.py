"""Conjugate gradients that keep the residual and the error of every iteration.

The recursion is that of :class:`dustmap.linalg.cg.ConjugateGradients` without restarts;
columns that are done stay in the batch, so that every one has a whole history.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.linalg.cg import Product


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class History:
    """What happened in every iteration, the start first.

    Parameters
    ----------
    residual
        Norm of the recursion's own residual, ``‖b − K x_s‖`` but for rounding.
    error
        Root mean square over entries of ``x_s − x``, x the reference.
    final
        The last iterate.
    """

    residual: Float[Tensor, "s b"]
    error: Float[Tensor, "s b"]
    final: Float[Tensor, "b n"]

    def iterations(self, tolerance: Float[Tensor, " b"] | float) -> Int[Tensor, " b"]:
        """First iteration of every column at or below a residual; −1 for none."""
        done = self.residual <= tolerance
        first = done.to(torch.int64).argmax(dim=0)
        return torch.where(done.any(dim=0), first, -1)

    def slowest(self, tolerance: Float[Tensor, " b"] | float) -> int | None:
        """Iterations until every column is done; ``None`` if one never is."""
        counts = self.iterations(tolerance)
        return None if bool((counts < 0).any()) else int(counts.max())


def recorded(
    product: Product,
    rhs: Float[Tensor, "b n"],
    reference: Float[Tensor, "b n"],
    *,
    tolerance: float,
    max_steps: int,
    preconditioner: Product | None = None,
) -> History:
    """Solve ``K x = b`` from zero until every residual norm is at most ``tolerance``.

    (Hestenes & Stiefel 1952; with P as in HIP-GP, section 3.2.)
    """
    precondition = preconditioner if preconditioner is not None else torch.clone
    x, r = torch.zeros_like(rhs), rhs.clone()
    z = precondition(r)
    p, rz = z, (r * z).sum(dim=1)
    residuals, errors = [r.norm(dim=1)], [_rms(x - reference)]
    for _ in range(max_steps):
        if bool((residuals[-1] <= tolerance).all()):
            break
        image = product(p)
        curvature = (p * image).sum(dim=1)
        # A column that rounding has exhausted stays where it is.
        alive = (curvature > 0) & (rz > 0)
        step = torch.where(alive, rz / torch.where(alive, curvature, 1.0), 0.0)
        x = x + step[:, None] * p
        r = r - step[:, None] * image
        z = precondition(r)
        fresh = (r * z).sum(dim=1)
        turn = torch.where(alive, fresh / torch.where(alive, rz, 1.0), 0.0)
        p, rz = z + turn[:, None] * p, fresh
        residuals.append(r.norm(dim=1))
        errors.append(_rms(x - reference))
    return History(residual=torch.stack(residuals), error=torch.stack(errors), final=x)


def _rms(difference: Tensor) -> Tensor:
    return (difference**2).mean(dim=1).sqrt()
