r"""Posterior samples of a non-linear model by randomised maximum likelihood.

A sample is the mode of a posterior with perturbed data and prior mean,

``ε_s = argmin ½ |ε − ξ_s|² + ½ Σ_n (y_n + Σ_n^{1/2} η_sn − apply(ε)_n)² / Σ_n``

with η_s and ξ_s standard normal: *randomised maximum likelihood* (Oliver, He & Reynolds
1996; Bardsley et al. 2014, SIAM J. Sci. Comput. 36, A1895, without their weights). For
a linear model these are exact samples. For a non-linear one every sample still fits its
data; samples from the tangent at the mode do not, and diverge where the density is
uncertain by a factor of ten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dustmap.checkpoint import require_finite
from dustmap.inference.full_batch.gauss_newton import (
    OnStep,
    Precision,
    Target,
    gauss_newton_step,
    silent,
)
from dustmap.inference.full_batch.white_noise import White
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.linalg.space import WHOLE, VectorSpace
from dustmap.models.base import ForwardModel

# Tolerance of a solve relative to the gradient: the total cost of a sample is least
# between 0.1 and 0.5. The next ones follow if the Newton decrement stays too large.
FORCINGS = (0.3, 0.1, 0.03)
# Tolerance of the solve for the Newton decrement, and the limit on the decrement in
# units of the samples' tolerance (rough solves underestimate it by a factor of 2–3).
_ACCURATE, DECREMENT_LIMIT = 0.01, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A sample and the status of its fit.

    ``expected_decrease`` is that of the objective in the last step [nats];
    ``iterations`` are those of conjugate gradients in all its steps.
    """

    eps: Float[Tensor, " p"]
    expected_decrease: float
    iterations: int
    converged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Samples and the status of their fits.

    ``expected_decrease`` is that of each sample's last step [nats], from a rough solve,
    which underestimates it; ``newton_decrement`` is the first sample's, from an
    accurate solve.
    """

    value: Float[Tensor, "s p"]
    expected_decrease: Float[Tensor, " s"]
    iterations: Int[Tensor, " s"]
    converged: Bool[Tensor, " s"]
    newton_decrement: float

    @classmethod
    def of(
        cls, fits: list[Fitted], newton_decrement: float, tolerance: float
    ) -> Samples:
        """Join fits; none has converged if the decrement is too large."""
        enough = newton_decrement <= DECREMENT_LIMIT * tolerance
        return cls(
            newton_decrement=newton_decrement,
            value=torch.stack([fit.eps for fit in fits]),
            expected_decrease=torch.tensor([fit.expected_decrease for fit in fits]),
            iterations=torch.tensor([fit.iterations for fit in fits]),
            converged=torch.tensor([fit.converged and enough for fit in fits]),
        )

    @property
    def message(self) -> str:
        """One-line summary."""
        worst, most = float(self.expected_decrease.max()), int(self.iterations.max())
        tail = (
            f"{most} iterations at most; the last step raised the log posterior by "
            f"{worst:.3g} nats or less, the Newton decrement of the first is "
            f"{self.newton_decrement:.3g}"
        )
        if bool(self.converged.all()):
            return f"each fitted by itself, {tail}"
        failed = int((~self.converged).sum())
        return (
            f"{failed} of {len(self.converged)} did not converge ({tail}): raise "
            "the limits on steps and iterations, or loosen the tolerance"
        )


def perturbed_target(
    y: Float[Tensor, " n"],
    total: Float[Tensor, " n"],
    white: White,
    number: int,
    latent_size: int,
    space: VectorSpace = WHOLE,
) -> Target:
    """The objective of sample ``number``: 2k and 2k + 1 are an antithetic pair."""
    eta, xi = white.pair(number // 2, len(y), latent_size, space)
    sign = 1.0 if number % 2 == 0 else -1.0
    return Target(
        y=y + sign * total.sqrt() * eta.to(total),
        total=total,
        centre=sign * xi.to(total),
        space=space,
    )


def newton_decrement(
    model: ForwardModel,
    target: Target,
    eps: Float[Tensor, " p"],
    solver: ConjugateGradients,
    preconditioner: NystromPreconditioner | None,
    *,
    on_step: OnStep | None = None,
) -> float:
    """``½ gᵀ Λ⁻¹ g`` [nats], the expected gain of an accurate step from ε."""
    tangent = model.linearise(eps)
    gradient = target.gradient(tangent, eps)
    space = tangent.operator.domain
    solution = replace(solver, rtol=_ACCURATE).solve(
        Precision(tangent.operator, target.total).matvec,
        gradient[None],
        preconditioner=preconditioner,
        on_step=silent(on_step, "decrement"),
        space=space,
    )
    require_finite("Newton decrement", residual=solution.residual)
    return float(space.inner(gradient, solution.value[0])) / 2


def lowest(
    model: ForwardModel, target: Target, starts: list[Float[Tensor, " p"]]
) -> Float[Tensor, " p"]:
    """The start with the lowest objective."""
    if len(starts) == 1:
        return starts[0]
    values = [target.value(eps, model.apply(eps)) for eps in starts]
    return starts[values.index(min(values))]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleIterate:
    """The fit of a sample between two steps."""

    eps: Float[Tensor, " p"]
    iterations: int = 0
    steps: int = 0


def fit_sample(
    model: ForwardModel,
    target: Target,
    at: SampleIterate,
    *,
    solver: ConjugateGradients,
    steps: int,
    tolerance: float,
    preconditioner: NystromPreconditioner | None,
    on_step: OnStep | None,
    stage: str,
    forcing: float = FORCINGS[0],
    save: Callable[[SampleIterate], None] | None = None,
) -> Fitted:
    """Gauss–Newton steps until the expected decrease is below ``tolerance`` [nats].

    A tolerance in nats does not depend on the size of the signal, as a relative
    residual would. ``solver`` only limits the number of iterations. ``save`` is called
    between two steps.

    Raises
    ------
    FloatingPointError
        If a prediction, the objective or a solve is not finite.
    """
    # The tolerance relative to the gradient decides.
    solver = replace(solver, rtol=torch.finfo(at.eps.dtype).eps)
    while True:
        where = f"{stage}, step {at.steps}"
        tangent = model.linearise(at.eps)
        require_finite(where, prediction=tangent.prediction)
        step = gauss_newton_step(
            model,
            tangent,
            target,
            at.eps,
            solver=solver,
            forcing=forcing,
            preconditioner=preconditioner,
            on_step=on_step,
            stage=stage,
            where=where,
        )
        at = SampleIterate(
            eps=step.eps,
            iterations=at.iterations + int(step.solution.iterations.max()),
            steps=at.steps + 1,
        )
        converged = step.expected_decrease < tolerance
        if converged or step.gain is None or at.steps >= steps:
            return Fitted(
                eps=at.eps,
                expected_decrease=step.expected_decrease,
                iterations=at.iterations,
                converged=converged,
            )
        if save is not None:
            save(at)
