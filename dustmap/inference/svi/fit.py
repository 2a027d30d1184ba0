"""Stochastic variational inference for any regression, and HIP-GP as published.

Departures from HIP-GP's paper, as the published step fails without them:

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
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.checkpoint import Checkpointer, require_finite
from dustmap.functionals import Functionals
from dustmap.inference.svi.bound import Observations, Svgp, elbo, expected_terms
from dustmap.inference.svi.gaussian import NaturalGaussian, StepReport
from dustmap.inference.svi.hyperparameters import widened
from dustmap.inference.svi.settings import SvgpSettings
from dustmap.inference.svi.training import Trainer, Training
from dustmap.keyed_noise import Purpose, stream
from dustmap.likelihoods import Gaussian as NormalNoise
from dustmap.likelihoods import Likelihood
from dustmap.linalg.cg import ConjugateGradients, Solution
from dustmap.models.means import ConstantMean
from dustmap.models.rowwise import RowReport, RowwiseGaussian
from dustmap.shapes import Eps, Index, Vector
from dustmap.whitening import ToeplitzWhitening, Whitening

OnStep = Callable[[int, int, float], None]
OnProgress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRise:
    """The gain of the bound in the last ``steps``, per observation [nats].

    ``error`` is the standard error by the choice of ``rows`` observations.
    """

    value: float
    error: float
    steps: int
    rows: int

    def __str__(self) -> str:
        error = f" ± {self.error:.1g}" if self.error else ""
        return (
            f"the last {self.steps} steps moved the bound on the log-likelihood by "
            f"{self.value:+.1e}{error} per row ({self.rows} rows)"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SvgpResult:
    """The end of a fit: the model, the bound and the record.

    Parameters
    ----------
    model
        Prior, q, likelihood and mean with the final hyperparameters; it predicts.
    bound, count
        On all data, at the end; and the number of steps.
    bound_trace, learnt
        Minibatch estimates of the bound, every ``record_every`` steps, and final values
        of the hyperparameters that were learnt, by name.
    rows
        Status of the solves for features.
    steps, bounded_steps
        Actions of the safeguards of natural steps, and number of steps of a lengthscale
        that its range cut short.
    solves
        Status of iterative solves with the precision of q; none without a solver.
    mean_solution
        Status of the final solve for m, if one was made.
    rise
        The gain of the bound in the last tenth of the steps; ``None`` if not watched.
    """

    model: Svgp
    bound: float
    count: int
    bound_trace: Float[Tensor, " t"]
    learnt: dict[str, Tensor]
    rows: RowReport
    steps: StepReport
    bounded_steps: int = 0
    solves: RowReport = field(default_factory=RowReport)
    mean_solution: Solution | None = None
    rise: LateRise | None = None

    @property
    def q(self) -> NaturalGaussian:
        """The variational posterior of ε."""
        return self.model.q

    @property
    def message(self) -> str:
        """Summary in a few lines."""
        lines = [f"bound {self.bound:.6g} after {self.count} steps"]
        if self.rise is not None:
            lines.append(str(self.rise))
        if self.rows.iterations or self.rows.below_zero:
            lines.append(f"features: {self.rows}")
        lines.append(str(self.steps))
        if self.bounded_steps:
            lines.append(
                f"{self.bounded_steps} steps ended at the bound of a lengthscale: "
                "start closer or widen lengthscale_range"
            )
        if self.solves.unconverged:
            lines.append(f"precision of q: {self.solves}: take solves='cholesky'")
        if self.mean_solution is not None:
            lines.append(f"mean: {self.mean_solution.message}")
        return "\n".join(lines)


def fit_svgp(
    functionals: Functionals,
    values: Vector,
    whitening: Whitening,
    likelihood: Likelihood,
    *,
    generator: torch.Generator,
    mean: float = 0.0,
    settings: SvgpSettings | None = None,
    on_step: OnStep | None = None,
) -> SvgpResult:
    """Fit q and hyperparameters to data.

    Functionals and values are ``L_n`` and ``y_n``; whitening (kernel and inducing
    points), likelihood and constant mean are the start. The generator draws minibatches
    and all else that is random. ``on_step(step, steps, latest bound estimate)`` is
    called after each step.

    Raises
    ------
    ValueError
        If shapes disagree, q would not fit into memory, or a name to learn is unknown.
    FloatingPointError
        If a row, the bound, q or a hyperparameter ceases to be finite.
    """
    settings = SvgpSettings() if settings is None else settings
    if values.shape != (len(functionals),) or not len(functionals):
        raise ValueError(
            f"expected one value for each of {len(functionals)} functionals, at least "
            f"one, got shape {tuple(values.shape)}"
        )
    start = ConstantMean(value=mean)
    forward = RowwiseGaussian(
        whitening, functionals, mean=start, tolerance=settings.tolerance
    )
    data = Observations(
        values=values.to(forward.offset),
        likelihood=likelihood.to(forward.device),
        offset=forward.offset,
    )
    likelihood.check(data.values)
    seed = int(torch.randint(2**62, (), generator=generator))
    return _trained(Trainer(forward, data, settings, generator), seed, on_step)


def fit_svi(
    model: RowwiseGaussian,
    data: Observations,
    settings: SvgpSettings,
    *,
    generator: torch.Generator,
    on_step: OnStep | None = None,
    on_progress: OnProgress | None = None,
    checkpointer: Checkpointer[Training] | None = None,
) -> SvgpResult:
    """Fit q and hyperparameters to a forward model's data with normal noise.

    Parameters
    ----------
    model, data
        The whitening's solver has the tolerance and step limit of every row (HIP-GP's
        early stopping). A learnt common noise starts from the likelihood's, or if that
        is 0 from a tenth of the median ``σ_n²``.
    settings, generator, on_step
        As in :func:`fit_svgp`.
    on_progress
        Called with ``rows`` and the number of kept rows solved so far, and with
        ``mean`` and the iteration of the final solve.
    checkpointer
        Saves the state after every step, and restores one to resume from with
        bit-identical results (on the CPU, one process, the same number of threads).
        Kept rows are solved anew.

    Raises
    ------
    ValueError, FloatingPointError
        As in :func:`fit_svgp`, and if the restored state belongs to another run.
    """
    noise = data.likelihood
    assert isinstance(noise, NormalNoise)
    if settings.learns("likelihood") and not float(noise.variance):
        start = NormalNoise(variance=0.1 * noise.noise.median(), known=noise.known)
        data = replace(data, likelihood=start)
    if settings.learns("kernel") and isinstance(model.whitening, ToeplitzWhitening):
        model = model.on(widened(model.whitening, settings.lengthscale_range))
    seed = int(torch.randint(2**62, (), generator=generator))
    trainer = Trainer(model, data, settings, generator)
    saved = None if checkpointer is None else checkpointer.restore()
    if saved is not None:
        trainer.restore(saved)
        del saved
    return _trained(trainer, seed, on_step, on_progress, checkpointer)


def _trained(
    trainer: Trainer,
    seed: int,
    on_step: OnStep | None,
    on_progress: OnProgress | None = None,
    checkpointer: Checkpointer[Training] | None = None,
) -> SvgpResult:
    """Make the remaining steps, solve the mean, and take the bound on all data.

    The late rise of the bound is measured on the same rows before and after, since
    minibatches scatter by far more: with ``e_n = E_q[ln p(y_n | f_n)]``,
    ``ΔL / N ≈ mean_n(e'_n − e_n) − (KL' − KL) / N``, exact if the rows are all, else
    with the standard error of a mean of paired differences.
    """
    settings, solution, rise = trainer.settings, None, None
    report = on_progress or (lambda _part, _number: None)

    def keep_rows(forward: RowwiseGaussian) -> None:
        if forward.kept_bytes <= settings.row_memory:
            forward.keep_rows(on_rows=lambda rows: report("rows", rows))

    if not trainer.hyperparameters.moves_features:
        keep_rows(trainer.forward)
    total = len(trainer.data)
    order = torch.from_numpy(stream(seed, Purpose.WATCHED).permutation(total))
    watched = order[: settings.watch_rows].sort().values
    stretch = max(1, int(0.1 * trainer.count))
    begin, before = trainer.count - stretch, None
    if trainer.steps == begin and len(watched):
        before = level(trainer.model(), trainer.observations(), watched)
    for step in trainer.run():
        if step == begin and len(watched):
            before = level(trainer.model(), trainer.observations(), watched)
        if on_step is not None:
            on_step(step, trainer.count, trainer.bounds[-1])
        if checkpointer is not None:
            checkpointer.save(trainer.progress)
    model, data = trainer.model(), trainer.observations()
    if settings.solve_mean:
        keep_rows(model.forward)
        solution = solve_mean(
            model.forward,
            data,
            solver=ConjugateGradients(rtol=settings.mean_tolerance, max_steps=2000),
            start=model.q.mean,
            on_step=lambda step, _: report("mean", step),
        )
        require_finite("svi, the mean", residual=solution.residual)
        model = replace(model, q=model.q.with_mean(solution.value[0]))
    if before is not None:
        rise = late_rise(before, level(model, data, watched), total, stretch)
    bound = elbo(model.forward, data, model.q)
    require_finite("svi, the end", bound=bound)
    return SvgpResult(
        model=model,
        bound=bound,
        count=trainer.count,
        bound_trace=torch.tensor(trainer.bounds, dtype=torch.float64),
        learnt=trainer.hyperparameters.values(),
        rows=model.forward.report,
        steps=trainer.report,
        bounded_steps=trainer.hyperparameters.bounded_steps,
        solves=trainer.q.solves,
        mean_solution=solution,
        rise=rise,
    )


def level(model: Svgp, data: Observations, index: Index) -> tuple[Vector, float]:
    """Return ``e_n`` of some rows, and the KL term."""
    part = model.forward.at(model.forward.functionals.select(index))
    return expected_terms(part, data.select(index), model.q), model.q.divergence()


def late_rise(
    before: tuple[Tensor, float], after: tuple[Tensor, float], total: int, steps: int
) -> LateRise:
    """Return the change per row between two levels of ``total`` rows."""
    gain, rows, error = after[0] - before[0], len(after[0]), 0.0
    if rows < total:
        error = float(gain.std()) / math.sqrt(rows) if rows > 1 else math.inf
    value = float(gain.mean()) - (after[1] - before[1]) / total
    return LateRise(value=value, error=error, steps=steps, rows=rows)


def solve_mean(
    model: RowwiseGaussian,
    data: Observations,
    *,
    solver: ConjugateGradients,
    start: Eps | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> Solution:
    """Solve ``(I + Φᵀ Σ⁻¹ Φ) m = Φᵀ Σ⁻¹ r`` by CG: S5, the optimal m of every family.

    Cost: two products with kept rows for each iteration, else two solves with K (only
    the variances that sub-grid noise adds need every row).

    Raises `ValueError` if the noise is not normal.
    """
    noise, operator = data.noise(model), model.operator
    residual = data.values - data.offset

    def product(x: Tensor) -> Tensor:
        return x + operator.rmatvec(operator.matvec(x) / noise)

    return solver.solve(
        product,
        operator.rmatvec((residual / noise)[None]),
        start=None if start is None else start[None],
        on_step=on_step,
    )
