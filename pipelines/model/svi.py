"""HIP-GP as published: stochastic variational inference on a Toeplitz embedding."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dustmap.inference.svi import HipSettings, SvgpResult, fit_svi
from dustmap.inference.svi.bound import Observations
from dustmap.likelihoods import Gaussian
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import ToeplitzWhitening
from pipelines.base.errors import InputError
from pipelines.config import FitConfig
from pipelines.model.forward import toeplitz_whitening
from pipelines.model.observations import rays
from pipelines.model.plan import Plan
from pipelines.model.problem import Inference, Problem


def run_svi(problem: Problem) -> Inference:
    """The variational posterior.

    Raises
    ------
    InputError
        If the embedding exceeds its limit, or settings do not fit the problem.
    """
    try:
        whitening = toeplitz_whitening(problem.plan, problem.place["device"])
        plan = problem.plan
        stars, mean = problem.stars, plan.mean.build()
        ends = torch.as_tensor(stars.positions())
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
        result = _fitted(model, observed, problem)
    except ValueError as error:
        raise InputError(f"engine svi: {error}") from None
    seed = int(torch.randint(2**62, (1,), generator=problem.place["generator"]))
    solution = result.mean_solution
    return Inference(
        plan=_learnt(plan, result),
        mean=result.q.mean,
        samples=_samples(result, problem.config.inference.samples, seed),
        noise=(variance.to(observed.values) + _common_variance(result)).sqrt(),
        converged=solution is not None and bool(solution.converged.all()),
        messages=(result.message,),
        facts={
            "embedding_shape": list(whitening.report.shape),
            "embedding_covariance_error": whitening.report.covariance_error,
            "bound": result.bound,
        },
    )


def _fitted(
    model: RowwiseGaussian, observed: Observations, problem: Problem
) -> SvgpResult:
    settings, on_step = _settings(problem.config, len(observed)), problem.on_step
    return fit_svi(
        model,
        observed,
        settings,
        generator=problem.place["generator"],
        on_step=lambda step, _, bound: on_step("svi bound", step, bound),
        on_progress=lambda part, done: on_step(f"svi {part}", done, float("nan")),
        checkpointer=problem.checkpointer,
    )


def _settings(config: FitConfig, count: int) -> HipSettings:
    """The engine's settings for so many observations."""
    svi = config.svi
    learning = {}
    if svi.hyperparameter_rate:
        learning["rate"] = svi.hyperparameter_rate
        learning["learn"] = ("kernel", "likelihood")
    return HipSettings(
        family=svi.family,
        block=svi.block,
        batch_size=min(svi.batch_size, count),
        epochs=svi.epochs,
        natural_rate=svi.learning_rate,
        **learning,
    )


def _samples(result: SvgpResult, count: int, seed: int) -> Tensor:
    """Draws from q, each by a seed of its own."""
    draws = [
        result.q.sample(1, torch.Generator().manual_seed(seed + number))
        for number in range(count)
    ]
    return torch.cat(draws) if draws else result.q.mean.new_zeros(0, len(result.q.mean))


def _common_variance(result: SvgpResult) -> float:
    likelihood = result.model.likelihood
    assert isinstance(likelihood, Gaussian)
    return float(likelihood.variance)


def _learnt(plan: Plan, result: SvgpResult) -> Plan:
    """The plan with the hyperparameters that were learnt."""
    values = result.model.kernel.parameters()
    whitening = result.model.whitening
    assert isinstance(whitening, ToeplitzWhitening)
    scale = values["lengthscale"].detach().expand(3).tolist()
    return replace(
        plan,
        # Learning widens the embedding for the longest lengthscale it may reach.
        embedding=replace(plan.embedding, shape=whitening.embedding.torus.shape),
        lengthscale=tuple(float(s) for s in scale),
        std=float(values["variance"].detach().sqrt()),
        common_noise=float((plan.common_noise**2 + _common_variance(result)) ** 0.5),
    )
