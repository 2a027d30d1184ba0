"""Preconditioned conjugate gradients on a batch of right-hand sides."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dustmap.linalg.operator import inner

# Steps between two looks at the residuals, eight on other devices: each look makes the
# host wait. Between looks a column that is done stays in the batch, unchanged.
_LOOKS = {"cpu": 1}

Product = Callable[[Float[Tensor, "b n"]], Float[Tensor, "b n"]]
# The product of some of the columns, where each has a matrix of its own.
ProductOf = Callable[[Int[Tensor, " k"]], Product]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The answer of an iterative solver, with what it is worth.

    ``residual`` is the *true* relative residual ``‖b − A x‖ / ‖b‖`` per column,
    recomputed at the end (but see `ConjugateGradients.restarts`); ``converged`` says
    whether it is within the tolerance.
    """

    value: Float[Tensor, "*shifts b n"]
    residual: Float[Tensor, "*shifts b"]
    iterations: Int[Tensor, " b"]
    converged: Bool[Tensor, "*shifts b"]

    @classmethod
    def joined(cls, parts: Sequence[Solution]) -> Solution:
        """Blocks of columns as one solution."""
        return cls(
            value=torch.cat([p.value for p in parts]),
            residual=torch.cat([p.residual for p in parts]),
            iterations=torch.cat([p.iterations for p in parts]),
            converged=torch.cat([p.converged for p in parts]),
        )

    @property
    def message(self) -> str:
        """One line for people."""
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
    """Solves ``A x = b`` for symmetric positive definite A (Hestenes & Stiefel 1952).

    Parameters
    ----------
    rtol
        Relative residual at which a column is done.
    max_steps
        Limit on products with A per column.
    restarts
        How often the recursion is restarted from the true residual when that has
        drifted from the recursive one. ``None``: never, and the recursive residual is
        the one returned, which saves a product.
    """

    rtol: float = 1e-6
    max_steps: int = 1000
    restarts: int | None = 3

    def __post_init__(self) -> None:
        if not self.rtol > 0:
            raise ValueError(f"rtol must be positive, got {self.rtol}")
        if self.max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {self.max_steps}")

    def solve(
        self,
        product: Product,
        rhs: Float[Tensor, "b n"],
        *,
        preconditioner: Product | None = None,
        start: Float[Tensor, "b n"] | None = None,
        on_step: Callable[[int, float], None] | None = None,
        product_of: ProductOf | None = None,
    ) -> Solution:
        """Solve every column; reductions are accumulated in float64.

        Columns that are done leave the batch, so products are only paid for the
        rest; where ``product`` multiplies each column by a matrix of its own,
        ``product_of`` gives that of the columns left. ``on_step(step, worst relative
        residual)`` is called at every look at the residuals. A column with a number
        that is not finite ends unconverged, and spoils no other.
        """
        scale = inner(rhs, rhs).sqrt()
        # The answer to zero is known, and no residual is small relative to it.
        x = torch.zeros_like(rhs) if start is None else start * (scale > 0)[:, None]
        residual = rhs - product(x) if start is not None else rhs.clone()
        system = _System(
            product=product,
            product_of=product_of,
            precondition=torch.clone if preconditioner is None else preconditioner,
            scale=scale,
            on_step=on_step,
        )
        relative = _relative_norm(residual, scale)
        steps = torch.zeros(len(rhs), dtype=torch.int64, device=rhs.device)
        for _ in range((self.restarts or 0) + 1):
            unfinished = (relative > self.rtol) & (steps < self.max_steps)
            todo = torch.nonzero(unfinished)[:, 0]
            if not len(todo):
                break
            before = relative[todo]
            self._recursion(system, todo, x, residual, steps)
            if self.restarts is not None:
                residual[todo] = rhs[todo] - system.on(todo)(x[todo])
            relative[todo] = _relative_norm(residual[todo], scale[todo])
            if bool((relative[todo] > 0.5 * before).all()):
                break
        return Solution(
            value=x,
            residual=relative,
            iterations=steps,
            converged=relative <= self.rtol,
        )

    def _recursion(
        self,
        system: _System,
        active: Int[Tensor, " k"],
        x: Float[Tensor, "b n"],
        residual: Float[Tensor, "b n"],
        steps: Int[Tensor, " b"],
    ) -> None:
        """One CG recursion on the active columns.

        It updates ``x``, ``residual`` and ``steps``.
        """
        every = _LOOKS.get(x.device.type, 8)
        y, r, count = x[active], residual[active], steps[active]
        product, z = system.on(active), system.precondition(r)
        p, rz = z.clone(), inner(r, z)
        going = torch.ones_like(rz, dtype=torch.bool)
        for step in itertools.count(1):
            ap = product(p)
            curvature = inner(p, ap)
            alive = going & (curvature > 0) & (rz > 0)
            alpha = torch.where(alive, rz / torch.where(alive, curvature, 1.0), 0.0)
            alpha = alpha.to(p.dtype)[:, None]
            y.addcmul_(alpha, p)
            r.addcmul_(alpha, ap, value=-1)
            count += going
            relative = _relative_norm(r, system.scale[active])
            going = alive & (relative > self.rtol) & (count < self.max_steps)
            if step % every == 0:
                if system.on_step is not None:
                    system.on_step(int(count.max()), float(relative.max()))
                if not bool(going.all()):
                    x[active], residual[active], steps[active] = y, r, count
                    active, y, r, count = (t[going] for t in (active, y, r, count))
                    p, rz, going = p[going], rz[going], going[going]
                    product = system.on(active)
                if not len(active):
                    return
            z = system.precondition(r)
            rz, previous = inner(r, z), rz
            beta = torch.where(going, rz / previous, 0.0).to(p.dtype)[:, None]
            p = torch.addcmul(z, beta, p)


@dataclass(frozen=True, slots=True, kw_only=True)
class _System:
    """A system to solve, and the callback for its progress."""

    product: Product
    product_of: ProductOf | None
    precondition: Product
    scale: Float[Tensor, " b"]
    on_step: Callable[[int, float], None] | None

    def on(self, columns: Int[Tensor, " k"]) -> Product:
        """The product of these columns, in ascending order."""
        if self.product_of is None or len(columns) == len(self.scale):
            return self.product
        return self.product_of(columns)


def _relative_norm(
    residual: Float[Tensor, "b n"], scale: Float[Tensor, " b"]
) -> Float[Tensor, " b"]:
    """``‖r‖`` over the scale, or as it is where that is zero; in float64."""
    norm = inner(residual, residual).sqrt()
    return torch.where(scale > 0, norm / torch.where(scale > 0, scale, 1.0), norm)
