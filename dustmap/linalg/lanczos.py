r"""Shifted systems ``(K + t I) x = b`` from one Krylov space (multi-shift MINRES).

``K V = V T + β v eᵀ`` with T tridiagonal: the space of b is the same for every shift,
so that one product with K per step serves all of them (shifts as in Jegerlehner 1996,
hep-lat/9612014). With ``T_t = T + t I``, ``f = e_kᵀ T_t⁻¹ e_1`` and
``g = e_kᵀ T_t⁻² e_k`` after k steps, the smallest residual in the space (Paige &
Saunders 1975, SIAM J. Numer. Anal. 12, 617) and its solution are

``‖r‖ = ‖b‖ β |f| / √(1 + β² g)``,
``x = ‖b‖ V (T_t⁻¹ e_1 − c T_t⁻² e_k)``, ``c = β² f / (1 + β² g)``,

since MINRES solves ``(T_t² + β² e_k e_kᵀ) y = T_t e_1``. Residuals follow from
recursions in the pivots of T_t, solutions at the end from the eigenvectors of T and the
stored V: rounding is proportional to the condition number, not to its square as for
short recurrences (Sleijpen, van der Vorst & Modersitzki 2000, SIAM J. Matrix Anal.
Appl. 22, 726). By rounding, V would lose its orthogonality as eigenvalues converge,
which delays convergence: for wide spectra by many times the order of K. So every new
vector is orthogonalised against all of V (Parlett 1998, The Symmetric Eigenvalue
Problem, ch. 13).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.linalg import eigh_tridiagonal, eigvalsh_tridiagonal
from torch import Tensor

from dustmap.linalg.cg import Product
from dustmap.linalg.operator import inner

# A new vector below this fraction of K v is rounding: the row's space is exhausted.
_BREAKDOWN = 1e-14
# Vectors of V that a new one is orthogonalised against at once.
_BLOCK = 32
# Steps between checks of residuals, and factor on the tolerance for residuals by
# recursion: rounding makes true residuals larger.
_LOOK, _MARGIN = 8, 0.9


class Lanczos:
    """Independent recursions for the rows of a batch.

    ``scale`` is the rows' norm, ``steps`` counts their products, ``diagonal`` and
    ``off`` are the entries of T (float64); rows with exhausted spaces are not
    ``alive``. Memory: ``limit + 1`` vectors per row.
    """

    def __init__(self, rows: Float[Tensor, "b n"], limit: int) -> None:
        count, size = rows.shape
        self.limit = limit
        self.scale = inner(rows, rows).sqrt()
        self.alive = self.scale > 0
        self.steps = torch.zeros(count, dtype=torch.int64, device=rows.device)
        self.diagonal = self.scale.new_zeros(count, limit)
        self.off = self.scale.new_zeros(count, limit)
        self.basis = rows.new_zeros(count, limit + 1, size)
        safe = torch.where(self.alive, self.scale, 1.0).to(rows.dtype)
        self.basis[:, 0] = rows / safe[:, None]

    def run(
        self, product: Product, used: Callable[[Lanczos], Float[Tensor, " b"]]
    ) -> None:
        """Advance rows while their ``used`` share of the tolerance exceeds the margin.

        They end at the limit, or when their space is exhausted.
        """
        with torch.no_grad():
            rows = torch.nonzero(self.alive)[:, 0]
            while len(rows):
                for _ in range(_LOOK):
                    self._advance(product, rows)
                    rows = rows[self.alive[rows] & (self.steps[rows] < self.limit)]
                    if not len(rows):
                        break
                # A smaller eigenvalue may reactivate rows.
                left = self.alive & (self.steps < self.limit)
                rows = torch.nonzero(left & (used(self) > _MARGIN))[:, 0]

    def _advance(self, product: Product, rows: Int[Tensor, " r"]) -> None:
        """Add the next entries of T of some rows, with one product for all of them."""
        step = self.steps[rows]
        current = self.basis[rows, step]
        image = product(current).detach()
        size = inner(image, image).sqrt()
        beside = torch.where(step > 0, self.off[rows, step - 1], 0.0)
        image = image - beside[:, None].to(image) * self.basis[rows, step - 1]
        alpha = inner(current, image)
        image = image - alpha[:, None].to(image) * current
        # Orthogonalise again after the two terms of T, to rounding.
        everyone = len(rows) == len(self.basis)
        for block in self.basis[:, : int(step.max()) + 1].split(_BLOCK, dim=1):
            basis = block if everyone else block[rows]
            along = torch.bmm(basis, image[..., None])
            image = torch.baddbmm(image[:, None], along.mT, basis, alpha=-1)[:, 0]
        beta = inner(image, image).sqrt()
        alive = beta > _BREAKDOWN * size
        self.diagonal[rows, step] = alpha
        self.off[rows, step] = torch.where(alive, beta, 0.0)
        safe = torch.where(alive, beta, torch.inf)
        self.basis[rows, step + 1] = image / safe[:, None].to(image)
        self.alive[rows] = alive
        self.steps[rows] = step + 1

    def entries(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the diagonal and the off-diagonal of a row's T.

        Raises
        ------
        ValueError
            If an entry is not finite.
        """
        count = int(self.steps[row])
        entries = torch.stack([self.diagonal[row, :count], self.off[row, :count]])
        if not bool(torch.isfinite(entries).all()):
            raise ValueError(
                "products with the matrix are not finite: check its entries"
            )
        diagonal, off = entries.cpu().numpy()
        return diagonal, off[:-1]

    def ends(self) -> tuple[float, float]:
        """Return the smallest and the largest Ritz value of all rows, or ones."""
        rows = torch.nonzero(self.steps)[:, 0].tolist()
        found = [eigvalsh_tridiagonal(*self.entries(row)) for row in rows]
        values = np.concatenate(found or [np.ones(1)])
        return float(values.min()), float(values.max())

    def residuals(
        self, shifts: Float[Tensor, " q"]
    ) -> tuple[Float[Tensor, "q b"], Float[Tensor, " b"]]:
        """Return MINRES' ``‖r‖``, and a lower bound of ``bᵀ K⁻¹ b``."""
        # The last shift is zero, for K itself.
        shift = torch.cat([shifts.to(self.scale), self.scale.new_zeros(1)])[:, None]
        ones = torch.ones_like(shift * self.scale)
        pivot, f, g, residual = ones, ones, 0 * ones, ones * self.scale
        energy, before = 0 * self.scale, 0 * self.scale
        for step in range(int(self.steps.max())):
            made = step < self.steps
            alpha, beta = self.diagonal[:, step], self.off[:, step]
            pivot = torch.where(made, alpha + shift - before**2 / pivot, 1.0)
            f = (f * before if step else f) / pivot
            g = (1 + before**2 * g) / pivot**2
            found = self.scale * beta * f.abs() / (1 + beta**2 * g).sqrt()
            residual = torch.where(made, found, residual)
            # After a pivot that is negative by rounding, the bound stays constant.
            f[-1] = torch.where(pivot[-1] > 0, f[-1], 0.0)
            energy += torch.where(made, self.scale**2 * f[-1] ** 2 * pivot[-1], 0.0)
            before = beta
        return residual[:-1], energy

    def answers(self, shifts: Float[Tensor, " q"]) -> Float[Tensor, "q b n"]:
        """Return the solutions of MINRES."""
        value = self.basis.new_zeros(len(shifts), *self.basis[:, 0].shape)
        for row, steps in enumerate(self.steps.tolist()):
            if not steps:
                continue
            pairs = eigh_tridiagonal(*self.entries(row))
            ritz, vectors = (torch.from_numpy(array) for array in pairs)
            first, last = vectors[0], vectors[-1]
            inverse = 1 / (ritz + shifts.cpu()[:, None])
            beta = float(self.off[row, steps - 1])
            f = inverse @ (first * last)
            c = beta**2 * f / (1 + beta**2 * (inverse**2 @ last**2))
            weights = (inverse * first - c[:, None] * inverse**2 * last) @ vectors.mT
            found = weights.to(value) @ self.basis[row, :steps]
            value[:, row] = float(self.scale[row]) * found
        return value
