r"""Posterior mean and posterior samples from all observations at once.

For a model with tangent Φ and Gaussian noise of variance Σ (Wu et al. 2021, eq. S2–S5,
without the block-independence of q):

``Λ = I + Φᵀ Σ⁻¹ Φ``, ``m = Λ⁻¹ Φᵀ Σ⁻¹ (y − Lμ)``, ``S = Λ⁻¹``,
``ε_s = m + Λ⁻¹ (Φᵀ Σ^{-1/2} η + ξ)`` with η, ξ standard normal.

Λ is only ever applied. A non-linear model is solved by Gauss–Newton steps on its
tangents, halved until the posterior does not fall; each of its samples is a fit to
perturbed data (:mod:`dustmap.inference.full_batch.randomized_map`). For a linear model
whose noise does not depend on the field the first step is the answer, and samples are
exact.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.checkpoint import Checkpointer, require_finite
from dustmap.distributed.group import Group
from dustmap.inference.full_batch.gauss_newton import OnStep, Precision, Task, quiet
from dustmap.inference.full_batch.mode import find_mode, refined_mode
from dustmap.inference.full_batch.randomized_map import drawn_errors, fit_rounds
from dustmap.inference.full_batch.settings import FullBatch
from dustmap.inference.full_batch.state import (
    FIRST,
    InferenceState,
    Iterate,
    Priors,
    Progress,
    Samples,
)
from dustmap.keyed_noise import Purpose, stream
from dustmap.linalg.cg import Solution
from dustmap.models.base import ForwardModel, Linearisation
from dustmap.noise import FEWEST, NoiseModel, Normal
from dustmap.shapes import Eps, EpsDraws, Vector

# The name of the search of the mode after the samples.
_AGAIN = "mode again"


@dataclass(frozen=True, slots=True, kw_only=True)
class FullBatchResult:
    """Mean and samples of ε given the data, with the status of their solves.

    ``noise_variance`` is the final Σ (sub-grid noise, distance errors and outliers'
    weights included); ``mean`` is the posterior mean of a linear model, else the mode;
    ``prediction`` is ``apply(m)`` at the observations; ``weights`` and ``degrees`` are
    the weights and ν of the Student-T distribution (``None`` if the noise is normal);
    ``common_noise`` is the learnt ``τ²`` and ``subgrid_share`` the model's α. If α was
    learnt, ``share_settled`` says whether it converged inside the trial range.
    ``converged`` is true if mode and samples are, ``mode_converged`` if the
    mode is. ``determined`` estimates the diagonals of ``G = 1 − Λ⁻¹`` and ``G²`` of
    the latent numbers (Fourier modes of ε where the model has them), if there were
    probes: sums of many of them are accurate.
    """

    mean: Eps
    samples: EpsDraws
    noise_variance: Vector
    prediction: Vector
    newton_steps: int
    mean_solution: Solution
    sample_solution: Solution | Samples | None
    mode_converged: bool
    converged: bool
    weights: Vector
    degrees: float | None = None
    common_noise: float = 0.0
    subgrid_share: float = 1.0
    share_settled: bool = True
    determined: Float[Tensor, "2 l"] | None = None


def infer(
    model: ForwardModel,
    observations: Vector,
    noise: NoiseModel | Vector,
    *,
    settings: FullBatch,
    generator: torch.Generator,
    start: Eps | None = None,
    on_step: OnStep = quiet,
    checkpointer: Checkpointer[Progress] | None = None,
    teams: Group | None = None,
    shared_errors: Float[Tensor, "n r"] | None = None,
    priors: Priors | None = None,
) -> FullBatchResult:
    """Infer the posterior mean (of a non-linear model the mode) and samples of ε.

    Parameters
    ----------
    observations, noise
        ``y_n``, and ``σ_n²`` or a full noise model.
    generator
        For the preconditioner's sketch and the samples, in this order.
    start
        Initial ε.
    on_step
        Called with the `Task`, the iteration and the worst relative residual; after
        every Gauss–Newton step with the task ``misfit`` and ``mean (y − apply)²/Σ``.
    checkpointer
        Saves the progress after every Gauss–Newton step to the mode, and every pair of
        batches of samples (of a linear model, every block). A restored inference gives
        bit-identical results (same numbers of processes and threads) and ignores
        ``start``. Progress holds the finished samples, a few vectors like ε and Σ, and
        the generator's state. Restoring costs ``preconditioner_rank`` products with Λ
        to rebuild the preconditioner.
    teams
        The counterparts of this rank (`Group.split`), among which samples are divided;
        the rank's own team divides the rows of the model. Within stages of samples
        every team calls ``on_step`` by itself.
    shared_errors
        F, the errors of the observations per standard deviation of r shared unknowns,
        such as zero points. Samples have data perturbed by F z, too, with standard
        normal z; Σ, and hence the mean, does not contain these errors.
    priors
        Mean and standard deviations of ε for every pair of samples of a non-linear
        model, instead of zero and one.

    Raises
    ------
    ValueError
        If shapes disagree, a variance is not positive, a value is not finite, a
        non-linear model is given an odd number of samples, or the restored state
        belongs to another inference.
    FloatingPointError
        If a prediction, Σ, the objective or a solve is not finite.
    """
    noise = Normal(stated=noise) if isinstance(noise, Tensor) else noise
    _check(model, observations, noise.variance, start)
    if shared_errors is not None and len(shared_errors) != len(observations):
        raise ValueError(
            f"shared_errors must have a row for each of {len(observations)} "
            f"observations, got {len(shared_errors)}"
        )
    if not model.linear and settings.samples % 2:
        raise ValueError(
            "samples of a model that is not linear come in pairs: take an even number "
            f"instead of {settings.samples}"
        )
    if isinstance(noise, Normal):
        # Samples of a non-linear model and enough data are needed to learn α.
        allowed = settings.samples > 0 and settings.subgrid_noise and not model.linear
        enough = allowed and len(observations) >= FEWEST
        noise = replace(noise, learn_share=noise.learn_share and enough)
    fit = InferenceState(
        model,
        observations,
        noise,
        settings,
        generator,
        on_step=on_step,
        checkpointer=checkpointer,
        teams=teams or Group(),
        shared_errors=shared_errors,
        priors=priors,
    )
    mode, solved = fit.progress.mode, None
    if mode is None or mode.search == FIRST:
        eps = torch.zeros(model.latent_size, dtype=model.dtype, device=model.device)
        mode = find_mode(fit, eps if start is None else start.to(eps))
    samples = mode.eps.new_zeros(0, len(mode.eps))
    if fit.progress.seed < 0:
        fit.note(seed=int(torch.randint(2**62, (1,), generator=generator)))
    if not settings.samples:
        if settings.refine and not model.linear:
            mode = refined_mode(fit, mode)
        total = fit.tangent(mode.eps)[1].variance
    elif model.linear:
        tangent, noise = fit.tangent(mode.eps)
        solved = _linear_samples(fit, tangent, noise, mode.eps)
        samples, total = solved.value, noise.variance
    else:
        # A later search of the mode follows the samples, and has their Σ.
        total = mode.total if mode.search == _AGAIN else fit_rounds(fit, mode.eps)
        if fit.noise.learn_share:
            # The mode excluded the held-out observations and had other weights.
            mode = find_mode(fit, mode.eps, fixed=total, name=_AGAIN)
        solved = Samples.joined(fit.samples)
        samples = solved.eps
    assert mode.solution is not None
    determined = _determined(fit, mode)
    return FullBatchResult(
        mean=mode.eps,
        samples=samples,
        noise_variance=total,
        prediction=fit.model.linearise(mode.eps).prediction,
        newton_steps=mode.count,
        mean_solution=mode.solution,
        sample_solution=solved,
        mode_converged=mode.converged,
        converged=mode.converged and (solved is None or bool(solved.converged.all())),
        weights=fit.noise.weights.to(total).expand_as(total),
        degrees=fit.noise.degrees,
        common_noise=fit.noise.common,
        subgrid_share=fit.model.subgrid_share,
        share_settled=fit.progress.share_settled,
        determined=determined,
    )


def _linear_samples(
    fit: InferenceState, tangent: Linearisation, noise: NoiseModel, mean: Eps
) -> Solution:
    """Return ``m + Λ⁻¹ (Φᵀ Σ⁻¹ e + ξ)`` in blocks, with drawn errors e and white ξ.

    The fit is saved after every block.

    Raises `FloatingPointError` if a solve is not finite.
    """
    settings, precision = fit.settings, Precision(tangent.operator, noise)

    def right_side(number: int) -> Float[Tensor, "1 p"]:
        given = fit.model, noise, fit.progress.seed, [number], fit.shared_errors
        errors, xi = drawn_errors(*given)
        return tangent.operator.rmatvec(noise.apply_precision(errors.to(fit.y))) + xi

    blocks = fit.blocks
    while (first := sum(len(block.value) for block in blocks)) < settings.samples:
        last = min(first + settings.block * fit.teams.size, settings.samples)
        task = Task(name="samples", first=first + 1, last=last, total=settings.samples)
        share, counts = fit.teams.share(last - first)
        sides = [right_side(number) for number in range(first, last)[share]]
        block = settings.sample_solver.solve(
            precision.matvec,
            torch.cat(sides) if sides else mean.new_zeros(0, len(mean)),
            preconditioner=fit.preconditioner,
            on_step=functools.partial(fit.on_step, task),
        )
        require_finite(str(task), residual=block.residual)
        each = {item.name: getattr(block, item.name) for item in fields(block)}
        block = Solution(
            **{n: fit.teams.gather(x, counts, dim=0) for n, x in each.items()}
        )
        blocks.append(block)
        fit.save(samples=tuple(blocks))
    done = Solution.joined(blocks)
    return replace(done, value=mean + done.value)


def _determined(fit: InferenceState, mode: Iterate) -> Float[Tensor, "2 p"] | None:
    """Estimate the diagonals of G = 1 − Λ⁻¹ and G² at the mode (Hutchinson)."""
    model, count = fit.model, fit.settings.probes
    if not count or model.linear:
        return None
    tangent, noise = fit.tangent(mode.eps)
    precision = Precision(tangent.operator, noise)
    total = mode.eps.new_zeros(2, len(mode.eps))
    for numbers in torch.arange(count).split(fit.settings.block):
        draws = [stream(fit.progress.seed, Purpose.PROBES, int(n)) for n in numbers]
        probe = torch.stack([model.white_noise(draw) for draw in draws])
        # Sums over some hundred determined numbers are then 2% to 15% smaller than
        # after 160 iterations.
        solved = precision.solve(
            probe,
            replace(fit.settings.solver, rtol=0.1, max_steps=40),
            preconditioner=fit.preconditioner,
            on_step=functools.partial(fit.on_step, Task(name="spectrum")),
        )
        require_finite("probes of the spectrum", residual=solved.residual)
        seen = probe - solved.value
        total[0] += (probe * seen).sum(dim=0)
        total[1] += (seen * seen).sum(dim=0)
    return total / count


def _check(
    model: ForwardModel, y: Tensor, noise_variance: Tensor, start: Tensor | None
) -> None:
    n = len(model.functionals)
    arrays = {"observations": (y, n), "noise_variance": (noise_variance, n)}
    if start is not None:
        arrays["start"] = (start, model.latent_size)
    for name, (values, size) in arrays.items():
        if values.shape != (size,):
            raise ValueError(
                f"{name} must have shape ({size},), got {tuple(values.shape)}"
            )
        bad, allowed = ~torch.isfinite(values), "finite"
        if name == "noise_variance":
            bad, allowed = bad | ~(values > 0), "positive and finite"
        if bool(bad.any()):
            raise ValueError(
                f"{name} must be {allowed}, {int(bad.sum())} of {size} values are not"
            )
