"""Regression and classification by stochastic variational inference."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.gp.inducing import kmeans_points
from dustmap.gp.svgp_fit import fit_svgp
from dustmap.gp.svgp_settings import SvgpSettings
from dustmap.kernels import Radial
from dustmap.likelihoods import Bernoulli, Gaussian, Likelihood, StudentT
from dustmap.whitening import CholeskyWhitening, CiqWhitening, Whitening
from pipelines.progress import Progress
from pipelines.regress.fitted import FittedModel
from pipelines.regress.robust import without_outliers
from pipelines.regress.start import Start, find_start

# Inducing points: one for a few rows, within limits.
_FEWEST_POINTS, _MOST_POINTS, _ROWS_PER_POINT = 50, 500, 5
_BATCH = 256
# Steps: what Adam needs to move a scale by a factor of ten, and many passes.
_FEWEST_STEPS, _EPOCHS, _MOST_STEPS = 800, 30, 3000
_JITTER = 1e-6


def fit_variational(
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    likelihood: str,
    whitening: str,
    generator: torch.Generator,
) -> FittedModel:
    """Inducing points at the centres of clusters, scales from a subset, then Adam."""
    start, noise = _start(x, y, likelihood, generator)
    wanted = min(max(len(x) // _ROWS_PER_POINT, _FEWEST_POINTS), _MOST_POINTS)
    points = kmeans_points(x, min(wanted, len(x)), generator)
    batch = min(_BATCH, len(x))
    steps = _EPOCHS * math.ceil(len(x) / batch)
    settings = SvgpSettings(
        batch_size=batch,
        steps=min(max(_FEWEST_STEPS, steps), _MOST_STEPS),
        natural_rate=0.1,
    )
    with Progress(description="fit", total=settings.total_steps(len(x))) as progress:
        result = fit_svgp(
            PointValues(x),
            y,
            _whitening(whitening, start.kernel, points),
            noise,
            generator=generator,
            mean=start.mean,
            settings=settings,
            on_step=lambda step, total: progress.update(),
        )
    model = result.model
    values = model.kernel.parameters()
    message = (
        f"inducing points: {len(points)}, whitening {whitening}; "
        f"{settings.total_steps(len(x))} steps of {batch} rows"
    )
    return FittedModel(
        latent=lambda where: model.predict(PointValues(where)),
        likelihood=model.likelihood,
        lengthscale=tuple(values["lengthscale"].expand(x.shape[1]).tolist()),
        std=float(values["variance"].sqrt()),
        mean=model.mean,
        kernel=type(model.kernel).__name__,
        why=start.why,
        converged=True,
        messages=(message, *result.message.splitlines()),
        facts={"inducing_points": len(points), "bound": result.bound.value},
    )


def _start(
    x: Tensor, y: Tensor, likelihood: str, generator: torch.Generator
) -> tuple[Start, Likelihood]:
    """Scales by the exact evidence of a subset with normal noise.

    Classes are taken for −1 and 1: lengthscales carry over, and the field's variance
    in units of the noise is that of a probit, whose noise has a variance of one.
    """
    if likelihood == "gaussian":
        start = find_start(x, y, generator)
        return start, Gaussian(variance=start.noise)
    if likelihood == "student-t":
        start = find_start(x, without_outliers(y), generator)
        return start, StudentT(scale=math.sqrt(start.noise), degrees=4.0)
    start = find_start(x, 2 * y - 1, generator)
    ratio = float(start.kernel.variance) / start.noise
    variance = torch.tensor(min(max(ratio, 0.5), 30.0), dtype=torch.float64)
    share = y.mean().clamp(1e-3, 1 - 1e-3)
    kernel = start.kernel.with_parameters({"variance": variance})
    mean = float(torch.special.ndtri(share) * (1 + variance).sqrt())
    return replace(start, kernel=kernel, mean=mean), Bernoulli()


def _whitening(name: str, kernel: Radial, points: Float[Tensor, "m d"]) -> Whitening:
    nugget = _JITTER * float(kernel.variance)
    if name == "cholesky":
        return CholeskyWhitening(kernel, points, nugget=nugget)
    return CiqWhitening(kernel, points, nugget=nugget)
