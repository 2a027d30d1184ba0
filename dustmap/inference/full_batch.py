r"""Posterior mean and exact posterior samples from all observations at once.

For a model with tangent Φ and Gaussian noise of variance Σ (DESIGN of the method:
Wu et al. 2021, eq. S2–S5, without the block-independence of q):

``Λ = I + Φᵀ Σ⁻¹ Φ``, ``m = Λ⁻¹ Φᵀ Σ⁻¹ (y − Lμ)``, ``S = Λ⁻¹``,
``ε_s = m + Λ⁻¹ (Φᵀ Σ^{-1/2} η + ξ)`` with η, ξ standard normal.

Λ is only ever applied. A model that is not linear is solved by Gauss–Newton steps on
its tangents, halved until the posterior does not fall; for a linear one the first step
is the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.linalg.cg import ConjugateGradients, Solution
from dustmap.linalg.operator import LinearOperator, inner
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.models.base import ForwardModel, Linearisation

OnStep = Callable[[str, int, float], None]

# Of one Gauss–Newton step: 2⁻³⁰ of it is no step.
_HALVINGS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class FullBatch:
    """Settings of the full-batch engine.

    Parameters
    ----------
    solver
        Conjugate gradients on Λ.
    samples
        S, the number of posterior samples.
    subgrid_noise
        Add the conditional variance ``v_n`` to the noise (FITC-like objective)
        instead of only charging for it in the bound.
    preconditioner_rank
        Rank of the randomised Nyström preconditioner; 0 for none.
    newton_steps
        Limit on Gauss–Newton steps.
    block
        Samples solved together: bounds the memory.
    sample_rtol
        Relative residual at which a sample is done; that of ``solver`` if ``None``.
        The error of a sample is far below the scatter of S of them long before that
        of the mean may stop.
    """

    solver: ConjugateGradients = field(default_factory=ConjugateGradients)
    samples: int = 32
    subgrid_noise: bool = True
    preconditioner_rank: int = 0
    newton_steps: int = 20
    block: int = 16
    sample_rtol: float | None = None

    def __post_init__(self) -> None:
        if self.samples < 0 or self.preconditioner_rank < 0:
            raise ValueError("samples and preconditioner_rank must not be negative")
        if self.newton_steps < 1 or self.block < 1:
            raise ValueError("newton_steps and block must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class FullBatchResult:
    """Mean and samples of ε given the data, with what the solver says of them.

    ``noise_variance`` is what the observations were weighted with (sub-grid noise
    included); ``residuals`` are the true relative residuals of the mean and of every
    sample; ``prediction`` is ``apply(m)`` at the observations.
    """

    mean: Float[Tensor, " p"]
    samples: Float[Tensor, "s p"]
    noise_variance: Float[Tensor, " n"]
    prediction: Float[Tensor, " n"]
    newton_steps: int
    mean_solution: Solution
    sample_solution: Solution | None
    converged: bool


class Precision(LinearOperator):
    """``Λ = I + Φᵀ Σ⁻¹ Φ``, applied to rows."""

    def __init__(self, features: LinearOperator, noise_variance: Tensor) -> None:
        self.shape = (features.shape[1], features.shape[1])
        self.dtype = features.dtype
        self.device = features.device
        self._features = features
        self._weights = (1.0 / noise_variance).to(features.dtype)

    def data_term(self, x: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch p"]:
        """``Φᵀ Σ⁻¹ Φ x``."""
        return self._features.rmatvec(self._weights * self._features.matvec(x))

    def matvec(self, x: Tensor) -> Tensor:
        return x + self.data_term(x)

    def rmatvec(self, y: Tensor) -> Tensor:
        return self.matvec(y)


def infer(
    model: ForwardModel,
    observations: Float[Tensor, " n"],
    noise_variance: Float[Tensor, " n"],
    *,
    settings: FullBatch,
    generator: torch.Generator,
    start: Float[Tensor, " p"] | None = None,
    on_step: OnStep | None = None,
) -> FullBatchResult:
    """Posterior mean (or mode, for a non-linear model) and samples of ε.

    Parameters
    ----------
    observations, noise_variance
        ``y_n`` and ``σ_n²``.
    generator
        For the preconditioner's sketch and the samples, in this order.
    start
        ε to start from.
    on_step
        Called with stage, iteration and worst relative residual.

    Raises
    ------
    ValueError
        If shapes disagree, a variance is not positive or a number is not finite.
    """
    _check(model, observations, noise_variance, start)
    y = observations.to(dtype=model.dtype, device=model.device)
    sigma2 = noise_variance.to(dtype=model.dtype, device=model.device)
    eps = torch.zeros(model.latent_size, dtype=model.dtype, device=model.device)
    if start is not None:
        eps = start.to(eps)
    tangent = model.linearise(eps)
    preconditioner = None
    solution = None
    steps, converged = 0, False
    while steps < settings.newton_steps and not converged:
        total = sigma2 + tangent.variance if settings.subgrid_noise else sigma2
        precision = Precision(tangent.operator, total)
        if preconditioner is None:
            preconditioner = _preconditioner(precision, settings, generator, on_step)
        proposal, solution = _newton_step(
            tangent, precision, y, total, eps, preconditioner, settings, on_step
        )
        eps, lowered = _backtrack(model, tangent, y, total, eps, proposal)
        steps += 1
        tangent = model.linearise(eps)
        if not bool(solution.converged.all()):
            break
        converged = _stationary(tangent, y, total, eps, settings, solution)
        if not lowered:
            break
    assert solution is not None
    total = sigma2 + tangent.variance if settings.subgrid_noise else sigma2
    samples, sample_solution = _samples(
        tangent, total, eps, preconditioner, settings, generator, on_step
    )
    return FullBatchResult(
        mean=eps,
        samples=samples,
        noise_variance=total,
        prediction=tangent.prediction,
        newton_steps=steps,
        mean_solution=solution,
        sample_solution=sample_solution,
        converged=converged
        and (sample_solution is None or bool(sample_solution.converged.all())),
    )


def _check(
    model: ForwardModel, y: Tensor, noise_variance: Tensor, start: Tensor | None
) -> None:
    n = len(model.functionals)
    if y.shape != (n,) or noise_variance.shape != (n,):
        raise ValueError(
            f"observations and noise_variance must have shape ({n},), got "
            f"{tuple(y.shape)} and {tuple(noise_variance.shape)}"
        )
    bad = ~((noise_variance > 0) & torch.isfinite(noise_variance))
    if bool(bad.any()):
        raise ValueError(
            "every noise variance must be positive and finite, "
            f"{int(bad.sum())} of {n} are not"
        )
    bad = ~torch.isfinite(y)
    if bool(bad.any()):
        raise ValueError(
            f"every observation must be finite, {int(bad.sum())} of {n} are not"
        )
    if start is not None and start.shape != (model.latent_size,):
        raise ValueError(
            f"start must have shape ({model.latent_size},), got {tuple(start.shape)}"
        )
    if start is not None and not bool(torch.isfinite(start).all()):
        raise ValueError("start must be finite")


def _preconditioner(
    precision: Precision,
    settings: FullBatch,
    generator: torch.Generator,
    on_step: OnStep | None,
) -> NystromPreconditioner | None:
    rank = min(settings.preconditioner_rank, precision.shape[0])
    if rank == 0:
        return None
    if on_step is not None:
        on_step("preconditioner", rank, float("nan"))
    return NystromPreconditioner.build(
        precision.data_term,
        precision.shape[0],
        rank,
        generator,
        dtype=precision.dtype,
        device=precision.device,
    )


def _gradient(
    tangent: Linearisation, y: Tensor, total: Tensor, eps: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradient of the log posterior at ε, and the size of its data term."""
    pull = tangent.operator.rmatvec((y - tangent.prediction) / total)
    return pull - eps, inner(pull, pull).sqrt()


def _newton_step(
    tangent: Linearisation,
    precision: Precision,
    y: Tensor,
    total: Tensor,
    eps: Tensor,
    preconditioner: NystromPreconditioner | None,
    settings: FullBatch,
    on_step: OnStep | None,
) -> tuple[Tensor, Solution]:
    """Solve ``Λ m = Φᵀ Σ⁻¹ (y − apply(ε) + Φ ε)``, warm-started at ε."""
    shifted = y - tangent.prediction + tangent.operator.matvec(eps)
    rhs = tangent.operator.rmatvec(shifted / total)
    solution = settings.solver.solve(
        precision.matvec,
        rhs[None],
        preconditioner=preconditioner,
        start=eps[None] if bool(eps.any()) else None,
        on_step=_named(on_step, "mean"),
    )
    return solution.value[0], solution


def _backtrack(
    model: ForwardModel,
    tangent: Linearisation,
    y: Tensor,
    total: Tensor,
    eps: Tensor,
    proposal: Tensor,
) -> tuple[Tensor, bool]:
    """The longest of the step's halvings that lowers the objective enough.

    The objective is ``½|ε|² + ½ Σ_n (y_n − apply(ε)_n)² / σ_n²`` with the step's own
    noise. Enough is a quarter of what its slope promises (Armijo 1966), rounding
    allowed for: a linear model, which keeps half, takes the whole step. ``False`` if
    no halving is good enough: ε then stays.
    """

    def objective(at: Tensor, prediction: Tensor) -> float:
        misfit = (y - prediction) / total.sqrt()
        return float(inner(at, at) + inner(misfit, misfit)) / 2

    step = proposal - eps
    along = tangent.operator.matvec(step)
    slope = float(inner(eps, step) - inner((y - tangent.prediction) / total, along))
    before = objective(eps, tangent.prediction)
    before += 100 * torch.finfo(eps.dtype).eps * before
    for halvings in range(_HALVINGS):
        length = 0.5**halvings
        moved = eps + length * step if halvings else proposal
        after = objective(moved, model.apply(moved))
        if after <= before + 0.25 * length * slope:
            return moved, True
    return eps, False


def _stationary(
    tangent: Linearisation,
    y: Tensor,
    total: Tensor,
    eps: Tensor,
    settings: FullBatch,
    solution: Solution,
) -> bool:
    """Whether the gradient is at the level the solver was asked for.

    It is measured against the right-hand side ``Φᵀ Σ⁻¹ (y − apply(ε) + Φ ε)``, as the
    solver's own residual is; at most twice that, since the tangent moved.
    """
    gradient, _ = _gradient(tangent, y, total, eps)
    shifted = y - tangent.prediction + tangent.operator.matvec(eps)
    rhs = tangent.operator.rmatvec(shifted / total)
    scale = inner(rhs, rhs).sqrt()
    residual = inner(gradient, gradient).sqrt()
    allowed = 2 * max(settings.solver.rtol, float(solution.residual.max()))
    return float(residual) <= allowed * float(scale)


def _samples(
    tangent: Linearisation,
    total: Tensor,
    mean: Tensor,
    preconditioner: NystromPreconditioner | None,
    settings: FullBatch,
    generator: torch.Generator,
    on_step: OnStep | None,
) -> tuple[Tensor, Solution | None]:
    """``m + Λ⁻¹ (Φᵀ Σ^{-1/2} η + ξ)`` in blocks; (η, ξ) are drawn sample by sample."""
    if settings.samples == 0:
        return mean.new_zeros(0, len(mean)), None
    precision = Precision(tangent.operator, total)
    solver = settings.solver
    if settings.sample_rtol is not None:
        solver = replace(solver, rtol=settings.sample_rtol)
    root = total.sqrt()
    parts: list[Solution] = []
    for first in range(0, settings.samples, settings.block):
        count = min(settings.block, settings.samples - first)
        rhs = torch.stack(
            [_sample_rhs(tangent, root, mean, generator) for _ in range(count)]
        )
        parts.append(
            solver.solve(
                precision.matvec,
                rhs,
                preconditioner=preconditioner,
                on_step=_named(on_step, f"samples {first + 1}-{first + count}"),
            )
        )
    whole = Solution(
        value=mean + torch.cat([p.value for p in parts]),
        residual=torch.cat([p.residual for p in parts]),
        iterations=torch.cat([p.iterations for p in parts]),
        converged=torch.cat([p.converged for p in parts]),
    )
    return whole.value, whole


def _sample_rhs(
    tangent: Linearisation, root: Tensor, mean: Tensor, generator: torch.Generator
) -> Tensor:
    eta = torch.randn(len(root), generator=generator, dtype=torch.float64)
    xi = torch.randn(len(mean), generator=generator, dtype=torch.float64)
    return tangent.operator.rmatvec(eta.to(root) / root) + xi.to(mean)


def _named(on_step: OnStep | None, stage: str) -> Callable[[int, float], None] | None:
    if on_step is None:
        return None
    return lambda step, residual: on_step(stage, step, residual)
