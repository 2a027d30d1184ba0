"""Rounds of fits of samples, between which Σ becomes that of the samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.full_batch_settings import FullBatch
from dustmap.inference.gauss_newton import OnStep, Precision
from dustmap.inference.mgvi import White, averages, deviations
from dustmap.inference.noise import Weighing
from dustmap.inference.perturbed import Samples, fit_sample, perturbed_target
from dustmap.inference.subgrid_share import best_share
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.models.base import ForwardModel

# A start is solved to this relative residual.
_START = 0.1
# Samples that Σ is averaged over may be so many times further from their ends.
_ROUGH = 10.0
# Rounds in which a share of the unresolved variance may move, by a factor four each.
_ROUNDS = 4


@dataclass(slots=True, kw_only=True)
class SampleRounds:
    """Samples of a model that is not linear, from its mode.

    Parameters
    ----------
    model
        Its share of the unresolved variance is the one learnt afterwards.
    sketch
        Makes the preconditioner, once, at the mode.
    """

    model: ForwardModel
    weighing: Weighing
    settings: FullBatch
    white: White
    sketch: Callable[[Precision], NystromPreconditioner | None]
    on_step: OnStep | None
    preconditioner: NystromPreconditioner | None = None

    def run(self, mode: Float[Tensor, " p"]) -> tuple[Samples, Float[Tensor, " n"]]:
        """Samples, and the Σ they were fitted with.

        The first ones are fitted roughly with the Σ of the mode, then with that of
        themselves until its share stands still; with it all are fitted to the end.
        """
        settings = self.settings
        tangent = self.model.linearise(mode)
        total = self.weighing.total(mode[None], tangent.variance)
        self.preconditioner = self.sketch(Precision(tangent.operator, total))
        eps = self._starts(mode, total)
        enough = settings.newton_tolerance * len(self.weighing.observations)
        few = min(2 * settings.pairs, len(eps))
        for _ in range(_ROUNDS if self.weighing.noise.learn_share else 1):
            rough = self._fitted(eps[:few], total, settings.steps, _ROUGH * enough)
            eps[:few] = rough.value
            before = self.model.subgrid_share
            total = self._reweighed(rough.value)
            if self.model.subgrid_share == before:
                break
        return self._fitted(eps, total, settings.newton_steps, enough), total

    def _fitted(
        self, eps: Float[Tensor, "s p"], total: Tensor, steps: int, tolerance: float
    ) -> Samples:
        y, size = self.weighing.observations, self.model.latent_size
        fits = [
            fit_sample(
                self.model,
                perturbed_target(y, total, self.white, number, size),
                start,
                solver=self.settings.sample_solver,
                steps=steps,
                tolerance=tolerance,
                preconditioner=self.preconditioner,
                on_step=self.on_step,
                stage=f"sample {number + 1} of {len(eps)}",
            )
            for number, start in enumerate(eps)
        ]
        return Samples.of(fits)

    def _starts(self, mode: Float[Tensor, " p"], total: Tensor) -> Tensor:
        """Samples of the tangent at the mode, along curves that do not explode."""
        settings = self.settings
        operator = self.model.linearise(mode).operator
        solver = settings.sample_solver
        starts = []
        for first in range(0, settings.samples // 2, settings.block):
            last = min(first + settings.block, settings.samples // 2)
            solution = deviations(
                operator,
                total,
                self.white,
                range(first, last),
                solver=replace(solver, rtol=max(solver.rtol, _START)),
                preconditioner=self.preconditioner,
                on_step=self.on_step,
                stage=f"starts of samples {2 * first + 1}-{2 * last}",
            )
            for delta in solution.value:
                starts.append(self.model.moved(mode, delta, 1.0))
                starts.append(self.model.moved(mode, delta, -1.0))
        return torch.stack(starts)

    def _reweighed(self, eps: Float[Tensor, "s p"]) -> Tensor:
        """Σ, share and outliers' weights by averages over samples."""
        weighing, y = self.weighing, self.weighing.observations
        seen = averages(self.model, y, eps)
        residual, variance = y - seen.prediction, seen.variance
        if weighing.noise.learn_share:
            old = self.model.subgrid_share
            spread = (seen.squares - residual**2) * len(eps) / (len(eps) - 1)
            share = best_share(
                residual,
                spread.clamp(min=0.0),
                weighing.normal(eps, torch.zeros_like(variance)),
                variance / old,
                share=old,
                degrees=weighing.degrees,
            )
            self.model = self.model.with_subgrid_share(share)
            variance = variance * (share / old)
        weighing.reweigh(residual, seen.squares, weighing.normal(eps, variance))
        return weighing.total(eps, variance)
