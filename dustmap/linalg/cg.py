"""Preconditioned conjugate gradients on a batch of right-hand sides."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dustmap.linalg.operator import inner

# Steps between checks of the residuals, eight on other devices: each check makes the
# host wait. Between checks a converged column stays in the batch, unchanged.
_LOOKS = {"cpu": 1}
# Steps whose decrease says how much is left: the first ones may be small by chance.
_FEWEST = 16

Block = Float[Tensor, "b n"]
Product = Callable[[Block], Block]
# Makes the product for some columns, if each has its own matrix.
ProductOf = Callable[[Int[Tensor, " k"]], Product]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The solution of an iterative solver, and its accuracy.

    ``residual`` is the *true* relative residual ``‖b − A x‖ / ‖b‖`` per column,
    recomputed at the end (but see `ConjugateGradients.restarts`); ``converged`` is true
    if it is within the tolerance.
    """

    value: Float[Tensor, "*shifts b n"]
    residual: Float[Tensor, "*shifts b"]
    iterations: Int[Tensor, " b"]
    converged: Bool[Tensor, "*shifts b"]

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Join blocks of columns."""
        names = [field.name for field in fields(cls)]
        return cls(**{n: torch.cat([getattr(p, n) for p in parts]) for n in names})

    @property
    def message(self) -> str:
        """Summary in one line."""
        worst = float(self.residual.max()) if len(self.residual) else 0.0
        steps = int(self.iterations.max()) if len(self.iterations) else 0
        if bool(self.converged.all()):
            return f"converged in {steps} iterations, residual {worst:.1e}"
        failed = int((~self.converged).sum())
        return (
            f"{failed} of {len(self.converged)} columns did not converge in {steps} "
            f"iterations (worst residual {worst:.1e}): raise the iteration limit, "
            "use a preconditioner, or loosen the tolerance; a residual that stalls "
            "in float32 needs float64"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConjugateGradients:
    """Solver of ``A x = b``, A symmetric positive definite (Hestenes & Stiefel 1952).

    Parameters
    ----------
    rtol
        Relative residual at which a column has converged.
    max_steps
        Limit on products with A per column.
    restarts
        Limit on restarts of the recursion from the true residual, when that has drifted
        from the recursive one. With ``None`` there are no restarts and the recursive
        residual is returned, which saves a product.
    gain
        A column also ends once the last half of its steps, of sixteen or more,
        decreased ``½ xᵀ A x − bᵀ x`` by less than this in all.
    """

    rtol: float = 1e-6
    max_steps: int = 1000
    restarts: int | None = 3
    gain: float = 0.0

    def __post_init__(self) -> None:
        if not self.rtol > 0:
            raise ValueError(f"rtol must be positive, got {self.rtol}")
        if self.max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {self.max_steps}")

    def solve(
        self,
        product: Product,
        rhs: Block,
        *,
        preconditioner: Product | None = None,
        start: Block | None = None,
        on_step: Callable[[int, float], None] | None = None,
        product_of: ProductOf | None = None,
    ) -> Solution:
        """Solve every column; reductions are accumulated in float64.

        Converged columns leave the batch; if ``product`` multiplies each column by its
        own matrix, ``product_of`` makes the product for the remaining columns.
        ``on_step(step, worst relative residual)`` is called at every check of the
        residuals. A column that is not finite ends unconverged, and affects no other.
        """
        scale = inner(rhs, rhs).sqrt()
        precondition = torch.clone if preconditioner is None else preconditioner

        def relative_norm(residual: Tensor, columns: Tensor) -> Tensor:
            """Return ``‖r‖`` over the scale, or ``‖r‖`` where that is 0, in float64."""
            norm, size = inner(residual, residual).sqrt(), scale[columns]
            return torch.where(size > 0, norm / torch.where(size > 0, size, 1.0), norm)

        def product_on(columns: Tensor) -> Product:
            if product_of is None or len(columns) == len(rhs):
                return product
            return product_of(columns)

        # The solution for b = 0 is zero, with no scale for the residual.
        x = torch.zeros_like(rhs) if start is None else start * (scale > 0)[:, None]
        residual = rhs - product(x) if start is not None else rhs.clone()
        everything = torch.arange(len(rhs), device=rhs.device)
        relative = relative_norm(residual, everything)
        steps = torch.zeros_like(everything)
        every = _LOOKS.get(x.device.type, 8)
        for _ in range((self.restarts or 0) + 1):
            unfinished = (relative > self.rtol) & (steps < self.max_steps)
            active = todo = torch.nonzero(unfinished)[:, 0]
            if not len(todo):
                break
            y, r, count = x, residual, steps[active]
            if len(active) < len(rhs):
                y, r = x[active], residual[active]
            multiply, z = product_on(active), precondition(r)
            p, rz = z.clone(), inner(r, z)
            # Vectors that a product does not need are freed before it.
            del z
            going = torch.ones_like(rz, dtype=torch.bool)
            # The decreases of all columns, added up, by step.
            gained = [torch.zeros_like(scale)]
            for step in itertools.count(1):
                ap = multiply(p)
                curvature = inner(p, ap)
                alive = going & (curvature > 0) & (rz > 0)
                alpha = torch.where(alive, rz / torch.where(alive, curvature, 1.0), 0.0)
                alpha = alpha.to(p.dtype)[:, None]
                y.addcmul_(alpha, p)
                r.addcmul_(alpha, ap, value=-1)
                del ap
                count += going
                left = relative_norm(r, active)
                going = alive & (left > self.rtol) & (count < self.max_steps)
                if self.gain:
                    decrease = alpha[:, 0].to(rz) * rz / 2
                    gained.append(gained[-1].index_add(0, active, decrease))
                    recent = gained[-1] - gained[step // 2]
                    going &= (recent[active] >= self.gain) | (step < _FEWEST)
                if step % every == 0:
                    if on_step is not None:
                        on_step(int(count.max()), float(left.max()))
                    if not bool(going.all()):
                        if y is not x:
                            x[active], residual[active] = y, r
                        steps[active] = count
                        active, y, r, count = (t[going] for t in (active, y, r, count))
                        p, rz, going = p[going], rz[going], going[going]
                        multiply = product_on(active)
                    if not len(active):
                        break
                z = precondition(r)
                rz, previous = inner(r, z), rz
                beta = torch.where(going, rz / previous, 0.0).to(p.dtype)[:, None]
                torch.addcmul(z, beta, p, out=p)
                del z
            before = relative[todo]
            if self.restarts is not None:
                residual[todo] = rhs[todo] - product_on(todo)(x[todo])
            relative[todo] = relative_norm(residual[todo], todo)
            if bool((relative[todo] > 0.5 * before).all()):
                break
        done = relative <= self.rtol
        return Solution(value=x, residual=relative, iterations=steps, converged=done)
