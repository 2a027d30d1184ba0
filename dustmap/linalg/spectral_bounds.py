"""Bounds of a positive definite matrix' spectrum from a few Lanczos steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.linalg.lanczos import Lanczos, Product
from dustmap.linalg.operator import inner

# Ritz values lie inside the spectrum. The largest is found at once, the smallest much
# later; an interval that reaches lower costs a few quadrature points and no product.
_ABOVE = 1.1
_BELOW = 1e-3
# A Ritz value below zero by more than this part of the largest is not rounding.
_NEGATIVE = 1e-8
# Rows that bounds are sought from.
_ROWS = 4


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
        """Whether these Ritz values lie inside."""
        return self.lower <= smallest and largest <= self.upper

    def seen(
        self, smallest: float, largest: float, dtype: torch.dtype
    ) -> SpectralBounds:
        """Bounds that know these Ritz values too; wider only where they must be."""
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
    """Bounds from Lanczos' spaces of a few of the rows.

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
