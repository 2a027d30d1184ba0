"""Regression by the exact posterior, and by the collapsed bound."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.gp.exact import ExactGP
from dustmap.gp.fitting import LBFGS, maximise
from dustmap.gp.inducing import kmeans_points
from dustmap.gp.regression import Regression
from dustmap.gp.sgpr import SGPR
from dustmap.likelihoods import Gaussian
from pipelines.errors import InputError
from pipelines.regress.fitted import FittedModel
from pipelines.regress.start import ROWS, find_start, refined

# The collapsed bound reads all rows for every step: of more only the last step does.
_LEARN_ROWS = 20_000
_POINTS = 500
_MOST_EXACT = 8_000
_JITTER = 1e-6


def fit_exact(
    x: Float[Tensor, "n d"], y: Float[Tensor, " n"], generator: torch.Generator
) -> FittedModel:
    """The exact posterior of all rows. Cost: ``N³`` per step of the search."""
    if len(x) > _MOST_EXACT:
        raise InputError(
            f"--method exact takes at most {_MOST_EXACT} rows to fit, here are "
            f"{len(x)}: use another method, or leave it out"
        )
    start = find_start(x, y, generator)
    if len(x) > ROWS:
        start = refined(start, x, y)
    model = ExactGP(start.kernel, PointValues(x), y, noise=start.noise, mean=start.mean)
    facts = {"log_evidence": model.log_marginal()}
    return _fitted(model, start.why, start.converged, facts, ())


def fit_sgpr(
    x: Float[Tensor, "n d"], y: Float[Tensor, " n"], generator: torch.Generator
) -> FittedModel:
    """The collapsed bound with points at the centres of clusters."""
    start = find_start(x, y, generator)
    points = kmeans_points(x, min(_POINTS, len(x)), generator)
    rows = torch.randperm(len(x), generator=generator)[:_LEARN_ROWS]
    model = SGPR(
        start.kernel,
        PointValues(x[rows]),
        y[rows],
        points,
        noise=start.noise,
        mean=start.mean,
        jitter=_JITTER,
    )
    found = maximise(model, LBFGS(max_steps=40, gradient_tolerance=1.0))
    learnt = found.model
    if len(rows) < len(x):
        values = learnt.parameters()
        learnt = SGPR(
            learnt.kernel,
            PointValues(x),
            y,
            points,
            noise=values["noise"],
            mean=values["mean"],
            jitter=_JITTER,
        )
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


def _fitted(
    model: Regression,
    why: str,
    converged: bool,
    facts: dict[str, Any],
    messages: tuple[str, ...],
) -> FittedModel:
    values = model.parameters()
    axes = model.functionals.dimension
    return FittedModel(
        latent=lambda x: model.predict(PointValues(x)),
        likelihood=Gaussian(variance=values["noise"]),
        lengthscale=tuple(values["lengthscale"].expand(axes).tolist()),
        std=float(values["variance"].sqrt()),
        mean=float(values["mean"]),
        kernel=type(model.kernel).__name__,
        why=why,
        converged=converged,
        messages=messages,
        facts=facts,
    )
