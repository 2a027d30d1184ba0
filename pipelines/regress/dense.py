"""Regression by the exact posterior, and by the collapsed bound."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.gp.fitting import LBFGS, EvidenceFit, maximise
from dustmap.gp.inducing import kmeans_points
from dustmap.gp.regression import Regression
from dustmap.gp.sgpr import SGPR
from dustmap.kernels import Radial
from dustmap.likelihoods import Gaussian
from pipelines.regress.fitted import FittedModel, Problem
from pipelines.regress.start import ROWS, Start, find_start

# The collapsed bound reads all rows for every step: of more only the last step does.
_LEARN_ROWS = 20_000
_POINTS = 500
_JITTER = 1e-6
_LEAST_NOISE = 0.1
# The search begins within a factor of e of the start: from afar it can leap to where
# the whole target is noise, and stay.
_REACHES = (1.0, 3.0)


def fit_exact(problem: Problem) -> FittedModel:
    """The exact posterior of all rows, with the scales of largest evidence of these.

    Of more rows than the first search had, a second one that lowers it is not taken.
    """
    x, y, generator = problem.x, problem.y, problem.generator
    starts = [find_start(x, y, generator)]
    if len(x) > ROWS:
        starts.append(starts[0].refined(x, y, generator))
    models = [start.exact(x, y) for start in starts]
    evidence, last = max((m.log_marginal(), n) for n, m in enumerate(models))
    start = starts[last]
    return _fitted(models[last], start, start.converged, log_evidence=evidence)


def fit_sgpr(problem: Problem) -> FittedModel:
    """The collapsed bound with points at the centres of clusters."""
    x, y, generator = problem.x, problem.y, problem.generator
    start = find_start(x, y, generator)
    points = inducing_points(start, x, _POINTS, generator)
    rows = torch.randperm(len(x), generator=generator)[:_LEARN_ROWS]
    found = learn_sparse(start, x[rows], y[rows], points)
    model = _sparse(start, x, y, points).with_parameters(found.model.parameters())
    message = (
        f"inducing points: {len(points)}; hyperparameters by the bound of "
        f"{len(rows)} rows in {found.steps} steps: {found.message}"
    )
    return _fitted(
        model,
        start,
        found.converged,
        message,
        inducing_points=len(points),
        bound=model.log_marginal(),
        steps=found.steps,
    )


def inducing_points(
    start: Start, x: Float[Tensor, "n d"], count: int, generator: torch.Generator
) -> Float[Tensor, "m d"]:
    """Centres of clusters of the inputs in units of their lengthscales.

    Inputs that hardly matter do not spread the points.
    """
    scales = start.kernel.lengthscale
    return kmeans_points(x / scales, min(count, len(x)), generator) * scales


def learn_sparse(
    start: Start,
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    points: Float[Tensor, "m d"],
) -> EvidenceFit[SGPR]:
    """Scales and noise of largest bound with these points."""
    model = _sparse(start, x, y, points)
    near, far = (
        LBFGS(max_steps=30, gradient_tolerance=1.0, reach=reach, ranges=start.ranges)
        for reach in _REACHES
    )
    return maximise(maximise(model, near).model, far)


def _sparse(start: Start, x: Tensor, y: Tensor, points: Tensor) -> SGPR:
    """What few points cannot follow is noise to them: it starts with more."""
    noise = max(start.noise, _LEAST_NOISE)
    return SGPR(
        start.kernel,
        PointValues(x),
        y,
        points,
        noise=noise,
        mean=start.mean,
        jitter=_JITTER,
    )


def _fitted(
    model: Regression, start: Start, converged: bool, *messages: str, **facts: Any
) -> FittedModel:
    assert isinstance(model.kernel, Radial)
    return FittedModel(
        latent=lambda x: model.predict(PointValues(x)),
        likelihood=Gaussian(variance=model.noise),
        kernel=model.kernel,
        mean=float(model.mean),
        why=start.why,
        converged=converged,
        messages=messages,
        facts=facts,
    )
