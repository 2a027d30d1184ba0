"""The phases of a full-batch inference: to the mode, and samples."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.full_batch_fit import Fit
from dustmap.inference.journal import as_part, part
from dustmap.inference.linear_samples import draw
from dustmap.inference.mode import Mode, find_mode, refined
from dustmap.inference.perturbed import Samples
from dustmap.inference.sample_rounds import SampleRounds
from dustmap.inference.saved_samples import (
    samples_of,
    samples_pattern,
    saved_samples,
)
from dustmap.inference.white_noise import White
from dustmap.journal import Frame, State
from dustmap.linalg.cg import Solution


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """Samples of ε, the Σ they belong to, their solves, and the mode.

    ``white`` is where their white noise came from, ``None`` if there are none.
    """

    samples: Float[Tensor, "s p"]
    total: Float[Tensor, " n"]
    solved: Solution | Samples | None
    mode: Mode
    white: White | None = None

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
        """Samples and Σ, and the mode that goes with them.

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
            return self._perturbed(mode)

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
            white=self._white,
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
            white=self._white,
        )

    def _new_white(self) -> White:
        seed = torch.randint(2**62, (1,), generator=self.fit.generator)
        return White(seed=int(seed))
