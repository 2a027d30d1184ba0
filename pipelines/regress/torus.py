"""Regression on a grid in one to three inputs: HIP-GP on a torus, all rows at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.inference.full_batch import FullBatch, FullBatchResult, infer
from dustmap.inference.scales.hyperparameters import learn
from dustmap.inference.scales.learning_settings import Learning, Learnt
from dustmap.inference.scales.search import clustered_subset
from dustmap.inference.svi.bound import LatentMoments
from dustmap.kernels import Constant, Radial, Sum
from dustmap.likelihoods import Gaussian, Likelihood
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.means import ConstantMean
from dustmap.posterior import Posterior
from dustmap.whitening import TorusWhitening
from pipelines.base.progress import Progress
from pipelines.regress.fitted import FittedModel, Latent
from pipelines.regress.robust import fitted_noise
from pipelines.regress.start import MORE_ROWS, NEIGHBOURS, Start, find_start, refined
from pipelines.regress.torus_grid import (
    CHEAP_POINTS,
    LEARNING_POINTS,
    MOST_POINTS,
    bounded,
    torus_over,
    within_reach,
)

_LEARN_ROWS = 30_000
# Steps of learning, and what one may still promise when they end [nats]: of many rows
# a gain of 5e-5 each moves no prediction.
_STEPS, _STILL, _STILL_PER_ROW = 14, 0.05, 5e-5
# In more inputs a step of learning on a grid takes half a minute: there the exact
# evidence of some more rows has to do.
_LEARNING_AXES = 2
_SAMPLES, _FEW_SAMPLES = 64, 16
# Refinement of the grid on which a point value's residual is measured.
_RESIDUAL = 2
# Draws that tell what the grid cannot resolve, in the fit and while scales are learnt.
_DRAWS, _FEW_DRAWS = 32, 8
# Images of the kernel on the torus that are left out, in shares of its variance. On a
# torus of few lengthscales in three inputs each digit costs as many again.
_IMAGES = 1e-10
# Rounds of noise and fit in turn, and rows that tell the noise.
_ROUNDS, _NOISE_ROWS = 4, 5_000
_KERNEL_TERMS = ("0.lengthscale", "0.variance")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scales:
    """Kernel, noise and offset on their way."""

    kernel: Radial
    noise: Likelihood
    mean: float

    @property
    def variance(self) -> float:
        """τ² of normal noise, what weights divide of a mixture."""
        return float(self.noise.base_variance)


def fit_torus(
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    everywhere: Float[Tensor, "m d"],
    likelihood: type[Likelihood],
    generator: torch.Generator,
) -> FittedModel:
    """Learn the scales from a subset and then from up to 30,000 rows; fit all rows.

    The mean is a constant kernel beside the field's: its posterior is averaged over.
    Noise that is not normal and the fit are improved in turn.

    Parameters
    ----------
    everywhere
        All inputs that will be asked for: the grid covers them.
    """
    robust = not likelihood.conjugate
    tame = likelihood.tamed(y)
    start = find_start(x, tame, generator)
    if x.shape[1] > _LEARNING_AXES:
        more = clustered_subset(x, MORE_ROWS, NEIGHBOURS, generator)
        start = refined(start, x[more], tame[more])
    normal = (start.noise, float(start.kernel.variance), start.mean)
    found = torch.tensor(normal, dtype=torch.float64)
    noise = likelihood.start(y, *found).likelihood
    kernel = within_reach(start.kernel, everywhere)
    scales = _Scales(kernel=kernel, noise=noise, mean=start.mean)
    chosen = torch.randperm(len(x), generator=generator)[:_LEARN_ROWS]
    some = _GridFit(
        x=x[chosen], y=y[chosen], everywhere=everywhere, generator=generator
    )
    rows = _GridFit(x=x, y=y, everywhere=everywhere, generator=generator)
    weights = torch.ones(len(chosen), dtype=torch.float64)
    if robust:
        scales, weights, _ = _in_turn(some, scales, weights)
    learnt = None
    if x.shape[1] <= _LEARNING_AXES:
        # An outlier of weight w has the variance s²/w.
        learnt = _learn(scales, some, scales.variance * (1 / weights - 1))
        scales = _learnt_scales(scales, learnt)
        kernel = within_reach(scales.kernel, everywhere)
        scales = replace(scales, kernel=kernel)
    weights_of_all = torch.ones(len(x), dtype=torch.float64)
    if robust:
        scales, weights, latent = _in_turn(some, scales, weights)
        weights_of_all = scales.noise.weights(y, *latent(x))
    model = rows.model(scales, CHEAP_POINTS)
    result = rows.fit(model, scales.variance / weights_of_all, _SAMPLES)
    return _fitted(start, scales, learnt, model, result)


@dataclass(frozen=True, slots=True, kw_only=True)
class _GridFit:
    """Rows to fit, and what every fit of them needs."""

    x: Float[Tensor, "n d"]
    y: Float[Tensor, " n"]
    everywhere: Float[Tensor, "m d"]
    generator: torch.Generator

    def model(self, scales: _Scales, cheap: int = LEARNING_POINTS) -> TorusGaussian:
        """The field on a grid of about so many points, seen at the rows."""
        kernel = Sum(terms=(scales.kernel, Constant(variance=1.0)))
        torus = torus_over(scales.kernel, self.everywhere, cheap)
        # On a finer grid the weights of point values hardly err; in three inputs it
        # would have eight times the points.
        fine = torus.size <= cheap and torus.grid.dimension < 3
        refinement = 2 if fine else 1
        return TorusGaussian(
            TorusWhitening(
                kernel, torus, refinement=refinement, image_tolerance=_IMAGES
            ),
            PointValues(self.x),
            mean=ConstantMean(value=scales.mean),
            interpolation="cubic",
            residual_refinement=_RESIDUAL,
            residual_count=_DRAWS if cheap > LEARNING_POINTS else _FEW_DRAWS,
            generator=self.generator,
        )

    def fit(
        self, model: TorusGaussian, variance: Float[Tensor, " n"], samples: int
    ) -> FullBatchResult:
        """The posterior under normal noise of these variances."""
        settings = FullBatch(
            solver=ConjugateGradients(rtol=1e-5, max_steps=2000),
            samples=samples,
            sample_rtol=1e-2,
            preconditioner_rank=min(200, model.latent_size // 2),
        )
        with Progress(description="fit") as progress:
            return infer(
                model,
                self.y,
                variance,
                settings=settings,
                generator=self.generator,
                on_step=lambda _stage, _step, residual: progress.update(
                    residual=residual
                ),
            )


def _learn(
    scales: _Scales,
    rows: _GridFit,
    extra: Float[Tensor, " n"],
) -> Learnt:
    """Hyperparameters by the evidence of these rows on the start's grid.

    The scale of noise that is not normal is not the evidence's to learn.
    """
    model = rows.model(scales)
    own = model.whitening.kernel.parameters()["0.lengthscale"].detach()
    shortest = min(min(model.whitening.torus.grid.spacing), 0.5 * float(own.min()))
    normal = isinstance(scales.noise, Gaussian)
    settings = Learning(
        names=(*_KERNEL_TERMS, "common_noise") if normal else _KERNEL_TERMS,
        anisotropic=True,
        lengthscale_range=(shortest, 5 * float(own.max())),
        max_steps=_STEPS,
        tolerance=_STILL + _STILL_PER_ROW * len(rows.y),
        preconditioner_rank=min(200, model.latent_size // 2),
    )
    with Progress(description="scales") as progress:
        return learn(
            model,
            rows.y,
            extra,
            settings=settings,
            generator=rows.generator,
            common_noise=scales.variance,
            on_step=lambda step: progress.update(promised=step.predicted_gain),
        )


def _learnt_scales(scales: _Scales, learnt: Learnt) -> _Scales:
    values = learnt.parameters
    kernel = scales.kernel.with_parameters(
        {"lengthscale": values["0.lengthscale"], "variance": values["0.variance"]}
    )
    noise = scales.noise
    if isinstance(noise, Gaussian):
        noise = Gaussian(variance=learnt.common_noise)
    return replace(scales, kernel=kernel, noise=noise)


def _in_turn(
    rows: _GridFit, scales: _Scales, weights: Float[Tensor, " n"]
) -> tuple[_Scales, Float[Tensor, " n"], Latent]:
    """Noise, the weights it leaves to rows, and the fit, in turn."""
    model = rows.model(scales)
    few = slice(0, _NOISE_ROWS)
    latent: Latent
    for _ in range(_ROUNDS):
        result = rows.fit(model, scales.variance / weights, _FEW_SAMPLES)
        latent = _latent(model, result)
        seen = latent(rows.x)
        part = LatentMoments(mean=seen.mean[few], variance=seen.variance[few])
        noise = fitted_noise(rows.y[few], part, scales.noise)
        scales = replace(scales, noise=noise)
        weights = noise.weights(rows.y, *seen)
    return scales, weights, latent


def _latent(model: TorusGaussian, result: FullBatchResult) -> Latent:
    posterior = Posterior(model=model, mean=result.mean, samples=result.samples)

    def latent(x: Float[Tensor, "n d"]) -> LatentMoments:
        moments = posterior.moments(PointValues(x))
        return LatentMoments(mean=moments.mean, variance=moments.std**2)

    return latent


def _fitted(
    start: Start,
    scales: _Scales,
    learnt: Learnt | None,
    model: TorusGaussian,
    result: FullBatchResult,
) -> FittedModel:
    torus = model.whitening.torus
    own = scales.kernel.lengthscale.detach().expand(torus.grid.dimension)
    ratio = [s / h for s, h in zip(own.tolist(), torus.grid.spacing, strict=True)]
    shape = " × ".join(map(str, torus.grid.shape))
    messages = [
        f"grid: {shape} points, {' × '.join(map(str, torus.shape))} on the torus; "
        f"{', '.join(f'{r:.2g}' for r in ratio)} points to a lengthscale",
        *bounded(own, torus),
        _learning_text(learnt),
        f"fit: {result.mean_solution.message}",
    ]
    if min(ratio) < 1.5:
        messages.append(
            "warning: the lengthscale is shorter than the grid resolves with "
            f"{MOST_POINTS:,} points: what is smaller than a cell counts as noise"
        )
    report = model.whitening.report
    return FittedModel(
        latent=_latent(model, result),
        likelihood=scales.noise,
        kernel=scales.kernel,
        mean=scales.mean,
        why=start.why,
        converged=(learnt is None or learnt.converged) and result.converged,
        messages=tuple(messages),
        facts={
            "grid": list(torus.grid.shape),
            "torus": list(torus.shape),
            "points_to_a_lengthscale": ratio,
            "wrap_error": report.wrap_error,
            "dropped_modes": report.dropped_modes,
            "learning": None if learnt is None else learnt.status,
            "samples": len(result.samples),
        },
    )


def _learning_text(learnt: Learnt | None) -> str:
    if learnt is None:
        return f"scales: by the exact evidence of up to {MORE_ROWS:,} rows"
    return (
        f"scales: learnt from {len(learnt.state.total_variance):,} rows in "
        f"{len(learnt.history)} steps: {learnt.status}"
    )
