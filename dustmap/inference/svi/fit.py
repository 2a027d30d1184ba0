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

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.checkpoint import Checkpointer, require_finite
from dustmap.functionals import Functionals
from dustmap.inference.svi.bound import Observations, elbo
from dustmap.inference.svi.hyperparameters import widened
from dustmap.inference.svi.result import PlateauCheck, SvgpResult
from dustmap.inference.svi.settings import SvgpSettings
from dustmap.inference.svi.training import Trainer
from dustmap.likelihoods import Gaussian as NormalNoise
from dustmap.likelihoods import Likelihood
from dustmap.linalg.cg import ConjugateGradients, Solution
from dustmap.models.means import ConstantMean
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
    if values.shape != (len(functionals),) or not len(functionals):
        raise ValueError(
            f"{len(functionals)} functionals need as many values, at least one, got "
            f"{tuple(values.shape)}"
        )
    forward = RowwiseGaussian(
        whitening,
        functionals,
        mean=ConstantMean(value=mean),
        tolerance=settings.tolerance,
    )
    data = Observations(
        values=values.to(forward.offset),
        likelihood=likelihood.to(forward.device),
        offset=forward.offset,
    )
    likelihood.check(data.values)
    seed = int(torch.randint(2**62, (), generator=generator))
    trainer = Trainer(forward, data, settings, generator)
    return _trained(trainer, on_step, None, None, seed)


def fit_svi(
    model: RowwiseGaussian,
    data: Observations,
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
        Values and noise; a learnt common noise starts from that of the likelihood, or
        where that is 0 from a tenth of the median ``σ_n²``.
    settings
        How; with ``solves = "cholesky"``.
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
    noise = data.likelihood
    assert isinstance(noise, NormalNoise)
    if settings.learns("likelihood") and not float(noise.variance):
        start = NormalNoise(variance=0.1 * noise.noise.median(), known=noise.known)
        data = replace(data, likelihood=start)
    if settings.learns("kernel") and isinstance(model.whitening, ToeplitzWhitening):
        model = model.on(widened(model.whitening, settings.lengthscale_range))
    trainer = Trainer(model, data, settings, generator)
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
    seed: int = 0,
) -> SvgpResult:
    """The steps that are left, the mean solved, and the bound on all data."""
    settings, solution = trainer.settings, None
    tell = on_progress or (lambda _part, _number: None)

    def keep_rows(forward: RowwiseGaussian) -> None:
        if forward.kept_bytes <= settings.row_memory:
            forward.keep_rows(on_rows=lambda rows: tell("rows", rows))

    if not trainer.hyperparameters.moves_features:
        keep_rows(trainer.forward)
    check = PlateauCheck(
        len(trainer.data), rows=settings.watch_rows, steps=trainer.count, seed=seed
    )
    if trainer.steps == check.begin:
        check.look(trainer.model(), trainer.observations())
    for step in trainer.run():
        if step == check.begin:
            check.look(trainer.model(), trainer.observations())
        if on_step is not None:
            on_step(step, trainer.count, trainer.bounds[-1])
        if checkpointer is not None:
            checkpointer.save(trainer.state())
    model, data, q = trainer.model(), trainer.observations(), trainer.q
    if settings.solve_mean:
        keep_rows(model.forward)
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
    bound = elbo(model.forward, data, model.q)
    require_finite("svi, the end", bound=bound)
    return SvgpResult(
        model=model,
        bound=bound,
        count=trainer.count,
        recorded=torch.tensor(trainer.recorded),
        bound_trace=torch.tensor(trainer.bounds, dtype=torch.float64),
        hyperparameter_trace=trainer.trace(),
        rows=model.forward.report,
        steps=trainer.report,
        bounded_steps=trainer.hyperparameters.bounded_steps,
        solves=q.solves,
        mean_solution=solution,
        rise=check.rise(model, data),
    )


def solve_mean(
    model: RowwiseGaussian,
    data: Observations,
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
    noise, operator = data.noise(model), model.operator

    def product(x: Tensor) -> Tensor:
        return x + operator.rmatvec(operator.matvec(x) / noise)

    return solver.solve(
        product,
        operator.rmatvec((data.residual / noise)[None]),
        start=None if start is None else start[None],
        on_step=on_step,
    )
