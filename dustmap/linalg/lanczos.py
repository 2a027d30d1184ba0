r"""Lanczos' recursion, and log determinants from it (stochastic Lanczos quadrature).

``K V = V T + β v eᵀ`` with T tridiagonal (Paige & Saunders 1975, SIAM J. Numer. Anal.
12, 617, section 2). With rounding V loses its orthogonality as eigenvalues converge,
and everything else comes later: for wide spectra by many times the order of K. So V is
kept and every new vector orthogonalised against it (Parlett 1998, The Symmetric
Eigenvalue Problem, ch. 13).

``log det A = tr log A = E[zᵀ (log A) z]`` for random signs z, and T started at z gives
each term as a Gauss quadrature, ``zᵀ (log A) z ≈ |z|² Σ_i τ_i² log θ_i`` with
eigenvalues θ_i of T and the first entries τ_i of its eigenvectors (Ubaru, Chen & Saad
2017, SIAM J. Matrix Anal. Appl. 38, 1075, algorithm 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from dustmap.linalg.cg import Product
from dustmap.linalg.operator import inner
from dustmap.linalg.preconditioners import NystromPreconditioner

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

    def eigenpairs(
        self, row: int, most: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ritz values of one row, increasing, and T's eigenvectors as columns.

        ``most`` limits the steps that are used.

        Raises
        ------
        ValueError
            If an entry of T is not finite.
        """
        count = min(int(self.steps[row]), most or self.diagonal.shape[1])
        entries = torch.stack([self.diagonal[row, :count], self.off[row, :count]])
        if not bool(torch.isfinite(entries).all()):
            raise ValueError(
                "products with the matrix are not finite: check its entries"
            )
        diagonal, off = entries.cpu().numpy()
        values, vectors = eigh_tridiagonal(diagonal, off[:-1])
        return values, vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDeterminant:
    """An estimate of ``log det A`` and what it is worth.

    ``scatter`` is the standard error of the mean over probes; ``truncation`` the change
    that the last quarter of the Lanczos steps made; ``error`` both in quadrature.
    ``products`` counts vectors that A was applied to.
    """

    value: float
    scatter: float
    truncation: float
    products: int

    @property
    def error(self) -> float:
        """One standard error, truncation included."""
        return math.hypot(self.scatter, self.truncation)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanczosQuadrature:
    """Estimates ``log det A`` of a symmetric positive definite A.

    Parameters
    ----------
    probes
        Random vectors, at least 2: their scatter is the error bar.
    steps
        Of Lanczos, per probe.
    block
        Probes at once. Memory: ``block · steps`` vectors in float64, for each new one
        is orthogonalised against all before it (twice).
    """

    probes: int = 16
    steps: int = 40
    block: int = 4

    def __post_init__(self) -> None:
        if self.probes < 2 or self.block < 1:
            raise ValueError(
                "an error bar takes at least 2 probes, in blocks of at least 1: got "
                f"probes {self.probes} and block {self.block}"
            )
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")

    def estimate(
        self,
        product: Product,
        size: int,
        generator: torch.Generator,
        *,
        preconditioner: NystromPreconditioner | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> LogDeterminant:
        """``log det A`` of a matrix of order ``size`` known by its product.

        With a preconditioner P, ``log det P + log det P^{-1/2} A P^{-1/2}``: the first
        term is known, and the spectrum of the second is narrower, so that fewer steps
        and probes are enough.

        Raises
        ------
        ValueError
            If an eigenvalue of T is not positive: A is not positive definite.
        """
        steps = min(self.steps, size)
        scaled, known = _preconditioned(product, preconditioner, dtype)
        early = max(1, steps - steps // 4)
        whole, shorter = [], []
        for first in range(0, self.probes, self.block):
            count = min(self.block, self.probes - first)
            signs = torch.randint(0, 2, (count, size), generator=generator)
            start = (2.0 * signs - 1.0).to(torch.float64).to(device)
            krylov = Lanczos(start, steps)
            krylov.run(scaled, steps)
            for row in range(count):
                whole.append(size * _log_quadrature(*krylov.eigenpairs(row)))
                shorter.append(size * _log_quadrature(*krylov.eigenpairs(row, early)))
        # A quadrature of as many steps as A has rows is exact.
        change = float(np.mean(whole) - np.mean(shorter)) if steps < size else 0.0
        return LogDeterminant(
            value=known + float(np.mean(whole)),
            scatter=float(np.std(whole, ddof=1)) / math.sqrt(len(whole)),
            truncation=abs(change),
            products=len(whole) * steps,
        )


def _log_quadrature(values: np.ndarray, vectors: np.ndarray) -> float:
    """``Σ_i τ_i² log θ_i``."""
    if not (values > 0).all():
        raise ValueError(
            "a log determinant needs a positive definite matrix; Lanczos found an "
            f"eigenvalue of {values.min():.2g} in a largest of {values.max():.2g}: "
            "give a positive definite product, or one in higher precision"
        )
    return float(vectors[0] ** 2 @ np.log(values))


def _preconditioned(
    product: Product, preconditioner: NystromPreconditioner | None, dtype: torch.dtype
) -> tuple[Product, float]:
    """``P^{-1/2} A P^{-1/2}`` on float64 rows, and ``log det P``."""
    if preconditioner is None or not len(preconditioner.eigenvalues):
        return lambda x: product(x.to(dtype)).to(torch.float64), 0.0
    basis = preconditioner.basis.to(torch.float64)
    values = preconditioner.eigenvalues.to(torch.float64)
    # P⁻¹ is this on the basis, and the identity beside it.
    shrink = (values[-1:] + 1) / (values + 1)

    def root(x: Tensor) -> Tensor:
        return x + ((x @ basis.mT) * (shrink.sqrt() - 1)) @ basis

    def scaled(x: Tensor) -> Tensor:
        return root(product(root(x).to(dtype)).to(torch.float64))

    return scaled, -float(shrink.log().sum())
