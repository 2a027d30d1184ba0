r"""Shifted systems ``(K + t_q I) x_q = b`` from one Krylov space (multi-shift MINRES).

The Krylov space of b is the same for every shift, so that one Lanczos recursion, one
product with K per step, serves all of them (shifts as in Jegerlehner 1996,
hep-lat/9612014; roots of matrices by it: Pleiss et al. 2020, arXiv:2006.11267).

With ``T_t = T + t I``, ``f = e_kᵀ T_t⁻¹ e_1`` and ``g = e_kᵀ T_t⁻² e_k`` after k steps,
the smallest residual in the space (Paige & Saunders 1975, SIAM J. Numer. Anal. 12, 617)
and where it is reached are

``‖r‖ = ‖b‖ β |f| / √(1 + β² g)``,
``x = ‖b‖ V (T_t⁻¹ e_1 − c T_t⁻² e_k)``, ``c = β² f / (1 + β² g)``,

since MINRES solves ``(T_t² + β² e_k e_kᵀ) y = T_t e_1``. Residuals come by recursions
in the pivots of T_t, answers at the end from the eigenvectors of T and the kept V:
rounding in proportion to the condition number, not to its square as by short
recurrences (Sleijpen, van der Vorst & Modersitzki 2000, SIAM J. Matrix Anal. Appl. 22,
726).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.linalg.cg import Solution
from dustmap.linalg.lanczos import Lanczos, Product
from dustmap.linalg.operator import inner, ratio

# What residuals (q, b) use of the rows' tolerances, at most 1 when a row is done. Other
# arguments: ‖b‖, √(bᵀ K b) and √(bᵀ K⁻¹ b) as (3, b), and the smallest eigenvalue.
Goal = Callable[
    [Float[Tensor, "q b"], Float[Tensor, "3 b"], float], Float[Tensor, " b"]
]

# Of the tolerance, for the recursion: the true residual is larger by rounding.
_MARGIN = 0.9
# Steps between looks at the Ritz values, and the rows that are looked at.
_LOOK, _ROWS = 10, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftedSolution(Solution):
    """The answers of all shifts: ``value`` is x (q, b, n), ``residual`` is (q, b).

    ``images`` are the ``K x_q`` that the true residuals were computed from;
    ``iterations`` counts products with K per column. ``smallest`` and ``largest`` are
    the extreme Ritz values of each column's own Krylov space (infinite and zero for a
    zero column); ``scales`` are ``‖b‖``, ``√(bᵀ K b)`` and a lower bound of
    ``√(bᵀ K⁻¹ b)`` by it.
    """

    images: Float[Tensor, "q b n"]
    scales: Float[Tensor, "3 b"]
    smallest: Float[Tensor, " b"]
    largest: Float[Tensor, " b"]

    def used(self, goal: Goal) -> Float[Tensor, " b"]:
        """What the true residuals use of a goal's tolerance: at most 1 if reached."""
        smallest = min(self.smallest.tolist(), default=torch.inf)
        return goal(self.residual * self.scales[0], self.scales, smallest)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiShiftMinres:
    """Solves ``(K + t_q I) x_q = b`` for symmetric positive definite K, all q at once.

    Parameters
    ----------
    rtol
        Relative residual at which a column is done, for every shift.
    max_steps
        Limit on products with K per column; never more than K has rows.
    memory
        Bytes that Krylov bases may take: as many rows as fit, and at least one, are
        solved at once.

    Raises
    ------
    ValueError
        If the tolerance is not positive or no step is allowed.
    """

    rtol: float = 1e-3
    max_steps: int = 200
    memory: int = 2**30

    def __post_init__(self) -> None:
        if not self.rtol > 0:
            raise ValueError(f"rtol must be positive, got {self.rtol}")
        if self.max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {self.max_steps}")

    def solve(
        self,
        product: Product,
        rhs: Float[Tensor, "b n"],
        shifts: Float[Tensor, " q"],
        *,
        goal: Goal | None = None,
    ) -> ShiftedSolution:
        """Solve every column for every shift; reductions are in float64.

        Columns that are done rest. Cost: a product of the batch per step, and of all
        ``q b`` answers at the end, whose true residual is taken. The status refers to
        ``goal``, by default every residual within ``rtol``.

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

        def every_residual(residual: Tensor, scales: Tensor, _: float) -> Tensor:
            return ratio(residual.amax(dim=0), self.rtol * scales[0])

        shifts = shifts.to(device=rhs.device, dtype=torch.float64)
        limit = min(self.max_steps, rhs.shape[1])
        row = max(1, rhs.element_size() * rhs.shape[1] * (limit + 1))
        blocks = rhs.split(max(1, self.memory // row))
        goal = goal or every_residual
        return _joined([_solve(product, b, shifts, goal, limit) for b in blocks])


class _Progress:
    """The residuals of all shifts by recursion, and which rows continue."""

    def __init__(self, krylov: Lanczos, shifts: Tensor, goal: Goal) -> None:
        self._krylov, self._goal = krylov, goal
        # The last one is K itself, for bᵀ K⁻¹ b.
        self._shifts = torch.cat([shifts, shifts.new_zeros(1)])[:, None]
        shape = (len(self._shifts), len(krylov.scale))
        self._pivot = krylov.scale.new_ones(shape)
        self._f, self._g = torch.ones_like(self._pivot), torch.zeros_like(self._pivot)
        self._residual = krylov.scale.expand(shape).clone()
        self.scales = torch.stack([krylov.scale, *torch.zeros_like(self._f[:2])])
        self._smallest = torch.inf

    def rows(self) -> Int[Tensor, " r"]:
        """Rows that are not done."""
        used = self._goal(self._residual[:-1], self.scales, self._smallest)
        left = self._krylov.steps < self._krylov.diagonal.shape[1]
        return torch.nonzero((used > _MARGIN) & self._krylov.alive & left)[:, 0]

    def update(self, rows: Int[Tensor, " r"]) -> None:
        """One more step of some rows."""
        krylov = self._krylov
        step = krylov.steps[rows] - 1
        alpha, beta = krylov.diagonal[rows, step], krylov.off[rows, step]
        before = torch.where(step > 0, krylov.off[rows, (step - 1).clamp(min=0)], 0.0)
        f, g = self._f[:, rows], self._g[:, rows]
        pivot = alpha + self._shifts - before**2 / self._pivot[:, rows]
        f = torch.where(step > 0, f * before, f) / pivot
        g = (1 + before**2 * g) / pivot**2
        # After a pivot that rounding made negative the bound of bᵀ K⁻¹ b rests.
        f[-1] = torch.where(pivot[-1] > 0, f[-1], 0.0)
        self._pivot[:, rows], self._f[:, rows], self._g[:, rows] = pivot, f, g
        scale = self.scales[0, rows]
        self._residual[:, rows] = scale * beta * f.abs() / (1 + beta**2 * g).sqrt()
        first = torch.where(step > 0, 0.0, alpha.clamp(min=0).sqrt() * scale)
        self.scales[1, rows] += first
        added = scale**2 * f[-1] ** 2 * pivot[-1]
        self.scales[2, rows] = (self.scales[2, rows] ** 2 + added).sqrt()

    def look(self, rows: Int[Tensor, " r"]) -> None:
        """Find the smallest Ritz values of some rows."""
        for row in rows.tolist():
            smallest = float(self._krylov.eigenpairs(row)[0][0])
            self._smallest = min(self._smallest, smallest)


def _solve(
    product: Product, rhs: Tensor, shifts: Tensor, goal: Goal, limit: int
) -> ShiftedSolution:
    krylov = Lanczos(rhs.detach(), limit)
    progress = _Progress(krylov, shifts, goal)
    with torch.no_grad():
        rows, step = progress.rows(), 0
        while len(rows):
            krylov.advance(product, rows)
            progress.update(rows)
            step += 1
            if step % _LOOK == 1:
                progress.look(rows[:_ROWS])
            before, rows = rows, progress.rows()
            done = before[~torch.isin(before, rows)]
            if len(done):
                # A smaller eigenvalue may send them on, and rows that rested already.
                progress.look(done)
                rows = progress.rows()
        value, ends = _answers(krylov, shifts)
    # Outside of no_grad: derivatives in K's parameters need these products.
    images = product(value.reshape(-1, rhs.shape[1])).reshape(value.shape)
    off = rhs - images.detach() - shifts[:, None, None].to(rhs.dtype) * value
    solution = ShiftedSolution(
        value=value,
        images=images,
        residual=ratio(inner(off, off).sqrt(), krylov.scale),
        scales=progress.scales,
        iterations=krylov.steps,
        converged=torch.zeros_like(krylov.alive),
        smallest=ends[0],
        largest=ends[1],
    )
    return replace(solution, converged=solution.used(goal) <= 1)


def _answers(
    krylov: Lanczos, shifts: Float[Tensor, " q"]
) -> tuple[Float[Tensor, "q b n"], Float[Tensor, "2 b"]]:
    """MINRES' answers, and the smallest and largest Ritz value of every row."""
    count, _, size = krylov.basis.shape
    value = krylov.basis.new_zeros(len(shifts), count, size)
    ends = torch.stack([torch.full_like(krylov.scale, torch.inf), 0 * krylov.scale])
    for row, steps in enumerate(krylov.steps.tolist()):
        if not steps:
            continue
        ritz, vectors = (torch.from_numpy(a) for a in krylov.eigenpairs(row))
        first, last = vectors[0], vectors[-1]
        inverse = 1 / (ritz + shifts.cpu()[:, None])
        beta = float(krylov.off[row, steps - 1])
        f = inverse @ (first * last)
        c = beta**2 * f / (1 + beta**2 * (inverse**2 @ last**2))
        weights = (inverse * first - c[:, None] * inverse**2 * last) @ vectors.mT
        found = weights.to(value) @ krylov.basis[row, :steps]
        value[:, row] = float(krylov.scale[row]) * found
        ends[:, row] = ritz[[0, -1]]
    return value, ends


def _joined(parts: list[ShiftedSolution]) -> ShiftedSolution:
    """The solutions of successive runs of rows as one."""
    whole = {}
    for field in fields(ShiftedSolution):
        pieces = [getattr(part, field.name) for part in parts]
        by_shift = field.name in ("value", "images", "residual", "scales")
        whole[field.name] = torch.cat(pieces, dim=1 if by_shift else 0)
    return ShiftedSolution(**whole)
