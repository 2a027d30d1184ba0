r"""``P^{-1/2}`` of a randomised Nyström approximation, to precondition roots."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.linalg.preconditioners import NystromPreconditioner

Product = Callable[[Float[Tensor, "b n"]], Float[Tensor, "b n"]]


class NystromRoot:
    r"""``P^{-1/2}`` for ``H + I`` with ``H ≈ U diag(λ) Uᵀ``, in float64.

    ``P^{-1} = U diag((λ_r + 1)/(λ + 1)) Uᵀ + (I − U Uᵀ)``, λ_r the smallest value that
    is kept (Frangella, Tropp & Udell 2023, SIAM J. Matrix Anal. Appl. 44, 718, eq.
    1.3).
    """

    def __init__(self, preconditioner: NystromPreconditioner) -> None:
        self._basis = preconditioner.basis.to(torch.float64)
        values = preconditioner.eigenvalues.to(torch.float64)
        shrink = (values[-1:] + 1) / (values + 1)
        self._weights = shrink.sqrt() - 1

    @classmethod
    def with_nugget(
        cls,
        product: Product,
        size: int,
        rank: int,
        generator: torch.Generator,
        *,
        nugget: float,
    ) -> NystromRoot:
        """Of ``K = σ² (H + I)`` by its product on rows, σ² the nugget.

        A Nyström approximation is nowhere above H, hence no eigenvalue of
        ``P^{-1/2} K P^{-1/2}`` is below σ², and the largest is about ``σ² (λ_r + 1)``.
        Cost: ``rank`` products.

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
            return cls(
                NystromPreconditioner.build(
                    scaled, size, rank, generator, dtype=torch.float64
                )
            )

    def __call__(self, x: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        """``P^{-1/2} x``."""
        return x + ((x @ self._basis.mT) * self._weights) @ self._basis
