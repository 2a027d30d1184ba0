r"""Shifted systems ``(K + t_q I) x_q = b`` from one Krylov space (multi-shift MINRES).

The Krylov space of b is the same for every shift, so that one Lanczos recursion, one
product with K per step, serves all of them; each shift keeps its own QR factors of
``T + t_q I`` by Givens rotations (Paige & Saunders 1975, SIAM J. Numer. Anal. 12, 617;
shifts as in Jegerlehner 1996, hep-lat/9612014; roots of matrices by it: Pleiss et al.
2020, arXiv:2006.11267).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.linalg.krylov import Krylov
from dustmap.linalg.operator import inner
from dustmap.linalg.shifted_factors import ShortRecurrence, StoredBasis
from dustmap.linalg.shifted_solution import (
    SCALES,
    Goal,
    Scale,
    ShiftedSolution,
    joined,
    ratio,
)

Product = Callable[[Float[Tensor, "b n"]], Float[Tensor, "b n"]]

# Of the tolerance, for the recursion: the true residual is larger by rounding.
_MARGIN = 0.9
# A smallest eigenvalue is news when it is this much smaller.
_NEWS = 1e-3
# How often rows may be solved again.
_REPEATS = 3
# Steps between looks at the Ritz values, and the rows that are looked at.
_LOOK, _ROWS = 10, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiShiftMinres:
    """Solves ``(K + t_q I) x_q = b`` for symmetric positive definite K, all q at once.

    Parameters
    ----------
    rtol
        Relative residual at which a column is done, for every shift.
    max_steps
        Limit on products with K per column.
    memory
        Bytes that Krylov bases may take: as many rows as fit are solved at once. Where
        one row's does not, answers come by short recurrences, ``4 q`` vectors per row,
        whose attainable residual is ``ε κ²`` instead of ``ε κ``.
    orthogonal
        Whether Krylov bases are kept orthogonal (where they are kept): j more vector
        products at step j, and no more steps than K has rows.

    Raises
    ------
    ValueError
        If the tolerance is not positive or no step is allowed.
    """

    rtol: float = 1e-3
    max_steps: int = 200
    memory: int = 2**30
    orthogonal: bool = True

    def __post_init__(self) -> None:
        if not self.rtol > 0:
            raise ValueError(f"rtol must be positive, got {self.rtol}")
        if self.max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {self.max_steps}")

    def limit(self, size: int) -> int:
        """Most steps that a matrix of this order may take."""
        return min(self.max_steps, size) if self.orthogonal else self.max_steps

    def solve(
        self,
        product: Product,
        rhs: Float[Tensor, "b n"],
        shifts: Float[Tensor, " q"],
        *,
        goal: Goal | None = None,
    ) -> ShiftedSolution:
        """Solve every column for every shift; reductions are in float64.

        Columns that are done leave. Cost: a product of the batch per step, and of all
        ``q b`` answers at the end, whose true residual is taken.

        Parameters
        ----------
        product
            ``K x`` of a batch of rows.
        rhs
            The rows b.
        shifts
            ``t_q ≥ 0``.
        goal
            When a column is done; every residual within ``rtol`` by default. The
            status refers to the same thing.

        Raises
        ------
        ValueError
            If a shift is negative or not finite.
        """
        if not bool(torch.isfinite(shifts).all() and (shifts >= 0).all()):
            raise ValueError(
                f"shifts must be finite and not negative, got {shifts.tolist()}: a "
                "negative one makes the system indefinite"
            )
        goal = Goal.each(self.rtol) if goal is None else goal
        shifts = shifts.to(device=rhs.device, dtype=torch.float64)
        row = rhs.element_size() * rhs.shape[1] * self.limit(rhs.shape[1])
        together = self.memory // max(row, 1) or len(rhs)
        stored = row <= self.memory
        parts = [
            self._solve(product, part, shifts, goal, stored=stored)
            for part in rhs.split(max(1, together))
        ]
        solution = parts[0] if len(parts) == 1 else joined(parts)
        if goal.gains is None:
            return solution
        return self._again(product, rhs, shifts, goal, solution, stored=stored)

    def _again(
        self,
        product: Product,
        rhs: Tensor,
        shifts: Tensor,
        goal: Goal,
        solution: ShiftedSolution,
        *,
        stored: bool,
    ) -> ShiftedSolution:
        """Solve rows again that left before others saw how small eigenvalues are."""
        limit = self.limit(rhs.shape[1])
        early = solution.iterations < limit
        for _ in range(_REPEATS):
            used = solution.used(goal)
            solution = replace(solution, converged=used <= 1)
            least = float(solution.smallest.min())
            # What rounding left of the same assumption would come back.
            news = least < (1 - _NEWS) * solution.assumed
            rows = torch.nonzero((used > 1) & early & news)[:, 0]
            if not len(rows):
                break
            part = self._solve(
                product, rhs[rows], shifts, goal, stored=stored, least=least
            )
            early[rows] = part.iterations < limit
            solution = solution.with_rows(rows, part)
        return replace(solution, converged=solution.used(goal) <= 1)

    def _solve(
        self,
        product: Product,
        rhs: Tensor,
        shifts: Tensor,
        goal: Goal,
        *,
        stored: bool,
        least: float = torch.inf,
    ) -> ShiftedSolution:
        orthogonal = stored and self.orthogonal
        krylov = Krylov(rhs, stored=stored, orthogonal=orthogonal)
        limit = self.limit(rhs.shape[1]) if orthogonal else self.max_steps
        with torch.no_grad():
            kind = StoredBasis if stored else ShortRecurrence
            factors = kind(krylov, shifts)
            while len(krylov.active) and krylov.step < limit:
                krylov.advance(product)
                factors.update(krylov)
                self._release(krylov, factors, goal, least)
            value = factors.answers(krylov)
            del factors
        # Outside of no_grad: derivatives in K's parameters need these products.
        images = product(value.reshape(-1, rhs.shape[1])).reshape(value.shape)
        seen = images.detach() + shifts[:, None, None].to(rhs.dtype) * value
        norm = inner(rhs - seen, rhs - seen).sqrt()
        krylov.look(torch.arange(len(rhs)))
        scales = _scales(krylov, slice(None))
        solution = ShiftedSolution(
            value=value,
            images=images,
            residual=ratio(norm, krylov.scale.expand_as(norm)),
            iterations=krylov.steps,
            converged=torch.zeros_like(krylov.scale, dtype=torch.bool),
            smallest=krylov.smallest,
            largest=krylov.largest,
            assumed=krylov.assumed,
            scales=torch.stack([scales[name] for name in SCALES]),
        )
        return replace(solution, converged=solution.used(goal) <= 1)

    def _release(
        self,
        krylov: Krylov,
        factors: ShortRecurrence | StoredBasis,
        goal: Goal,
        least: float,
    ) -> None:
        """Let rows and shifts that are done leave."""
        if krylov.step % _LOOK == 1 % _LOOK:
            krylov.look(krylov.active[:_ROWS])
        shares, done = _progress(krylov, factors, goal, least)
        if bool(done.any()):
            # Who leaves says first which eigenvalues it has seen.
            krylov.look(krylov.active[done])
            shares, done = _progress(krylov, factors, goal, least)
        krylov.assumed[krylov.active] = min(float(krylov.smallest.min()), least)
        if bool(done.any()):
            factors.keep_columns(~done, krylov)
            krylov.keep(~done)
            shares = shares[:, ~done]
        if len(krylov.active):
            factors.keep_shifts(~goal.negligible(shares), krylov)


def _progress(
    krylov: Krylov, factors: ShortRecurrence | StoredBasis, goal: Goal, least: float
) -> tuple[Tensor, Tensor]:
    scales = _scales(krylov, krylov.active)
    smallest = min(float(krylov.smallest.min()), least)
    shares = goal.shares(factors.residual, scales, smallest)
    return shares, (goal.total(shares) <= _MARGIN) | ~krylov.alive


def _scales(krylov: Krylov, rows: Tensor | slice) -> dict[Scale, Tensor]:
    return {
        "rhs": krylov.scale[rows],
        "quadratic": krylov.quadratic[rows].clamp(min=0).sqrt(),
        "energy": krylov.energy[rows].clamp(min=0).sqrt(),
    }
