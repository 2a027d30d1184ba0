r"""Posterior samples of a non-linear model by randomised maximum likelihood.

A sample is the mode of a posterior with perturbed data and prior mean,

``ε_s = argmin ½ |ε − ξ_s|² + ½ |R (y + R⁻¹ η_s − apply(ε))|²``

with ``Σ⁻¹ = RᵀR``, η_s and ξ_s standard normal: *randomised maximum likelihood*
(Oliver, He & Reynolds 1996; Bardsley et al. 2014, SIAM J. Sci. Comput. 36, A1895,
without their weights). For a linear model these are exact samples. For a non-linear one
every sample still fits its data; samples from the tangent at the mode do not, and
diverge where the density is uncertain by a factor of ten.

Samples are fitted in rounds, with Σ updated from the samples between them, and in
batches, of which one pass over W serves all members.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.checkpoint import require_finite
from dustmap.distributed.group import Group
from dustmap.inference.full_batch.gauss_newton import GaussNewton
from dustmap.inference.full_batch.mode import DECREMENT_LIMIT
from dustmap.inference.full_batch.settings import Pace
from dustmap.inference.full_batch.state import Fit, Round, Samples
from dustmap.keyed_noise import Purpose, stream
from dustmap.models.base import ForwardModel
from dustmap.noise import NoiseModel

# Tolerances of solves relative to the gradient in the two final rounds: the total cost
# of a sample is least between 0.1 and 0.5; the expected decrease is 12% too small at
# 0.3 and 2% at 0.1 (for 24 samples, compared with a tolerance of 0.01).
_FORCINGS = (0.3, 0.1)
# Samples of a rough round.
_ROUGH_SAMPLES = 4
# Factor on the tolerance of rough solves.
_ROUGH_TOLERANCE = 2.0
# Most rough rounds.
_ROUGH_ROUNDS = 3
# Factor within which the share counts as unchanged.
_UNCHANGED = 1.2


def fit_rounds(fit: Fit) -> Round:
    """Fit all samples; return the last round, with the Σ they were fitted with.

    Unless Σ is fixed, a few rough samples, first with the Σ of the mode, provide that
    of the final ones. If the share of the unresolved variance is learnt, rough samples
    exclude the held-out observations, from which the share is estimated: the fit's
    model receives it, and ``share_settled`` records whether it converged inside the
    trial range.

    Raises
    ------
    FloatingPointError
        If a prediction, Σ, an objective or a solve is not finite.
    """
    assert fit.mode is not None
    if fit.round is None:
        eps = fit.mode.eps
        tangent, noise = fit.tangent(eps)
        fit.precondition(tangent, eps, noise.variance)
        fit.round = Round(total=noise.variance, rough=not noise.fixed)
    while not fit.round.finished:
        fit.save(round=(_rough if fit.round.rough else _final)(fit, fit.round))
    return fit.round


def _rough(fit: Fit, at: Round) -> Round:
    """Fit a few rough samples, and learn Σ; the last such round if α settled."""
    learnt, few = fit.noise.learn_share, min(_ROUGH_SAMPLES, fit.settings.samples)
    _fit_all(fit, at, few, [(_FORCINGS[0], _ROUGH_TOLERANCE, "rough samples")])
    eps = torch.cat([fit.samples[number].eps for number in range(few)])
    before, total = fit.noise.share, fit.learn_over(eps)
    still = abs(math.log(fit.noise.share / before)) < math.log(_UNCHANGED)
    fit.share_settled = still and not fit.noise.at_edge
    number = at.number + 1
    last = still or not learnt or number == _ROUGH_ROUNDS
    if last and learnt:
        total = fit.include_all(eps)
    require_finite("samples, rough round", noise_variance=total)
    enough = not fit.settings.refine and few == fit.settings.samples
    return Round(
        total=total,
        rough=not last,
        number=0 if last else number,
        finished=last and enough,
    )


def _final(fit: Fit, at: Round) -> Round:
    """Fit samples by rough solves, and refine them by a step or more.

    The last step's expected decrease decides whether a sample has converged.
    """
    fits = [
        (_FORCINGS[0], _ROUGH_TOLERANCE, "samples"),
        (_FORCINGS[1], DECREMENT_LIMIT, "refined samples"),
    ]
    _fit_all(fit, at, fit.settings.samples, fits if fit.settings.refine else fits[:1])
    return replace(at, finished=True)


def _fit_all(
    fit: Fit, at: Round, count: int, fits: Sequence[tuple[float, float, str]]
) -> None:
    """Fit the first ``count`` samples, from earlier fits or from the mode.

    Each batch has its ``fits`` in turn: forcing, tolerance and name. A pair of batches
    begins if it would end in time at the pace of the last one. The first pair is always
    fitted, and marked as unconverged if there is no time to refine it.
    """
    pairs = np.arange(0, count, 2)
    together = fit.settings.block * fit.teams.size
    parts = np.array_split(pairs, math.ceil(len(pairs) / together))
    # The second samples of pairs start from the first ones.
    batches = [(part + side).tolist() for part in parts for side in (0, 1)]
    of_pair, of_fit, late = Pace(fit.time_left), Pace(fit.time_left), False
    for place, (numbers, one) in enumerate(itertools.product(batches, fits)):
        if place < at.fitted:
            continue
        pair, within = divmod(place, 2 * len(fits))
        if pair and not within and (late or not of_pair.allows()):
            fit.out_of_time = True
            return
        timely = of_fit.allows() and not late
        if place % len(fits) and not pair and not timely:
            fit.out_of_time = late = True
            for number in numbers:
                known = fit.samples[number]
                failed = torch.zeros_like(known.converged)
                fit.samples[number] = replace(known, converged=failed)
            continue
        forcing, tolerance, name = one
        done = sum(map(len, batches[: 1 + place // len(fits)]))
        newton = fit.newton(
            at.total,
            solver=fit.settings.sample_solver,
            forcing=forcing,
            stage=f"{name} {done - len(numbers) + 1}-{done}",
        )
        newton = perturbed(newton, fit.seed, numbers, fit.shared_errors)
        if fit.batch is None:
            fit.batch = Samples.at(_starts(fit, newton, numbers))
        fitted = fit_samples(
            newton,
            fit.batch,
            steps=fit.settings.newton_steps,
            tolerance=tolerance * fit.enough,
            save=lambda batch: fit.save(batch=batch),
            teams=fit.teams,
        )
        for row, number in enumerate(numbers):
            fit.samples[number] = fitted.select(torch.tensor([row]))
        fit.save(batch=None, round=replace(at, fitted=place + 1))


def _starts(
    fit: Fit, newton: GaussNewton, numbers: Sequence[int]
) -> Float[Tensor, "b p"]:
    """Return earlier fits; else the mode, or the antithetic twin's reflection."""
    assert fit.mode is not None
    known, mode = fit.samples, fit.mode.eps
    starts = [known[n].eps[0] if n in known else mode for n in numbers]
    starts = torch.stack(starts)
    new = [i for i, n in enumerate(numbers) if n % 2 and n not in known]
    if new:
        twins = torch.cat([known[numbers[i] - 1].eps for i in new])
        some, apply = newton.select(torch.tensor(new)), newton.model.apply
        both = [starts[new], 2 * mode - twins]
        values = [some.value(eps, apply(eps)) for eps in both]
        better = values[1] < values[0]
        starts[new] = torch.where(better[:, None], both[1], both[0])
    return starts


def perturbed(
    newton: GaussNewton,
    seed: int,
    numbers: Sequence[int],
    shared: Float[Tensor, "n r"] | None = None,
) -> GaussNewton:
    """Return the objectives of these samples: 2k and 2k + 1 are antithetic.

    The data are perturbed by their noise and by their ``shared`` errors.
    """
    y, pairs = newton.y, [number // 2 for number in numbers]
    errors, xi = drawn_errors(newton.model, newton.noise, seed, pairs, shared)
    signs = y.new_tensor([-1.0 if number % 2 else 1.0 for number in numbers])[:, None]
    return replace(newton, y=y + signs * errors.to(y), centre=signs * xi)


def fit_samples(
    newton: GaussNewton,
    at: Samples,
    *,
    steps: int,
    tolerance: float,
    save: Callable[[Samples], None] | None = None,
    teams: Group | None = None,
) -> Samples:
    """Step until expected decreases are below ``tolerance`` [nats], ``steps`` at most.

    A tolerance in nats does not depend on the size of the signal, as a relative
    residual would. The solver only limits the number of iterations. Each of the
    ``teams`` makes the steps of its share of the samples. ``save`` is called between
    two steps.

    Raises
    ------
    FloatingPointError
        If a prediction, the objective or a solve is not finite.
    """
    tangent, teams = None, teams or Group()
    while True:
        where = f"{newton.stage}, step {at.steps}"
        members = torch.nonzero(~at.converged)[:, 0]
        share, counts = teams.share(len(members))
        own = at.select(members[share])
        eps, decrease, count = own.eps, own.expected_decrease, own.iterations
        moved = torch.ones_like(own.converged)
        if len(eps):
            if tangent is None:
                tangent = newton.model.linearise(eps)
            require_finite(where, prediction=tangent.prediction)
            step = newton.select(members[share]).step(tangent, eps, where)
            eps, decrease, moved = step.eps, step.expected_decrease, step.moved
            count, tangent = count + step.solution.iterations, step.tangent
        found = [teams.gather(x, counts, dim=0) for x in (eps, decrease, count, moved)]
        ended = (found[1] < tolerance) | ~found[3]
        names = ("eps", "expected_decrease", "iterations", "converged")
        columns = {name: getattr(at, name).clone() for name in names}
        for column, new in zip(columns.values(), (*found[:3], ended), strict=True):
            column[members] = new
        at = Samples(**columns, steps=at.steps + 1)
        if bool(at.converged.all()) or at.steps >= steps:
            return replace(at, converged=at.expected_decrease < tolerance, steps=0)
        # Recompute the tangent when samples have left the batch, as after a restart.
        tangent = None if bool(ended.any()) else tangent
        if save is not None:
            save(at)


def drawn_errors(
    model: ForwardModel,
    noise: NoiseModel,
    seed: int,
    numbers: Sequence[int],
    shared: Float[Tensor, "n r"] | None = None,
) -> tuple[Float[Tensor, "b n"], Float[Tensor, "b p"]]:
    """Draw errors of the data, and ξ, of some pairs of samples.

    Errors have covariance Σ, plus ``F Fᵀ`` for ``shared`` errors F. Their white noise
    and ξ depend on the seed and a pair's number only.
    """

    def white(purpose: Purpose, count: int) -> Float[Tensor, "b c"]:
        drawn = [stream(seed, purpose, n).standard_normal(count) for n in numbers]
        return torch.from_numpy(np.stack(drawn))

    errors = noise.coloured(white(Purpose.DATA, len(model.functionals)))
    xi = [model.white_noise(stream(seed, Purpose.LATENT, n)) for n in numbers]
    if shared is not None:
        unknown = white(Purpose.SHARED, shared.shape[1])
        for row, each in zip(errors, unknown, strict=True):
            row += (shared.double() @ each).to(row)
    return errors, torch.stack(xi)
