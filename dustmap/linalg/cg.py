"""Preconditioned conjugate gradients on a batch of right-hand sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dustmap.journal import Journal
from dustmap.linalg.cg_run import Product, Run, System
from dustmap.linalg.space import WHOLE, VectorSpace


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
        journal: Journal | None = None,
        space: VectorSpace = WHOLE,
    ) -> Solution:
        """Solve every column; reductions are accumulated in float64.

        Columns that are done leave the batch, so products are only paid for the
        rest. ``on_step(step, worst relative residual)`` reports progress, ``space``
        says where the entries of a column are. In a journal a solve goes on from where
        it was saved, with the same matrix, right-hand side and preconditioner: no
        product is repeated.

        Raises
        ------
        FloatingPointError
            In a journal, if a number is not finite. Without one such a column ends
            unconverged, and spoils no other.
        ValueError
            If the journal holds a solve of another size or dtype.
        """
        system = System(
            product=product,
            rhs=rhs,
            scale=space.inner(rhs, rhs).sqrt(),
            precondition=torch.clone if preconditioner is None else preconditioner,
            on_step=on_step,
            journal=journal,
            space=space,
        )
        with (journal or Journal.silent()).frame("cg") as frame:
            run = Run.taken_up(frame, rhs)
            if run is None:
                run = Run.begun(system, start)
            frame.expose(run.saved)
            self._restarted(system, run)
        return Solution(
            value=run.x,
            residual=run.relative,
            iterations=run.steps,
            converged=run.relative <= self.rtol,
        )

    def _restarted(self, system: System, run: Run) -> None:
        """Recursions until all columns are done, or one gains nothing."""
        while run.restart <= self.restarts:
            if not len(run.active):
                unfinished = (run.relative > self.rtol) & (run.steps < self.max_steps)
                run.todo = torch.nonzero(unfinished)[:, 0]
                if not len(run.todo):
                    return
                run.restarted(system)
            todo, before = run.todo, run.relative[run.todo]
            self._recursion(system, run)
            run.residual[todo] = system.rhs[todo] - system.product(run.x[todo])
            run.relative[todo] = system.relative_norm(
                run.residual[todo], system.scale[todo]
            )
            system.require_finite(run, residual=run.relative)
            if bool((run.relative[todo] > 0.5 * before).all()):
                return
            run.restart += 1

    def _recursion(self, system: System, run: Run) -> None:
        """One CG recursion on the active columns."""
        while True:
            ap = system.product(run.p)
            curvature = system.space.inner(run.p, ap)
            alive = (curvature > 0) & (run.rz > 0)
            alpha = torch.where(alive, run.rz / torch.where(alive, curvature, 1.0), 0.0)
            step = alpha.to(run.p.dtype)[:, None]
            run.x[run.active] += step * run.p
            run.r = run.r - step * ap
            run.steps[run.active] += 1
            relative = system.relative_norm(run.r, system.scale[run.active])
            system.require_finite(run, curvature=curvature, residual=relative)
            if system.on_step is not None:
                system.on_step(int(run.steps.max()), float(relative.max()))
            within = (relative > self.rtol) & (run.steps[run.active] < self.max_steps)
            run.keep(alive & within)
            if not len(run.active):
                return
            run.turn(system)
            if system.journal is not None:
                system.journal.safe_point()
