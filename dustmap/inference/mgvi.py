r"""Metric Gaussian variational inference for models that are not linear.

The posterior of ε is taken as ``N(m, Λ(m)⁻¹)``, Λ the precision of the model's tangent,
and m is moved to where the objective is least *on average over samples* ``m ± δ_s``
(Knollmüller & Ensslin 2019, arXiv:1901.11033). At the mode alone a positive density is
too low on average; at this m the samples reproduce the data.

The white noise behind the samples is drawn once, so that the averaged objective is a
function that can be minimised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.gauss_newton import OnStep, Precision, named
from dustmap.inference.noise import Weighing
from dustmap.linalg.cg import ConjugateGradients, Solution
from dustmap.linalg.operator import LinearOperator, inner
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.linalg.space import WHOLE, VectorSpace
from dustmap.models.base import ForwardModel

_HALVINGS = 12

Sketch = Callable[[Precision], NystromPreconditioner | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class White:
    """Where the white noise of the samples comes from: the same whenever asked."""

    seed: int

    def pair(
        self, number: int, n: int, p: int, space: VectorSpace = WHOLE
    ) -> tuple[Tensor, Tensor]:
        """η and ξ of one pair of samples (float64)."""
        generator = torch.Generator().manual_seed(self.seed + number)
        eta = torch.randn(n, generator=generator, dtype=torch.float64)
        return eta, space.normal(1, p, generator)[0]


def deviations(
    operator: LinearOperator,
    total: Float[Tensor, " n"],
    white: White,
    numbers: range,
    *,
    solver: ConjugateGradients,
    preconditioner: NystromPreconditioner | None,
    start: Float[Tensor, "s p"] | None = None,
    on_step: OnStep | None = None,
    stage: str = "samples",
) -> Solution:
    """``δ_s = Λ⁻¹ (Φᵀ Σ^{-1/2} η_s + ξ_s)`` for these numbers, in one block."""
    n, p = operator.shape
    root = total.sqrt()
    rhs = []
    for number in numbers:
        eta, xi = white.pair(number, n, p, operator.domain)
        rhs.append(operator.rmatvec(eta.to(root) / root) + xi.to(root))
    return solver.solve(
        Precision(operator, total).matvec,
        torch.stack(rhs),
        preconditioner=preconditioner,
        start=start,
        on_step=named(on_step, stage),
        space=operator.domain,
    )


def both_signs(
    mean: Float[Tensor, " p"], deltas: Float[Tensor, "s p"]
) -> Float[Tensor, "s2 p"]:
    """``m + δ_1, m − δ_1, m + δ_2, …``."""
    pairs = torch.stack([mean + deltas, mean - deltas], dim=1)
    return pairs.reshape(-1, len(mean))


@dataclass(frozen=True, slots=True, kw_only=True)
class Averages:
    """Means over samples: of ``apply``, of ``(y − apply(ε_s))²``, and of ``v_n``.

    ``spread`` is the variance of ``apply`` over samples, with S for a divisor: those of
    an antithetic pair have no common error.
    """

    prediction: Float[Tensor, " n"]
    squares: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]
    spread: Float[Tensor, " n"]


def averages(
    model: ForwardModel, y: Float[Tensor, " n"], eps: Float[Tensor, "s p"]
) -> Averages:
    """Mean predictions, squared residuals and conditional variances over samples."""
    total = torch.zeros(4, len(y), dtype=torch.float64, device=y.device)
    first = model.apply(eps[0])
    for one in eps:
        tangent = model.linearise(one)
        beside = tangent.prediction - first
        total[0] += beside
        total[1] += (y - tangent.prediction) ** 2
        total[2] += tangent.variance
        # Around one of them: squares of predictions themselves would cancel.
        total[3] += beside**2
    beside, squares, variance, second = total / len(eps)
    return Averages(
        prediction=(first + beside).to(y),
        squares=squares.to(y),
        variance=variance.to(y),
        spread=(second - beside**2).clamp(min=0.0).to(y),
    )


def averaged_slope(
    model: ForwardModel,
    y: Float[Tensor, " n"],
    total: Float[Tensor, " n"],
    eps: Float[Tensor, "s p"],
) -> Float[Tensor, " p"]:
    """The mean over samples of ``Φ_sᵀ Σ⁻¹ (y − apply(ε_s))``."""
    slope = torch.zeros_like(eps[0])
    for one in eps:
        tangent = model.linearise(one)
        slope += tangent.operator.rmatvec((y - tangent.prediction) / total)
    return slope / len(eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of the mean: where it led, what it gained, what it had promised."""

    mean: Float[Tensor, " p"]
    gain: float
    promised: float
    iterations: int


def mean_step(
    model: ForwardModel,
    weighing: Weighing,
    total: Float[Tensor, " n"],
    mean: Float[Tensor, " p"],
    deltas: Float[Tensor, "s p"],
    *,
    solver: ConjugateGradients,
    preconditioner: NystromPreconditioner | None,
    on_step: OnStep | None,
) -> Step:
    """One Gauss–Newton step of m on the objective averaged over ``m ± δ_s``.

    The mean tangent stands for the mean of the squares of the tangents: the step is
    approximate, the gradient is not. ``promised`` is the Newton decrement ``½ gᵀΛ⁻¹g``
    [nats].
    """
    y = weighing.observations
    eps = both_signs(mean, deltas)
    slope = averaged_slope(model, y, total, eps) - mean
    operator = model.mean_tangent(eps)
    solution = solver.solve(
        Precision(operator, total).matvec,
        slope[None],
        preconditioner=preconditioner,
        on_step=named(on_step, "mean over samples"),
        space=operator.domain,
    )
    step = solution.value[0]
    promised = float(operator.domain.inner(slope, step)) / 2

    def objective(at: Tensor) -> float:
        misfit = 0.0
        for one in both_signs(at, deltas):
            residual = (y - model.apply(one)) / total.sqrt()
            misfit += float(inner(residual, residual)) / (2 * len(deltas))
        return (float(operator.domain.inner(at, at)) + misfit) / 2

    before = objective(mean)
    for halvings in range(_HALVINGS):
        length = 0.5**halvings
        moved = model.moved(mean, step, length)
        gain = before - objective(moved)
        if gain >= 0.25 * length * promised:
            break
    else:
        moved, gain = mean, 0.0
    return Step(
        mean=moved,
        gain=gain,
        promised=promised,
        iterations=int(solution.iterations[0]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refined:
    """m, the deviations, whether both belong together, and what that took.

    ``converged`` says that a first step after new deviations promised next to nothing;
    ``products`` counts vectors that Φ or Φᵀ was applied to.
    """

    mean: Float[Tensor, " p"]
    deltas: Float[Tensor, "s p"]
    converged: bool
    products: int


def _steps_around(
    model: ForwardModel,
    weighing: Weighing,
    mean: Float[Tensor, " p"],
    deltas: Float[Tensor, "s p"],
    *,
    steps: int,
    tolerance: float,
    solver: ConjugateGradients,
    preconditioner: NystromPreconditioner | None,
    on_step: OnStep | None,
) -> Refined:
    """Steps of m with the deviations at hand; converged if the first is not needed."""
    y, products, converged = weighing.observations, 0, False
    for number in range(steps):
        eps = both_signs(mean, deltas)
        seen = averages(model, y, eps)
        normal = weighing.normal(eps, seen.variance)
        weighing.reweigh(y - seen.prediction, seen.squares, normal)
        step = mean_step(
            model,
            weighing,
            normal / weighing.weights,
            mean,
            deltas,
            solver=solver,
            preconditioner=preconditioner,
            on_step=on_step,
        )
        mean = step.mean
        products += 2 * step.iterations + 6 * len(eps)
        if on_step is not None:
            on_step("gain", number, step.promised)
        converged = step.promised < tolerance and number == 0
        if step.promised < tolerance or step.gain == 0.0:
            break
    return Refined(mean=mean, deltas=deltas, converged=converged, products=products)


def refine(
    model: ForwardModel,
    weighing: Weighing,
    mean: Float[Tensor, " p"],
    white: White,
    *,
    pairs: int,
    rounds: int,
    steps: int,
    tolerance: float,
    solver: ConjugateGradients,
    sketch: Sketch,
    on_step: OnStep | None,
) -> Refined:
    """Alternate between samples around m and steps of m.

    Parameters
    ----------
    pairs
        Antithetic pairs of samples.
    rounds, steps
        At most so many times new deviations, and so many steps with each.
    tolerance
        Converged when new deviations make a step promise less than this [nats].
    sketch
        Makes the preconditioner: at the mode, and anew around the first samples, whose
        mean density is another.
    """
    y = weighing.observations
    deltas = None
    eps = mean[None]
    converged, products = False, 0
    preconditioner = None
    for number_of_round in range(rounds):
        seen = averages(model, y, eps)
        total = weighing.total(eps, seen.variance)
        operator = model.mean_tangent(eps)
        if number_of_round < 2:
            preconditioner = sketch(Precision(operator, total))
        solution = deviations(
            operator,
            total,
            white,
            range(pairs),
            solver=solver,
            preconditioner=preconditioner,
            start=deltas,
            on_step=on_step,
        )
        deltas = solution.value
        products += 2 * int(solution.iterations.sum())
        walk = _steps_around(
            model,
            weighing,
            mean,
            deltas,
            steps=steps,
            tolerance=tolerance,
            solver=replace(solver, rtol=max(solver.rtol, 0.1)),
            preconditioner=preconditioner,
            on_step=on_step,
        )
        mean, converged = walk.mean, walk.converged
        products += walk.products
        eps = both_signs(mean, deltas)
        if converged:
            break
    assert deltas is not None
    return Refined(mean=mean, deltas=deltas, converged=converged, products=products)
