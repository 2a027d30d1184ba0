r"""The end of a fit: the model that predicts, the record, and the last steps' rise.

Minibatches scatter by far more than a bound still gains near its top. The same rows,
before and after, do not: with ``e_n = E_q[ln p(y_n | f_n)]``, before and after a
stretch of steps,

``ΔL / N ≈ mean_n(e'_n − e_n) − (KL' − KL) / N``,

exact if the rows are all, else with the standard error of a mean of paired differences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.functionals import Functionals
from dustmap.inference.svi.bound import (
    LatentMoments,
    Observations,
    expected_terms,
    predict,
)
from dustmap.inference.svi.gaussian import NaturalGaussian, StepReport
from dustmap.kernels import Kernel
from dustmap.likelihoods import Likelihood
from dustmap.linalg.cg import Solution
from dustmap.models.means import ConstantMean
from dustmap.models.rowwise import RowReport, RowwiseGaussian
from dustmap.whitening import Whitening

# The share of all steps, at their end, over which the rise is measured.
_STRETCH = 0.1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Svgp:
    """A Gaussian process with a variational posterior.

    Parameters
    ----------
    forward
        The prior: a whitening of the inducing values, and a mean function.
    q
        Of ε.
    likelihood
        Of observations.
    """

    forward: RowwiseGaussian
    q: NaturalGaussian
    likelihood: Likelihood

    @property
    def whitening(self) -> Whitening:
        """Kernel and inducing points."""
        return self.forward.whitening

    @property
    def kernel(self) -> Kernel:
        """k."""
        return self.whitening.kernel

    @property
    def mean(self) -> float:
        """A constant mean function's value."""
        assert isinstance(self.forward.mean, ConstantMean)
        return self.forward.mean.value

    def predict(self, functionals: Functionals) -> LatentMoments:
        """Moments of the latent ``L_* (μ + f)``, block by block."""
        return predict(self.forward.at(functionals), self.q)


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRise:
    """What the last ``steps`` added to the bound, per observation [nats].

    ``error`` is the standard error by the choice of ``rows`` observations.
    """

    value: float
    error: float
    steps: int
    rows: int

    def __str__(self) -> str:
        error = f" ± {self.error:.1g}" if self.error else ""
        return (
            f"the last {self.steps} steps moved the bound by {self.value:+.1e}{error} "
            f"nats per row ({self.rows} rows)"
        )


class PlateauCheck:
    """Measures the late rise by a random choice of rows.

    Parameters
    ----------
    count
        Observations there are.
    rows
        How many of them to look at; 0 measures nothing.
    steps
        Of the whole training.
    seed
        Of the choice.
    """

    def __init__(self, count: int, *, rows: int, steps: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._count = count
        self._index = torch.randperm(count, generator=generator)[:rows].sort().values
        self._before: tuple[Tensor, float] | None = None
        self.steps = max(1, int(_STRETCH * steps))
        self.begin = steps - self.steps

    def look(self, model: Svgp, data: Observations) -> None:
        """Note where the bound stands before the stretch."""
        if len(self._index):
            self._before = self._level(model, data)

    def rise(self, model: Svgp, data: Observations) -> LateRise | None:
        """What the stretch since :meth:`look` added, if there was a look."""
        if self._before is None:
            return None
        (was, old), (now, new) = self._before, self._level(model, data)
        gain, rows = now - was, len(self._index)
        error = 0.0
        if rows < self._count:
            error = float(gain.std()) / math.sqrt(rows) if rows > 1 else math.inf
        return LateRise(
            value=float(gain.mean()) - (new - old) / self._count,
            error=error,
            steps=self.steps,
            rows=rows,
        )

    def _level(
        self, model: Svgp, data: Observations
    ) -> tuple[Float[Tensor, " r"], float]:
        """``e_n`` of the rows, and the KL term."""
        forward = model.forward
        part = forward.at(forward.functionals.select(self._index))
        terms = expected_terms(part, data.select(self._index), model.q)
        return terms, model.q.divergence()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SvgpResult:
    """The end of a fit: the model, the bound and the record.

    Parameters
    ----------
    model
        Prior, q, likelihood and mean with the final hyperparameters; it predicts.
    bound
        On all data, at the end.
    count
        Steps of the run.
    recorded
        The steps at which traces were taken.
    bound_trace
        The minibatch estimates of the bound.
    hyperparameter_trace
        What was learnt, by name.
    rows
        How the solves behind features ended.
    steps
        What the safeguards of the natural steps did.
    bounded_steps
        Steps of a lengthscale that its range cut short.
    solves
        How iterative solves with the precision of q ended; none without a solver.
    mean_solution
        Status of the final solve for m, if one was made.
    rise
        What the last tenth of the steps added to the bound; ``None`` if not watched.
    """

    model: Svgp
    bound: float
    count: int
    recorded: Int[Tensor, " t"]
    bound_trace: Float[Tensor, " t"]
    hyperparameter_trace: dict[str, Tensor]
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
        """A few lines for people."""
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
            lines.append(
                f"{self.solves.unconverged} of {self.solves.rows} solves with the "
                f"precision of q stopped short (worst residual "
                f"{self.solves.residual:.1e}): raise solver_max_steps or take "
                "solves='cholesky'"
            )
        if self.mean_solution is not None:
            lines.append(f"mean: {self.mean_solution.message}")
        return "\n".join(lines)
