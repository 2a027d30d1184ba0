"""Rounds of sample fits, with Σ updated from the samples between rounds."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.checkpoint import require_finite
from dustmap.inference.full_batch.fit import Fit
from dustmap.inference.full_batch.gauss_newton import Target
from dustmap.inference.full_batch.inference_state import Drawn, InferenceState, Round
from dustmap.inference.full_batch.randomized_map import (
    DECREMENT_LIMIT,
    FORCINGS,
    SampleIterate,
    Samples,
    fit_sample,
    lowest,
    newton_decrement,
    perturbed_target,
)
from dustmap.inference.full_batch.white_noise import White

# Samples of a rough round, and the factor on their tolerance.
_FEW, _ROUGH = 4, 2.0
# Limit on rough rounds, and the factor within which the share counts as unchanged.
_ROUNDS, _STILL = 3, 1.2


class SampleRounds:
    """Samples of a non-linear model, from its mode.

    Parameters
    ----------
    fit
        The inference. Its model receives the learnt share of the unresolved variance;
        ``share_settled`` records whether the share converged inside the trial range.
    state
        Progress of the rounds; updated in place.
    white
        White noise of the samples.
    save
        Called between Gauss–Newton steps, samples and rounds.
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

        A few rough samples, first with the Σ of the mode, provide the Σ of the final
        ones. If the share of the unresolved variance is learnt, rough samples exclude
        the held-out observations, from which the share is estimated.

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
        """A few rough samples and their Σ; the last such round if the share settled."""
        fit = self._fit
        few = min(_FEW, fit.settings.samples)
        self._fit_all(at, mode, few, _ROUGH * self._enough)
        before, eps = fit.model.subgrid_share, self._positions()
        update = fit.noise.update_over(fit.model, eps)
        at.total = update.total
        if update.share != before:
            fit.model = fit.model.with_subgrid_share(update.share)
        still = abs(math.log(update.share / before)) < math.log(_STILL)
        fit.share_settled = still and not update.at_edge
        at.number, at.done = at.number + 1, 0
        if still or fit.noise.held_out is None or at.number == _ROUNDS:
            at.rough, at.number = False, 0
            if fit.noise.held_out is not None:
                at.total = fit.noise.include_all(fit.model, eps)

    def _to_the_end(self, at: Round, mode: Float[Tensor, " p"]) -> Samples:
        """All samples, with finer solves until the Newton decrement is small enough."""
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
        """Fit the first ``count`` samples, from earlier fits or from the mode."""
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
        """Its earlier fit; else the mode, or the reflection of its antithetic twin."""
        known, starts = self._state.samples, [mode]
        if number < len(known):
            starts = [known[number].eps]
        elif number % 2:
            starts.append(2 * mode - known[number - 1].eps)
        return lowest(self._fit.model, target, starts)

    def _positions(self) -> Float[Tensor, "s p"]:
        return torch.stack([fit.eps for fit in self._state.samples])
