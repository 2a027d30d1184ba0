"""Climbing the bound of a sparse regression by minibatches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.functionals import Functionals
from dustmap.gp.natural import PrecisionGaussian, StepReport
from dustmap.gp.svgp import Bound, Svgp
from dustmap.gp.svgp_climb import Climb
from dustmap.gp.svgp_hyperparameters import Hyperparameters
from dustmap.gp.svgp_rise import Rise, Watch
from dustmap.gp.svgp_settings import SvgpSettings
from dustmap.likelihoods import Likelihood
from dustmap.models.row_report import RowReport
from dustmap.whitening import Whitening

OnStep = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SvgpResult:
    """What a fit leaves behind.

    Parameters
    ----------
    model
        Kernel, whitening, q, likelihood and mean; it predicts.
    bound
        On all data, at the end.
    recorded
        The steps at which traces were taken.
    bound_trace
        The minibatch estimates of the bound.
    hyperparameter_trace
        What was learnt, by name.
    rows
        What the solves behind features were worth.
    solves
        What those with the precision of q were worth; ``None`` without natural steps.
    steps
        What the safeguards of the natural steps did; ``None`` likewise.
    rise
        What the last tenth of the steps added to the bound; ``None`` if not watched.
    """

    model: Svgp
    bound: Bound
    recorded: Int[Tensor, " t"]
    bound_trace: Float[Tensor, " t"]
    hyperparameter_trace: dict[str, Tensor]
    rows: RowReport
    solves: RowReport | None
    steps: StepReport | None
    rise: Rise | None = None

    @property
    def message(self) -> str:
        """A few lines for people."""
        error = f" ± {self.bound.error:.2g}" if self.bound.error else ""
        lines = [f"bound {self.bound.value:.6g}{error}"]
        if self.rise is not None:
            lines.append(str(self.rise))
        if self.rows.iterations or self.rows.below_zero:
            lines.append(f"features: {self.rows}")
        if self.steps is not None:
            lines.append(str(self.steps))
        if self.solves is not None and self.solves.unconverged:
            lines.append(
                f"{self.solves.unconverged} of {self.solves.rows} solves with the "
                f"precision of q stopped short (worst residual "
                f"{self.solves.residual:.1e}): raise solver_max_steps or take "
                "solves='cholesky'"
            )
        return "\n".join(lines)


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
        Called as ``on_step(step, steps)``.

    Raises
    ------
    ValueError
        If shapes disagree, q would not fit into memory, what is to be learnt does not
        exist, or the bound ceases to be finite.
    """
    settings = SvgpSettings() if settings is None else settings
    values = values.to(torch.float64)
    _check(functionals, values, whitening, likelihood)
    climb = Climb(
        functionals,
        values,
        Hyperparameters(whitening, likelihood, mean, settings),
        settings,
        generator,
    )
    total = settings.total_steps(len(values))
    watch = _watch(climb, total)
    for step, index in enumerate(_minibatches(len(values), total, settings, generator)):
        if watch is not None and step == watch.begin:
            watch.look(_model(climb))
        climb.step(index, step, total)
        if on_step is not None:
            on_step(step + 1, total)
    return _result(climb, watch)


def _watch(climb: Climb, total: int) -> Watch | None:
    rows = climb.settings.watch_rows
    if not rows:
        return None
    return Watch(
        climb.functionals,
        climb.values,
        rows=rows,
        steps=total,
        generator=climb.estimates,
    )


def _model(climb: Climb) -> Svgp:
    """The model as it stands."""
    state, q = climb.hyperparameters.fixed(), climb.q
    return Svgp(
        whitening=state.whitening,
        q=q.frozen() if isinstance(q, PrecisionGaussian) else q,
        likelihood=state.likelihood,
        mean=float(state.mean),
        tolerance=climb.settings.tolerance,
    )


def _result(climb: Climb, watch: Watch | None) -> SvgpResult:
    """The bound on all data, and the record."""
    model, q = _model(climb), climb.q
    names = climb.traces[0] if climb.traces else {}
    natural = isinstance(q, PrecisionGaussian)
    return SvgpResult(
        model=model,
        bound=model.bound(climb.functionals, climb.values, climb.estimates),
        recorded=torch.tensor(climb.recorded),
        bound_trace=torch.tensor(climb.bounds, dtype=torch.float64),
        hyperparameter_trace={
            name: torch.stack([trace[name] for trace in climb.traces]) for name in names
        },
        rows=climb.report,
        solves=q.solves if natural else None,
        steps=q.steps if natural else None,
        rise=None if watch is None else watch.rise(model),
    )


def _check(
    functionals: Functionals,
    values: Tensor,
    whitening: Whitening,
    likelihood: Likelihood,
) -> None:
    if values.shape != (len(functionals),) or not len(functionals):
        raise ValueError(
            f"{len(functionals)} functionals need as many values, at least one, got "
            f"{tuple(values.shape)}"
        )
    if functionals.dimension != whitening.points.shape[1]:
        raise ValueError(
            f"functionals in {functionals.dimension}-D do not fit inducing points in "
            f"{whitening.points.shape[1]}-D"
        )
    likelihood.check(values)


def _minibatches(
    count: int, total: int, settings: SvgpSettings, generator: torch.Generator
) -> Iterator[Int[Tensor, " b"]]:
    """Every epoch all rows in random order, in batches of (almost) one size."""
    batches = math.ceil(count / settings.batch_size)
    done = 0
    while True:
        order = torch.randperm(count, generator=generator)
        for index in torch.tensor_split(order, batches):
            if done == total:
                return
            done += 1
            yield index
