"""The phases of a full-batch inference: to the mode, to MGVI's mean, and samples."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dustmap.inference.full_batch_settings import FullBatch
from dustmap.inference.gauss_newton import (
    OnStep,
    Precision,
    Target,
    backtrack,
    named,
    newton_step,
)
from dustmap.inference.mgvi import White, averages, both_signs, deviations, refine
from dustmap.inference.noise import Weighing
from dustmap.inference.perturbed import FORCINGS, LEFT, Samples, decrement
from dustmap.inference.sample_rounds import SampleRounds
from dustmap.linalg.cg import Solution
from dustmap.linalg.operator import inner
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.models.base import ForwardModel, Linearisation

# Far from the optimum a Gauss–Newton step is solved to this fraction of its residual.
_FORCING = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """Where Gauss–Newton steps led: their number, status and last solve."""

    eps: Tensor
    steps: int
    converged: bool
    solution: Solution


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """Samples of ε, the Σ they belong to, their solves, and the mean or mode."""

    samples: Tensor
    total: Tensor
    solved: Solution | Samples | None
    mode: Mode

    @property
    def converged(self) -> bool:
        """Whether the mode is one, and every sample came to its end."""
        every = self.solved is None or bool(self.solved.converged.all())
        return self.mode.converged and every


class Phases:
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
        self.share_settled = True

    def tangent(self, eps: Tensor) -> tuple[Linearisation, Tensor]:
        """The tangent at ε, and Σ with the weights at hand."""
        tangent = self.model.linearise(eps)
        return tangent, self.weighing.total(eps[None], tangent.variance)

    def mode(
        self, eps: Tensor, fixed: Tensor | None = None, forcing: float = _FORCING
    ) -> Mode:
        """Gauss–Newton steps to the mode.

        Σ is brought up to date between them unless it is given.
        """
        settings, y = self.settings, self.weighing.observations
        inexact = not self.model.linear or self.weighing.noise.depends_on_field
        tangent, total = self.tangent(eps)
        total = total if fixed is None else fixed
        solution, converged, steps = None, False, 0
        while steps < settings.newton_steps and not converged:
            precision = Precision(tangent.operator, total)
            target = Target(y=y, total=total)
            if self._worth_it():
                self.sketch(precision)
            solution = newton_step(
                tangent,
                precision,
                target,
                eps,
                solver=settings.solver,
                forcing=forcing if inexact else 0.0,
                preconditioner=self.preconditioner,
                on_step=self.on_step,
            )
            self.iterations += int(solution.iterations.max())
            step = backtrack(self.model, tangent, target, eps, solution.value[0])
            eps, steps = step.eps, steps + 1
            tangent = self.model.linearise(eps)
            if fixed is None:
                total = self._reweighed(tangent, eps, steps)
            if not inexact and not bool(solution.converged.all()):
                break
            converged = self._stationary(tangent, total, eps, solution)
            if step.gain is None:
                break
            enough = settings.newton_tolerance * len(y)
            converged = converged or (inexact and step.gain < enough and steps > 2)
        assert solution is not None
        return Mode(eps=eps, steps=steps, converged=converged, solution=solution)

    def answer(self, mode: Mode) -> Mode:
        """The mode where no samples follow: as much is left as is allowed for them.

        Its steps stop where rough solves gain little. What an accurate one says is left
        decides whether finer ones follow.
        """
        allowed = LEFT * self.settings.newton_tolerance
        allowed *= len(self.weighing.observations)
        # With a tolerance of zero the gradient alone has decided.
        if not mode.converged or not allowed:
            return mode
        for forcing in (*(f for f in FORCINGS if f < _FORCING), None):
            tangent, total = self.tangent(mode.eps)
            left = decrement(
                self.model,
                Target(y=self.weighing.observations, total=total),
                mode.eps,
                self.settings.solver,
                self.preconditioner,
                tangent=tangent,
            )
            if left <= allowed or forcing is None:
                break
            again = self.mode(mode.eps, forcing=forcing)
            mode = replace(again, steps=mode.steps + again.steps)
        return replace(mode, converged=mode.converged and left <= allowed)

    def posterior(self, mode: Mode) -> Posterior:
        """Samples and Σ, and the mean or mode that goes with them."""
        settings = self.settings
        if self.model.linear or not settings.samples:
            mode = mode if self.model.linear else self.answer(mode)
            tangent, total = self.tangent(mode.eps)
            samples, solved = self.samples(tangent, total, mode.eps)
            return Posterior(samples=samples, total=total, solved=solved, mode=mode)
        if settings.sampler == "perturbed":
            solved, total, mode = self.perturbed(mode)
            return Posterior(
                samples=solved.value, total=total, solved=solved, mode=mode
            )
        samples, total, solved, mode = self.variational(mode)
        return Posterior(samples=samples, total=total, solved=solved, mode=mode)

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
            # What is set aside is not fitted, and no outlier for that.
            weighing.reweigh(residual, squares, weighing.without_aside(normal))
        total = weighing.weighted(normal)
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
        slope = Target(y=y, total=total).slope(tangent, eps)
        shifted = y - tangent.prediction + tangent.operator.matvec(eps)
        rhs = tangent.operator.rmatvec(shifted / total)
        scale = inner(rhs, rhs).sqrt()
        residual = inner(slope, slope).sqrt()
        reached = self.settings.solver.rtol
        # With a noise that depends on the field, solves stop early: theirs is no level.
        exact = self.model.linear and not self.weighing.noise.depends_on_field
        if exact and bool(solution.converged.all()):
            reached = max(reached, float(solution.residual.max()))
        return float(residual) <= 2 * reached * float(scale)

    def variational(self, mode: Mode) -> tuple[Tensor, Tensor, Solution, Mode]:
        """MGVI from the mode: samples, Σ, the samples' solve, and m for the mode."""
        settings, eps = self.settings, mode.eps
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
        whole = Solution.joined(parts)
        converged = settled if settings.rounds else mode.converged
        mean = replace(mode, eps=eps, converged=converged)
        return both_signs(eps, whole.value), total, whole, mean

    def perturbed(self, mode: Mode) -> tuple[Samples, Tensor, Mode]:
        """Samples by fits of their own, Σ, and the mode with this Σ."""
        seed = int(torch.randint(2**62, (1,), generator=self.generator))
        rounds = SampleRounds(
            model=self.model,
            weighing=self.weighing,
            settings=self.settings,
            white=White(seed=seed),
            sketch=self.sketch,
            on_step=self.on_step,
        )
        samples, total = rounds.run(mode.eps)
        self.model, self.share_settled = rounds.model, rounds.settled
        if not self.weighing.noise.learn_share:
            return samples, total, mode
        # Some observations were set aside before, and the others weigh something else.
        rounds.preconditioner = None
        again = self.mode(mode.eps, fixed=total)
        return samples, total, replace(again, steps=mode.steps + again.steps)

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
        whole = Solution.joined(parts)
        return mean + whole.value, replace(whole, value=mean + whole.value)


def _sample_rhs(
    tangent: Linearisation, root: Tensor, mean: Tensor, generator: torch.Generator
) -> Tensor:
    eta = torch.randn(len(root), generator=generator, dtype=torch.float64)
    xi = torch.randn(len(mean), generator=generator, dtype=torch.float64)
    return tangent.operator.rmatvec(eta.to(root) / root) + xi.to(mean)
