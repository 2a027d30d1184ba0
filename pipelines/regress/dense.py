"""Regression by the exact posterior, and by the collapsed bound."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.gp.exact import ExactGP
from dustmap.gp.fitting import LBFGS, EvidenceFit, maximise
from dustmap.gp.inducing import kmeans_points
from dustmap.gp.regression import Regression
from dustmap.gp.sgpr import SGPR
from dustmap.inference.scales.search import clustered_subset
from dustmap.kernels import Radial
from dustmap.likelihoods import Gaussian
from pipelines.base.errors import InputError
from pipelines.regress.fitted import FittedModel
from pipelines.regress.start import (
    MORE_ROWS,
    NEIGHBOURS,
    ROWS,
    Start,
    find_start,
    refined,
)

# The collapsed bound reads all rows for every step: of more only the last step does.
_LEARN_ROWS = 20_000
_POINTS = 500
MOST_EXACT = 8_000
_JITTER = 1e-6
_LEAST_NOISE = 0.1


def fit_exact(
    x: Float[Tensor, "n d"], y: Float[Tensor, " n"], generator: torch.Generator
) -> FittedModel:
    """The exact posterior of all rows, with the scales of up to 2,000 of them.

    Raises
    ------
    InputError
        If there are more than 8,000 rows.
    """
    if len(x) > MOST_EXACT:
        raise InputError(
            f"--method exact takes at most {MOST_EXACT} rows to fit, here are "
            f"{len(x)}: use another method, or leave it out"
        )
    start = find_start(x, y, generator)
    if len(x) > ROWS:
        more = clustered_subset(x, MORE_ROWS, NEIGHBOURS, generator)
        start = refined(start, x[more], y[more])
    model = ExactGP(start.kernel, PointValues(x), y, noise=start.noise, mean=start.mean)
    facts = {"log_evidence": model.log_marginal()}
    return _fitted(model, start.why, start.converged, facts, ())


def fit_sgpr(
    x: Float[Tensor, "n d"], y: Float[Tensor, " n"], generator: torch.Generator
) -> FittedModel:
    """The collapsed bound with points at the centres of clusters."""
    start = find_start(x, y, generator)
    points = inducing_points(start, x, _POINTS, generator)
    rows = torch.randperm(len(x), generator=generator)[:_LEARN_ROWS]
    found = learn_sparse(start, x[rows], y[rows], points)
    learnt = _sparse(start, x, y, points).with_parameters(found.model.parameters())
    facts = {
        "inducing_points": len(points),
        "bound": learnt.log_marginal(),
        "steps": found.steps,
    }
    messages = (
        f"inducing points: {len(points)}; hyperparameters by the bound of "
        f"{len(rows)} rows in {found.steps} steps: {found.message}",
    )
    return _fitted(learnt, start.why, found.converged, facts, messages)


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
    """Scales and noise of largest bound with these points.

    What few points cannot follow is noise to them, and an exact fit may have found far
    less: it starts with more. The search begins within a factor of e of the start;
    from afar it can leap to where the whole target is noise, and stay.
    """
    model = _sparse(start, x, y, points)
    near = LBFGS(max_steps=30, gradient_tolerance=1.0, reach=1.0)
    first = maximise(model, near).model
    return maximise(first, LBFGS(max_steps=30, gradient_tolerance=1.0, reach=3.0))


def _sparse(
    start: Start,
    x: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    points: Float[Tensor, "m d"],
) -> SGPR:
    return SGPR(
        start.kernel,
        PointValues(x),
        y,
        points,
        noise=max(start.noise, _LEAST_NOISE),
        mean=start.mean,
        jitter=_JITTER,
    )


def _fitted(
    model: Regression,
    why: str,
    converged: bool,
    facts: dict[str, Any],
    messages: tuple[str, ...],
) -> FittedModel:
    assert isinstance(model.kernel, Radial)
    return FittedModel(
        latent=lambda x: model.predict(PointValues(x)),
        likelihood=Gaussian(variance=model.noise),
        kernel=model.kernel,
        mean=float(model.mean),
        why=why,
        converged=converged,
        messages=messages,
        facts=facts,
    )
