"""HIP-GP as published: stochastic variational inference on a Toeplitz embedding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dustmap.distributed.group import Group
from dustmap.functionals import (
    Functionals,
    GaussLegendre,
    LineIntegrals,
    MonteCarlo,
    Rule,
)
from dustmap.inference.full_batch.gauss_newton import Task
from dustmap.inference.svi import HipSettings, SvgpResult, fit_svi
from dustmap.inference.svi.bound import Observations
from dustmap.keyed_noise import Purpose, stream
from dustmap.likelihoods import Gaussian
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.toeplitz import EmbeddingLimits
from dustmap.models.base import ForwardModel
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import ToeplitzWhitening
from pipelines.base.errors import InputError
from pipelines.config import FitConfig
from pipelines.model.plan import MOST_EMBEDDED, Plan
from pipelines.model.problem import Device, Inference, Problem

_BOUND = Task(name="svi bound")
# Above this ratio of lengthscale and spacing the covariance of the field on the grid,
# which is solved with, is nearly singular.
_SOLVABLE = 5.0
# Work of a row per grid point, measured at M = 4,000.
_ROW_WORK = 4e-6


def spacing_limits(
    extent: np.ndarray, stars: int, work: float, config: FitConfig
) -> tuple[float, float]:
    """Return the most grid steps in a lengthscale, and the least spacing [pc].

    With the latter all rows fit the budget: a row takes ``_ROW_WORK`` per grid
    point, and 8 bytes per point and star.
    """
    by_work = work / (max(stars, 1) * _ROW_WORK)
    by_memory = config.budget.bytes / 4 / (8 * max(stars, 1))
    points = max(min(by_work, by_memory, MOST_EMBEDDED / 8), 64.0)
    return _SOLVABLE, float(np.prod(extent) / points) ** (1 / 3)


def rays(
    plan: Plan, end: Tensor, start: Tensor | None = None, *, outwards: bool = False
) -> LineIntegrals:
    """Return line integrals [pc] by the quadrature of the configuration.

    Nodes are keyed by the ray, so that ``outwards`` ones are the same.
    """
    own = plan.embedding
    rule: Rule = MonteCarlo(count=own.nodes, seed=own.seed)
    if own.quadrature == "gauss-legendre":
        rule = GaussLegendre(count=own.nodes)
    return LineIntegrals(end, rule, start=None if outwards else start)


def build_model(
    plan: Plan, functionals: Functionals, device: Device, group: Group | None = None
) -> ForwardModel:
    """Build the model of rows on the grid's circulant embedding, in float64."""
    own = plan.embedding
    whitening = ToeplitzWhitening(
        plan.build_kernel(),
        plan.grid,
        lengthscales=plan.lengthscale,
        nugget=own.nugget,
        limits=EmbeddingLimits(max_points=own.max_points),
        solver=ConjugateGradients(rtol=own.tolerance, max_steps=own.max_steps),
        shape=own.shape or None,
        device=device["device"],
    )
    group = group or Group()
    return RowwiseGaussian(whitening, functionals, mean=plan.mean, group=group)


def infer(problem: Problem) -> Inference:
    """Return the variational posterior.

    Raises `InputError` if the embedding exceeds its limit, or settings do not suit the
    problem.
    """
    plan, stars, generator = problem.plan, problem.stars, problem.device["generator"]
    svi, on_step = problem.config.svi, problem.on_step
    learning: dict[str, Any] = {}
    if svi.hyperparameter_rate:
        learning["rate"] = svi.hyperparameter_rate
        learning["learn"] = ("kernel", "likelihood")
    try:
        ends = torch.as_tensor(stars.positions())
        model = build_model(plan, rays(plan, ends), problem.device, problem.group)
        assert isinstance(model, RowwiseGaussian)
        density = plan.mean(ends).numpy()
        variance = torch.as_tensor(stars.variance(density, plan.common_noise))
        observed = Observations.of(
            model,
            torch.as_tensor(stars.extinction),
            variance,
            subgrid_noise=plan.subgrid_noise,
        )
        result = fit_svi(
            model,
            observed,
            HipSettings(
                family=svi.family,
                block=svi.block,
                batch_size=min(svi.batch_size, len(observed)),
                epochs=svi.epochs,
                **learning,
            ),
            generator=generator,
            on_step=lambda step, _, bound: on_step(_BOUND, step, bound),
            on_progress=lambda part, done: on_step(
                Task(name=f"svi {part}"), done, float("nan")
            ),
            checkpointer=problem.checkpointer,
        )
    except ValueError as error:
        raise InputError(f"engine svi: {error}") from None
    seed = int(torch.randint(2**62, (1,), generator=generator))
    samples = [
        result.q.sample(1, stream(seed, Purpose.SAMPLES, number))
        for number in range(problem.config.inference.samples)
    ]
    samples = samples or [result.q.mean.new_zeros(0, len(result.q.mean))]
    solution, likelihood = result.mean_solution, result.model.likelihood
    whitening = model.whitening
    assert isinstance(likelihood, Gaussian)
    assert isinstance(whitening, ToeplitzWhitening)
    common = float(likelihood.variance)
    return Inference(
        plan=_learnt(plan, result, common),
        mean=result.q.mean,
        samples=torch.cat(samples),
        noise=(variance.to(observed.values) + common).sqrt(),
        converged=solution is not None and bool(solution.converged.all()),
        messages=(result.message,),
        facts={
            "embedding_shape": list(whitening.report.shape),
            "embedding_covariance_error": whitening.report.covariance_error,
            "bound": result.bound,
        },
    )


def _learnt(plan: Plan, result: SvgpResult, common: float) -> Plan:
    """Return the plan with the learnt hyperparameters."""
    values = result.model.kernel.parameters()
    whitening = result.model.forward.whitening
    assert isinstance(whitening, ToeplitzWhitening)
    return replace(
        plan,
        # The embedding is widened for the longest lengthscale that may be learnt.
        embedding=replace(plan.embedding, shape=tuple(whitening.embedding.torus.shape)),
        lengthscale=tuple(values["lengthscale"].detach().expand(3).tolist()),
        std=float(values["variance"].detach().sqrt()),
        common_noise=float((plan.common_noise**2 + common) ** 0.5),
    )
