"""The changing state of one full-batch inference, and its checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dustmap.checkpoint import Checkpointer, misfit, restored
from dustmap.distributed.group import Group
from dustmap.inference.full_batch.gauss_newton import (
    GaussNewton,
    OnStep,
    Precision,
    Task,
    quiet,
)
from dustmap.inference.full_batch.settings import FullBatch
from dustmap.linalg.cg import Solution
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.models.base import ForwardModel, Linearisation
from dustmap.noise import Learnt, NoiseModel, Normal
from dustmap.shapes import Eps, EpsDraws, Vector

FIRST = "mode"
"""The name of the first search of the mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Iterate:
    """ε after some Gauss–Newton steps to the mode, and its Σ.

    ``search`` names the search that made the ``steps``, after ``earlier`` steps of
    other searches. At the end ``solution`` is the solution of the last step.
    """

    search: str
    eps: Eps
    total: Vector
    steps: int = 0
    earlier: int = 0
    converged: bool = False
    solution: Solution | None = None

    @property
    def count(self) -> int:
        """Number of steps of all searches."""
        return self.earlier + self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Samples of a non-linear model, and the status of their fits.

    ``expected_decrease`` is the objective's expected decrease in the last step [nats];
    ``iterations`` counts the iterations of conjugate gradients in the last round.
    """

    eps: Float[Tensor, "b p"]
    expected_decrease: Float[Tensor, " b"]
    iterations: Int[Tensor, " b"]
    converged: Bool[Tensor, " b"]

    @classmethod
    def at(cls, eps: Float[Tensor, "b p"]) -> Samples:
        """Return samples before the first step."""
        zeros = torch.zeros(len(eps), dtype=torch.float64, device=eps.device)
        return cls(
            eps=eps,
            expected_decrease=zeros + math.inf,
            iterations=zeros.long(),
            converged=zeros.bool(),
        )

    @classmethod
    def joined(cls, parts: Sequence[Samples]) -> Samples:
        """Join batches."""
        names = [each.name for each in fields(cls)]
        return cls(**{n: torch.cat([getattr(p, n) for p in parts]) for n in names})

    def select(self, index: Int[Tensor, " k"]) -> Samples:
        """Return some of the samples."""
        names = [each.name for each in fields(self)]
        return Samples(**{name: getattr(self, name)[index] for name in names})

    @property
    def message(self) -> str:
        """Summary in one line."""
        worst, most = float(self.expected_decrease.max()), int(self.iterations.max())
        tail = (
            f"{most} iterations at most; the last step raised the log posterior by "
            f"at most {worst:.3g} nats (units of the natural logarithm)"
        )
        failed, count = int((~self.converged).sum()), len(self.converged)
        if not failed:
            # Of independent samples, and of pairs of mirror images (`Moments`).
            least, largest = (2 * count) ** -0.5, count**-0.5
            return (
                f"each fitted by itself, {tail}; {count} leave standard deviations "
                f"between them an error of {least:.0%} to {largest:.0%}"
            )
        return f"{failed} of {count} did not converge ({tail})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of sample fits, with Σ ``total``.

    The first rounds, of a few samples, are ``rough``, and counted by ``number`` from 0;
    ``pairs`` of batches are finished in this round.
    """

    total: Vector
    rough: bool = True
    number: int = 0
    pairs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The inputs of a preconditioner: ε, Σ, and the generator's state before it."""

    eps: Eps
    total: Vector
    generator: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of one inference with ``count`` samples, as checkpoints hold it.

    ``mode`` is the current iterate of the mode; ``seed`` is the seed of the samples'
    white noise, negative before they begin. For a linear model ``samples`` holds
    finished blocks, for a non-linear one single samples, fitted in this ``round`` or
    the one before. ``iterations`` counts iterations of conjugate gradients with the
    current preconditioner, of which only the ``origin`` is kept, not its vectors.
    """

    count: int
    generator: Tensor
    noise: Learnt | None = None
    origin: Origin | None = None
    mode: Iterate | None = None
    seed: int = -1
    round: Round | None = None
    samples: tuple[Samples | Solution, ...] = ()
    share_settled: bool = True
    iterations: int = 0


# Returns the means and standard deviations of ε under the prior of a pair of samples.
Priors = Callable[[int], tuple[Eps, Eps]]


@dataclass(eq=False)
class InferenceState:
    """Model, noise, preconditioner, generator and progress of one inference.

    The observations ``y`` are brought to the model's dtype and device.
    """

    model: ForwardModel
    y: Vector
    noise: NoiseModel
    settings: FullBatch
    generator: torch.Generator
    _: KW_ONLY
    on_step: OnStep = quiet
    checkpointer: Checkpointer[Progress] | None = None
    teams: Group = field(default_factory=Group)
    shared_errors: Float[Tensor, "n r"] | None = None
    priors: Priors | None = None
    preconditioner: NystromPreconditioner | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        blur, share = self.noise.blur, self.model.subgrid_share
        self.y = self.y.to(dtype=self.model.dtype, device=self.model.device)
        self.noise = self.noise.prepared(self.y, share, self.generator)
        self._blurred = None if blur is None else self.model.at(blur)
        drawn, count = self.generator.get_state(), self.settings.samples
        self.progress = Progress(count=count, generator=drawn)
        saved = None if self.checkpointer is None else self.checkpointer.restore()
        if saved is not None:
            self._restore(saved)

    @property
    def samples(self) -> list[Samples]:
        """The samples of a non-linear model so far, one by one."""
        return [one for one in self.progress.samples if isinstance(one, Samples)]

    @property
    def blocks(self) -> list[Solution]:
        """The finished blocks of samples of a linear model."""
        return [one for one in self.progress.samples if isinstance(one, Solution)]

    @property
    def enough(self) -> float:
        """The expected decrease at which steps end [nats]."""
        fixed = min(len(self.y), self.model.latent_size)
        return self.settings.newton_tolerance * fixed

    @property
    def inexact(self) -> bool:
        """True if the tangent or Σ changes with ε: one step is not enough."""
        return not self.model.linear or self.noise.depends_on_field

    def tangent(self, eps: Eps) -> tuple[Linearisation, NoiseModel]:
        """Return the tangent at ε, and Σ there with the current weights."""
        tangent = self.model.linearise(eps)
        unresolved = self.unresolved(eps[None], tangent.variance)
        return tangent, self.noise.given_unresolved(unresolved)

    def unresolved(self, eps: EpsDraws, variance: Vector) -> Vector:
        """Return the variance that the field adds to Σ, over samples of ε."""
        total = variance if self.settings.subgrid_noise else torch.zeros_like(variance)
        if self._blurred is not None and self.noise.blur_scale is not None:
            for one in eps:
                blur = self.noise.blur_scale * self._blurred.apply(one)
                total = total + blur**2 / len(eps)
        return total

    def learn_at(self, eps: Eps, tangent: Linearisation) -> tuple[Vector, float]:
        """Update the noise at ε; return Σ and ``mean (y − apply)²/Σ``.

        Outliers are down-weighted once most observations are fitted.
        """
        unresolved = self.unresolved(eps[None], tangent.variance)
        residual = self.y - tangent.prediction
        noise, squares = self.noise.given_unresolved(unresolved), residual**2
        if float((squares / noise.normal(unresolved)).median()) < 1.0:
            noise = noise.updated(residual, 0.0, unresolved)
        self.noise = noise
        return noise.variance, float((squares / noise.variance).mean())

    def learn_over(self, eps: EpsDraws) -> Vector:
        """Update the noise, and α of model and noise, by samples; return Σ."""
        residual, spread, variance = self.averages(eps)
        unresolved, before = self.unresolved(eps, variance), self.noise
        if not before.learn_share:
            updated = before.updated(residual, spread, unresolved)
            self.noise = updated.given_unresolved(unresolved)
            return self.noise.variance
        # Only variances of line integrals are proportional to the share.
        model, share = self.model, before.share
        double = self.averages(eps, model.with_subgrid_share(2 * share))[2]
        self.noise = before.updated(residual, spread, unresolved, double - variance)
        if self.noise.share != share:
            self.model = model.with_subgrid_share(self.noise.share)
        return self.noise.variance

    def averages(
        self, eps: EpsDraws, model: ForwardModel | None = None
    ) -> tuple[Vector, Vector, Vector]:
        """Return the mean residual, the variance of ``apply`` and ``v``, over samples.

        The divisor is S, since the mean of an antithetic pair has no error to first
        order.
        """
        model = model or self.model
        total = torch.zeros(3, len(self.y), dtype=torch.float64, device=self.y.device)
        first = model.apply(eps[0])
        for one in eps:
            tangent = model.linearise(one)
            # Differences from the first sample avoid cancellation.
            beside = tangent.prediction - first
            total += torch.stack([beside, tangent.variance, beside**2])
        beside, variance, second = total / len(eps)
        spread = (second - beside**2).clamp(min=0.0)
        residual = self.y - (first + beside).to(self.y)
        return residual, spread.to(self.y), variance.to(self.y)

    def include_all(self, eps: EpsDraws) -> Vector:
        """Return held-out observations to the data; return Σ over these samples."""
        assert isinstance(self.noise, Normal)
        unresolved = self.unresolved(eps, self.averages(eps)[2])
        self.noise = self.noise.including_all().given_unresolved(unresolved)
        return self.noise.variance

    def newton(self, total: Vector, **options: Any) -> GaussNewton:
        """Return steps to the mode for this Σ, with the current preconditioner."""
        return GaussNewton(
            model=self.model,
            y=self.y,
            noise=self.noise.with_total(total),
            preconditioner=self.preconditioner,
            on_step=self.on_step,
            **options,
        )

    def precondition(self, tangent: Linearisation, eps: Eps, total: Vector) -> None:
        """Make and keep a preconditioner of the precision at ε, if its rank is not 0.

        Its vectors are in the model's ``leading`` subspace.
        """
        precision = Precision(tangent.operator, self.noise.with_total(total))
        size, subspace = precision.shape[0], self.model.leading
        most = size if subspace is None else len(subspace)
        rank = min(self.settings.preconditioner_rank, most)
        self.note(iterations=0)
        if rank == 0:
            return
        origin = Origin(eps=eps, total=total, generator=self.generator.get_state())
        # Free the memory of the old preconditioner first.
        self.preconditioner = None
        self.note(origin=None)
        self.on_step(Task(name="preconditioner"), rank, math.nan)
        self.preconditioner = NystromPreconditioner.build(
            precision.data_term,
            size,
            rank,
            self.generator,
            dtype=precision.dtype,
            device=precision.device,
            subspace=subspace,
        )
        self.note(origin=origin)

    def note(self, **changes: Any) -> None:
        """Change the progress, by names of its fields."""
        self.progress = replace(self.progress, **changes)

    def save(self, **changes: Any) -> None:
        """Change the progress, and save it."""
        drawn = self.generator.get_state()
        self.note(generator=drawn, noise=self.noise.learnt, **changes)
        if self.checkpointer is not None:
            self.checkpointer.save(self.progress)

    def _restore(self, saved: Progress) -> None:
        """Go on from saved progress, or raise a ValueError if it is another fit's."""
        if not isinstance(saved, Progress):
            raise misfit("it", "of this engine", "that of another")
        if saved.count != self.settings.samples:
            raise misfit("the number of samples", self.settings.samples, saved.count)
        p, n = self.y.new_zeros(self.model.latent_size), torch.zeros_like(self.y)
        own = {"eps": p, "value": p, "total": n, "weights": n, "held_out": n.bool()}
        self.progress = saved = restored(saved, own)
        self.noise = self.noise.with_learnt(saved.noise)
        if saved.noise and saved.noise.share != self.model.subgrid_share:
            self.model = self.model.with_subgrid_share(saved.noise.share)
        if (origin := saved.origin) is not None:
            self.generator.set_state(origin.generator)
            tangent = self.model.linearise(origin.eps)
            self.precondition(tangent, origin.eps, origin.total)
            self.note(iterations=saved.iterations)
        self.generator.set_state(saved.generator)
