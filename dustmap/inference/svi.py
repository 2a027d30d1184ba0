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
from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.checkpoint import Checkpointer, NoCheckpoints, require_finite
from dustmap.inference.elbo import GaussianData, elbo
from dustmap.inference.kernel_learning import (
    COMMON_NOISE,
    Hyperparameters,
    widened,
)
from dustmap.inference.low_rank import NaturalGaussian, low_rank
from dustmap.inference.svi_climb import Climb
from dustmap.inference.svi_result import SviResult
from dustmap.inference.svi_settings import SviSettings
from dustmap.inference.variational import block_independent
from dustmap.linalg.cg import ConjugateGradients, Solution
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import ToeplitzWhitening

OnStep = Callable[[int, int, float], None]
OnProgress = Callable[[str, int], None]


def fit_svi(
    model: RowwiseGaussian,
    data: GaussianData,
    settings: SviSettings,
    *,
    generator: torch.Generator,
    on_step: OnStep | None = None,
    on_progress: OnProgress | None = None,
    checkpointer: Checkpointer | None = None,
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
    on_progress
        Called with ``rows`` and the number of rows solved while they are kept, and with
        ``mean`` and the iteration of its solve.
    checkpointer
        Takes the state after every step, and gives one to go on from, with the same
        numbers, bit by bit (one process, as many threads). A state holds q, what was
        learnt, the optimiser's moments and the record. Rows that are kept are solved
        anew.

    Raises
    ------
    ValueError
        If q would not fit into memory, what is to be learnt does not exist, or
        hyperparameters are to be learnt on free inducing points; if the restored state
        is that of another run.
    FloatingPointError
        If a row, the bound, q, a hyperparameter or the solve for m ceases to be finite.
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
    checkpointer, tell = checkpointer or NoCheckpoints(), on_progress or _nothing
    climb = Climb(
        model,
        data,
        initial_family(model, settings),
        settings,
        generator,
        hyperparameters=hyperparameters,
    )
    state = checkpointer.restore()
    if state is not None:
        climb.restore(state)
        del state
    if hyperparameters is None and model.kept_bytes <= settings.row_memory:
        model.keep_rows(on_rows=lambda rows: tell("rows", rows))
    for bound in climb.steps():
        if on_step is not None:
            on_step(len(climb.bounds), climb.count, bound)
        checkpointer.save(climb.state())
    return _finished(climb, settings, tell)


def _nothing(stage: str, number: int) -> None:
    """Nobody is told."""


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


def _finished(climb: Climb, settings: SviSettings, tell: OnProgress) -> SviResult:
    """The mean solved, the bound on all data, and the record."""
    if climb.model.kept_bytes <= settings.row_memory:
        climb.model.keep_rows(on_rows=lambda rows: tell("rows", rows))
    solution = None
    if settings.solve_mean:
        solution = solve_mean(
            climb.model,
            climb.data,
            solver=ConjugateGradients(
                rtol=settings.mean_tolerance, max_steps=settings.mean_max_steps
            ),
            start=climb.q.mean,
            on_step=lambda step, _: tell("mean", step),
        )
        require_finite("svi, the mean", residual=solution.residual)
    q = climb.q if solution is None else climb.q.with_mean(solution.value[0])
    learnt = climb.hyperparameters
    bound = elbo(climb.model, climb.data, q)
    require_finite("svi, the end", bound=bound)
    return SviResult(
        q=q,
        model=climb.model,
        data=climb.data,
        elbo=bound,
        elbo_trace=torch.tensor(climb.bounds, dtype=torch.float64),
        hyperparameter_trace=climb.trace,
        limited_steps=climb.limited,
        bounded_steps=0 if learnt is None else learnt.bounded_steps,
        mean_solution=solution,
    )


def solve_mean(
    model: RowwiseGaussian,
    data: GaussianData,
    *,
    solver: ConjugateGradients,
    start: Float[Tensor, " p"] | None = None,
    on_step: Callable[[int, float], None] | None = None,
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
    return solver.solve(
        product,
        rhs,
        start=None if start is None else start[None],
        on_step=on_step,
    )
