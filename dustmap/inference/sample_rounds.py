"""Rounds of fits of samples, between which Σ becomes that of the samples."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.full_batch_fit import Fit
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
from dustmap.inference.sample_averages import averages
from dustmap.inference.saved_samples import fits_of, fits_pattern, saved_fits
from dustmap.inference.subgrid_share import best_leftover
from dustmap.inference.white_noise import White
from dustmap.journal import Pattern, State

# So many samples Σ is averaged over; they may be so many times further from their ends.
_FEW, _ROUGH = 4, 2.0
# Rounds in which a share of the unresolved variance may move, and what counts as none.
_ROUNDS, _STILL = 3, 1.2


class SampleRounds:
    """Samples of a model that is not linear, from its mode.

    Parameters
    ----------
    fit
        The inference. The share of the unresolved variance that it learns is its
        model's afterwards; ``share_settled`` says whether this stood still in the end,
        between the least and the largest that are tried.
    white
        Where the white noise of the samples comes from.
    """

    def __init__(self, fit: Fit, white: White) -> None:
        self._fit = fit
        self._white = white
        self._enough = fit.settings.newton_tolerance * fit.count
        self._total = torch.zeros(0)
        # Rough rounds come first, of a few samples; every kind is numbered from 0.
        self._rough = True
        self._number = 0
        # Those fitted in this round, and behind them those known from the one before.
        self._done = 0
        self._known: list[Fitted] = []

    def run(self, mode: Float[Tensor, " p"]) -> tuple[Samples, Float[Tensor, " n"]]:
        """Samples, and the Σ they were fitted with.

        A few are fitted with the Σ of the mode, and then with that of themselves. Where
        a share of the unresolved variance is to be learnt, they see nothing of the
        observations that are set aside; with what these tell, all are fitted to all.
        In the fit's journal this is the frame ``samples``.

        Raises
        ------
        FloatingPointError
            If a prediction, Σ, an objective or a solve is not finite.
        """
        fit = self._fit
        with fit.journal.frame("samples") as frame:
            known = frame.take(self._pattern())
            if known is not None:
                self._take_up(known)
            else:
                tangent, self._total = fit.tangent(mode)
                fit.sketching.sketch_at(tangent, mode, self._total)
            frame.expose(self._saved)
            while self._rough:
                self._rough_round(mode)
                fit.journal.require_finite("rough round", noise_variance=self._total)
                fit.journal.safe_point()
            return self._to_the_end(mode), self._total

    def _rough_round(self, mode: Float[Tensor, " p"]) -> None:
        """A few samples, roughly, and their Σ; the last of these if the share rests."""
        fit = self._fit
        few = min(_FEW, fit.settings.samples)
        self._fit_all(mode, few, _ROUGH * self._enough)
        before = fit.model.subgrid_share
        self._total, at_edge = self._reweighed(self._positions())
        change = math.log(fit.model.subgrid_share / before)
        still = abs(change) < math.log(_STILL)
        fit.share_settled = still and not at_edge
        self._number, self._done = self._number + 1, 0
        if still or fit.weighing.aside is None or self._number == _ROUNDS:
            self._rough, self._number = False, 0
            if fit.weighing.aside is not None:
                self._total = self._with_all(self._positions())

    def _to_the_end(self, mode: Float[Tensor, " p"]) -> Samples:
        """All samples, by finer solves until an accurate one leaves little to gain."""
        fit = self._fit
        y = fit.weighing.observations
        space = fit.model.latent_space
        first = perturbed_target(y, self._total, self._white, 0, len(mode), space)
        while True:
            forcing = FORCINGS[self._number]
            self._fit_all(mode, fit.settings.samples, self._enough, forcing)
            left = decrement(
                fit.model,
                first,
                self._known[0].eps,
                fit.settings.sample_solver,
                fit.sketching.preconditioner,
                journal=fit.journal,
            )
            if left <= LEFT * self._enough or self._number + 1 == len(FORCINGS):
                return Samples.of(self._known, left, self._enough)
            self._number, self._done = self._number + 1, 0
            fit.journal.safe_point()

    def _fit_all(
        self,
        mode: Float[Tensor, " p"],
        count: int,
        tolerance: float,
        forcing: float = FORCINGS[0],
    ) -> None:
        """The first samples, from where they are known to be or from the mode."""
        fit, known = self._fit, self._known
        name = "sample" if count == fit.settings.samples else "rough sample"
        for number in range(self._done, count):
            target = perturbed_target(
                fit.weighing.observations,
                self._total,
                self._white,
                number,
                len(mode),
                fit.model.latent_space,
            )
            starts = [mode]
            if number < len(known):
                starts = [known[number].eps]
            elif number % 2:
                # The other of a pair lies, nearly, as far on the other side.
                starts.append(2 * mode - known[number - 1].eps)
            known[number : number + 1] = [
                fit_sample(
                    fit.model,
                    target,
                    lowest(fit.model, target, starts),
                    solver=fit.settings.sample_solver,
                    steps=fit.settings.newton_steps,
                    tolerance=tolerance,
                    forcing=forcing,
                    preconditioner=fit.sketching.preconditioner,
                    on_step=fit.on_step,
                    stage=f"{name} {number + 1} of {count}",
                    journal=fit.journal,
                )
            ]
            self._done = number + 1
            fit.journal.safe_point()

    def _positions(self) -> Float[Tensor, "s p"]:
        return torch.stack([fit.eps for fit in self._known])

    def _reweighed(self, eps: Float[Tensor, "s p"]) -> tuple[Float[Tensor, " n"], bool]:
        """Σ, share and outliers' weights by averages over samples.

        And whether the share is the least or the largest that is tried.
        """
        fit, weighing = self._fit, self._fit.weighing
        y = weighing.observations
        seen = averages(fit.model, y, eps)
        residual, variance = y - seen.prediction, seen.variance
        aside = weighing.aside
        if aside is None:
            weighing.reweigh(residual, seen.squares, weighing.normal(eps, variance))
            return weighing.total(eps, variance), False
        # Of line integrals alone: nothing else is proportional to the share.
        double = fit.model.with_subgrid_share(2 * fit.model.subgrid_share)
        lines = averages(double, y, eps).variance - variance
        stated = weighing.normal(eps, variance - lines) - weighing.common
        found = best_leftover(
            residual[aside],
            (stated + seen.spread)[aside],
            lines[aside] / fit.model.subgrid_share,
            weighing.degrees,
            learn_common=weighing.noise.learn_common,
        )
        change = found.share / fit.model.subgrid_share
        fit.model = fit.model.with_subgrid_share(found.share)
        variance = variance + (change - 1) * lines
        weighing.common = found.common
        normal = weighing.normal(eps, variance)
        # Samples know nothing of these: their residuals scatter by twice the spread.
        scale = torch.where(aside, normal + 2 * seen.spread, normal)
        weighing.reweigh(residual, seen.squares, scale)
        return weighing.weighted(normal), found.at_edge

    def _with_all(self, eps: Float[Tensor, "s p"]) -> Float[Tensor, " n"]:
        """Σ with those that were set aside among the others again."""
        weighing = self._fit.weighing
        weighing.aside = None
        seen = averages(self._fit.model, weighing.observations, eps)
        return weighing.total(eps, seen.variance)

    def _saved(self) -> State:
        return {
            "total": self._total,
            "rough": self._rough,
            "number": self._number,
            "done": self._done,
            **saved_fits(self._known, self._fit.model),
        }

    def _pattern(self) -> Pattern:
        return {
            "total": (self._fit.model.dtype, (self._fit.count,)),
            "rough": bool,
            "number": int,
            "done": int,
            **fits_pattern(self._fit.model),
        }

    def _take_up(self, known: dict[str, Any]) -> None:
        device = self._fit.model.device
        self._total = known["total"].to(device)
        self._rough, self._number = known["rough"], known["number"]
        self._done, self._known = known["done"], fits_of(known, device)
