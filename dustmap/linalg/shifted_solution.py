r"""Answers to shifted systems, what they are worth, and when they are good enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Scale = Literal["rhs", "quadratic", "energy"]
SCALES: tuple[Scale, ...] = ("rhs", "quadratic", "energy")

# What has the rows on its second dim.
_BY_SHIFT = ("value", "images", "residual", "scales")
# A shift leaves a sum over shifts when it uses up this part of its share of the
# tolerance: what it still adds is not worth its vectors.
_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftedSolution:
    """The answers for all shifts, with what they are worth.

    ``residual`` is the *true* relative residual ``‖b − (K + t_q I) x_q‖ / ‖b‖``,
    recomputed at the end; ``images`` are the ``K x_q`` it was computed from;
    ``iterations`` counts products with K per column. ``smallest`` and ``largest`` are
    the extreme Ritz values of each column's own Krylov space (infinite and zero for a
    zero column), and ``assumed`` is the smallest of all columns that was known when a
    column left; ``scales`` are ``‖b‖``, ``√(bᵀ K b)`` and a lower bound of
    ``√(bᵀ K⁻¹ b)`` by it.
    """

    value: Float[Tensor, "q b n"]
    images: Float[Tensor, "q b n"]
    residual: Float[Tensor, "q b"]
    iterations: Int[Tensor, " b"]
    converged: Bool[Tensor, " b"]
    smallest: Float[Tensor, " b"]
    largest: Float[Tensor, " b"]
    assumed: Float[Tensor, " b"]
    scales: Float[Tensor, "3 b"]

    def used(self, goal: Goal, smallest: float | None = None) -> Float[Tensor, " b"]:
        """What the true residuals use of a goal's tolerance: at most 1 if reached."""
        scales = dict(zip(SCALES, self.scales, strict=True))
        least = float(self.smallest.min()) if len(self.smallest) else torch.inf
        smallest = least if smallest is None else min(smallest, least)
        return goal.total(goal.shares(self.residual * scales["rhs"], scales, smallest))

    def with_rows(
        self, rows: Int[Tensor, " r"], part: ShiftedSolution
    ) -> ShiftedSolution:
        """The same with some rows solved anew; their products are added."""
        new = {}
        for field in fields(ShiftedSolution):
            mine, other = getattr(self, field.name), getattr(part, field.name)
            if field.name == "iterations":
                other = other + mine[rows]
            dim = 1 if field.name in _BY_SHIFT else 0
            new[field.name] = mine.index_copy(dim, rows, other)
        return ShiftedSolution(**new)

    @property
    def message(self) -> str:
        """One line for people."""
        worst = float(self.residual.max()) if self.residual.numel() else 0.0
        steps = int(self.iterations.max()) if len(self.iterations) else 0
        if bool(self.converged.all()):
            return f"converged in {steps} iterations, residual {worst:.1e}"
        failed = int((~self.converged).sum())
        return (
            f"{failed} of {len(self.converged)} columns did not converge in {steps} "
            f"iterations (worst residual over all shifts {worst:.1e}): raise "
            "max_steps, use a preconditioner, or loosen the tolerance"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    r"""When a row's answers are good enough.

    Parameters
    ----------
    rtol
        The tolerance.
    gains
        If given, a row is done when ``Σ_q gains_q ‖r_q‖ ≤ rtol · s``, otherwise when
        ``‖r_q‖ ≤ rtol · s`` for every shift. A function of the smallest eigenvalue,
        for which the smallest Ritz value so far stands.
    scale
        s: ``"rhs"`` for ``‖b‖``, ``"quadratic"`` for ``√(bᵀ K b)`` or ``"energy"`` for
        ``√(bᵀ K⁻¹ b)``, of which the recursion knows a lower bound that grows to it.
    """

    rtol: float
    gains: Callable[[float], Float[Tensor, " q"]] | None = None
    scale: Scale = "rhs"

    @classmethod
    def each(cls, rtol: float) -> Goal:
        """Every shift's relative residual within ``rtol``."""
        return cls(rtol=rtol)

    def shares(
        self,
        residual: Float[Tensor, "q b"],
        scales: dict[Scale, Tensor],
        smallest: float,
    ) -> Float[Tensor, "q b"]:
        """What every shift uses of the tolerance."""
        if self.gains is not None:
            residual = self.gains(smallest).to(residual)[:, None] * residual
        return ratio(residual, (self.rtol * scales[self.scale]).expand_as(residual))

    def total(self, shares: Float[Tensor, "q b"]) -> Float[Tensor, " b"]:
        """What all shifts together use of the tolerance: at most 1 when done."""
        return shares.amax(dim=0) if self.gains is None else shares.sum(dim=0)

    def negligible(self, shares: Float[Tensor, "q b"]) -> Float[Tensor, " q"]:
        """Which shifts may leave."""
        limit = 1.0 if self.gains is None else _SHARE / len(shares)
        return (shares <= limit).all(dim=1)


def joined(parts: list[ShiftedSolution]) -> ShiftedSolution:
    """The solutions of successive runs of rows as one."""
    whole = {}
    for field in fields(ShiftedSolution):
        pieces = [getattr(part, field.name) for part in parts]
        whole[field.name] = torch.cat(pieces, dim=1 if field.name in _BY_SHIFT else 0)
    return ShiftedSolution(**whole)


def ratio(value: Tensor, scale: Tensor) -> Tensor:
    """``value / scale``, where zero over zero is zero: the answer to b = 0 is known."""
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return torch.where(scale > 0, value / safe, torch.where(value > 0, torch.inf, 0.0))
