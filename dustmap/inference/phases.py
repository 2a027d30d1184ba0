"""The phases of a full-batch inference: to the mode, to MGVI's mean, and samples."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.full_batch_fit import Fit
from dustmap.inference.gauss_newton import Precision
from dustmap.inference.journal import as_part, part
from dustmap.inference.linear_samples import draw
from dustmap.inference.mgvi import White, averages, both_signs, deviations, refine
from dustmap.inference.mode import Mode, find_mode, refined
from dustmap.inference.perturbed import Samples
from dustmap.inference.sample_rounds import SampleRounds
from dustmap.inference.saved_samples import (
    samples_of,
    samples_pattern,
    saved_samples,
)
from dustmap.journal import Frame, State
from dustmap.linalg.cg import Solution


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """Samples of ε, the Σ they belong to, their solves, and the mean or mode."""

    samples: Float[Tensor, "s p"]
    total: Float[Tensor, " n"]
    solved: Solution | Samples | None
    mode: Mode

    @property
    def converged(self) -> bool:
        """Whether the mode is one, and every sample came to its end."""
        every = self.solved is None or bool(self.solved.converged.all())
        return self.mode.converged and every


class Phases:
    """One phase after another; what one has found is saved while the next goes on."""

    def __init__(self, fit: Fit) -> None:
        self.fit = fit
        self._mode: Mode | None = None
        self._white: White | None = None
        self._drawn: tuple[Samples, Tensor] | None = None

    def run(self, start: Float[Tensor, " p"]) -> Posterior:
        """Samples and Σ, and the mean or mode that goes with them.

        In the fit's journal this is the frame ``inference``.

        Raises
        ------
        FloatingPointError
            If a prediction, Σ, an objective or a solve is not finite.
        ValueError
            If what the journal has restored does not fit.
        """
        fit, settings = self.fit, self.fit.settings
        with fit.journal.frame("inference") as frame:
            self._take_up(frame)
            frame.expose(self._saved)
            if self._mode is None:
                self._mode = find_mode(fit, start)
                fit.journal.safe_point()
            mode = self._mode
            if fit.model.linear or not settings.samples:
                return self._linear(mode if fit.model.linear else refined(fit, mode))
            if settings.sampler == "perturbed":
                return self._perturbed(mode)
            return self._variational(mode, frame)

    def _saved(self) -> State:
        state = self.fit.saved()
        if self._mode is not None:
            state |= as_part("mode", self._mode.saved())
        if self._white is not None:
            state |= as_part("white", {"seed": self._white.seed})
        if self._drawn is not None:
            state |= as_part("drawn", saved_samples(*self._drawn))
        return state

    def _take_up(self, frame: Frame) -> None:
        fit = self.fit
        known = frame.take(
            fit.pattern(),
            sketch=fit.sketching.pattern(fit.model, fit.count),
            mode=Mode.pattern(fit.model),
            white={"seed": int},
            drawn=samples_pattern(fit.model, fit.settings.samples, fit.count),
        )
        if known is None:
            return
        fit.take_up(known)
        if mode := part("mode", known):
            self._mode = Mode.taken_up(mode, fit.model.device)
        if white := part("white", known):
            self._white = White(seed=white["seed"])
        if drawn := part("drawn", known):
            self._drawn = samples_of(drawn, fit.model.device)

    def _linear(self, mode: Mode) -> Posterior:
        tangent, total = self.fit.tangent(mode.eps)
        if self._white is None and self.fit.settings.samples:
            self._white = self._new_white()
        none = mode.eps.new_zeros(0, len(mode.eps))
        if self._white is None:
            return Posterior(samples=none, total=total, solved=None, mode=mode)
        solved = draw(self.fit, tangent, total, mode.eps, self._white)
        return Posterior(
            samples=solved.value,
            total=total,
            solved=solved,
            mode=mode,
        )

    def _perturbed(self, mode: Mode) -> Posterior:
        """Samples by fits of their own, Σ, and the mode with this Σ."""
        fit = self.fit
        if self._white is None:
            self._white = self._new_white()
        if self._drawn is None:
            self._drawn = SampleRounds(fit, self._white).run(mode.eps)
            fit.journal.safe_point()
        samples, total = self._drawn
        if fit.weighing.noise.learn_share:
            # Some observations were set aside, and the others weigh something else.
            again = find_mode(fit, mode.eps, fixed=total, name="mode again")
            mode = replace(again, steps=mode.steps + again.steps)
        return Posterior(
            samples=samples.value,
            total=total,
            solved=samples,
            mode=mode,
        )

    def _new_white(self) -> White:
        seed = torch.randint(2**62, (1,), generator=self.fit.generator)
        return White(seed=int(seed))

    def _variational(self, mode: Mode, frame: Frame) -> Posterior:
        """MGVI from the mode: samples, Σ, the samples' solve, and m for the mode.

        What is saved meanwhile is the mode: taken up, all of this is done again.
        """
        at_the_mode = self._saved()
        frame.expose(lambda: at_the_mode)
        fit, settings, eps = self.fit, self.fit.settings, mode.eps
        white = self._new_white()
        if not settings.rounds:
            tangent, total = fit.tangent(eps)
            fit.sketching.sketch(Precision(tangent.operator, total))
        pairs = min(settings.pairs, settings.samples // 2)
        seen, settled = eps[None], False
        if settings.rounds:
            refined = refine(
                fit.model,
                fit.weighing,
                eps,
                white,
                pairs=pairs,
                rounds=settings.rounds,
                steps=settings.steps,
                tolerance=settings.newton_tolerance * len(fit.weighing.observations),
                solver=settings.sample_solver,
                sketch=fit.sketching.sketch,
                on_step=self._on_step,
            )
            eps, settled = refined.mean, refined.converged
            seen = both_signs(eps, refined.deltas)
        operator = fit.model.mean_tangent(seen)
        variance = averages(fit.model, fit.weighing.observations, seen).variance
        total = fit.weighing.total(seen, variance)
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
                    preconditioner=fit.sketching.preconditioner,
                    on_step=self._on_step,
                    stage=f"samples {2 * first + 1}-{2 * last}",
                )
            )
        whole = Solution.joined(parts)
        converged = settled if settings.rounds else mode.converged
        mean = replace(mode, eps=eps, converged=converged)
        samples = both_signs(eps, whole.value)
        return Posterior(samples=samples, total=total, solved=whole, mode=mean)

    def _on_step(self, stage: str, step: int, value: float) -> None:
        """Progress that a run may also be ended at."""
        if self.fit.on_step is not None:
            self.fit.on_step(stage, step, value)
        self.fit.journal.safe_point()
