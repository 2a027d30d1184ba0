r"""Lanczos' recursion, and bounds of a spectrum from a few of its steps.

``K V = V T + β v eᵀ`` with T tridiagonal (Paige & Saunders 1975, SIAM J. Numer. Anal.
12, 617, section 2). With rounding V loses its orthogonality as eigenvalues converge,
and everything else comes later: for wide spectra by many times the order of K. So V is
kept and every new vector orthogonalised against it (Parlett 1998, The Symmetric
Eigenvalue Problem, ch. 13).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

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
# Ritz values lie inside the spectrum. The largest is found at once, the smallest much
# later; an interval that reaches lower costs a few quadrature points and no product.
_ABOVE = 1.1
_BELOW = 1e-3
# A Ritz value below zero by more than this part of the largest is not rounding.
_NEGATIVE = 1e-8
# Rows that bounds are sought from.
_ROWS = 4


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
        """Advance every row by these steps, or until its space is exhausted."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SpectralBounds:
    """Where the eigenvalues are taken to lie.

    Parameters
    ----------
    lower, upper
        The interval a quadrature is made for, margins included.
    smallest
        The smallest eigenvalue that was seen, or the floor: what error bounds use.
    source
        ``"lanczos"``; ``"floor"`` where the lower end is known, as from a nugget;
        or ``"fallback"`` where Lanczos found no positive smallest value,
        and ``lower`` is what rounding can tell from zero.

    Raises
    ------
    ValueError
        If not ``0 < lower <= smallest <= upper``.
    """

    lower: float
    upper: float
    smallest: float
    source: Literal["lanczos", "floor", "fallback"]

    def __post_init__(self) -> None:
        if not 0 < self.lower <= self.smallest <= self.upper:
            raise ValueError(
                "bounds need 0 < lower <= smallest <= upper, got lower "
                f"{self.lower}, smallest {self.smallest} and upper {self.upper}"
            )

    def contain(self, smallest: float, largest: float) -> bool:
        """Return whether these Ritz values lie inside."""
        return self.lower <= smallest and largest <= self.upper

    def seen(
        self, smallest: float, largest: float, dtype: torch.dtype
    ) -> SpectralBounds:
        """Return bounds that hold these Ritz values too, wider only if necessary."""
        smallest = min(smallest, self.smallest)
        if self.contain(smallest, largest):
            return replace(self, smallest=smallest)
        wider = _bounds(smallest, max(largest, self.upper / _ABOVE), dtype)
        return replace(wider, lower=min(wider.lower, self.lower))


def spectral_bounds(
    product: Product,
    rows: Float[Tensor, "b n"],
    steps: int,
    *,
    floor: float = 0.0,
) -> SpectralBounds:
    """Find bounds from Lanczos' spaces of a few of the rows.

    Eigenvalues that no row sees do not matter to functions of K times the rows. No
    eigenvalue is below ``floor``. Cost: ``steps`` products of at most four rows.

    Raises
    ------
    ValueError
        If a Ritz value is not finite, or negative beyond rounding.
    """
    nonzero = torch.nonzero(inner(rows, rows) > 0)[:, 0]
    if not len(nonzero):
        return SpectralBounds(lower=1.0, upper=1.0, smallest=1.0, source="floor")
    every = max(1, len(nonzero) // _ROWS)
    start = rows[nonzero[::every][:_ROWS]].to(torch.float64)
    steps, eps = min(steps, rows.shape[1]), torch.finfo(rows.dtype).eps
    krylov = Lanczos(start, steps)
    with torch.no_grad():
        krylov.run(lambda x: product(x.to(rows.dtype)).to(torch.float64), steps)
    ends = []
    for row in range(len(start)):
        values, vectors = krylov.eigenpairs(row)
        values = values[vectors[0] ** 2 > eps**2]
        ends.append((float(values[0]), float(values[-1])))
    low, high = zip(*ends, strict=True)
    found = _bounds(min(low), max(high), rows.dtype)
    if not eps * found.upper < floor < found.upper:
        return found
    # Ritz values are rounded too.
    return replace(found, lower=0.9 * floor, smallest=floor, source="floor")


def _bounds(smallest: float, largest: float, dtype: torch.dtype) -> SpectralBounds:
    if smallest < -_NEGATIVE * largest or not largest > 0:
        raise ValueError(
            "a square root needs a positive definite matrix, Lanczos found an "
            f"eigenvalue of {smallest:.3g} in a largest of {largest:.3g}: add a nugget "
            "or give a product in higher precision"
        )
    upper = _ABOVE * largest
    least = torch.finfo(dtype).eps * upper
    if smallest <= least:
        return SpectralBounds(
            lower=least, upper=upper, smallest=least, source="fallback"
        )
    lower = max(_BELOW * smallest, min(least, smallest))
    return SpectralBounds(lower=lower, upper=upper, smallest=smallest, source="lanczos")
