"""Stochastic variational inference: of any regression, and of HIP-GP as published.

Departures from HIP-GP's paper, each because the published step fails without it:

- The step of m is cut where ``l λ_max(S Λ̂) > 1`` on the batch at hand: with blocks,
  unit steps of S11 diverge. Cuts are counted.
- Without a stated rate ``S⁻¹`` is the plain average of the minibatches' Λ̂
  (:meth:`dustmap.inference.svi.settings.SvgpSettings.length`).
- Hyperparameters rest for the first epoch: while q is near the prior their gradients
  are so large that Adam's second moments stall it afterwards (measured: τ² a factor of
  14 short after 150 steps).
- m is solved exactly at the end by conjugate gradients, unless declined.
- Rows whose hyperparameters are fixed are solved once where memory allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.checkpoint import Checkpointer, require_finite
from dustmap.functionals import Functionals
from dustmap.inference.svi.blocks import block_independent
from dustmap.inference.svi.bound import (
    GaussianData,
    Observations,
    Observed,
    bound,
)
from dustmap.inference.svi.hyperparameters import Hyperparameters, widened
from dustmap.inference.svi.low_rank import low_rank
from dustmap.inference.svi.model import NaturalFamily
from dustmap.inference.svi.plateau import PlateauCheck
from dustmap.inference.svi.precision import PrecisionGaussian
from dustmap.inference.svi.result import SvgpResult
from dustmap.inference.svi.settings import SvgpSettings
from dustmap.inference.svi.training import Trainer
from dustmap.likelihoods import Gaussian as NormalNoise
from dustmap.likelihoods import Likelihood
from dustmap.linalg.cg import ConjugateGradients, Solution
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import ToeplitzWhitening, Whitening

OnStep = Callable[[int, int, float], None]
OnProgress = Callable[[str, int], None]


def fit_svgp(
    functionals: Functionals,
    values: Float[Tensor, " n"],
    whitening: Whitening,
    likelihood: Likelihood,
    *,
    generator: torch.Generator,
    mean: float = 0.0,
    settings: SvgpSettings | None = None,
    on_step: OnStep | None = None,
) -> SvgpResult:
    """Fit q and hyperparameters to data.

    Parameters
    ----------
    functionals, values
        ``L_n`` and ``y_n``.
    whitening
        The kernel and inducing points where learning starts.
    likelihood, mean
        Where they start.
    generator
        Draws minibatches and whatever else is random: the same seed, the same fit.
    settings
        How.
    on_step
        Called as ``on_step(step, steps, latest bound estimate)``.

    Raises
    ------
    ValueError
        If shapes disagree, q would not fit into memory, or what is to be learnt does
        not exist.
    FloatingPointError
        If a row, the bound, q or a hyperparameter ceases to be finite.
    """
    settings = SvgpSettings() if settings is None else settings
    values = values.to(torch.float64).to(whitening.covariance.device)
    likelihood = likelihood.to(values.device)
    if values.shape != (len(functionals),) or not len(functionals):
        raise ValueError(
            f"{len(functionals)} functionals need as many values, at least one, got "
            f"{tuple(values.shape)}"
        )
    likelihood.check(values)
    forward = RowwiseGaussian(whitening, functionals, tolerance=settings.tolerance)
    q = initial_family(forward, settings)
    seed = int(torch.randint(2**62, (), generator=generator))
    trainer = Trainer(
        forward,
        Observations(values=values, likelihood=likelihood),
        q,
        Hyperparameters(whitening, likelihood, settings, mean),
        settings,
        generator,
        estimates=torch.Generator().manual_seed(seed),
    )
    return _trained(trainer, on_step, None, None)


def fit_svi(
    model: RowwiseGaussian,
    data: GaussianData,
    settings: SvgpSettings,
    *,
    generator: torch.Generator,
    on_step: OnStep | None = None,
    on_progress: OnProgress | None = None,
    checkpointer: Checkpointer | None = None,
) -> SvgpResult:
    """The same for normal noise on a forward model; it can be resumed.

    Parameters
    ----------
    model
        Observations and whitening, whose solver's tolerance and step limit are those of
        every row (HIP-GP's early stopping).
    data
        Values and noise; a learnt common noise starts from its ``common_noise``, or
        where that is 0 from a tenth of the median ``σ_n²``.
    settings
        How; of a family of blocks or low rank.
    generator, on_step
        As in :func:`fit_svgp`.
    on_progress
        Called with ``rows`` and the number of rows solved while they are kept, and with
        ``mean`` and the iteration of its solve.
    checkpointer
        Takes the state after every step, and gives one to go on from, with the same
        numbers, bit by bit (on the CPU, one process, as many threads). A state holds q,
        what was learnt, the optimiser's moments and the record. Rows that are kept are
        solved anew.

    Raises
    ------
    ValueError, FloatingPointError
        As in :func:`fit_svgp`, and if the restored state is that of another run.
    """
    if settings.learns("likelihood") and not float(data.common_noise):
        data = replace(data, common_noise=0.1 * float(data.noise.median()))
    if settings.learns("kernel") and isinstance(model.whitening, ToeplitzWhitening):
        model = model.on(widened(model.whitening, settings.lengthscale_range))
    trainer = Trainer(
        model,
        data,
        initial_family(model, settings),
        Hyperparameters(model.whitening, data.likelihood, settings),
        settings,
        generator,
    )
    state = None if checkpointer is None else checkpointer.restore()
    if state is not None:
        trainer.restore(state)
        del state
    return _trained(trainer, on_step, on_progress, checkpointer)


def _trained(
    trainer: Trainer,
    on_step: OnStep | None,
    on_progress: OnProgress | None,
    checkpointer: Checkpointer | None,
) -> SvgpResult:
    """The steps that are left, the mean solved, and the bound on all data."""
    settings, forward = trainer.settings, trainer.forward

    def tell(part: str, number: int) -> None:
        if on_progress is not None:
            on_progress(part, number)

    if not trainer.hyperparameters.moves_features and _fits(forward, settings):
        forward.keep_rows(on_rows=lambda rows: tell("rows", rows))
    check = _plateau_check(trainer)
    _look(check, trainer)
    for step in trainer.run():
        _look(check, trainer)
        if on_step is not None:
            on_step(step, trainer.count, trainer.bounds[-1])
        if checkpointer is not None:
            checkpointer.save(trainer.state())
    model, solution = trainer.model(), None
    data = Observations(
        values=trainer.data.values,
        likelihood=model.likelihood,
        offset=model.mean * trainer.ones,
        subgrid_noise=trainer.data.subgrid_noise,
    )
    if settings.solve_mean:
        if _fits(model.forward, settings):
            model.forward.keep_rows(on_rows=lambda rows: tell("rows", rows))
        solution = solve_mean(
            model.forward,
            data,
            solver=ConjugateGradients(
                rtol=settings.mean_tolerance, max_steps=settings.mean_max_steps
            ),
            start=model.q.mean,
            on_step=lambda step, _: tell("mean", step),
        )
        require_finite("svi, the mean", residual=solution.residual)
        model = replace(model, q=model.q.with_mean(solution.value[0]))
    value = bound(model.forward, data, model.q, trainer.estimates)
    require_finite("svi, the end", bound=value.value)
    q = trainer.q
    return SvgpResult(
        model=model,
        bound=value,
        count=trainer.count,
        recorded=torch.tensor(trainer.recorded),
        bound_trace=torch.tensor(trainer.bounds, dtype=torch.float64),
        hyperparameter_trace=trainer.trace(),
        rows=model.forward.report,
        steps=trainer.report,
        bounded_steps=trainer.hyperparameters.bounded_steps,
        solves=q.solves if isinstance(q, PrecisionGaussian) else None,
        mean_solution=solution,
        rise=None if check is None else check.rise(model),
    )


def _fits(forward: RowwiseGaussian, settings: SvgpSettings) -> bool:
    return forward.kept_bytes <= settings.row_memory


def _plateau_check(trainer: Trainer) -> PlateauCheck | None:
    if not trainer.settings.watch_rows:
        return None
    assert trainer.estimates is not None
    return PlateauCheck(
        trainer.forward.functionals,
        trainer.data.values + trainer.forward.offset,
        rows=trainer.settings.watch_rows,
        steps=trainer.count,
        generator=trainer.estimates,
    )


def _look(check: PlateauCheck | None, trainer: Trainer) -> None:
    if check is not None and trainer.steps == check.begin:
        check.look(trainer.model())


def initial_family(
    forward: RowwiseGaussian,
    settings: SvgpSettings,
) -> NaturalFamily:
    """The prior in the family asked for.

    Raises
    ------
    ValueError
        If it would not fit into memory.
    """
    size, shape = forward.latent_size, forward.whitening.latent_shape
    widths = {"mean-field": 1, "block": settings.block, "full": max(shape)}
    if settings.family == "low-rank":
        # A step has the old columns and those of the batch at once.
        _check_memory(settings, size, min(settings.rank, size) + settings.batch_size)
        return low_rank(shape, settings.rank, forward.device)
    block = [min(widths[settings.family], n) for n in shape]
    _check_memory(settings, size, math.prod(block))
    if settings.family == "full" and settings.solves == "iterative":
        return PrecisionGaussian(
            size,
            solver=ConjugateGradients(
                rtol=settings.solver_rtol, max_steps=settings.solver_max_steps
            ),
            dense_limit=settings.dense_limit,
            device=forward.device,
        )
    return block_independent(shape, block, forward.device)


def _check_memory(settings: SvgpSettings, size: int, width: int) -> None:
    """Refuse a q of ``width`` numbers per parameter that does not fit.

    The precision, its factor and the fresh estimate exist at once; with iterative
    solves the precision alone.
    """
    copies = 3
    if settings.family == "full" and settings.solves == "iterative":
        copies = 1
    needed = copies * 8 * size * width
    if needed > settings.covariance_memory:
        raise ValueError(
            f"a {settings.family} covariance of {size} parameters takes "
            f"{needed / 2**30:.1f} GiB, more than "
            f"{settings.covariance_memory / 2**30:.1f}: use smaller blocks or a lower "
            "rank, fewer inducing points, iterative solves, or the direct optimum, "
            "which never forms it"
        )


def solve_mean(
    model: RowwiseGaussian,
    data: Observed,
    *,
    solver: ConjugateGradients,
    start: Float[Tensor, " p"] | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> Solution:
    """``(I + Φᵀ Σ⁻¹ Φ) m = Φᵀ Σ⁻¹ r`` by CG: S5, the optimal m of every family.

    Cost: two products with kept rows for each iteration, else two solves with K (only
    the variances that sub-grid noise adds need every row).

    Raises
    ------
    ValueError
        If the noise is not normal.
    """
    likelihood = data.likelihood
    if not isinstance(likelihood, NormalNoise):
        raise ValueError(
            "the mean is solved for in closed form with normal noise only, got "
            f"{type(likelihood).__name__}: take solve_mean=False"
        )
    noise, residual = likelihood.noise, data.values
    if data.offset is not None:
        residual = residual - data.offset
    if data.subgrid_noise:
        noise = noise + model.variance
    operator = model.operator

    def product(x: Tensor) -> Tensor:
        return x + operator.rmatvec(operator.matvec(x) / noise)

    return solver.solve(
        product,
        operator.rmatvec((residual / noise)[None]),
        start=None if start is None else start[None],
        on_step=on_step,
    )
