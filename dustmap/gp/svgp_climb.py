"""The state of a sparse regression while its bound is climbed."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.functionals import Functionals
from dustmap.gp.natural import PrecisionGaussian, Slopes
from dustmap.gp.svgp import SeenRows, divergence_of, ones, seen_rows
from dustmap.gp.svgp_families import FullRankFactor, LowRankFactor, MeanFieldScale
from dustmap.gp.svgp_hyperparameters import Hyperparameters, State
from dustmap.gp.svgp_settings import SvgpSettings
from dustmap.gp.svgp_solvers import IterativeSolver
from dustmap.inference.variational import divergence_from_prior
from dustmap.likelihoods import Likelihood
from dustmap.models.row_report import RowReport

TrainableGaussian = FullRankFactor | LowRankFactor | MeanFieldScale
# Rows whose features are made at once to be kept.
_ROWS = 4096


def initial_family(
    size: int, settings: SvgpSettings, generator: torch.Generator
) -> PrecisionGaussian | TrainableGaussian:
    """The prior, or next to it, in the family asked for.

    Raises
    ------
    ValueError
        If it would not fit into memory.
    """
    _check_memory(size, settings)
    if settings.update == "natural":
        iterative = IterativeSolver(
            rtol=settings.solver_rtol, max_steps=settings.solver_max_steps
        )
        return PrecisionGaussian(
            size,
            solver=iterative if settings.solves == "iterative" else None,
            dtype=torch.float32 if settings.single_precision else torch.float64,
            dense_limit=settings.dense_limit,
        )
    if settings.family == "low-rank":
        return LowRankFactor(size, settings.rank, generator)
    return FullRankFactor(size) if settings.family == "full" else MeanFieldScale(size)


def _check_memory(size: int, settings: SvgpSettings) -> None:
    """Refuse a q that does not fit.

    Matrices at once: the precision and its factor or, with Adam, the factor, its
    gradient, two moments and two copies in the graph.
    """
    copies, number = 6, 8
    if settings.update == "natural":
        copies = 1 if settings.solves == "iterative" else 2
        number = 4 if settings.single_precision else 8
    width = {"full": size, "low-rank": settings.rank, "mean-field": 1}[settings.family]
    needed = number * size * width * copies
    if needed > settings.covariance_memory:
        raise ValueError(
            f"a {settings.family} q of {size} parameters takes "
            f"{needed / 2**30:.1f} GiB, more than "
            f"{settings.covariance_memory / 2**30:.1f}: take fewer inducing points, a "
            "smaller family, iterative solves or single precision"
        )


class Climb:
    """Data, q and hyperparameters as they stand, and what has been seen."""

    def __init__(
        self,
        functionals: Functionals,
        values: Float[Tensor, " n"],
        hyperparameters: Hyperparameters,
        settings: SvgpSettings,
        generator: torch.Generator,
    ) -> None:
        self.functionals = functionals
        self.values = values
        self.hyperparameters = hyperparameters
        self.settings = settings
        self._start = hyperparameters.fixed()
        self.q = initial_family(self._start.whitening.size, settings, generator)
        # Estimates have numbers of their own: how often they are made changes no fit.
        seed = int(torch.randint(2**62, (), generator=generator))
        self.estimates = torch.Generator().manual_seed(seed)
        self.report = RowReport()
        self.recorded: list[int] = []
        self.bounds: list[float] = []
        self.traces: list[dict[str, Tensor]] = []
        self._ones = ones(functionals)
        moving = list(hyperparameters.leaves.values())
        if not isinstance(self.q, PrecisionGaussian):
            moving += list(self.q.parameters())
        self._optimiser = torch.optim.Adam(moving) if moving else None
        self._kept = self._kept_rows()

    def step(self, index: Int[Tensor, " b"], step: int, total: int) -> None:
        """One minibatch: hyperparameters by the q before, q by the same features."""
        settings, q = self.settings, self.q
        learning = step >= settings.rest * total and bool(self.hyperparameters.leaves)
        state = self.hyperparameters.state() if learning else self._start
        rows = self._rows(state, index, learning=learning)
        likelihood, values = state.likelihood.select(index), self.values[index]
        offset = state.mean * self._ones[index]
        mean = offset + rows.features @ q.mean
        variance = rows.variance
        recording = step % settings.record_every == 0
        if self._spread_counts(likelihood) or learning or recording:
            variance = variance + q.quadratic(rows.features)
        expected = likelihood.expected(values, mean, variance).mean()
        self._record(step, float(expected.detach()), recording=recording)
        factor = settings.decayed(step / total)
        if isinstance(q, PrecisionGaussian):
            slopes = minibatch_slopes(
                likelihood,
                values,
                rows.features.detach(),
                offset.detach(),
                (mean.detach(), variance.detach()),
                scale=len(self.values) / len(index),
            )
            q.step(slopes, settings.natural_rate * factor)
        self._adam(expected, settings.rate * factor, learning=learning)

    def _rows(
        self, state: State, index: Int[Tensor, " b"], *, learning: bool
    ) -> SeenRows:
        if self._kept is not None:
            kept = self._kept
            return SeenRows(kept.features[index], kept.variance[index], kept.report)
        part = self.functionals.select(index)
        with torch.set_grad_enabled(learning):
            rows = seen_rows(
                state.whitening, part, self.settings.tolerance, self.report
            )
        self.report = rows.report
        return rows

    def _kept_rows(self) -> SeenRows | None:
        """All features, where they never change and fit into memory."""
        self._kept = None
        needed = 8 * len(self.values) * self._start.whitening.size
        if self.hyperparameters.moves_features or needed > self.settings.row_memory:
            return None
        parts = [
            self._rows(self._start, index, learning=False)
            for index in torch.arange(len(self.values)).split(_ROWS)
        ]
        return SeenRows(
            torch.cat([p.features for p in parts]),
            torch.cat([p.variance for p in parts]),
            self.report,
        )

    def _spread_counts(self, likelihood: Likelihood) -> bool:
        """Whether a step of q needs ``k_nᵀ S k_n``, the dear part of a step."""
        return not (isinstance(self.q, PrecisionGaussian) and likelihood.conjugate)

    def _record(self, step: int, expected: float, *, recording: bool) -> None:
        """The minibatch estimate of the bound, now and then.

        Raises
        ------
        ValueError
            If it is not finite.
        """
        if not math.isfinite(expected):
            raise ValueError(
                f"the bound ceased to be finite in step {step}: lower the rates, or "
                "scale inputs and observations to a variance of about 1"
            )
        if not recording:
            return
        divergence = divergence_of(self.q, self.estimates).value
        self.recorded.append(step)
        self.bounds.append(len(self.values) * expected - divergence)
        self.traces.append(self.hyperparameters.values())

    def _adam(self, expected: Tensor, rate: float, *, learning: bool) -> None:
        """One step of Adam up the bound per observation."""
        trainable = not isinstance(self.q, PrecisionGaussian)
        if self._optimiser is None or not (learning or trainable):
            return
        loss = -expected
        if trainable:
            loss = loss + divergence_from_prior(self.q) / len(self.values)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.step()


def minibatch_slopes(
    likelihood: Likelihood,
    values: Float[Tensor, " b"],
    features: Float[Tensor, "b p"],
    offset: Float[Tensor, " b"],
    moments: tuple[Float[Tensor, " b"], Float[Tensor, " b"]],
    *,
    scale: float,
) -> Slopes:
    """What a natural step needs of a minibatch.

    Parameters
    ----------
    likelihood, values
        Of the minibatch.
    features, offset
        ``k_n`` and ``L_n μ``.
    moments
        Mean and variance of ``q(f_n)``.
    scale
        ``N/|B|``.
    """
    mean, variance = (m.detach().requires_grad_(True) for m in moments)
    with torch.enable_grad():
        expected = likelihood.expected(values, mean, variance).sum()
        by_mean, by_variance = torch.autograd.grad(expected, (mean, variance))

    def objective(m: Tensor) -> float:
        with torch.no_grad():
            moved = offset + features @ m
            return scale * float(likelihood.expected(values, moved, variance).sum())

    return Slopes(
        features=features,
        by_mean=scale * by_mean,
        by_variance=scale * by_variance,
        objective=objective,
    )
