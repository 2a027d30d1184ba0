r"""Log determinants from products alone: stochastic Lanczos quadrature.

``log det A = tr log A = E[zᵀ (log A) z]`` for random signs z, and Lanczos' tridiagonal
matrix T of A started at z gives each term as a Gauss quadrature,
``zᵀ (log A) z ≈ |z|² Σ_i τ_i² log θ_i`` with eigenvalues θ_i of T and the first entries
τ_i of its eigenvectors (Ubaru, Chen & Saad 2017, SIAM J. Matrix Anal. Appl. 38, 1075,
algorithm 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.linalg.operator import inner
from dustmap.linalg.preconditioners import NystromPreconditioner

Product = Callable[[Float[Tensor, "b n"]], Float[Tensor, "b n"]]


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
        terms, shorter = [], []
        for first in range(0, self.probes, self.block):
            count = min(self.block, self.probes - first)
            signs = torch.randint(0, 2, (count, size), generator=generator)
            start = (2.0 * signs - 1.0).to(torch.float64).to(device)
            diagonal, off = tridiagonal(scaled, start, steps)
            terms.append(size * _log_quadrature(diagonal, off))
            early = max(1, steps - steps // 4)
            part = _log_quadrature(diagonal[:, :early], off[:, : early - 1])
            shorter.append(size * part)
        whole = torch.cat(terms)
        # A quadrature of as many steps as A has rows is exact.
        change = float((whole - torch.cat(shorter)).mean()) if steps < size else 0.0
        return LogDeterminant(
            value=known + float(whole.mean()),
            scatter=float(whole.std()) / math.sqrt(len(whole)),
            truncation=abs(change),
            products=len(whole) * steps,
        )


def tridiagonal(
    product: Product, start: Float[Tensor, "b n"], steps: int
) -> tuple[Float[Tensor, "b k"], Float[Tensor, "b k_1"]]:
    """Diagonal and off-diagonal of Lanczos' T for every row, in float64.

    Where the space of a row is exhausted, T is continued by an identity that is not
    coupled to it and so changes no quadrature.
    """
    basis = [start / inner(start, start).sqrt()[:, None]]
    diagonal, off = [], []
    for step in range(steps):
        image = product(basis[-1])
        alpha = inner(basis[-1], image)
        scale = inner(image, image).sqrt()
        vectors = torch.stack(basis, dim=1)
        for _ in range(2):
            along = torch.einsum("bkn,bn->bk", vectors, image)
            image = image - torch.einsum("bkn,bk->bn", vectors, along)
        beta = inner(image, image).sqrt()
        alive = inner(basis[-1], basis[-1]) > 0.5
        diagonal.append(torch.where(alive, alpha, torch.ones_like(alpha)))
        going = alive & (beta > 1e-12 * scale)
        if step + 1 < steps:
            off.append(torch.where(going, beta, torch.zeros_like(beta)))
            safe = torch.where(going, beta, torch.ones_like(beta))
            basis.append(image / safe[:, None] * going[:, None])
    empty = start.new_zeros(len(start), 0, dtype=torch.float64)
    return torch.stack(diagonal, 1), torch.stack(off, 1) if off else empty


def _log_quadrature(diagonal: Tensor, off: Tensor) -> Float[Tensor, " b"]:
    """``Σ_i τ_i² log θ_i`` of every T."""
    matrix = torch.diag_embed(diagonal)
    if off.shape[1]:
        side = torch.diag_embed(off, offset=1)
        matrix = matrix + side + side.mT
    values, vectors = torch.linalg.eigh(matrix)
    if not bool((values > 0).all()):
        raise ValueError(
            "a log determinant needs a positive definite matrix; Lanczos found an "
            f"eigenvalue of {float(values.min()):.2g} in a largest of "
            f"{float(values.max()):.2g}: give a positive definite product, or "
            "one in higher precision"
        )
    return (vectors[:, 0] ** 2 * values.log()).sum(dim=-1)


def _preconditioned(
    product: Product, preconditioner: NystromPreconditioner | None, dtype: torch.dtype
) -> tuple[Product, float]:
    """``P^{-1/2} A P^{-1/2}`` on float64 rows, and ``log det P``."""
    if preconditioner is None or not len(preconditioner.eigenvalues):
        return lambda x: product(x.to(dtype)).to(torch.float64), 0.0
    basis = preconditioner.basis.to(torch.float64)
    values = preconditioner.eigenvalues.to(torch.float64)
    ratio = (values[-1] + 1) / (values + 1)
    weights = ratio.sqrt() - 1

    def root(x: Tensor) -> Tensor:
        return x + ((x @ basis.mT) * weights) @ basis

    def scaled(x: Tensor) -> Tensor:
        return root(product(root(x).to(dtype)).to(torch.float64))

    return scaled, -float(ratio.log().sum())
