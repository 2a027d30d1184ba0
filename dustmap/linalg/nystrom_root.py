r"""``P^{-1/2}`` of a randomised Nyström approximation, to precondition roots."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.linalg.preconditioners import NystromPreconditioner

Product = Callable[[Float[Tensor, "b n"]], Float[Tensor, "b n"]]


class NystromRoot:
    r"""``P^{-1/2}`` for ``K = H + σ² I`` with ``H ≈ U diag(λ) Uᵀ``.

    ``P^{-1} = U diag((λ_r + σ²)/(λ + σ²)) Uᵀ + (I − U Uᵀ)``, λ_r the smallest value
    that is kept (Frangella, Tropp & Udell 2023, SIAM J. Matrix Anal. Appl. 44, 718,
    eq. 1.3). A Nyström approximation is nowhere above H, hence no eigenvalue of
    ``P^{-1/2} K P^{-1/2}`` is below ``floor = σ²``, and the largest is about
    ``λ_r + σ²``.

    Parameters
    ----------
    preconditioner
        The approximation of ``H/σ² + I``.
    floor
        σ².
    """

    def __init__(self, preconditioner: NystromPreconditioner, floor: float) -> None:
        self.floor = floor
        self._basis = preconditioner.basis
        values = preconditioner.eigenvalues
        self._weights = ((values[-1:] + 1) / (values + 1)).sqrt() - 1

    @classmethod
    def build(
        cls,
        product: Product,
        size: int,
        rank: int,
        generator: torch.Generator,
        *,
        nugget: float,
    ) -> NystromRoot:
        """Of K by its product on rows, σ² included as ``nugget``: ``rank`` products.

        Raises
        ------
        ValueError
            If the nugget is not positive, or the rank not in 1..size.
        """
        if not nugget > 0:
            raise ValueError(
                f"this preconditioner is for K with a nugget, got {nugget}: without "
                "one no floor of the spectrum is known"
            )

        def scaled(x: Tensor) -> Tensor:
            return product(x) / nugget - x

        with torch.no_grad():
            sketch = NystromPreconditioner.build(
                scaled, size, rank, generator, dtype=torch.float64
            )
        return cls(sketch, nugget)

    def __call__(self, x: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        """``P^{-1/2} x``."""
        if not len(self._basis):
            return x
        return x + ((x @ self._basis.mT) * self._weights) @ self._basis
