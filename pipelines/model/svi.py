"""HIP-GP as published: stochastic variational inference on a Toeplitz embedding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from dustmap.inference.svi import HipSettings, SvgpResult, fit_svi
from dustmap.inference.svi.bound import Observations
from dustmap.keyed_noise import Purpose, stream
from dustmap.likelihoods import Gaussian
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import ToeplitzWhitening
from pipelines.base.errors import InputError
from pipelines.model.forward import toeplitz_whitening
from pipelines.model.observations import rays
from pipelines.model.plan import Plan
from pipelines.model.problem import Inference, Problem


def run_svi(problem: Problem) -> Inference:
    """Return the variational posterior.

    Raises
    ------
    InputError
        If the embedding exceeds its limit, or settings do not suit the problem.
    """
    plan, stars, generator = problem.plan, problem.stars, problem.place["generator"]
    svi, on_step = problem.config.svi, problem.on_step
    learning: dict[str, Any] = {}
    if svi.hyperparameter_rate:
        learning["rate"] = svi.hyperparameter_rate
        learning["learn"] = ("kernel", "likelihood")
    try:
        whitening = toeplitz_whitening(plan, problem.place["device"])
        ends, mean = torch.as_tensor(stars.positions()), plan.mean
        model = RowwiseGaussian(
            whitening, rays(plan, ends), mean=mean, group=problem.group
        )
        density = mean(ends).numpy()
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
                natural_rate=svi.learning_rate,
                **learning,
            ),
            generator=generator,
            on_step=lambda step, _, bound: on_step("svi bound", step, bound),
            on_progress=lambda part, done: on_step(f"svi {part}", done, float("nan")),
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
    assert isinstance(likelihood, Gaussian)
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
    whitening = result.model.whitening
    assert isinstance(whitening, ToeplitzWhitening)
    scale = values["lengthscale"].detach().expand(3).tolist()
    # The embedding is widened for the longest lengthscale that may be learnt.
    shape = tuple(whitening.embedding.torus.shape)
    return replace(
        plan,
        embedding=replace(plan.embedding, shape=shape),
        lengthscale=tuple(float(s) for s in scale),
        std=float(values["variance"].detach().sqrt()),
        common_noise=float((plan.common_noise**2 + common) ** 0.5),
    )
