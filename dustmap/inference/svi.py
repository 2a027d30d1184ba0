r"""HIP-GP as published: minibatches, natural gradients, one PCG per star and step.

Departures from the paper, each because the published step fails without it:

- The step of m is cut where ``l λ_max(S Λ̂) > 1`` on the batch at hand: with blocks,
  unit steps of S11 diverge. Cuts are counted.
- Without a stated rate ``S⁻¹`` is the plain average of the minibatches' Λ̂
  (:meth:`dustmap.inference.svi_settings.SviSettings.rate`).
- Hyperparameters rest for the first epoch: while q is near the prior their gradients
  are so large that Adam's second moments stall it afterwards (measured: τ² a factor of
  14 short after 150 steps).
- m is solved exactly at the end by conjugate gradients, unless declined.
- Rows whose hyperparameters are fixed are solved once where memory allows.

Fidelity is the purpose; for large problems use the full-batch engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.inference.elbo import GaussianData, elbo, expected_log_likelihood
from dustmap.inference.kernel_learning import (
    COMMON_NOISE,
    Hyperparameters,
    learning_terms,
    widened,
)
from dustmap.inference.low_rank import NaturalGaussian, low_rank
from dustmap.inference.svi_settings import SviSettings
from dustmap.inference.variational import block_independent, divergence_from_prior
from dustmap.kernels import Kernel
from dustmap.linalg.cg import ConjugateGradients, Solution
from dustmap.models.row_report import RowReport
from dustmap.models.rowwise import Rows, RowwiseGaussian
from dustmap.whitening import ToeplitzWhitening

OnStep = Callable[[int, int, float], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SviResult:
    """What a run of SVI leaves behind.

    Parameters
    ----------
    q
        The variational posterior.
    model
        The forward model with the final kernel; ``model.at`` predicts elsewhere.
    data
        The data with the final common noise.
    elbo
        The bound on all data, at the end.
    elbo_trace
        Its minibatch estimate before every step.
    hyperparameter_trace
        What was learnt, before every step, by name.
    limited_steps
        Steps of m that were cut for stability.
    bounded_steps
        Steps of a lengthscale that its range cut short.
    mean_solution
        Status of the final solve for m, if one was made.
    """

    q: NaturalGaussian
    model: RowwiseGaussian
    data: GaussianData
    elbo: float
    elbo_trace: Float[Tensor, " t"]
    hyperparameter_trace: dict[str, Tensor]
    limited_steps: int
    bounded_steps: int
    mean_solution: Solution | None

    @property
    def kernel(self) -> Kernel:
        """The final kernel."""
        return self.model.whitening.kernel

    @property
    def common_noise(self) -> float:
        """The final τ²."""
        return float(self.data.common_noise)

    @property
    def rows(self) -> RowReport:
        """What the rows' solves were worth."""
        return self.model.report

    @property
    def message(self) -> str:
        """A few lines for people."""
        lines = [
            f"bound {self.elbo:.6g} after {len(self.elbo_trace)} steps, of which "
            f"{self.limited_steps} were cut for stability",
            str(self.rows),
        ]
        if self.bounded_steps:
            lines.append(
                f"{self.bounded_steps} steps ended at the bound of a lengthscale: "
                "start closer or widen lengthscale_range"
            )
        if self.mean_solution is not None:
            lines.append(f"mean: {self.mean_solution.message}")
        return "\n".join(lines)


def fit_svi(
    model: RowwiseGaussian,
    data: GaussianData,
    settings: SviSettings,
    *,
    generator: torch.Generator,
    on_step: OnStep | None = None,
    on_rows: Callable[[int], None] | None = None,
) -> SviResult:
    """Climb the bound of eq. 13–14 by natural gradients.

    Parameters
    ----------
    model
        Observations on the published whitening, whose solver's tolerance and step limit
        are those of every row (the paper's early stopping).
    data
        Values and noise; a learnt common noise starts from its ``common_noise``, or
        where that is 0 from a tenth of the median ``σ_n²``.
    settings
        How.
    generator
        Draws the minibatches.
    on_step
        Called as ``on_step(step, steps, bound estimate)``.
    on_rows
        Called with the number of rows solved while they are kept.

    Raises
    ------
    ValueError
        If q would not fit into memory, what is to be learnt does not exist, or
        hyperparameters are to be learnt on free inducing points.
    """
    hyperparameters = None
    if settings.learns:
        if not isinstance(model.whitening, ToeplitzWhitening):
            raise ValueError(
                "hyperparameters are learnt on a ToeplitzWhitening here, got a "
                f"{type(model.whitening).__name__}: hold them fixed "
                "(hyperparameter_rate=0) or learn them by dustmap.gp"
            )
        data = _with_noise_to_learn(data, settings)
        model = widened(model, settings.lengthscale_range)
        hyperparameters = _hyperparameters(model, data, settings)
    q = initial_family(model, settings)
    if hyperparameters is None and model.kept_bytes <= settings.row_memory:
        model.keep_rows(on_rows=on_rows)
    climb = _Climb(model, data, q, settings, hyperparameters)
    steps = settings.epochs * -(-len(data) // settings.batch_size)
    for index in _minibatches(len(data), settings, generator):
        climb.step(index)
        if on_step is not None:
            on_step(len(climb.bounds), steps, climb.bounds[-1])
    return climb.finish()


def initial_family(model: RowwiseGaussian, settings: SviSettings) -> NaturalGaussian:
    """The prior in the family asked for; refuses what does not fit into memory."""
    shape = model.whitening.latent_shape
    if settings.family == "low-rank":
        # A step has the old columns and those of the batch at once.
        width = min(settings.rank, model.latent_size) + settings.batch_size
        _check_memory(model, settings, width)
        return low_rank(shape, settings.rank)
    widths = {"mean-field": 1, "block": settings.block, "full": max(shape)}
    block = [min(widths[settings.family], n) for n in shape]
    _check_memory(model, settings, math.prod(block))
    return block_independent(shape, block)


def _check_memory(model: RowwiseGaussian, settings: SviSettings, width: int) -> None:
    """Refuse a covariance of ``width`` numbers per parameter that does not fit.

    The precision, its factor and the fresh estimate exist at once.
    """
    needed = 3 * 8 * model.latent_size * width
    if needed > settings.covariance_memory:
        raise ValueError(
            f"a {settings.family} covariance of {model.latent_size} parameters takes "
            f"{needed / 2**30:.1f} GiB, more than "
            f"{settings.covariance_memory / 2**30:.1f}: use smaller blocks or a lower "
            "rank, a coarser grid, or the direct optimum, which never forms it"
        )


def _minibatches(
    count: int, settings: SviSettings, generator: torch.Generator
) -> Iterator[Int[Tensor, " b"]]:
    for _ in range(settings.epochs):
        order = torch.randperm(count, generator=generator)
        yield from order.split(settings.batch_size)


def _with_noise_to_learn(data: GaussianData, settings: SviSettings) -> GaussianData:
    wanted = settings.learn is None or COMMON_NOISE in settings.learn
    if not wanted or float(data.common_noise) > 0:
        return data
    return replace(data, common_noise=0.1 * float(data.noise.median()))


def _hyperparameters(
    model: RowwiseGaussian, data: GaussianData, settings: SviSettings
) -> Hyperparameters:
    kernel = model.whitening.kernel
    everything = (*kernel.parameters(), COMMON_NOISE)
    return Hyperparameters(
        kernel,
        float(data.common_noise),
        names=everything if settings.learn is None else settings.learn,
        rate=settings.hyperparameter_rate,
        lengthscale_range=settings.lengthscale_range,
    )


class _Climb:
    """The state of a run: model, data and q as they stand, and what has been seen."""

    def __init__(
        self,
        model: RowwiseGaussian,
        data: GaussianData,
        q: NaturalGaussian,
        settings: SviSettings,
        hyperparameters: Hyperparameters | None,
    ) -> None:
        self.model = model
        self.data = data
        self.q = q
        self.settings = settings
        self.hyperparameters = hyperparameters
        self.seen = 0
        self.bounds: list[float] = []
        self.values: list[dict[str, Tensor]] = []
        self.limited = 0

    def step(self, index: Int[Tensor, " b"]) -> None:
        """One minibatch: estimate the bound, move q, then θ by the q before."""
        learning = self.hyperparameters is not None and self.seen >= len(self.data)
        rows, expected = self._terms(index, learning=learning)
        scale = len(self.data) / len(index)
        self.bounds.append(float(scale * expected.sum() - self._divergence()))
        batch = self.data.batch(index, rows)
        rate = self.settings.rate(len(index), self.seen, len(self.data))
        self.seen += len(index)
        self.q = self.q.covariance_step(batch, rate)
        curvature = self.q.curvature(batch)
        # Rounding alone must not count as a cut in full rank, where l λ_max ≤ 1 holds.
        if rate * curvature > 1 + 1e-9:
            self.limited += 1
            rate = 1 / curvature
        self.q = self.q.mean_step(batch, rate)
        if learning:
            self._move_hyperparameters()

    def _terms(
        self, index: Int[Tensor, " b"], *, learning: bool
    ) -> tuple[Rows, Tensor]:
        if self.hyperparameters is not None:
            self.values.append(self.hyperparameters.values())
        if self.hyperparameters is None or not learning:
            rows = self.model.rows(index)
            return rows, expected_log_likelihood(self.data, index, rows, self.q)
        terms = learning_terms(
            self.model, self.data, self.q, index, self.hyperparameters
        )
        return terms.rows, terms.expected

    def _divergence(self) -> float:
        return float(divergence_from_prior(self.q))

    def _move_hyperparameters(self) -> None:
        assert self.hyperparameters is not None
        self.hyperparameters.step()
        self.model = self.model.with_kernel(self.hyperparameters.fixed_kernel())
        common = float(self.hyperparameters.common_noise().detach())
        self.data = replace(self.data, common_noise=common)

    def finish(self) -> SviResult:
        """The mean solved, the bound on all data, and the record."""
        if self.model.kept_bytes <= self.settings.row_memory:
            self.model.keep_rows()
        solution = None
        if self.settings.solve_mean:
            solution = solve_mean(
                self.model,
                self.data,
                solver=ConjugateGradients(
                    rtol=self.settings.mean_tolerance,
                    max_steps=self.settings.mean_max_steps,
                ),
                start=self.q.mean,
            )
            self.q = self.q.with_mean(solution.value[0])
        names = self.values[0] if self.values else {}
        return SviResult(
            q=self.q,
            model=self.model,
            data=self.data,
            elbo=elbo(self.model, self.data, self.q),
            elbo_trace=torch.tensor(self.bounds, dtype=torch.float64),
            hyperparameter_trace={
                name: torch.stack([v[name] for v in self.values]) for name in names
            },
            limited_steps=self.limited,
            bounded_steps=(
                0
                if self.hyperparameters is None
                else self.hyperparameters.bounded_steps
            ),
            mean_solution=solution,
        )


def solve_mean(
    model: RowwiseGaussian,
    data: GaussianData,
    *,
    solver: ConjugateGradients,
    start: Float[Tensor, " p"] | None = None,
) -> Solution:
    """``(I + Φᵀ Σ⁻¹ Φ) m = Φᵀ Σ⁻¹ r`` by CG: S5, the optimal m of every family.

    Cost: two products with kept rows for each iteration, else two solves with K (only
    the variances that sub-grid noise adds need every row).
    """
    everything = torch.arange(len(data))
    conditional = model.variance if data.subgrid_noise else torch.zeros(len(data))
    noise = data.variance(everything, conditional)
    operator = model.operator

    def product(x: Tensor) -> Tensor:
        return x + operator.rmatvec(operator.matvec(x) / noise)

    rhs = operator.rmatvec((data.residual / noise)[None])
    return solver.solve(product, rhs, start=None if start is None else start[None])
