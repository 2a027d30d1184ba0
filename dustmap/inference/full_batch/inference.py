"""The stages of a full-batch inference: first the mode, then samples."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.checkpoint import Checkpointer
from dustmap.inference.full_batch.fit import Fit
from dustmap.inference.full_batch.gauss_newton import Target
from dustmap.inference.full_batch.inference_state import InferenceState
from dustmap.inference.full_batch.linear_samples import draw
from dustmap.inference.full_batch.mode import FORCING, Iterate, Mode, find_mode
from dustmap.inference.full_batch.randomized_map import (
    DECREMENT_LIMIT,
    FORCINGS,
    Samples,
    newton_decrement,
)
from dustmap.inference.full_batch.sample_rounds import SampleRounds
from dustmap.inference.full_batch.settings import FullBatchResult
from dustmap.inference.full_batch.white_noise import White
from dustmap.linalg.cg import Solution


class FullBatchInference:
    """The stages in order, resumed from the restored state if there is one.

    Raises
    ------
    ValueError
        If the restored state belongs to another fit.
    """

    def __init__(self, fit: Fit, checkpointer: Checkpointer) -> None:
        self.fit = fit
        self._checkpointer = checkpointer
        state = checkpointer.restore()
        self.at = InferenceState()
        if state is not None:
            self.at = InferenceState.restore(fit, state)

    def run(self, start: Float[Tensor, " p"]) -> FullBatchResult:
        """The mode, samples and their Σ.

        Raises
        ------
        FloatingPointError
            If a prediction, Σ, an objective or a solve is not finite.
        """
        fit, at = self.fit, self.at
        if at.mode is None:
            at.mode = self._find_mode(start)
            self._save()
        if not fit.settings.samples:
            return self._alone(at.mode if fit.model.linear else self._refined(at.mode))
        if at.white is None:
            seed = torch.randint(2**62, (1,), generator=fit.generator)
            at.white = White(seed=int(seed))
        if fit.model.linear:
            return self._linear(at.mode, at.white)
        return self._randomized(at.mode, at.white)

    def _save(self) -> None:
        self._checkpointer.save(self.fit.state() | self.at.flat())

    def _find_mode(
        self,
        start: Float[Tensor, " p"],
        *,
        name: str = "mode",
        fixed: Tensor | None = None,
        forcing: float = FORCING,
    ) -> Mode:
        def save(iterate: Iterate) -> None:
            self.at.search = iterate
            self._save()

        found = find_mode(
            self.fit,
            start,
            name=name,
            fixed=fixed,
            forcing=forcing,
            save=save,
            restored=self.at.search,
        )
        self.at.search = None
        return found

    def _refined(self, mode: Mode) -> Mode:
        """Refine the mode to the samples' tolerance when none are drawn.

        Its steps stop when rough solves gain little; the Newton decrement of an
        accurate solve decides whether finer solves follow.
        """
        fit, at = self.fit, self.at
        allowed = DECREMENT_LIMIT * fit.settings.newton_tolerance
        allowed *= fit.count
        # At zero tolerance only the gradient decides.
        if not allowed or not (mode.converged or mode.refinements):
            return mode
        finer = [forcing for forcing in FORCINGS if forcing < FORCING]
        while True:
            if at.search is None:
                small = self._decrement(mode) <= allowed
                if small or mode.refinements == len(finer):
                    return replace(mode, converged=mode.converged and small)
            again = self._find_mode(
                mode.eps, name="refined mode", forcing=finer[mode.refinements]
            )
            steps, refinements = mode.steps + again.steps, mode.refinements + 1
            at.mode = mode = replace(again, steps=steps, refinements=refinements)
            self._save()

    def _decrement(self, mode: Mode) -> float:
        fit = self.fit
        _, total = fit.tangent(mode.eps)
        return newton_decrement(
            fit.model,
            Target(y=fit.noise.observations, total=total),
            mode.eps,
            fit.settings.solver,
            fit.cache.preconditioner,
            on_step=fit.on_step,
        )

    def _alone(self, mode: Mode) -> FullBatchResult:
        _, total = self.fit.tangent(mode.eps)
        return self._result(mode, mode.eps.new_zeros(0, len(mode.eps)), total, None)

    def _result(
        self,
        mode: Mode,
        samples: Float[Tensor, "s p"],
        total: Float[Tensor, " n"],
        solved: Solution | Samples | None,
    ) -> FullBatchResult:
        model, noise = self.fit.model, self.fit.noise
        sampled = solved is None or bool(solved.converged.all())
        return FullBatchResult(
            mean=mode.eps,
            samples=samples,
            noise_variance=total,
            prediction=model.linearise(mode.eps).prediction,
            newton_steps=mode.steps,
            mean_solution=mode.solution,
            sample_solution=solved,
            converged=mode.converged and sampled,
            weights=noise.weights,
            degrees=noise.degrees,
            common_noise=noise.common,
            subgrid_share=model.subgrid_share,
            share_settled=self.fit.share_settled,
        )

    def _linear(self, mode: Mode, white: White) -> FullBatchResult:
        """Exact samples, block by block."""

        def save(blocks: Solution) -> None:
            self.at.blocks = blocks
            self._save()

        tangent, total = self.fit.tangent(mode.eps)
        solved = draw(
            self.fit,
            tangent,
            total,
            mode.eps,
            white,
            save=save,
            restored=self.at.blocks,
        )
        return self._result(mode, solved.value, total, solved)

    def _randomized(self, mode: Mode, white: White) -> FullBatchResult:
        """Samples by randomised maximum likelihood, and the mode with their Σ."""
        fit, at = self.fit, self.at
        if at.drawn is None:
            drawn = SampleRounds(fit, at, white, self._save).run(mode.eps)
            at.drawn, at.round, at.samples = drawn, None, []
            self._save()
        samples, total = at.drawn.samples, at.drawn.total
        if fit.noise.given.learn_share:
            # The mode excluded the held-out observations and had other weights.
            again = self._find_mode(mode.eps, fixed=total, name="mode again")
            mode = replace(again, steps=mode.steps + again.steps)
        return self._result(mode, samples.value, total, samples)
