"""HIP-GP and SVGP with blocks of 2 × 2 × 2 inducing points, and the full batch.

The first two have the optimum S4–S5 of their bound: one natural step of length 1 with
all stars makes S, a solve m. Their rows come from PCG on a circulant embedding and from
Cholesky's factor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from dust_data import Sky
from jaxtyping import Float
from paper_report import stopwatch
from torch import Tensor

from dustmap.functionals import FixedStep, GaussLegendre, LineIntegrals, Rule
from dustmap.gp.evidence import LBFGS, maximise
from dustmap.gp.sgpr import SGPR
from dustmap.grid import Grid
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.svi import HipSettings, fit_svi
from dustmap.inference.svi.bound import Observations, predict
from dustmap.kernels import Matern32
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.toeplitz import EmbeddingLimits
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.posterior import Posterior
from dustmap.whitening import (
    CholeskyWhitening,
    ToeplitzWhitening,
    TorusWhitening,
    Whitening,
    padded_torus,
)

HIPGP, SVGP, FULL_BATCH = "HIP-GP", "SVGP", "full batch"
Shape = tuple[int, int, int]
BLOCK = 2
# The paper's limits of PCG, in training and in evaluation.
_TRAINING = ConjugateGradients(rtol=1e-5, max_steps=200)
_EVALUATION = ConjugateGradients(rtol=1e-5, max_steps=500)
_MEAN = ConjugateGradients(rtol=1e-5, max_steps=3_000)
# Points of an embedding, at least and for each inducing point. Where it would outgrow
# them, negative modes are set to zero, as the published code does, if the covariance
# changes by no more than this share.
_FEWEST, _PER_POINT, _CLIPPED = 2**16, 16, 0.02
_JITTER = 1e-6
_MEMORY = 2**33
# Of the full batch: the largest torus whose quadrature runs on half its spacing, draws
# behind conditional variances, and the preconditioner.
_FINE, _DRAWS, _RANK = 50_000, 16, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Moments of the extinction at the test stars [mag], and what made them.

    ``common`` is the common noise [mag²]. ``dropped`` counts the negative modes of
    HIP-GP's embedding that were set to zero, ``jitter`` is what SVGP's Cholesky factor
    needed beside K's diagonal, relative to it; ``None`` where there is no such thing.
    """

    mean: Float[Tensor, " n"]
    std: Float[Tensor, " n"]
    common: float = 0.0
    dropped: int | None = None
    jitter: float | None = None


def _whitening(
    engine: str, kernel: Matern32, grid: Grid, solver: ConjugateGradients
) -> Whitening:
    if engine == SVGP:
        # Parameters lie as the grid's points do: blocks are then of neighbouring
        # points, as the paper has them for SVGP.
        return CholeskyWhitening(kernel, grid, max_jitter=_JITTER)
    scales = kernel.lengthscale.expand(grid.dimension).tolist()
    limits = EmbeddingLimits(
        max_points=max(_FEWEST, _PER_POINT * grid.size), clip=True, max_error=_CLIPPED
    )
    return ToeplitzWhitening(
        kernel, grid, lengthscales=scales, solver=solver, limits=limits
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """Kernel, and ``τ²`` of the noise that all stars have beside their own [mag²]."""

    kernel: Matern32
    common: float = 0.0


def learn_scales(
    sky: Sky, start: Matern32, shape: Shape, nodes: int, count: int, steps: int
) -> Scales:
    """Variance and common noise of the largest published bound on so many stars.

    The bound counts what a coarse grid leaves over as certain unless more noise or a
    longer lengthscale explains it: the latter is 1.5 spacings at least. (Learnt as
    well, it runs away on grids that resolve next to nothing.)
    """
    grid, few = sky.grid(shape), sky.shortened(count, 0)
    longest = max(float(start.lengthscale), 1.5 * max(grid.spacing))
    model = SGPR(
        start.with_parameters({"lengthscale": torch.tensor(longest)}),
        LineIntegrals(few.positions, GaussLegendre(count=nodes)),
        few.values,
        grid.points(),
        noise=0.1 * float(few.values.var()),
        known_noise=few.variance,
        jitter=_JITTER,
    )
    settings = LBFGS(names=("variance", "noise"), max_steps=steps)
    learnt = maximise(model, settings).model
    kernel = learnt.kernel
    assert isinstance(kernel, Matern32)
    return Scales(kernel=kernel, common=float(learnt.noise))


def rowwise(
    sky: Sky, scales: Scales, shape: Shape, nodes: int, engine: str
) -> Prediction:
    """Find the optimum of HIP-GP's or SVGP's bound with blocks of 2 × 2 × 2 points."""
    grid, rule = sky.grid(shape), GaussLegendre(count=nodes)
    kernel = scales.kernel
    whitening = _whitening(engine, kernel, grid, _TRAINING)
    model = RowwiseGaussian(whitening, LineIntegrals(sky.positions, rule))
    data = Observations.of(
        model, sky.values, sky.variance, common_noise=scales.common, subgrid_noise=False
    )
    settings = HipSettings(
        block=BLOCK,
        batch_size=len(data),
        epochs=1,
        natural_rate=1.0,
        mean_tolerance=1e-12,
        row_memory=_MEMORY,
        covariance_memory=_MEMORY,
    )
    optimum = fit_svi(model, data, settings, generator=torch.Generator())
    evaluating = whitening
    if engine == HIPGP:
        evaluating = _whitening(engine, kernel, grid, _EVALUATION)
    moments = predict(model.on(evaluating).at(_targets(sky, rule)), optimum.q)
    dropped = jitter = None
    if isinstance(evaluating, ToeplitzWhitening):
        report = evaluating.embedding.report
        dropped = report.negative_modes if report.clipped else 0
    elif isinstance(evaluating, CholeskyWhitening):
        jitter = evaluating.jitter
    return Prediction(
        mean=moments.mean,
        std=moments.variance.sqrt(),
        common=scales.common,
        dropped=dropped,
        jitter=jitter,
    )


def full_batch(sky: Sky, kernel: Matern32, shape: Shape, samples: int) -> Prediction:
    """The solve-free engine on a torus, with exact posterior samples."""
    generator = torch.Generator().manual_seed(1)
    grid = sky.grid(shape)
    torus = padded_torus(grid, kernel, 1e-3)
    refinement = 2 if torus.size <= _FINE else 1
    rule = FixedStep(step=0.5 * min(grid.spacing) / refinement)
    model = TorusGaussian(
        TorusWhitening(kernel, torus, refinement=refinement),
        LineIntegrals(sky.positions, rule),
        interpolation="cubic",
        residual_refinement=2 * refinement,
        residual_count=_DRAWS,
        generator=generator,
    )
    settings = FullBatch(
        solver=_MEAN,
        samples=samples,
        sample_rtol=1e-2,
        preconditioner_rank=min(_RANK, torus.size // 2),
    )
    result = infer(
        model, sky.values, sky.variance, settings=settings, generator=generator
    )
    posterior = Posterior(model=model, mean=result.mean, samples=result.samples)
    moments = posterior.moments(_targets(sky, rule))
    return Prediction(mean=moments.mean, std=moments.std)


def _targets(sky: Sky, rule: Rule) -> LineIntegrals:
    return LineIntegrals(torch.as_tensor(sky.test.positions), rule)


def row_seconds(
    sky: Sky, kernel: Matern32, shape: Shape, nodes: int, count: int
) -> float:
    """Time one of HIP-GP's rows [s] by the mean of ``count`` of them."""
    whitening = _whitening(HIPGP, kernel, sky.grid(shape), _TRAINING)
    rays = LineIntegrals(sky.positions[:count], GaussLegendre(count=nodes))
    model = RowwiseGaussian(whitening, rays)
    with stopwatch() as taken:
        model.keep_rows()
    return taken[0] / len(rays)
