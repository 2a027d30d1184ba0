r"""Gauss–Newton steps on ``½|(ε − ξ)/a|² + ½ rᵀ Σ⁻¹ r``, ``r = y − apply(ε)``.

Searches for several minima of one model advance in lockstep: their vectors are the rows
of a batch, and one pass over W, Σ⁻¹ and the preconditioner serves all of them. A single
search has no batch dim ``*b``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dustmap.checkpoint import require_finite
from dustmap.linalg.cg import ConjugateGradients, Solution
from dustmap.linalg.operator import LinearOperator, SymmetricOperator, inner, ratio
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.models.base import ForwardModel, Linearisation
from dustmap.noise import NoiseModel
from dustmap.shapes import EpsBatch, Vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is solved for.

    Samples are the ``first`` to the ``last`` of ``total``; other tasks have none.
    """

    name: str
    first: int = 0
    last: int = 0
    total: int = 0

    def __str__(self) -> str:
        return f"{self.name} {self.first}-{self.last}" if self.total else self.name


# Callback of task, step and relative residual (or another measure of progress).
OnStep = Callable[[Task, int, float], None]


def quiet(task: Task, step: int, value: float) -> None:
    """Report nothing."""


_DECREMENT = Task(name="decrement")


class Precision(SymmetricOperator):
    """``Λ = a⁻² + Φᵀ Σ⁻¹ Φ``, applied to rows; a are prior ``stds`` of ε, else one."""

    def __init__(
        self, features: LinearOperator, noise: NoiseModel, stds: EpsBatch | None = None
    ) -> None:
        self.shape = (features.shape[1], features.shape[1])
        self.dtype = features.dtype
        self.device = features.device
        self._features = features
        self._noise = noise
        self._stds = stds

    def data_term(self, x: EpsBatch) -> EpsBatch:
        """Return ``Φᵀ Σ⁻¹ Φ x``."""
        return self._noise.gram(self._features, x)

    def select(self, index: Int[Tensor, " k"]) -> Precision:
        stds = None if self._stds is None else self._stds[index]
        return Precision(self._features.select(index), self._noise, stds)

    def matvec(self, x: Tensor) -> Tensor:
        own = x if self._stds is None else x / self._stds**2
        return own + self.data_term(x)

    def solve(
        self, rhs: EpsBatch, solver: ConjugateGradients, **options: Any
    ) -> Solution:
        """Return ``Λ⁻¹ b`` as rows, one for each member of the batch."""
        return solver.solve(
            self.matvec,
            rhs.reshape(-1, self.shape[0]),
            product_of=lambda index: self.select(index).matvec,
            **options,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The end of a step, its tangent, and the decrease of J.

    ``moved`` is true if some length of the step decreased J, by ``gain``.
    ``expected_decrease`` is the decrease of J along the tangent, ``½ δᵀ(−∂J/∂ε)``;
    ``solution`` is the full step.
    """

    eps: EpsBatch
    tangent: Linearisation
    moved: Bool[Tensor, "*b"]
    gain: Float[Tensor, "*b"]
    expected_decrease: Float[Tensor, "*b"]
    solution: Solution


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussNewton:
    """Steps towards the minima of ``J(ε) = ½|(ε − ξ)/a|² + ½ rᵀ Σ⁻¹ r``.

    Parameters
    ----------
    y, noise
        Observations, of which ``r = y − apply(ε)``, and their Σ.
    centre
        ξ, the mean of the prior of ε; zero if ``None``.
    stds
        a, its standard deviations; one if ``None``.
    forcing
        Tolerance of a solve relative to the gradient: far from the optimum the tangent
        does not merit an accurate solve (Eisenstat & Walker 1996). If zero, the
        solver's tolerance applies, relative to the right side
        ``Φᵀ Σ⁻¹ (y − apply(ε) + Φ ε) + ξ / a²``.
    on_step, task
        Called with the task, iteration and worst relative residual of a solve.
    """

    model: ForwardModel
    y: Vectors
    noise: NoiseModel
    solver: ConjugateGradients
    centre: EpsBatch | None = None
    stds: EpsBatch | None = None
    preconditioner: NystromPreconditioner | None = None
    forcing: float = 0.0
    on_step: OnStep = quiet
    task: Task = Task(name="mean")

    def select(self, members: Tensor) -> GaussNewton:
        """Return the searches of some members of the batch, by numbers or a mask."""
        own = {
            name: None if value is None else value[members]
            for name, value in (("centre", self.centre), ("stds", self.stds))
        }
        return replace(self, y=self.y[members], **own)

    def whitened(self, eps: EpsBatch) -> EpsBatch:
        """Return ``(ε − ξ) / a``."""
        offset = eps if self.centre is None else eps - self.centre
        return offset if self.stds is None else offset / self.stds

    def precise(self, eps: EpsBatch) -> EpsBatch:
        """Return ``ε / a²``."""
        return eps if self.stds is None else eps / self.stds**2

    def value(self, eps: EpsBatch, prediction: Vectors) -> Float[Tensor, "*b"]:
        """Return J, in float64."""
        misfit = self.noise.whitened(self.y - prediction)
        offset = self.whitened(eps)
        return (inner(offset, offset) + inner(misfit, misfit)) / 2

    def gradient(self, tangent: Linearisation, eps: EpsBatch) -> EpsBatch:
        """Return ``−∂J/∂ε``, the gradient of the log posterior."""
        pull = self.noise.apply_precision(self.y - tangent.prediction)
        offset = eps if self.centre is None else eps - self.centre
        return tangent.operator.rmatvec(pull) - self.precise(offset)

    def right_side(self, tangent: Linearisation, eps: EpsBatch) -> EpsBatch:
        """Return ``Φᵀ Σ⁻¹ (y − apply(ε) + Φ ε) + ξ / a²``."""
        shifted = self.y - tangent.prediction + tangent.operator.matvec(eps)
        rhs = tangent.operator.rmatvec(self.noise.apply_precision(shifted))
        return rhs if self.centre is None else rhs + self.precise(self.centre)

    def step(self, tangent: Linearisation, eps: EpsBatch, where: str) -> Step:
        """Solve ``Λ δ = −∂J/∂ε`` at ε, and halve δ up to 29 times until J decreases.

        J must decrease by a quarter of the gradient's prediction (Armijo 1966), up to
        rounding: a linear model, for which it is half, takes the full step. Members
        without a sufficient decrease stay at ε. The objective must be finite only at
        the shortest step, since a density may overflow. Errors name ``where``.

        Raises `FloatingPointError` if the solve or the objective is not finite.
        """
        solver, unit = self.solver, 1.0
        gradient = self.gradient(tangent, eps)
        if self.forcing:
            # An approximate answer does not merit the product of its true residual.
            solver = replace(solver, rtol=self.forcing, restarts=None)
        else:
            rhs = self.right_side(tangent, eps)
            sizes = [inner(x, x).sqrt() for x in (rhs, gradient)]
            unit = float(ratio(*sizes).min()) or 1.0
            solver = replace(solver, rtol=solver.rtol * unit)
        solution = Precision(tangent.operator, self.noise, self.stds).solve(
            gradient,
            solver,
            preconditioner=self.preconditioner,
            on_step=functools.partial(self.on_step, self.task),
        )
        require_finite(where, residual=solution.residual)
        step = solution.value.view_as(eps)
        change = -inner(gradient, step)
        before = self.value(eps, tangent.prediction)
        require_finite(
            f"{where}, before it", objective=before, directional_change=change
        )
        allowed = before + 100 * torch.finfo(eps.dtype).eps * before
        point = eps + step
        solution = replace(
            solution,
            value=point.clone().reshape(solution.value.shape),
            residual=solution.residual / unit,
        )
        found = self.model.linearise(point)
        after = self.value(point, found.prediction)
        moved = after <= allowed + 0.25 * change
        if not bool(moved.all()):
            value = after
            point[~moved] = eps[~moved]
            for halvings in range(1, 30):
                length, left = 0.5**halvings, ~moved
                shorter = eps[left] + length * step[left]
                value = self.select(left).value(shorter, self.model.apply(shorter))
                good = value <= (allowed + 0.25 * length * change)[left]
                point[left] = torch.where(good[:, None], shorter, eps[left])
                moved[left] = good
                if bool(moved.all()):
                    break
            else:
                require_finite(f"{where}, at its shortest", objective=value)
            found = self.model.linearise(point)
            after = self.value(point, found.prediction)
        return Step(
            eps=point,
            tangent=found,
            moved=moved,
            gain=before - after,
            expected_decrease=-change / 2,
            solution=solution,
        )

    def decrement(self, eps: EpsBatch) -> Float[Tensor, "*b"]:
        """Return ``½ gᵀ Λ⁻¹ g`` [nats], the expected gain of an accurate step."""
        tangent = self.model.linearise(eps)
        gradient = self.gradient(tangent, eps)
        solution = Precision(tangent.operator, self.noise, self.stds).solve(
            gradient,
            replace(self.solver, rtol=0.01),
            preconditioner=self.preconditioner,
            # Without the residual, which is not part of the fit's record.
            on_step=lambda step, _: self.on_step(_DECREMENT, step, math.nan),
        )
        require_finite("Newton decrement", residual=solution.residual)
        return inner(gradient, solution.value.view_as(eps)) / 2
