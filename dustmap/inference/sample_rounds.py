"""Rounds of fits of samples, between which Σ becomes that of the samples."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.checkpoint import require_finite
from dustmap.inference.full_batch_fit import Fit
from dustmap.inference.gauss_newton import Target
from dustmap.inference.inference_state import Drawn, InferenceState, Round
from dustmap.inference.randomized_map import (
    DECREMENT_LIMIT,
    FORCINGS,
    SampleIterate,
    Samples,
    fit_sample,
    lowest,
    newton_decrement,
    perturbed_target,
)
from dustmap.inference.sample_averages import averages
from dustmap.inference.subgrid_share import best_leftover
from dustmap.inference.white_noise import White

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
    state
        Where the rounds stand: from where they begin or go on, brought up to date.
    white
        Where the white noise of the samples comes from.
    save
        Called between two Gauss–Newton steps, samples and rounds.
    """

    def __init__(
        self, fit: Fit, state: InferenceState, white: White, save: Callable[[], None]
    ) -> None:
        self._fit = fit
        self._state = state
        self._white = white
        self._save = save
        self._enough = fit.settings.newton_tolerance * fit.count

    def run(self, mode: Float[Tensor, " p"]) -> Drawn:
        """Samples, and the Σ they were fitted with.

        A few are fitted with the Σ of the mode, and then with that of themselves. Where
        a share of the unresolved variance is to be learnt, they see nothing of the
        observations that are set aside; with what these tell, all are fitted to all.

        Raises
        ------
        FloatingPointError
            If a prediction, Σ, an objective or a solve is not finite.
        """
        at = self._state.round
        if at is None:
            tangent, total = self._fit.tangent(mode)
            self._fit.cache.make(tangent, mode, total)
            at = self._state.round = Round(total=total)
        while at.rough:
            self._rough_round(at, mode)
            require_finite("samples, rough round", noise_variance=at.total)
            self._save()
        return Drawn(samples=self._to_the_end(at, mode), total=at.total)

    def _rough_round(self, at: Round, mode: Float[Tensor, " p"]) -> None:
        """A few samples, roughly, and their Σ; the last of these if the share rests."""
        fit = self._fit
        few = min(_FEW, fit.settings.samples)
        self._fit_all(at, mode, few, _ROUGH * self._enough)
        before = fit.model.subgrid_share
        at.total, at_edge = self._reweighed(self._positions())
        change = math.log(fit.model.subgrid_share / before)
        still = abs(change) < math.log(_STILL)
        fit.share_settled = still and not at_edge
        at.number, at.done = at.number + 1, 0
        if still or fit.noise.aside is None or at.number == _ROUNDS:
            at.rough, at.number = False, 0
            if fit.noise.aside is not None:
                at.total = self._with_all(self._positions())

    def _to_the_end(self, at: Round, mode: Float[Tensor, " p"]) -> Samples:
        """All samples, by finer solves until the Newton decrement is small enough."""
        fit, known = self._fit, self._state.samples
        while True:
            forcing = FORCINGS[at.number]
            self._fit_all(at, mode, fit.settings.samples, self._enough, forcing)
            decrement = newton_decrement(
                fit.model,
                self._target(at, 0, mode),
                known[0].eps,
                fit.settings.sample_solver,
                fit.cache.preconditioner,
                on_step=fit.on_step,
            )
            small = decrement <= DECREMENT_LIMIT * self._enough
            if small or at.number + 1 == len(FORCINGS):
                return Samples.of(known, decrement, self._enough)
            at.number, at.done = at.number + 1, 0
            self._save()

    def _target(self, at: Round, number: int, mode: Float[Tensor, " p"]) -> Target:
        fit = self._fit
        return perturbed_target(
            fit.noise.observations,
            at.total,
            self._white,
            number,
            len(mode),
            fit.model.latent_space,
        )

    def _fit_all(
        self,
        at: Round,
        mode: Float[Tensor, " p"],
        count: int,
        tolerance: float,
        forcing: float = FORCINGS[0],
    ) -> None:
        """The first samples, from where they are known to be or from the mode."""
        fit, state = self._fit, self._state
        name = "sample" if count == fit.settings.samples else "rough sample"

        def save(iterate: SampleIterate) -> None:
            state.iterate = iterate
            self._save()

        for number in range(at.done, count):
            target = self._target(at, number, mode)
            if state.iterate is None:
                state.iterate = SampleIterate(eps=self._start(target, number, mode))
            state.samples[number : number + 1] = [
                fit_sample(
                    fit.model,
                    target,
                    state.iterate,
                    solver=fit.settings.sample_solver,
                    steps=fit.settings.newton_steps,
                    tolerance=tolerance,
                    forcing=forcing,
                    preconditioner=fit.cache.preconditioner,
                    on_step=fit.on_step,
                    stage=f"{name} {number + 1} of {count}",
                    save=save,
                )
            ]
            at.done, state.iterate = number + 1, None
            self._save()

    def _start(self, target: Target, number: int, mode: Float[Tensor, " p"]) -> Tensor:
        """Where it is known to be; else the mode, or its twin reflected in that."""
        known, starts = self._state.samples, [mode]
        if number < len(known):
            starts = [known[number].eps]
        elif number % 2:
            # The other of a pair lies, nearly, as far on the other side.
            starts.append(2 * mode - known[number - 1].eps)
        return lowest(self._fit.model, target, starts)

    def _positions(self) -> Float[Tensor, "s p"]:
        return torch.stack([fit.eps for fit in self._state.samples])

    def _reweighed(self, eps: Float[Tensor, "s p"]) -> tuple[Float[Tensor, " n"], bool]:
        """Σ, share and outliers' weights by averages over samples.

        And whether the share is the least or the largest that is tried.
        """
        fit, noise = self._fit, self._fit.noise
        y = noise.observations
        seen = averages(fit.model, y, eps)
        residual, variance = y - seen.prediction, seen.variance
        aside = noise.aside
        if aside is None:
            noise.reweigh(residual, seen.squares, noise.normal(eps, variance))
            return noise.total(eps, variance), False
        # Of line integrals alone: nothing else is proportional to the share.
        double = fit.model.with_subgrid_share(2 * fit.model.subgrid_share)
        lines = averages(double, y, eps).variance - variance
        stated = noise.normal(eps, variance - lines) - noise.common
        found = best_leftover(
            residual[aside],
            (stated + seen.spread)[aside],
            lines[aside] / fit.model.subgrid_share,
            noise.degrees,
            learn_common=noise.noise.learn_common,
        )
        change = found.share / fit.model.subgrid_share
        fit.model = fit.model.with_subgrid_share(found.share)
        variance = variance + (change - 1) * lines
        noise.common = found.common
        normal = noise.normal(eps, variance)
        # Samples know nothing of these: their residuals scatter by twice the spread.
        scale = torch.where(aside, normal + 2 * seen.spread, normal)
        noise.reweigh(residual, seen.squares, scale)
        return noise.weighted(normal), found.at_edge

    def _with_all(self, eps: Float[Tensor, "s p"]) -> Float[Tensor, " n"]:
        """Σ with those that were set aside among the others again."""
        noise = self._fit.noise
        noise.aside = None
        seen = averages(self._fit.model, noise.observations, eps)
        return noise.total(eps, seen.variance)
