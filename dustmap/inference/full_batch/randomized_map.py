r"""Posterior samples of a non-linear model by randomised maximum likelihood.

A sample is the mode of a posterior with perturbed data and prior mean,

``ε_s = argmin ½ |ε − ξ_s|² + ½ |R (y + R⁻¹ η_s − apply(ε))|²``

with ``Σ⁻¹ = RᵀR``, η_s and ξ_s standard normal: *randomised maximum likelihood*
(Oliver, He & Reynolds 1996; Bardsley et al. 2014, SIAM J. Sci. Comput. 36, A1895,
without their weights). For a linear model these are exact samples. For a non-linear one
every sample still fits its data; samples from the tangent at the mode do not, and
diverge where the density is uncertain by a factor of ten.

Samples are fitted in rounds, with Σ updated from the samples between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.checkpoint import require_finite
from dustmap.inference.full_batch.fit import Fit
from dustmap.inference.full_batch.gauss_newton import GaussNewton, Target
from dustmap.inference.full_batch.mode import DECREMENT_LIMIT
from dustmap.inference.full_batch.progress import Fitted, Iterate, Round
from dustmap.linalg.space import WHOLE, VectorSpace

# Tolerance of a solve relative to the gradient: the total cost of a sample is least
# between 0.1 and 0.5. The next ones follow if the Newton decrement stays too large.
_FORCINGS = (0.3, 0.1, 0.03)
# Samples of a rough round, and the factor on their tolerance.
_FEW, _ROUGH = 4, 2.0
# Limit on rough rounds, and the factor within which the share counts as unchanged.
_ROUNDS, _STILL = 3, 1.2


class SampleRounds:
    """Samples of a non-linear model, from its mode.

    The fit's model receives the learnt share of the unresolved variance;
    ``share_settled`` records whether the share converged inside the trial range.
    """

    def __init__(self, fit: Fit, mode: Float[Tensor, " p"]) -> None:
        self._fit = fit
        self._mode = mode

    def run(self) -> Round:
        """Fit all samples; the last round, with the Σ they were fitted with.

        Unless Σ is fixed, a few rough samples, first with the Σ of the mode, provide
        that of the final ones. If the share of the unresolved variance is learnt, rough
        samples exclude the held-out observations, from which the share is estimated.

        Raises
        ------
        FloatingPointError
            If a prediction, Σ, an objective or a solve is not finite.
        """
        fit = self._fit
        if fit.round is None:
            tangent, total = fit.tangent(self._mode)
            fit.cache.make(tangent, self._mode, total)
            fit.round = Round(total=total, rough=not fit.noise.fixed)
        while not fit.round.finished:
            after = self._rough if fit.round.rough else self._final
            fit.save(round=after(fit.round))
        return fit.round

    def _rough(self, at: Round) -> Round:
        """A few rough samples and their Σ; the last such round if the share settled."""
        fit, learnt = self._fit, self._fit.noise.given.learn_share
        few = min(_FEW, fit.settings.samples)
        self._fit_all(at, few, _ROUGH * fit.enough, "rough sample")
        eps = torch.stack([sample.eps for sample in fit.samples])
        before = fit.model.subgrid_share
        total, found = fit.noise.update_over(fit.model, eps)
        if found.share != before:
            fit.model = fit.model.with_subgrid_share(found.share)
        still = abs(math.log(found.share / before)) < math.log(_STILL)
        fit.share_settled = still and not found.at_edge
        number = at.number + 1
        last = still or not learnt or number == _ROUNDS
        if last and learnt:
            total = fit.noise.include_all(fit.model, eps)
        require_finite("samples, rough round", noise_variance=total)
        return Round(total=total, rough=not last, number=0 if last else number)

    def _final(self, at: Round) -> Round:
        """All samples; solves are finer in the next round if the decrement is large."""
        fit = self._fit
        self._fit_all(at, fit.settings.samples, fit.enough, "sample")
        each = [sample.expected_decrease for sample in fit.samples]
        worst = each.index(max(each))
        decrement = self._newton(at, worst).decrement(fit.samples[worst].eps)
        small = decrement <= DECREMENT_LIMIT * fit.enough
        if small or at.number + 1 == len(_FORCINGS):
            return replace(at, decrement=decrement, finished=True)
        return replace(at, number=at.number + 1, done=0)

    def _newton(self, at: Round, number: int, stage: str = "") -> GaussNewton:
        fit, target = self._fit, self._fit.target(at.total)
        return fit.newton(
            perturbed_target(target, fit.seed, number, len(self._mode)),
            solver=fit.settings.sample_solver,
            forcing=_FORCINGS[0 if at.rough else at.number],
            stage=stage,
        )

    def _fit_all(self, at: Round, count: int, tolerance: float, name: str) -> None:
        """Fit the first ``count`` samples, from earlier fits or from the mode."""
        fit = self._fit
        for number in range(at.done, count):
            newton = self._newton(at, number, f"{name} {number + 1} of {count}")
            if fit.search is None:
                fit.search = Iterate(eps=self._start(newton, number), total=at.total)
            sample = fit_sample(
                newton,
                fit.search,
                steps=fit.settings.newton_steps,
                tolerance=tolerance,
                save=lambda iterate: fit.save(search=iterate),
            )
            fit.samples[number : number + 1] = [sample]
            fit.save(search=None, round=replace(at, done=number + 1))

    def _start(self, newton: GaussNewton, number: int) -> Float[Tensor, " p"]:
        """Its earlier fit; else the mode, or the reflection of its antithetic twin."""
        known, mode = self._fit.samples, self._mode
        if number < len(known):
            return known[number].eps
        if number % 2 == 0:
            return mode
        starts = [mode, 2 * mode - known[number - 1].eps]
        value, apply = newton.target.value, newton.model.apply
        return min(starts, key=lambda eps: value(eps, apply(eps)))


def perturbed_target(
    target: Target, seed: int, number: int, latent_size: int
) -> Target:
    """The objective of sample ``number``: 2k and 2k + 1 are an antithetic pair."""
    y = target.y
    eta, xi = white_noise(seed, number // 2, len(y), latent_size, target.space)
    sign = 1.0 if number % 2 == 0 else -1.0
    noise = sign * target.noise.coloured(eta).to(y)
    return replace(target, y=y + noise, centre=sign * xi.to(y))


def fit_sample(
    newton: GaussNewton,
    at: Iterate,
    *,
    steps: int,
    tolerance: float,
    save: Callable[[Iterate], None] | None = None,
) -> Fitted:
    """At most ``steps`` until the expected decrease is below ``tolerance`` [nats].

    A tolerance in nats does not depend on the size of the signal, as a relative
    residual would. The solver only limits the number of iterations. ``save`` is called
    between two steps.

    Raises
    ------
    FloatingPointError
        If a prediction, the objective or a solve is not finite.
    """
    tangent = newton.model.linearise(at.eps)
    while True:
        where = f"{newton.stage}, step {at.steps}"
        require_finite(where, prediction=tangent.prediction)
        step = newton.step(tangent, at.eps, where)
        tangent = step.tangent
        iterations = at.iterations + int(step.solution.iterations.max())
        at = replace(at, eps=step.eps, iterations=iterations, steps=at.steps + 1)
        converged = step.expected_decrease < tolerance
        if converged or step.gain is None or at.steps >= steps:
            return Fitted(
                eps=at.eps,
                expected_decrease=step.expected_decrease,
                iterations=iterations,
                converged=converged,
            )
        if save is not None:
            save(at)


def white_noise(
    seed: int, number: int, n: int, p: int, space: VectorSpace = WHOLE
) -> tuple[Float[Tensor, " n"], Float[Tensor, " p"]]:
    """η and ξ of one pair of samples (float64), reproducible by its number."""
    generator = torch.Generator().manual_seed(seed + number)
    eta = torch.randn(n, generator=generator, dtype=torch.float64)
    return eta, space.normal(1, p, generator)[0]
