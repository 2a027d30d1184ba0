r"""Posterior samples of a model that is not linear, each at the end of its own fit.

A sample is the mode of a posterior whose data and prior mean are drawn anew,

``ε_s = argmin ½ |ε − ξ_s|² + ½ Σ_n (y_n + Σ_n^{1/2} η_sn − apply(ε)_n)² / Σ_n``

with η_s and ξ_s standard normal: *randomised maximum likelihood* (Oliver, He & Reynolds
1996; Bardsley et al. 2014, SIAM J. Sci. Comput. 36, A1895, without their weights). Of
a linear model these are exact samples. Otherwise every sample still fits its data,
which none does that is taken from the tangent at the mode: where a density may change
by a factor of ten, those explode.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dustmap.inference.gauss_newton import (
    OnStep,
    Precision,
    Target,
    backtrack,
    newton_step,
)
from dustmap.inference.white_noise import White
from dustmap.journal import Journal
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.linalg.space import WHOLE, VectorSpace
from dustmap.models.base import ForwardModel, Linearisation

# A step is solved to this fraction of the gradient it starts from: what a sample takes
# in all is least between 0.1 and 0.5. Where that leaves too much, to the next ones.
FORCINGS = (0.3, 0.1, 0.03)
# What is left is seen by a solve to the first; so many times the tolerance it may be,
# of which rough solves see a third to a half.
_ACCURATE, LEFT = 0.01, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A sample, and what its fit says of itself.

    ``promised`` is what the last step's tangent promised to gain [nats]; ``iterations``
    are those of conjugate gradients in all its steps.
    """

    eps: Float[Tensor, " p"]
    promised: float
    iterations: int
    converged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Samples from fits of their own, with what these say of themselves.

    ``promised`` is what the last step of each promised to gain [nats], by a rough solve
    that leaves out what is hard to solve for; ``left`` is what an accurate solve says
    the first of them could still gain.
    """

    value: Float[Tensor, "s p"]
    promised: Float[Tensor, " s"]
    iterations: Int[Tensor, " s"]
    converged: Bool[Tensor, " s"]
    left: float

    @classmethod
    def of(cls, fits: list[Fitted], left: float, tolerance: float) -> Samples:
        """Fits one after another; none converged if the first has too much left."""
        enough = left <= LEFT * tolerance
        return cls(
            left=left,
            value=torch.stack([fit.eps for fit in fits]),
            promised=torch.tensor([fit.promised for fit in fits]),
            iterations=torch.tensor([fit.iterations for fit in fits]),
            converged=torch.tensor([fit.converged and enough for fit in fits]),
        )

    @property
    def message(self) -> str:
        """One line for people."""
        worst, most = float(self.promised.max()), int(self.iterations.max())
        tail = (
            f"{most} iterations at most; the last step raised the log posterior by "
            f"{worst:.3g} nats or less, {self.left:.3g} are left to gain in the first"
        )
        if bool(self.converged.all()):
            return f"each fitted by itself, {tail}"
        failed = int((~self.converged).sum())
        return (
            f"{failed} of {len(self.converged)} did not come to an end ({tail}): raise "
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


def decrement(
    model: ForwardModel,
    target: Target,
    eps: Float[Tensor, " p"],
    solver: ConjugateGradients,
    preconditioner: NystromPreconditioner | None,
    *,
    tangent: Linearisation | None = None,
    journal: Journal | None = None,
) -> float:
    """``½ gᵀ Λ⁻¹ g`` [nats], what the tangent at ε says is left to gain."""
    tangent = model.linearise(eps) if tangent is None else tangent
    slope = target.slope(tangent, eps)
    space = tangent.operator.domain
    solution = replace(solver, rtol=_ACCURATE).solve(
        Precision(tangent.operator, target.total).matvec,
        slope[None],
        preconditioner=preconditioner,
        space=space,
    )
    (journal or Journal.silent()).require_finite(
        "an accurate solve", residual=solution.residual
    )
    return float(space.inner(slope, solution.value[0])) / 2


def lowest(
    model: ForwardModel, target: Target, starts: list[Float[Tensor, " p"]]
) -> Float[Tensor, " p"]:
    """That of several starts at which the objective is least."""
    if len(starts) == 1:
        return starts[0]
    values = [target.value(eps, model.apply(eps)) for eps in starts]
    return starts[values.index(min(values))]


def fit_sample(
    model: ForwardModel,
    target: Target,
    eps: Float[Tensor, " p"],
    *,
    solver: ConjugateGradients,
    steps: int,
    tolerance: float,
    preconditioner: NystromPreconditioner | None,
    on_step: OnStep | None,
    stage: str,
    forcing: float = FORCINGS[0],
    journal: Journal | None = None,
) -> Fitted:
    """Gauss–Newton steps from ε until one promises less than ``tolerance`` [nats].

    How exact a sample is, is said in nats: a residual relative to the data would stop
    sooner the larger the signal is. ``solver`` only limits the number of iterations.
    In a journal the steps make a frame of the stage's name.

    Raises
    ------
    FloatingPointError
        If a prediction, the objective or a solve is not finite.
    """
    # Of rounding: what is relative to the gradient decides.
    solver = replace(solver, rtol=torch.finfo(eps.dtype).eps)
    journal = journal or Journal.silent()
    iterations, number = 0, 0
    with journal.frame(stage) as frame:
        vector = (eps.dtype, tuple(eps.shape))
        known = frame.take({"eps": vector, "iterations": int, "steps": int})
        if known is not None:
            eps = known["eps"].to(eps.device)
            iterations, number = known["iterations"], known["steps"]
        frame.expose(lambda: {"eps": eps, "iterations": iterations, "steps": number})
        while True:
            tangent = model.linearise(eps)
            journal.require_finite(f"step {number}", prediction=tangent.prediction)
            solution = newton_step(
                tangent,
                Precision(tangent.operator, target.total),
                target,
                eps,
                solver=solver,
                forcing=forcing,
                preconditioner=preconditioner,
                on_step=on_step,
                stage=stage,
                journal=journal,
            )
            step = backtrack(
                model, tangent, target, eps, solution.value[0], journal=journal
            )
            eps, number = step.eps, number + 1
            iterations += int(solution.iterations.max())
            converged = step.promised < tolerance
            if converged or step.gain is None or number >= steps:
                break
            journal.safe_point()
    return Fitted(
        eps=eps, promised=step.promised, iterations=iterations, converged=converged
    )
