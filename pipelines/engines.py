"""From a plan and data to a posterior: the two engines behind one door."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dustmap.checkpoint import Checkpointer
from dustmap.distributed.group import Group
from dustmap.distributed.slabs import Slabs
from dustmap.functionals import (
    Functionals,
)
from dustmap.grid import Torus
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.svi import HipSettings, SvgpResult, fit_svi
from dustmap.inference.svi.bound import Observations
from dustmap.inference.svi.cost import estimate_cost
from dustmap.likelihoods import Gaussian
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.toeplitz import EmbeddingLimits
from dustmap.models.base import ForwardModel
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.lognormal import LogNormal
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.models.slab import SlabGaussian, SlabLogNormal
from dustmap.projection import Interpolation
from dustmap.whitening import (
    SlabTorusWhitening,
    ToeplitzWhitening,
    TorusWhitening,
)
from pipelines.base.errors import InputError
from pipelines.base.progress import say
from pipelines.config import FitConfig
from pipelines.model.engine_report import (
    NEWTON_TOLERANCE,
    messages_of,
    outlier_facts,
    torus_facts,
)
from pipelines.model.observations import (
    Data,
    learns_common,
    learns_share,
    noise_of,
    rays,
    sight_lines,
)
from pipelines.model.plan import Plan

# Of Gauss-Newton steps: densities that vary by factors took 16 to 23 to their mode.
_NEWTON_STEPS = 50

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


def build_model(
    plan: Plan,
    functionals: Functionals,
    *,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
    group: Group | None = None,
    whitening_type: type[TorusWhitening] = TorusWhitening,
) -> ForwardModel:
    """The forward model of a plan, seen through these functionals.

    The ranks of a group share out the functionals, and call the model together.
    """
    if plan.engine == "svi":
        return RowwiseGaussian(
            _toeplitz(plan, device), functionals, mean=plan.mean.build(), group=group
        )
    whitening = whitening_type(
        plan.build_kernel(),
        Torus(grid=plan.grid, shape=plan.torus_shape),
        refinement=plan.refinement,
        dtype=dtype,
        device=device,
    )
    interpolation: Interpolation = (
        "cubic" if plan.interpolation == "cubic" else "linear"
    )
    if plan.density == "lognormal":
        return LogNormal(
            whitening,
            functionals,
            mean=plan.mean.build(),
            interpolation=interpolation,
            memory_budget=_weights_budget(plan, device, group),
            subgrid_share=plan.subgrid_share,
            group=group,
        )
    return TorusGaussian(
        whitening,
        functionals,
        mean=plan.mean.build(),
        interpolation=interpolation,
        residual_refinement=plan.residual_refinement,
        residual_count=plan.residual_count,
        generator=generator,
        group=group,
    )


def slabs_of(plan: Plan, config: FitConfig, group: Group) -> Slabs | None:
    """How the ranks share out the plan's torus, if they do.

    Raises
    ------
    InputError
        If there are more ranks than planes.
    """
    if config.inference.grid != "slabs":
        return None
    try:
        return Slabs.even(plan.torus_shape, group)
    except ValueError as error:
        raise InputError(f"inference.grid: {error}") from None


def _slab_model(
    plan: Plan,
    functionals: Functionals,
    slabs: Slabs,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> SlabGaussian | SlabLogNormal:
    """The forward model of a plan on a torus that the ranks share out."""
    whitening = SlabTorusWhitening(
        plan.build_kernel(),
        Torus(grid=plan.grid, shape=plan.torus_shape),
        group=slabs.group,
        cuts=slabs.cuts,
        dtype=dtype,
        device=device,
    )
    budget = _weights_budget(plan, device, slabs.group)
    if plan.density == "lognormal":
        return SlabLogNormal(
            whitening,
            functionals,
            mean=plan.mean.build(),
            memory_budget=budget,
            subgrid_share=plan.subgrid_share,
        )
    return SlabGaussian(
        whitening,
        functionals,
        mean=plan.mean.build(),
        interpolation="cubic" if plan.interpolation == "cubic" else "linear",
        memory_budget=budget,
    )


def _weights_budget(
    plan: Plan, device: torch.device, group: Group | None
) -> float | None:
    """What a rank's W may take [bytes], beside those on the same machine."""
    if plan.weights_budget is None:
        return None
    # Elsewhere every rank has a device of its own.
    if group is None or device.type != "cpu":
        return plan.weights_budget
    return plan.weights_budget / group.here


def _toeplitz(plan: Plan, device: torch.device) -> ToeplitzWhitening:
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
        device=device,
    )


def run_engine(
    plan: Plan,
    data: Data,
    config: FitConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
    on_step: OnStep,
    checkpointer: Checkpointer | None = None,
    group: Group | None = None,
) -> Inference:
    """The posterior by the engine the plan names, from where its state says.

    The ranks of a group make it together, and all have it; of a grid in slabs the
    first one alone has mean and samples.
    """
    group = group or Group()
    group.require_alike("the random generator", generator.get_state())
    if plan.engine == "svi":
        variance = data.variance + plan.common_noise**2
        if data.placing_error is not None:
            density = plan.mean.build()(data.ends)
            variance = variance + (density * data.placing_error) ** 2
        return _run_svi(
            plan,
            data,
            variance,
            config,
            device,
            generator,
            on_step,
            checkpointer,
            group,
        )
    lines, slabs = sight_lines(plan, data), slabs_of(plan, config, group)
    if slabs is None:
        model = build_model(
            plan, lines, dtype=dtype, device=device, generator=generator, group=group
        )
    else:
        model = _slab_model(plan, lines, slabs, dtype=dtype, device=device)
    result = infer(
        model,
        data.extinction,
        noise_of(
            plan,
            data,
            learn_common=learns_common(plan, config),
            learn_share=plan.subgrid_noise and learns_share(plan, config),
        ),
        settings=full_batch_settings(
            config, model.latent_space.length(model.latent_size)
        ),
        generator=generator,
        on_step=on_step,
        checkpointer=checkpointer,
    )
    common = math.sqrt(plan.common_noise**2 + result.common_noise)
    return Inference(
        plan=replace(plan, common_noise=common, subgrid_share=result.subgrid_share),
        mean=result.mean if slabs is None else slabs.to_first(result.mean),
        samples=result.samples if slabs is None else slabs.to_first(result.samples),
        noise=result.noise_variance.sqrt(),
        converged=result.converged,
        messages=messages_of(model, result, config.inference.tolerance),
        facts={
            **torus_facts(model),
            **outlier_facts(result),
        },
    )


def full_batch_settings(config: FitConfig, size: int) -> FullBatch:
    """The engine's settings for a vector of this size."""
    inference = config.inference
    rank = inference.preconditioner_rank if inference.preconditioner != "none" else 0
    return FullBatch(
        solver=ConjugateGradients(
            rtol=inference.tolerance, max_steps=inference.max_iterations
        ),
        samples=inference.samples,
        sample_rtol=inference.sample_tolerance,
        subgrid_noise=config.model.subgrid_noise,
        preconditioner_rank=min(rank, size),
        newton_steps=_NEWTON_STEPS,
        newton_tolerance=NEWTON_TOLERANCE,
    )


def _run_svi(
    plan: Plan,
    data: Data,
    variance: Tensor,
    config: FitConfig,
    device: torch.device,
    generator: torch.Generator,
    on_step: OnStep,
    checkpointer: Checkpointer | None,
    group: Group,
) -> Inference:
    try:
        whitening = _toeplitz(plan, device)
    except ValueError as error:
        raise InputError(f"engine svi: {error}") from None
    plan = replace(plan, torus_shape=tuple(whitening.report.shape))
    model = RowwiseGaussian(
        whitening, rays(plan, data.ends), mean=plan.mean.build(), group=group
    )
    observed = Observations.of(
        model, data.extinction, variance, subgrid_noise=plan.subgrid_noise
    )
    settings = _svi_settings(config, len(observed))
    try:
        say(str(estimate_cost(model, observed, settings)))
        result = fit_svi(
            model,
            observed,
            settings,
            generator=generator,
            on_step=lambda step, _, bound: on_step("svi bound", step, bound),
            on_progress=lambda part, done: on_step(f"svi {part}", done, float("nan")),
            checkpointer=checkpointer,
        )
    except ValueError as error:
        raise InputError(f"engine svi: {error}") from None
    seed = int(torch.randint(2**62, (1,), generator=generator))
    return Inference(
        plan=_learnt(plan, result),
        mean=result.q.mean,
        samples=_svi_samples(result, config.inference.samples, seed),
        noise=(variance.to(observed.values) + _common_variance(result)).sqrt(),
        converged=result.mean_solution is not None
        and bool(result.mean_solution.converged.all()),
        messages=(result.message,),
        facts={
            "embedding_shape": list(whitening.report.shape),
            "embedding_covariance_error": whitening.report.covariance_error,
            "bound": result.bound,
        },
    )


def _svi_settings(config: FitConfig, count: int) -> HipSettings:
    """The engine's settings for so many observations."""
    svi = config.svi
    learning = {}
    if svi.hyperparameter_rate:
        learning["rate"] = svi.hyperparameter_rate
        learning["learn"] = ("kernel", "likelihood")
    return HipSettings(
        family=svi.family,
        block=svi.block,
        rank=svi.rank,
        batch_size=min(svi.batch_size, count),
        epochs=svi.epochs,
        natural_rate=svi.learning_rate,
        **learning,
    )


def _svi_samples(result: SvgpResult, count: int, seed: int) -> Tensor:
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
        torus_shape=tuple(whitening.embedding.torus.shape),
        lengthscale=tuple(float(s) for s in scale),
        std=float(values["variance"].detach().sqrt()),
        common_noise=float((plan.common_noise**2 + _common_variance(result)) ** 0.5),
    )
