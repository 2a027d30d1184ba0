r"""Posterior mean and posterior samples from all observations at once.

For a model with tangent Φ and Gaussian noise of variance Σ (Wu et al. 2021, eq. S2–S5,
without the block-independence of q):

``Λ = I + Φᵀ Σ⁻¹ Φ``, ``m = Λ⁻¹ Φᵀ Σ⁻¹ (y − Lμ)``, ``S = Λ⁻¹``,
``ε_s = m + Λ⁻¹ (Φᵀ Σ^{-1/2} η + ξ)`` with η, ξ standard normal.

Λ is only ever applied. A model that is not linear is solved by Gauss–Newton steps on
its tangents, halved until the posterior does not fall, and then by metric Gaussian
variational inference (:mod:`dustmap.inference.mgvi`). For a linear model with a noise
that does not depend on the field the first step is the answer, and samples are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.gauss_newton import (
    OnStep,
    Precision,
    backtrack,
    gradient,
    named,
    newton_step,
)
from dustmap.inference.mgvi import White, averages, both_signs, deviations, refine
from dustmap.inference.noise import Noise, Weighing
from dustmap.linalg.cg import ConjugateGradients, Solution
from dustmap.linalg.operator import inner
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.models.base import ForwardModel, Linearisation

__all__ = ["FullBatch", "FullBatchResult", "Noise", "OnStep", "Precision", "infer"]

# Far from the optimum a Gauss–Newton step is solved to this fraction of its residual.
_FORCING = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class FullBatch:
    """Settings of the full-batch engine.

    Parameters
    ----------
    solver
        Conjugate gradients on Λ.
    samples
        S, the number of posterior samples; even where the model is not linear, since
        they come in antithetic pairs there.
    subgrid_noise
        Add the conditional variance ``v_n`` to the noise (FITC-like objective)
        instead of only charging for it in the bound.
    preconditioner_rank
        Rank of the randomised Nyström preconditioner; 0 for none.
    newton_steps
        Limit on Gauss–Newton steps.
    newton_tolerance
        What a step may still promise at convergence, in nats per observation: 1e-3 is
        an error of the mode of 0.045 posterior standard deviations in each direction
        that an observation fixes.
    block
        Samples solved together: bounds the memory.
    sample_rtol
        Relative residual at which a sample is done; that of ``solver`` if ``None``.
        The error of a sample is far below the scatter of S of them long before that
        of the mean may stop.
    pairs, rounds, steps
        Of metric Gaussian variational inference: pairs of samples that the objective is
        averaged over, rounds with new samples (0: samples at the mode), and steps of
        the mean in each.
    """

    solver: ConjugateGradients = field(default_factory=ConjugateGradients)
    samples: int = 32
    subgrid_noise: bool = True
    preconditioner_rank: int = 0
    newton_steps: int = 20
    newton_tolerance: float = 1e-3
    block: int = 16
    sample_rtol: float | None = None
    pairs: int = 4
    rounds: int = 4
    steps: int = 4

    def __post_init__(self) -> None:
        if self.samples < 0 or self.preconditioner_rank < 0 or self.rounds < 0:
            raise ValueError(
                "samples, preconditioner_rank and rounds must not be negative"
            )
        if min(self.newton_steps, self.block, self.pairs, self.steps) < 1:
            raise ValueError("newton_steps, block, pairs and steps must be at least 1")

    @property
    def sample_solver(self) -> ConjugateGradients:
        """Conjugate gradients for samples."""
        if self.sample_rtol is None:
            return self.solver
        return replace(self.solver, rtol=self.sample_rtol)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullBatchResult:
    """Mean and samples of ε given the data, with what the solver says of them.

    ``noise_variance`` is what the observations were weighted with (sub-grid noise,
    distance errors and outliers' weights included); ``residuals`` are the true relative
    residuals of the mean and of every sample; ``prediction`` is ``apply(m)`` at the
    observations; ``weights`` are those of the Student-T distribution and ``degrees``
    its ν, ``None`` if the noise is normal; ``common_noise`` is the ``τ²`` learnt.
    """

    mean: Float[Tensor, " p"]
    samples: Float[Tensor, "s p"]
    noise_variance: Float[Tensor, " n"]
    prediction: Float[Tensor, " n"]
    newton_steps: int
    mean_solution: Solution
    sample_solution: Solution | None
    converged: bool
    weights: Float[Tensor, " n"]
    degrees: float | None = None
    common_noise: float = 0.0


def infer(
    model: ForwardModel,
    observations: Float[Tensor, " n"],
    noise: Noise | Float[Tensor, " n"],
    *,
    settings: FullBatch,
    generator: torch.Generator,
    start: Float[Tensor, " p"] | None = None,
    on_step: OnStep | None = None,
) -> FullBatchResult:
    """Posterior mean (or MGVI's, for a non-linear model) and samples of ε.

    Parameters
    ----------
    observations, noise
        ``y_n``, and ``σ_n²`` or all that is known of the noise.
    generator
        For the preconditioner's sketch and the samples, in this order.
    start
        ε to start from.
    on_step
        Called with stage, iteration and worst relative residual; after every
        Gauss–Newton step with the stage ``misfit`` and ``mean (y − apply)²/Σ``.

    Raises
    ------
    ValueError
        If shapes disagree, a variance is not positive, a number is not finite, or the
        samples of a non-linear model are not even in number.
    """
    noise = Noise(variance=noise) if isinstance(noise, Tensor) else noise
    _check(model, observations, noise.variance, start)
    if not model.linear and settings.samples % 2:
        raise ValueError(
            "samples of a model that is not linear come in pairs: take an even number "
            f"instead of {settings.samples}"
        )
    weighing = Weighing(
        model, observations, noise, subgrid_noise=settings.subgrid_noise
    )
    eps = torch.zeros(model.latent_size, dtype=model.dtype, device=model.device)
    if start is not None:
        eps = start.to(eps)
    search = _Search(model, weighing, settings, generator, on_step)
    eps, steps, converged, solution = search.mode(eps)
    if model.linear or not settings.samples:
        tangent, total = search.tangent(eps)
        samples, sample_solution = search.samples(tangent, total, eps)
    else:
        eps, samples, total, sample_solution, settled = search.variational(eps)
        converged = settled if settings.rounds else converged
        tangent = model.linearise(eps)
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
        weights=weighing.weights,
        degrees=weighing.degrees,
        common_noise=weighing.common,
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


class _Search:
    """The state that the phases of one inference share."""

    def __init__(
        self,
        model: ForwardModel,
        weighing: Weighing,
        settings: FullBatch,
        generator: torch.Generator,
        on_step: OnStep | None,
    ) -> None:
        self.model = model
        self.weighing = weighing
        self.settings = settings
        self.generator = generator
        self.on_step = on_step
        self.preconditioner: NystromPreconditioner | None = None
        self.iterations = 0

    def tangent(self, eps: Tensor) -> tuple[Linearisation, Tensor]:
        """The tangent at ε, and Σ with the weights at hand."""
        tangent = self.model.linearise(eps)
        return tangent, self.weighing.total(eps[None], tangent.variance)

    def mode(self, eps: Tensor) -> tuple[Tensor, int, bool, Solution]:
        """Gauss–Newton steps; ε, their number, whether converged, the last solve."""
        settings, y = self.settings, self.weighing.observations
        inexact = not self.model.linear or self.weighing.noise.depends_on_field
        tangent, total = self.tangent(eps)
        solution, converged, steps = None, False, 0
        while steps < settings.newton_steps and not converged:
            precision = Precision(tangent.operator, total)
            if self._worth_it():
                self.sketch(precision)
            solution = newton_step(
                tangent,
                precision,
                y,
                total,
                eps,
                solver=settings.solver,
                forcing=_FORCING if inexact else 0.0,
                preconditioner=self.preconditioner,
                on_step=self.on_step,
            )
            self.iterations += int(solution.iterations.max())
            eps, gain = backtrack(self.model, tangent, y, total, eps, solution.value[0])
            steps += 1
            tangent = self.model.linearise(eps)
            total = self._reweighed(tangent, eps, steps)
            if not inexact and not bool(solution.converged.all()):
                break
            converged = self._stationary(tangent, total, eps, solution)
            if gain is None:
                break
            enough = settings.newton_tolerance * len(y)
            converged = converged or (inexact and gain < enough and steps > 2)
        assert solution is not None
        return eps, steps, converged, solution

    def _worth_it(self) -> bool:
        """Whether to sketch a preconditioner now: at once if the model is linear."""
        rank = self.settings.preconditioner_rank
        if rank == 0:
            return False
        if self.model.linear:
            return self.preconditioner is None
        # Tangents change with every step: a sketch pays after so many iterations.
        return self.iterations > rank

    def sketch(self, precision: Precision) -> NystromPreconditioner | None:
        """A Nyström preconditioner of this precision, kept from now on."""
        rank = min(self.settings.preconditioner_rank, precision.shape[0])
        self.iterations = 0
        if rank == 0:
            return None
        # The old one makes room first.
        self.preconditioner = None
        if self.on_step is not None:
            self.on_step("preconditioner", rank, float("nan"))
        self.preconditioner = NystromPreconditioner.build(
            precision.data_term,
            precision.shape[0],
            rank,
            self.generator,
            dtype=precision.dtype,
            device=precision.device,
        )
        return self.preconditioner

    def _reweighed(self, tangent: Linearisation, eps: Tensor, steps: int) -> Tensor:
        """Σ at the new ε; outliers are weighed down once most stars are fitted."""
        weighing = self.weighing
        normal = weighing.normal(eps[None], tangent.variance)
        residual = weighing.observations - tangent.prediction
        squares = residual**2
        if weighing.settled(squares, normal):
            weighing.reweigh(residual, squares, normal)
        total = normal / weighing.weights
        if self.on_step is not None:
            self.on_step("misfit", steps, float((squares / total).mean()))
        return total

    def _stationary(
        self, tangent: Linearisation, total: Tensor, eps: Tensor, solution: Solution
    ) -> bool:
        """Whether the gradient is at the level the solver was asked for.

        It is measured against the right-hand side ``Φᵀ Σ⁻¹ (y − apply(ε) + Φ ε)``, as
        the solver's own residual is; at most twice that, since the tangent moved.
        """
        y = self.weighing.observations
        slope, _ = gradient(tangent, y, total, eps)
        shifted = y - tangent.prediction + tangent.operator.matvec(eps)
        rhs = tangent.operator.rmatvec(shifted / total)
        scale = inner(rhs, rhs).sqrt()
        residual = inner(slope, slope).sqrt()
        reached = self.settings.solver.rtol
        if bool(solution.converged.all()) and self.model.linear:
            reached = max(reached, float(solution.residual.max()))
        return float(residual) <= 2 * reached * float(scale)

    def variational(self, eps: Tensor) -> tuple[Tensor, Tensor, Tensor, Solution, bool]:
        """MGVI from the mode: m, samples, Σ, the samples' solve, whether converged."""
        settings = self.settings
        seed = int(torch.randint(2**62, (1,), generator=self.generator))
        white = White(seed=seed)
        if not settings.rounds:
            tangent, total = self.tangent(eps)
            self.sketch(Precision(tangent.operator, total))
        pairs = min(settings.pairs, settings.samples // 2)
        seen, settled = eps[None], False
        if settings.rounds:
            refined = refine(
                self.model,
                self.weighing,
                eps,
                white,
                pairs=pairs,
                rounds=settings.rounds,
                steps=settings.steps,
                tolerance=settings.newton_tolerance * len(self.weighing.observations),
                solver=settings.sample_solver,
                sketch=self.sketch,
                on_step=self.on_step,
            )
            eps, settled = refined.mean, refined.converged
            seen = both_signs(eps, refined.deltas)
        operator = self.model.mean_tangent(seen)
        variance = averages(self.model, self.weighing.observations, seen).variance
        total = self.weighing.total(seen, variance)
        parts = []
        for first in range(0, settings.samples // 2, settings.block):
            last = min(first + settings.block, settings.samples // 2)
            parts.append(
                deviations(
                    operator,
                    total,
                    white,
                    range(first, last),
                    solver=settings.sample_solver,
                    preconditioner=self.preconditioner,
                    on_step=self.on_step,
                    stage=f"samples {2 * first + 1}-{2 * last}",
                )
            )
        whole = joined(parts)
        return eps, both_signs(eps, whole.value), total, whole, settled

    def samples(
        self, tangent: Linearisation, total: Tensor, mean: Tensor
    ) -> tuple[Tensor, Solution | None]:
        """``m + Λ⁻¹ (Φᵀ Σ^{-1/2} η + ξ)`` in blocks; (η, ξ) drawn one by one."""
        settings = self.settings
        if settings.samples == 0:
            return mean.new_zeros(0, len(mean)), None
        precision = Precision(tangent.operator, total)
        root = total.sqrt()
        parts: list[Solution] = []
        for first in range(0, settings.samples, settings.block):
            count = min(settings.block, settings.samples - first)
            rhs = torch.stack(
                [_sample_rhs(tangent, root, mean, self.generator) for _ in range(count)]
            )
            parts.append(
                settings.sample_solver.solve(
                    precision.matvec,
                    rhs,
                    preconditioner=self.preconditioner,
                    on_step=named(self.on_step, f"samples {first + 1}-{first + count}"),
                )
            )
        whole = joined(parts)
        return mean + whole.value, replace(whole, value=mean + whole.value)


def joined(parts: list[Solution]) -> Solution:
    """Blocks of columns as one solution."""
    return Solution(
        value=torch.cat([p.value for p in parts]),
        residual=torch.cat([p.residual for p in parts]),
        iterations=torch.cat([p.iterations for p in parts]),
        converged=torch.cat([p.converged for p in parts]),
    )


def _sample_rhs(
    tangent: Linearisation, root: Tensor, mean: Tensor, generator: torch.Generator
) -> Tensor:
    eta = torch.randn(len(root), generator=generator, dtype=torch.float64)
    xi = torch.randn(len(mean), generator=generator, dtype=torch.float64)
    return tangent.operator.rmatvec(eta.to(root) / root) + xi.to(mean)
