"""Preconditioned conjugate gradients on a batch of right-hand sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dustmap.linalg.operator import inner

Product = Callable[[Float[Tensor, "b n"]], Float[Tensor, "b n"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The answer of an iterative solver, with what it is worth.

    ``residual`` is the *true* relative residual ``‖b − A x‖ / ‖b‖`` per column,
    recomputed at the end; ``converged`` says whether it is within the tolerance.
    """

    value: Float[Tensor, "b n"]
    residual: Float[Tensor, " b"]
    iterations: Int[Tensor, " b"]
    converged: Bool[Tensor, " b"]

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
        drifted from the recursive one.
    """

    rtol: float = 1e-6
    max_steps: int = 1000
    restarts: int = 3

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
    ) -> Solution:
        """Solve every column; reductions are accumulated in float64.

        Columns that are done leave the batch, so products are only paid for the
        rest. ``on_step(step, worst relative residual)`` reports progress.
        """
        columns = len(rhs)
        scale = inner(rhs, rhs).sqrt()
        # The answer to zero is known, and no residual is small relative to it.
        x = torch.zeros_like(rhs) if start is None else start * (scale > 0)[:, None]
        steps = torch.zeros(columns, dtype=torch.int64, device=rhs.device)
        residual = rhs - product(x) if start is not None else rhs.clone()
        relative = _relative(residual, scale)
        for _ in range(1 + self.restarts):
            todo = torch.nonzero((relative > self.rtol) & (steps < self.max_steps))[
                :, 0
            ]
            if not len(todo):
                break
            before = relative[todo]
            self._run(product, preconditioner, x, residual, scale, steps, todo, on_step)
            residual[todo] = rhs[todo] - product(x[todo])
            relative[todo] = _relative(residual[todo], scale[todo])
            if bool((relative[todo] > 0.5 * before).all()):
                break
        return Solution(
            value=x,
            residual=relative,
            iterations=steps,
            converged=relative <= self.rtol,
        )

    def _run(
        self,
        product: Product,
        preconditioner: Product | None,
        x: Tensor,
        residual: Tensor,
        scale: Tensor,
        steps: Tensor,
        active: Tensor,
        on_step: Callable[[int, float], None] | None,
    ) -> None:
        """One CG recursion on the active columns, in place on ``x`` and ``steps``."""
        precondition = preconditioner if preconditioner is not None else torch.clone
        r = residual[active]
        z = precondition(r)
        p = z.clone()
        rz = inner(r, z)
        while len(active):
            ap = product(p)
            curvature = inner(p, ap)
            alive = (curvature > 0) & (rz > 0)
            alpha = torch.where(alive, rz / torch.where(alive, curvature, 1.0), 0.0)
            step = alpha.to(p.dtype)[:, None]
            x[active] += step * p
            r = r - step * ap
            steps[active] += 1
            relative = _relative(r, scale[active])
            if on_step is not None:
                on_step(int(steps.max()), float(relative.max()))
            going = alive & (relative > self.rtol) & (steps[active] < self.max_steps)
            if not bool(going.all()):
                active, r, p, rz = active[going], r[going], p[going], rz[going]
                if not len(active):
                    return
            z = precondition(r)
            rz_next = inner(r, z)
            p = z + (rz_next / rz).to(p.dtype)[:, None] * p
            rz = rz_next


def _relative(residual: Tensor, scale: Tensor) -> Tensor:
    norm = inner(residual, residual).sqrt()
    return torch.where(scale > 0, norm / torch.where(scale > 0, scale, 1.0), norm)
