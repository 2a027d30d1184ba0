"""Rounds of fits of samples, between which Σ becomes that of the samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.full_batch_settings import FullBatch
from dustmap.inference.gauss_newton import OnStep, Precision
from dustmap.inference.mgvi import White, averages
from dustmap.inference.noise import Weighing
from dustmap.inference.perturbed import (
    FORCINGS,
    LEFT,
    Fitted,
    Samples,
    decrement,
    fit_sample,
    lowest,
    perturbed_target,
)
from dustmap.inference.subgrid_share import best_leftover
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.models.base import ForwardModel

# So many samples Σ is averaged over; they may be so many times further from their ends.
_FEW, _ROUGH = 4, 2.0
# Rounds in which a share of the unresolved variance may move, and what counts as none.
_ROUNDS, _STILL = 3, 1.2


@dataclass(slots=True, kw_only=True)
class SampleRounds:
    """Samples of a model that is not linear, from its mode.

    Parameters
    ----------
    model
        Its share of the unresolved variance is the one learnt afterwards.
    sketch
        Makes the preconditioner, once, at the mode.
    settled
        Whether the share stood still in the end, between the least and the largest
        that are tried.
    """

    model: ForwardModel
    weighing: Weighing
    settings: FullBatch
    white: White
    sketch: Callable[[Precision], NystromPreconditioner | None]
    on_step: OnStep | None
    preconditioner: NystromPreconditioner | None = None
    settled: bool = True
    _at_edge: bool = False

    def run(self, mode: Float[Tensor, " p"]) -> tuple[Samples, Float[Tensor, " n"]]:
        """Samples, and the Σ they were fitted with.

        A few are fitted with the Σ of the mode, and then with that of themselves. Where
        a share of the unresolved variance is to be learnt, they see nothing of the
        observations that are set aside; with what these tell, all are fitted to all.
        """
        settings = self.settings
        tangent = self.model.linearise(mode)
        total = self.weighing.total(mode[None], tangent.variance)
        self.preconditioner = self.sketch(Precision(tangent.operator, total))
        enough = settings.newton_tolerance * len(self.weighing.observations)
        few = min(_FEW, settings.samples)
        known: list[Fitted] = []
        for _ in range(1 if self.weighing.aside is None else _ROUNDS):
            known = self._fitted(mode, known, total, few, _ROUGH * enough)
            before = self.model.subgrid_share
            total = self._reweighed(torch.stack([fit.eps for fit in known]))
            change = math.log(self.model.subgrid_share / before)
            still = abs(change) < math.log(_STILL)
            self.settled = still and not self._at_edge
            if still:
                break
        if self.weighing.aside is not None:
            total = self._with_all(torch.stack([fit.eps for fit in known]))
        return self._to_the_end(mode, known, total, enough), total

    def _to_the_end(
        self,
        mode: Float[Tensor, " p"],
        known: list[Fitted],
        total: Float[Tensor, " n"],
        enough: float,
    ) -> Samples:
        """All samples, by finer solves until an accurate one leaves little to gain."""
        y = self.weighing.observations
        first = perturbed_target(y, total, self.white, 0, len(mode))
        left = math.inf
        for forcing in FORCINGS:
            known = self._fitted(
                mode, known, total, self.settings.samples, enough, forcing
            )
            left = decrement(
                self.model,
                first,
                known[0].eps,
                self.settings.sample_solver,
                self.preconditioner,
            )
            if left <= LEFT * enough:
                break
        return Samples.of(known, left, enough)

    def _fitted(
        self,
        mode: Float[Tensor, " p"],
        known: list[Fitted],
        total: Float[Tensor, " n"],
        count: int,
        tolerance: float,
        forcing: float = FORCINGS[0],
    ) -> list[Fitted]:
        """The first samples, from where they are known to be or from the mode."""
        y = self.weighing.observations
        fits: list[Fitted] = []
        name = "sample" if count == self.settings.samples else "rough sample"
        for number in range(count):
            target = perturbed_target(y, total, self.white, number, len(mode))
            starts = [mode]
            if number < len(known):
                starts = [known[number].eps]
            elif number % 2:
                # The other of a pair lies, nearly, as far on the other side.
                starts.append(2 * mode - fits[-1].eps)
            fits.append(
                fit_sample(
                    self.model,
                    target,
                    lowest(self.model, target, starts),
                    solver=self.settings.sample_solver,
                    steps=self.settings.newton_steps,
                    tolerance=tolerance,
                    forcing=forcing,
                    preconditioner=self.preconditioner,
                    on_step=self.on_step,
                    stage=f"{name} {number + 1} of {count}",
                )
            )
        return fits

    def _reweighed(self, eps: Float[Tensor, "s p"]) -> Float[Tensor, " n"]:
        """Σ, share and outliers' weights by averages over samples."""
        weighing, y = self.weighing, self.weighing.observations
        seen = averages(self.model, y, eps)
        residual, variance = y - seen.prediction, seen.variance
        aside = weighing.aside
        if aside is None:
            weighing.reweigh(residual, seen.squares, weighing.normal(eps, variance))
            return weighing.total(eps, variance)
        # Of line integrals alone: nothing else is proportional to the share.
        double = self.model.with_subgrid_share(2 * self.model.subgrid_share)
        lines = averages(double, y, eps).variance - variance
        stated = weighing.normal(eps, variance - lines) - weighing.common
        found = best_leftover(
            residual[aside],
            (stated + seen.spread)[aside],
            lines[aside] / self.model.subgrid_share,
            weighing.degrees,
            learn_common=weighing.noise.learn_common,
        )
        self._at_edge = found.at_edge
        change = found.share / self.model.subgrid_share
        self.model = self.model.with_subgrid_share(found.share)
        variance = variance + (change - 1) * lines
        weighing.common = found.common
        normal = weighing.normal(eps, variance)
        # Samples know nothing of these: their residuals scatter by twice the spread.
        scale = torch.where(aside, normal + 2 * seen.spread, normal)
        weighing.reweigh(residual, seen.squares, scale)
        return weighing.weighted(normal)

    def _with_all(self, eps: Float[Tensor, "s p"]) -> Float[Tensor, " n"]:
        """Σ with those that were set aside among the others again."""
        self.weighing.aside = None
        seen = averages(self.model, self.weighing.observations, eps)
        return self.weighing.total(eps, seen.variance)
