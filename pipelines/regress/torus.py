"""Regression on a grid in one to three inputs: HIP-GP on a torus, all rows at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.inference.full_batch import FullBatch, FullBatchResult, infer
from dustmap.inference.svi.bound import LatentMoments
from dustmap.kernels import Constant, Radial, Sum
from dustmap.likelihoods import Likelihood
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.means import ConstantMean
from dustmap.posterior import Posterior
from dustmap.whitening import TorusWhitening
from pipelines.base.progress import Progress
from pipelines.regress.fitted import FittedModel, Latent, Problem
from pipelines.regress.robust import fitted_noise
from pipelines.regress.start import MORE_ROWS, Start, find_start
from pipelines.regress.torus_grid import (
    CHEAP_POINTS,
    LEARNING_POINTS,
    MOST_POINTS,
    held_axes,
    points_to_a_lengthscale,
    torus_over,
    within_reach,
)

# Rows from which noise that is not normal is fitted in turn with the field.
_NOISY_ROWS = 30_000
_SAMPLES, _FEW_SAMPLES = 64, 16
# Refinement of the grid on which a point value's residual is measured.
_RESIDUAL = 2
# Draws that measure what the grid cannot resolve, in the fit and while noise is fitted.
_DRAWS, _FEW_DRAWS = 32, 8
# Images of the kernel on the torus that are left out, in shares of its variance. On a
# torus of few lengthscales in three inputs each digit costs as many again.
_IMAGES = 1e-10
# Rounds of noise and fit in turn, and rows from which the noise is fitted.
_ROUNDS, _NOISE_ROWS = 4, 5_000


def fit_torus(problem: Problem) -> FittedModel:
    """Scales by the evidence of up to 10,000 rows; the fit to all rows.

    The mean is a constant kernel beside the field's: its posterior is averaged over.
    Noise that is not normal and the fit are improved in turn.
    """
    x, y, generator = problem.x, problem.y, problem.generator
    tame = problem.likelihood.tamed(y)
    start = find_start(x, tame, generator).refined(x, tame, generator)
    normal = (start.noise, float(start.kernel.variance), start.mean)
    found = torch.tensor(normal, dtype=torch.float64)
    noise = problem.likelihood.start(y, *found).likelihood
    fit = _GridFit(problem, start.kernel, noise, start.mean)
    weights = torch.ones(len(x), dtype=torch.float64)
    if not problem.likelihood.conjugate:
        some = torch.randperm(len(x), generator=generator)[:_NOISY_ROWS]
        weights = fit.noise.weights(y, *fit.improve_noise(x[some], y[some])(x))
    model = fit.model(x, CHEAP_POINTS)
    result = fit.infer(model, y, weights, _SAMPLES)
    return _fitted(start, fit, model, result)


@dataclass
class _GridFit:
    """Kernel, noise and offset on their way, on grids that suit them."""

    problem: Problem
    kernel: Radial
    noise: Likelihood
    mean: float

    def __post_init__(self) -> None:
        self.kernel = within_reach(self.kernel, self.problem.everywhere)

    def model(
        self, x: Float[Tensor, "n d"], cheap: int = LEARNING_POINTS
    ) -> TorusGaussian:
        """The field on a grid of about so many points, observed at the rows."""
        kernel = Sum(terms=(self.kernel, Constant(variance=1.0)))
        torus = torus_over(self.kernel, self.problem.everywhere, cheap)
        # On a finer grid the weights of point values hardly err; in three inputs it
        # would have eight times the points.
        fine = torus.size <= cheap and torus.grid.dimension < 3
        return TorusGaussian(
            TorusWhitening(
                kernel, torus, refinement=2 if fine else 1, image_tolerance=_IMAGES
            ),
            PointValues(x),
            mean=ConstantMean(value=self.mean),
            interpolation="cubic",
            residual_refinement=_RESIDUAL,
            residual_count=_DRAWS if cheap > LEARNING_POINTS else _FEW_DRAWS,
            generator=self.problem.generator,
        )

    def infer(
        self,
        model: TorusGaussian,
        y: Float[Tensor, " n"],
        weights: Float[Tensor, " n"],
        samples: int,
    ) -> FullBatchResult:
        """The posterior under normal noise, the variance divided by the weights."""
        settings = FullBatch(
            solver=ConjugateGradients(rtol=1e-5, max_steps=2000),
            samples=samples,
            sample_rtol=1e-2,
            preconditioner_rank=_rank(model),
        )
        with Progress(description="fit") as progress:
            return infer(
                model,
                y,
                float(self.noise.base_variance) / weights,
                settings=settings,
                generator=self.problem.generator,
                on_step=lambda _stage, _step, residual: progress.update(
                    residual=residual
                ),
            )

    def improve_noise(self, x: Float[Tensor, "n d"], y: Float[Tensor, " n"]) -> Latent:
        """Noise, the weights it leaves to rows, and the fit, in turn; the last fit."""
        model, weights = self.model(x), torch.ones(len(x), dtype=torch.float64)
        for _ in range(_ROUNDS):
            latent = _latent(model, self.infer(model, y, weights, _FEW_SAMPLES))
            seen = latent(x)
            few = LatentMoments(*(part[:_NOISE_ROWS] for part in seen))
            self.noise = fitted_noise(y[:_NOISE_ROWS], few, self.noise)
            weights = self.noise.weights(y, *seen)
        return latent


def _rank(model: TorusGaussian) -> int:
    return min(200, model.latent_size // 2)


def _latent(model: TorusGaussian, result: FullBatchResult) -> Latent:
    posterior = Posterior(model=model, mean=result.mean, samples=result.samples)

    def latent(x: Float[Tensor, "n d"]) -> LatentMoments:
        moments = posterior.moments(PointValues(x))
        return LatentMoments(mean=moments.mean, variance=moments.std**2)

    return latent


def _fitted(
    start: Start,
    fit: _GridFit,
    model: TorusGaussian,
    result: FullBatchResult,
) -> FittedModel:
    torus, report = model.whitening.torus, model.whitening.report
    ratio = points_to_a_lengthscale(fit.kernel, torus)
    messages = [
        f"grid: {' × '.join(map(str, torus.grid.shape))} points, "
        f"{' × '.join(map(str, torus.shape))} on the torus; "
        f"{', '.join(f'{r:.2g}' for r in ratio)} points to a lengthscale",
        *held_axes(fit.kernel, torus),
        f"scales: by the evidence of up to {MORE_ROWS:,} rows, each given neighbours",
        f"fit: {result.mean_solution.message}",
    ]
    if min(ratio) < 1.5:
        messages.append(
            "warning: the lengthscale is shorter than the grid resolves with "
            f"{MOST_POINTS:,} points: what is smaller than a cell counts as noise"
        )
    return FittedModel(
        latent=_latent(model, result),
        likelihood=fit.noise,
        kernel=fit.kernel,
        mean=fit.mean,
        why=start.why,
        converged=start.converged and result.converged,
        messages=tuple(messages),
        facts={
            "grid": list(torus.grid.shape),
            "torus": list(torus.shape),
            "points_to_a_lengthscale": ratio,
            "wrap_error": report.wrap_error,
            "dropped_modes": report.dropped_modes,
            "samples": len(result.samples),
        },
    )
