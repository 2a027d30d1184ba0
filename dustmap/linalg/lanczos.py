r"""Lanczos' recursion.

``K V = V T + β v eᵀ`` with T tridiagonal (Paige & Saunders 1975, SIAM J. Numer. Anal.
12, 617, section 2). With rounding V loses its orthogonality as eigenvalues converge,
and everything else comes later: for wide spectra by many times the order of K. So V is
kept and every new vector orthogonalised against it (Parlett 1998, The Symmetric
Eigenvalue Problem, ch. 13).
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from dustmap.linalg.cg import Product
from dustmap.linalg.operator import inner

# A new vector below this part of K v is rounding: the space of the row is exhausted.
_BREAKDOWN = 1e-14
# Vectors of V that a new one is orthogonalised against at once.
_BLOCK = 32


class Lanczos:
    """One recursion for each row of a batch, any of which may be advanced.

    ``scale`` is the rows' norm, ``steps`` counts their products, ``diagonal`` and
    ``off`` are the entries of T (float64); rows whose space is exhausted are no longer
    ``alive``. Memory: ``limit + 1`` vectors per row.
    """

    def __init__(self, rows: Float[Tensor, "b n"], limit: int) -> None:
        count, size = rows.shape
        self.scale = inner(rows, rows).sqrt()
        self.alive = self.scale > 0
        self.steps = torch.zeros(count, dtype=torch.int64, device=rows.device)
        self.diagonal = self.scale.new_zeros(count, limit)
        self.off = self.scale.new_zeros(count, limit)
        self.basis = rows.new_zeros(count, limit + 1, size)
        safe = torch.where(self.alive, self.scale, 1.0).to(rows.dtype)
        self.basis[:, 0] = rows / safe[:, None]

    def advance(self, product: Product, rows: Int[Tensor, " r"]) -> None:
        """The next entries of T of some rows, by one product of all of them."""
        step = self.steps[rows]
        current = self.basis[rows, step]
        image = product(current).detach()
        size = inner(image, image).sqrt()
        beside = torch.where(step > 0, self.off[rows, step - 1], 0.0)
        image = image - beside[:, None].to(image) * self.basis[rows, step - 1]
        alpha = inner(current, image)
        image = image - alpha[:, None].to(image) * current
        # After its own two terms: once more leaves nothing but rounding.
        image = self._orthogonalised(image, rows)
        beta = inner(image, image).sqrt()
        alive = beta > _BREAKDOWN * size
        self.diagonal[rows, step] = alpha
        self.off[rows, step] = torch.where(alive, beta, 0.0)
        safe = torch.where(alive, beta, torch.inf)
        self.basis[rows, step + 1] = image / safe[:, None].to(image)
        self.alive[rows] = alive
        self.steps[rows] = step + 1

    def run(self, product: Product, steps: int) -> None:
        """Advance every row by so many steps, or until its space is exhausted."""
        for _ in range(steps):
            rows = torch.nonzero(self.alive)[:, 0]
            if not len(rows):
                return
            self.advance(product, rows)

    def _orthogonalised(self, image: Tensor, rows: Tensor) -> Tensor:
        count = int(self.steps[rows].max()) + 1
        everyone = len(rows) == len(self.basis)
        for block in self.basis[:, :count].split(_BLOCK, dim=1):
            basis = block if everyone else block[rows]
            along = torch.bmm(basis, image[..., None])
            image = torch.baddbmm(image[:, None], along.mT, basis, alpha=-1)[:, 0]
        return image

    def eigenpairs(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Ritz values of one row, increasing, and T's eigenvectors as columns.

        Raises
        ------
        ValueError
            If an entry of T is not finite.
        """
        count = int(self.steps[row])
        entries = torch.stack([self.diagonal[row, :count], self.off[row, :count]])
        if not bool(torch.isfinite(entries).all()):
            raise ValueError(
                "products with the matrix are not finite: check its entries"
            )
        diagonal, off = entries.cpu().numpy()
        values, vectors = eigh_tridiagonal(diagonal, off[:-1])
        return values, vectors
