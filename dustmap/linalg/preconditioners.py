"""Approximate inverses for conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.grid import Grid
from dustmap.linalg.circulant import Circulant
from dustmap.linalg.operator import inner
from dustmap.linalg.toeplitz import ToeplitzOperator
from dustmap.memory import rows_within


class CirculantPreconditioner(ToeplitzOperator):
    """The box's block of ``C⁻¹`` as an approximate ``K⁻¹`` (HIP-GP, eq. 21–22).

    Modes at or below ``1e-14 max D`` are omitted from the inverse, and replaced by a
    multiple of the identity so that the preconditioner stays positive definite.
    """

    def __init__(self, circulant: Circulant, grid: Grid) -> None:
        inverse = circulant.power(-1.0)
        largest = float(inverse.spectrum.max())
        filled = torch.where(inverse.spectrum > 0, inverse.spectrum, largest)
        super().__init__(Circulant(filled, circulant.grid_shape), grid)


class NystromPreconditioner:
    r"""Randomised Nyström preconditioner for ``H + I``, H positive semi-definite.

    ``H ≈ U diag(λ) Uᵀ`` from a Gaussian sketch; with ``λ_r`` the smallest kept value
    ``P⁻¹ = U diag((λ_r + 1)/(λ + 1)) Uᵀ + (I − U Uᵀ)`` (Frangella, Tropp & Udell
    2023, SIAM J. Matrix Anal. Appl. 44, 718, eq. 1.3). Cost: ``rank`` products with
    H and ``rank`` vectors of memory. With a ``subspace`` of some coordinates it
    preconditions H's block there, and is the identity elsewhere.
    """

    def __init__(
        self,
        basis: Float[Tensor, "r k"],
        eigenvalues: Float[Tensor, " r"],
        subspace: Int[Tensor, " k"] | None = None,
    ) -> None:
        self.basis = basis
        self.eigenvalues = eigenvalues
        self.subspace = subspace
        shrink = (eigenvalues[-1:] + 1) / (eigenvalues + 1) - 1
        self._weights = shrink.to(basis.dtype)

    @classmethod
    def build(
        cls,
        product: Callable[[Tensor], Tensor],
        size: int,
        rank: int,
        generator: torch.Generator,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        subspace: Int[Tensor, " k"] | None = None,
    ) -> NystromPreconditioner:
        """Sketch ``H``, given by its product on rows, with ``rank`` vectors.

        The vectors are multiplied 16 at a time, or fewer if they are long.
        """
        # Larger blocks are no faster, and would dominate the peak memory of a fit.
        block, whole = min(16, rows_within(4 * size)), size
        if subspace is not None:
            size = len(subspace)

        def multiply(x: Tensor) -> Tensor:
            """Multiply by H, or by its block in the subspace."""
            if subspace is None:
                return product(x)
            padded = x.new_zeros(len(x), whole)
            padded[:, subspace] = x
            return product(padded)[:, subspace]

        if not 1 <= rank <= size:
            raise ValueError(f"rank must lie in 1..{size}, got {rank}")
        sketch = torch.randn(rank, size, generator=generator, dtype=dtype).to(device)
        if size < 200 * rank:
            basis = torch.linalg.qr(sketch.mT).Q.mT.contiguous()
        else:
            # Random directions in many dimensions are nearly orthogonal: their Gram
            # matrix is the identity to some ten per cent.
            basis = sketch.div_(size**0.5)
        # Drop the other name of the memory that `del basis` frees.
        del sketch
        image = torch.empty_like(basis)
        for first in range(0, rank, block):
            some = slice(first, first + block)
            image[some] = multiply(basis[some])
        # The shift keeps the core matrix positive definite to rounding.
        # Row by row: a copy in double precision would dominate a fit's peak memory.
        norm = torch.stack([inner(row, row) for row in image]).sum().sqrt()
        if not norm > 0:
            return cls(basis[:0], norm.new_zeros(0), subspace)
        shift = torch.finfo(dtype).eps * size**0.5 * norm
        image.add_(basis, alpha=float(shift))
        core = (basis @ image.mT).to(torch.float64)
        del basis
        values, vectors = torch.linalg.eigh((core + core.mT) / 2)
        kept = values > 10 * torch.finfo(dtype).eps * values.max()
        root = vectors[:, kept] / values[kept].sqrt()
        factor = root.mT.to(dtype) @ image
        del image
        gram = (factor @ factor.mT).to(torch.float64)
        squares, rotation = torch.linalg.eigh((gram + gram.mT) / 2)
        squares, rotation = squares.flip(0), rotation.flip(1)
        good = squares > 10 * torch.finfo(dtype).eps * squares.max()
        squares, rotation = squares[good], rotation[:, good]
        scaled = (rotation / squares.sqrt()).mT.to(dtype)
        # Removing the shift may leave rounding below zero; any positive spectrum is a
        # valid preconditioner, so that results do not change.
        eigenvalues = (squares - shift).clamp(min=0.0)
        return cls(scaled @ factor, eigenvalues, subspace)

    def __call__(self, x: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        return self._applied(x, self._weights)

    def inverse(self, x: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        """Return ``(U diag(λ) Uᵀ + I)⁻¹ x``.

        The preconditioner multiplies this by ``λ_r + 1`` on the basis.
        """
        weights = (1 / (self.eigenvalues + 1) - 1).to(self.basis.dtype)
        return self._applied(x, weights)

    def _applied(self, x: Tensor, weights: Float[Tensor, " r"]) -> Tensor:
        """Return ``(I + U diag(w) Uᵀ) x``."""
        own = x if self.subspace is None else x[:, self.subspace]
        change = ((own @ self.basis.mT) * weights) @ self.basis
        if self.subspace is None:
            return x + change
        return x.index_add(1, self.subspace, change)
