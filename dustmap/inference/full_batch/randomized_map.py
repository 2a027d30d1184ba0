r"""Posterior samples of a non-linear model by randomised maximum likelihood.

A sample is the mode of a posterior with perturbed data and prior mean,

``ε_s = argmin ½ |(ε − ξ_s)/a_s|² + ½ |R (y + R⁻¹ η_s − apply(ε))|²``

with ``Σ⁻¹ = RᵀR``, η_s and ξ_s standard normal: *randomised maximum likelihood*
(Oliver, He & Reynolds 1996; Bardsley et al. 2014, SIAM J. Sci. Comput. 36, A1895,
without their weights). For a linear model these are exact samples. For a non-linear one
every sample still fits its data; samples from the tangent at the mode do not, and
diverge where the density is uncertain by a factor of ten.

The spectrum of the prior is known to some per cent only. Every pair of samples may
have one of its own, S_s instead of S: then :math:`a_s = \sqrt{S_s / S}` at the modes'
wavenumbers, else one, and ξ_s has these standard deviations.

Samples are fitted in rounds, with Σ updated from the samples between them, and in
batches, of which one pass over W serves all members.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.checkpoint import require_finite
from dustmap.distributed.group import Group
from dustmap.inference.full_batch.gauss_newton import GaussNewton, Task
from dustmap.inference.full_batch.mode import DECREMENT_LIMIT
from dustmap.inference.full_batch.state import InferenceState, Priors, Round, Samples
from dustmap.keyed_noise import Purpose, stream
from dustmap.models.base import ForwardModel
from dustmap.noise import NoiseModel
from dustmap.shapes import Draws, Eps, EpsDraws, Vector

# Forcing, tolerance and name.
Fit = tuple[float, float, str]


def fit_rounds(fit: InferenceState, mode: Eps) -> Vector:
    """Fit all samples, starting from the mode; return their Σ.

    Unless Σ is fixed, it is learnt from up to three rounds of four rough samples, the
    first with the Σ of the mode. If the share of the unresolved variance is learnt,
    rough samples exclude the held-out observations, from which the share is estimated;
    the fit's model receives it, and ``share_settled`` records whether it converged
    inside the trial range.

    Raises `FloatingPointError` if a prediction, Σ, an objective or a solve is not
    finite.
    """
    at, few = fit.progress.round, min(4, fit.settings.samples)
    if at is None:
        tangent, noise = fit.tangent(mode)
        fit.precondition(tangent, mode, noise.variance)
        at = Round(total=noise.variance, rough=not noise.fixed)
        # It holds a vector as large as a sample.
        del tangent
    # Tolerances of solves, relative to the gradient, and of fits, relative to `enough`.
    # The total cost of a sample is least with solves to between 0.1 and 0.5; the
    # expected decrease is 12% too small at 0.3 and 2% at 0.1 (for 24 samples, compared
    # with a tolerance of 0.01).
    rough = (0.3, 2.0)
    fits = [(*rough, "rough samples")]
    while at.rough:
        _fit_all(fit, mode, at, few, fits)
        at = _learnt(fit, at, few)
        if not at.rough and not fit.settings.refine and few == fit.settings.samples:
            return at.total
    # Rough solves, refined by a step or more: the last step's expected decrease decides
    # whether a sample has converged.
    fits = [(*rough, "samples"), (0.1, DECREMENT_LIMIT, "refined samples")]
    fits = fits if fit.settings.refine else fits[:1]
    _fit_all(fit, mode, at, fit.settings.samples, fits)
    return at.total


def _learnt(fit: InferenceState, at: Round, few: int) -> Round:
    """Learn Σ from a few rough samples; return the next round, final if α settled."""
    learnt = fit.noise.learn_share
    eps = torch.cat([one.eps for one in fit.samples[:few]])
    before, total = fit.noise.share, fit.learn_over(eps)
    # Within 20% the share counts as unchanged.
    still = abs(math.log(fit.noise.share / before)) < math.log(1.2)
    fit.note(share_settled=still and not fit.noise.at_edge)
    number = at.number + 1
    last = still or not learnt or number == 3
    if last and learnt:
        total = fit.include_all(eps)
    require_finite("samples, rough round", noise_variance=total)
    return Round(total=total, rough=not last, number=0 if last else number)


def _fit_all(
    fit: InferenceState, mode: Eps, at: Round, count: int, fits: Sequence[Fit]
) -> None:
    """Fit the first ``count`` samples, from earlier fits or from the mode.

    Each batch has all ``fits`` in turn. A pair of batches is saved at its end.
    """
    pairs = np.arange(0, count, 2)
    together = fit.settings.block * fit.teams.size
    parts = np.array_split(pairs, math.ceil(len(pairs) / together))
    samples = dict(enumerate(fit.samples))
    for pair, part in list(enumerate(parts))[at.pairs :]:
        # The second samples of pairs start from the first ones.
        for side, (forcing, tolerance, name) in itertools.product((0, 1), fits):
            numbers = (part + side).tolist()
            first = int(part[0]) + side * len(part) + 1
            last = first + len(part) - 1
            newton = fit.newton(
                at.total,
                # What is left then is a tenth of the tolerance or little more.
                solver=replace(fit.settings.sample_solver, gain=0.1 * fit.enough),
                forcing=forcing,
                task=Task(name=name, first=first, last=last, total=count),
            )
            seed = fit.progress.seed
            newton = perturbed(newton, seed, numbers, fit.shared_errors, fit.priors)
            fitted = fit_samples(
                newton,
                Samples.at(_starts(samples, mode, newton, numbers)),
                steps=fit.settings.newton_steps,
                tolerance=tolerance * fit.enough,
                teams=fit.teams,
            )
            for row, number in enumerate(numbers):
                samples[number] = fitted.select(torch.tensor([row]))
        finished = tuple(samples[number] for number in sorted(samples))
        fit.save(samples=finished, round=replace(at, pairs=pair + 1))


def _starts(
    known: Mapping[int, Samples], mode: Eps, newton: GaussNewton, numbers: Sequence[int]
) -> EpsDraws:
    r"""Return earlier fits, or first guesses.

    The guess of a pair's first sample is :math:`m + \hat\Lambda^{-1} \xi_s` with the
    preconditioner's Λ: what the data do not determine is drawn from the prior at once,
    instead of by conjugate gradients from the mode. The guess of the second sample is
    the mode or the reflection of the first.
    """
    starts = [known[n].eps[0] if n in known else mode for n in numbers]
    starts, centre = torch.stack(starts), newton.centre
    first = [i for i, n in enumerate(numbers) if not n % 2 and n not in known]
    if first and newton.preconditioner is not None and centre is not None:
        starts[first] += newton.preconditioner.inverse(centre[first])
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
    priors: Priors | None = None,
) -> GaussNewton:
    """Return the objectives of these samples; 2k and 2k + 1 are antithetic.

    The data are perturbed by their noise and by their ``shared`` errors; the pair has
    its own of the ``priors``.
    """
    y, pairs = newton.y, [number // 2 for number in numbers]
    errors, xi = drawn_errors(newton.model, newton.noise, seed, pairs, shared)
    signs = y.new_tensor([-1.0 if number % 2 else 1.0 for number in numbers])[:, None]
    perturbed = replace(newton, y=y + signs * errors.to(y), centre=signs * xi)
    if priors is None:
        return perturbed
    shifts, stds = (torch.stack(x) for x in zip(*map(priors, pairs), strict=True))
    return replace(perturbed, centre=shifts + signs * stds * xi, stds=stds)


def fit_samples(
    newton: GaussNewton,
    at: Samples,
    *,
    steps: int,
    tolerance: float,
    teams: Group | None = None,
) -> Samples:
    """Step until expected decreases are below ``tolerance`` [nats], ``steps`` at most.

    A tolerance in nats does not depend on the size of the signal, as a relative
    residual would. The solver only limits the number of iterations. Each of the
    ``teams`` makes the steps of its share of the samples.

    Raises `FloatingPointError` if a prediction, the objective or a solve is not finite.
    """
    tangent, teams = None, teams or Group()
    for number in range(steps):
        where = f"{newton.task}, step {number}"
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
        at = Samples(**columns)
        if bool(at.converged.all()):
            break
        # Recompute the tangent when samples have left the batch.
        tangent = None if bool(ended.any()) else tangent
    return replace(at, converged=at.expected_decrease < tolerance)


def drawn_errors(
    model: ForwardModel,
    noise: NoiseModel,
    seed: int,
    numbers: Sequence[int],
    shared: Float[Tensor, "n r"] | None = None,
) -> tuple[Draws, EpsDraws]:
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
