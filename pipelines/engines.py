"""From a plan and data to a posterior: the two engines behind one door."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dustmap.functionals import (
    FixedStep,
    Functionals,
    GaussLegendre,
    LineIntegrals,
    MonteCarlo,
    PointValues,
    Rule,
)
from dustmap.grid import Torus
from dustmap.inference.cost import estimate_cost
from dustmap.inference.elbo import GaussianData
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.svi import SviResult, fit_svi
from dustmap.inference.svi_settings import SviSettings
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.toeplitz import EmbeddingLimits
from dustmap.models.base import ForwardModel
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import ToeplitzWhitening, TorusWhitening
from pipelines.config import FitConfig
from pipelines.errors import InputError
from pipelines.plan import Plan
from pipelines.progress import say

# Called with stage, step and relative residual (or bound).
OnStep = Callable[[str, int, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """What an engine found: ε's mean and samples, and what it says of itself.

    ``plan`` holds the hyperparameters as learnt; ``noise`` [mag] is the standard
    deviation every star was weighted with.
    """

    plan: Plan
    mean: Tensor
    samples: Tensor
    noise: Tensor
    converged: bool
    messages: tuple[str, ...]
    facts: dict[str, Any] = field(default_factory=dict)


def rays(plan: Plan, end: Tensor, start: Tensor | None = None) -> LineIntegrals:
    """Line integrals [pc] by the quadrature of the plan's engine."""
    rule: Rule
    if plan.engine == "full-batch":
        step = plan.ray_step * min(plan.grid.spacing) / plan.refinement
        rule = FixedStep(step=step)
    elif plan.embedding.quadrature == "gauss-legendre":
        rule = GaussLegendre(count=plan.embedding.nodes)
    else:
        generator = torch.Generator().manual_seed(plan.embedding.seed)
        rule = MonteCarlo.draw(len(end), plan.embedding.nodes, generator)
    return LineIntegrals(end, rule, start=start)


def build_model(
    plan: Plan,
    functionals: Functionals,
    *,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
) -> ForwardModel:
    """The forward model of a plan, seen through these functionals."""
    if plan.engine == "svi":
        return RowwiseGaussian(_toeplitz(plan), functionals, mean=plan.mean.build())
    whitening = TorusWhitening(
        plan.build_kernel(),
        Torus(grid=plan.grid, shape=plan.torus_shape),
        refinement=plan.refinement,
        dtype=dtype,
        device=device,
    )
    return TorusGaussian(
        whitening,
        functionals,
        mean=plan.mean.build(),
        interpolation="cubic" if plan.interpolation == "cubic" else "linear",
        residual_refinement=plan.residual_refinement,
        residual_count=plan.residual_count,
        generator=generator,
    )


def _toeplitz(plan: Plan) -> ToeplitzWhitening:
    return ToeplitzWhitening(
        plan.build_kernel(),
        plan.grid,
        lengthscales=plan.lengthscale,
        nugget=plan.embedding.nugget,
        limits=EmbeddingLimits(max_points=plan.embedding.max_points),
        solver=ConjugateGradients(
            rtol=plan.embedding.tolerance, max_steps=plan.embedding.max_steps
        ),
        shape=plan.torus_shape or None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What the stars tell: ray ends [pc], extinction, variance [mag²], σ_d [pc]."""

    ends: Tensor
    extinction: Tensor
    variance: Tensor
    distance_error: Tensor | None = None


def run_engine(
    plan: Plan,
    data: Data,
    config: FitConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
    on_step: OnStep,
) -> Inference:
    """The posterior by the engine the plan names."""
    variance = data.variance + plan.common_noise**2
    if data.distance_error is not None:
        density = plan.mean.build()(data.ends)
        variance = variance + (density * data.distance_error) ** 2
    if plan.engine == "svi":
        return _run_svi(plan, data, variance, config, generator, on_step)
    model = build_model(
        plan, rays(plan, data.ends), dtype=dtype, device=device, generator=generator
    )
    return _run_full_batch(plan, model, data, variance, config, generator, on_step)


def _full_batch_settings(
    plan: Plan, model: ForwardModel, config: FitConfig
) -> FullBatch:
    inference = config.inference
    rank = inference.preconditioner_rank if inference.preconditioner != "none" else 0
    return FullBatch(
        solver=ConjugateGradients(
            rtol=inference.tolerance, max_steps=inference.max_iterations
        ),
        samples=inference.samples,
        sample_rtol=inference.sample_tolerance,
        subgrid_noise=plan.subgrid_noise,
        preconditioner_rank=min(rank, model.latent_size),
    )


def _run_full_batch(
    plan: Plan,
    model: ForwardModel,
    data: Data,
    variance: Tensor,
    config: FitConfig,
    generator: torch.Generator,
    on_step: OnStep,
) -> Inference:
    settings = _full_batch_settings(plan, model, config)
    start = None
    if data.distance_error is not None:
        start, density = _first_pass(
            model, data, variance, settings, generator, on_step
        )
        variance = (
            data.variance + plan.common_noise**2 + (density * data.distance_error) ** 2
        )
    result = infer(
        model,
        data.extinction,
        variance,
        settings=settings,
        generator=generator,
        start=start,
        on_step=on_step,
    )
    messages = [f"mean: {result.mean_solution.message}"]
    if result.sample_solution is not None:
        messages.append(f"samples: {result.sample_solution.message}")
    return Inference(
        plan=plan,
        mean=result.mean,
        samples=result.samples,
        noise=result.noise_variance.sqrt(),
        converged=result.converged,
        messages=tuple(messages),
        facts=_torus_facts(model),
    )


def _first_pass(
    model: ForwardModel,
    data: Data,
    variance: Tensor,
    settings: FullBatch,
    generator: torch.Generator,
    on_step: OnStep,
) -> tuple[Tensor, Tensor]:
    """A mean by the prior's density, and from it the density at the stars."""
    result = infer(
        model,
        data.extinction,
        variance,
        settings=replace(settings, samples=0),
        generator=generator,
        on_step=lambda stage, step, value: on_step(f"first {stage}", step, value),
    )
    at_stars = model.at(PointValues(data.ends))
    return result.mean, at_stars.apply(result.mean).to(torch.float64).cpu()


def _torus_facts(model: ForwardModel) -> dict[str, Any]:
    assert isinstance(model, TorusGaussian)
    report = model.whitening.report
    return {
        "torus_shape": list(report.shape),
        "wrap_error": report.wrap_error,
        "dropped_modes": report.dropped_modes,
        "entries_of_W": model.weights.nonzeros,
        "median_subgrid_std": float(model.variance.to(torch.float64).sqrt().median()),
    }


def _run_svi(
    plan: Plan,
    data: Data,
    variance: Tensor,
    config: FitConfig,
    generator: torch.Generator,
    on_step: OnStep,
) -> Inference:
    try:
        whitening = _toeplitz(plan)
    except ValueError as error:
        raise InputError(f"engine svi: {error}") from None
    plan = replace(plan, torus_shape=tuple(whitening.report.shape))
    model = RowwiseGaussian(whitening, rays(plan, data.ends), mean=plan.mean.build())
    observed = GaussianData.of(
        model, data.extinction, variance, subgrid_noise=plan.subgrid_noise
    )
    settings = SviSettings(
        family=config.svi.family,
        block=config.svi.block,
        batch_size=min(config.svi.batch_size, len(observed)),
        epochs=config.svi.epochs,
        learning_rate=config.svi.learning_rate,
        hyperparameter_rate=config.svi.hyperparameter_rate,
    )
    try:
        say(str(estimate_cost(model, observed, settings)))
        result = fit_svi(
            model,
            observed,
            settings,
            generator=generator,
            on_step=lambda step, _, bound: on_step("svi bound", step, bound),
            on_rows=lambda rows: on_step("svi rows", rows, float("nan")),
        )
    except ValueError as error:
        raise InputError(f"engine svi: {error}") from None
    return Inference(
        plan=_learnt(plan, result),
        mean=result.q.mean,
        samples=result.q.sample(config.inference.samples, generator),
        noise=(observed.noise + result.common_noise).sqrt(),
        converged=result.mean_solution is not None
        and bool(result.mean_solution.converged.all()),
        messages=(result.message,),
        facts={
            "embedding_shape": list(whitening.report.shape),
            "embedding_covariance_error": whitening.report.covariance_error,
            "bound": result.elbo,
        },
    )


def _learnt(plan: Plan, result: SviResult) -> Plan:
    """The plan with the hyperparameters that were learnt."""
    values = result.kernel.parameters()
    scale = values["lengthscale"].detach().expand(3).tolist()
    return replace(
        plan,
        # Learning widens the embedding for the longest lengthscale it may reach.
        torus_shape=tuple(result.model.whitening.embedding.torus.shape),
        lengthscale=tuple(float(s) for s in scale),
        std=float(values["variance"].detach().sqrt()),
        common_noise=float((plan.common_noise**2 + result.common_noise) ** 0.5),
    )
