"""Scales of the prior learnt from the evidence's gradient, on a part of the problem.

Lengthscale, variance, mean and common noise are few, and some thousand stars around the
observer tell them: the fit itself need not wait for all. A lognormal density is learnt
by its first two moments (:mod:`dustmap.models.modulated`), with linear solves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.full_batch import NoiseState, infer
from dustmap.inference.scales.hyperparameters import learn
from dustmap.inference.scales.learning_settings import Learning, Learnt
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.base import ForwardModel
from dustmap.models.modulated import lognormal_scales
from dustmap.whitening import padded_torus
from pipelines.base.timing import Allowance
from pipelines.config import FitConfig
from pipelines.model.engines import full_batch_settings
from pipelines.model.observations import Data, learns_common, learns_share, noise_of
from pipelines.model.plan import RESOLVED, Plan
from pipelines.planning.learning_part import lengthscale_range, linear_model, part_of

_STEPS, _PAIRS, _RANK = 14, 4, 64
# Variance at which an unknown common noise starts, relative to the stars' own.
_COMMON = 1e-3
# Of budget.minutes, what learning may take beyond its first step.
LEARNING_SHARE = 0.25

OnStep = Callable[[str, int, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The plan with what was learnt, in words and numbers."""

    plan: Plan
    notes: tuple[str, ...]
    facts: dict[str, Any]


def open_names(plan: Plan, config: FitConfig) -> tuple[str, ...]:
    """Hyperparameters that the configuration leaves to the data."""
    prior = config.prior
    free = {
        "lengthscale": prior.lengthscale is None,
        "variance": prior.std is None,
        "mean": prior.mean_density is None and plan.mean.value > 0,
        "scale_height": prior.scale_height is None
        and plan.mean.kind == "exponential-disc",
        "common_noise": config.model.common_noise is None,
        "subgrid_share": learns_share(plan, config),
    }
    return tuple(name for name, is_free in free.items() if is_free)


def learn_plan(
    plan: Plan,
    data: Data,
    config: FitConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
    on_step: OnStep,
    clock: Callable[[], float] = time.perf_counter,
) -> Learned | None:
    """The plan with hyperparameters of largest evidence; ``None`` if all are given.

    Once a step was accepted, no step is begun that would end beyond
    ``LEARNING_SHARE`` of the budget's time by ``clock`` [s].
    """
    names = open_names(plan, config)
    in_fit = ("subgrid_share", "common_noise") if plan.is_lognormal else ()
    # What the fit learns by itself is no reason to learn before it.
    wanted = set(names) - set(in_fit)
    if not config.inference.learn or not plan.is_full_batch or not wanted:
        return None
    allowance = Allowance(60 * config.budget.minutes * LEARNING_SHARE, clock)
    part, some = part_of(plan, data, generator)
    model = linear_model(part, some, dtype, device, generator)
    sigma2 = _weighed_variance(model, part, some, config, generator, on_step)
    allowance.lap()

    def told(products: int, promised: float) -> None:
        allowance.lap()
        on_step("scales", products, promised)

    found = learn(
        model,
        some.extinction.to(device=device),
        sigma2.to(device),
        settings=_settings(part, model, config, names, len(sigma2)),
        generator=generator,
        common_noise=float(sigma2.median()) * _COMMON,
        on_step=lambda step: told(step.products, step.predicted_gain),
        stop=allowance.over,
    )
    changed, notes = _changed(plan, found, config)
    ending = _ending(found, allowance, config)
    facts = _facts(found, len(sigma2), allowance)
    notes = (*notes, *ending)
    return Learned(
        plan=replace(changed, notes=(*plan.notes, *notes)), notes=notes, facts=facts
    )


def _weighed_variance(
    model: ForwardModel,
    part: Plan,
    some: Data,
    config: FitConfig,
    generator: torch.Generator,
    on_step: OnStep,
) -> Float[Tensor, " n"]:
    """``σ_n²/w_n`` of a first fit: outliers and distance errors are known after it."""
    noise = noise_of(part, some)
    if not noise.depends_on_field:
        return noise.variance
    settings = replace(
        full_batch_settings(config, model.latent_size),
        samples=0,
        subgrid_noise=True,
        solver=ConjugateGradients(rtol=1e-3, max_steps=500),
    )
    first = infer(
        model,
        some.extinction,
        noise,
        settings=settings,
        generator=generator,
        on_step=lambda stage, step, value: on_step(f"scales {stage}", step, value),
    )
    weighing = NoiseState(model, some.extinction, noise, subgrid_noise=False)
    stated = weighing.normal(first.mean[None], torch.zeros_like(first.weights))
    return (stated / first.weights).to(torch.float64).cpu()


def _settings(
    part: Plan, model: ForwardModel, config: FitConfig, names: tuple[str, ...], n: int
) -> Learning:
    return Learning(
        names=names,
        anisotropic=config.inference.anisotropic,
        pairs=_PAIRS,
        # Even if the fit leaves it out, to which its charge in the bound is nothing:
        # charged, scales make the field smooth and weak; without it they are the
        # grid's.
        subgrid_noise=True,
        max_steps=_STEPS,
        # A gain of so little moves no map.
        tolerance=1.0 + 5e-4 * n,
        residual=0.06 * math.sqrt(n),
        preconditioner_rank=min(_RANK, model.latent_size),
        lengthscale_range=lengthscale_range(part),
    )


def _changed(
    plan: Plan, found: Learnt, config: FitConfig
) -> tuple[Plan, tuple[str, ...]]:
    """The plan with what is open as it was found, and notes on what could not be."""
    names = open_names(plan, config)
    values = found.parameters
    scale, std, amplitude = _field_scales(plan, found, given="mean" not in names)
    notes: tuple[str, ...] = ()
    lengthscale = plan.lengthscale
    if "lengthscale" in names:
        lengthscale, notes = _resolved(scale, plan)
    mean = replace(plan.mean, value=amplitude)
    if "scale_height" in names:
        mean = replace(mean, scale_height=float(values["scale_height"]))
    common = plan.common_noise
    if "common_noise" in names and not learns_common(plan, config):
        common = math.hypot(common, math.sqrt(found.common_noise))
    changed = replace(
        plan,
        lengthscale=lengthscale,
        std=std if "variance" in names else plan.std,
        mean=mean,
        common_noise=common,
        subgrid_share=float(values.get("subgrid_share", plan.subgrid_share)),
    )
    kernel = changed.build_kernel()
    torus = padded_torus(plan.grid, kernel, config.model.wrap_tolerance)
    return replace(changed, torus_shape=torus.shape), notes


def _field_scales(
    plan: Plan, found: Learnt, *, given: bool
) -> tuple[list[float], float, float]:
    """Lengthscales, std and the mean's amplitude of the plan's field.

    A lognormal density's are those of its logarithm, and its median. ``given`` says
    that the mean density is: it stays, and its median goes with the std.
    """
    values = found.parameters
    scale = [float(s) for s in values["lengthscale"].expand(3)]
    amplitude = float(values["mean"]) if "mean" in values else plan.mean.value
    if not plan.is_lognormal:
        return scale, math.sqrt(float(values["variance"])), amplitude
    kernel = plan.build_kernel().with_parameters({"variance": values["variance"]})
    variance, factor, median = lognormal_scales(kernel)
    amplitude *= median
    if given:
        amplitude = plan.mean.value * math.exp((plan.std**2 - variance) / 2)
    return [factor * s for s in scale], math.sqrt(variance), amplitude


def _resolved(
    scale: list[float], plan: Plan
) -> tuple[tuple[float, float, float], tuple[str, ...]]:
    """Lengthscales that the grid resolves, and a note where they were raised to it."""
    floor = [RESOLVED * h for h in plan.grid.spacing]
    x, y, z = (max(s, f) for s, f in zip(scale, floor, strict=True))
    if [x, y, z] == scale:
        return (x, y, z), ()
    note = (
        f"lengthscale raised from {min(scale):.4g} pc to {RESOLVED:g} grid "
        "steps: the grid does not resolve the one learnt"
    )
    return (x, y, z), (note,)


def _ending(found: Learnt, allowance: Allowance, config: FitConfig) -> tuple[str, ...]:
    """How learning ended, if not by itself at the optimum."""
    if found.converged:
        return ()
    if found.status == "stopped":
        taken = sum(step.accepted for step in found.history[1:])
        steps = "step" if taken == 1 else "steps"
        return (
            f"learning the scales was stopped by its time after {taken} {steps} and "
            f"{allowance.spent:.0f} s: another would have passed {LEARNING_SHARE:.0%} "
            f"of budget.minutes = {config.budget.minutes:g}; raise it for better ones",
        )
    why = {
        "out of steps": f"after {_STEPS} points",
        "solve failed": "at a solve that did not converge",
    }[found.status]
    return (
        f"learning the scales stopped {why}: the fit takes the best found until then. "
        "For others give prior.lengthscale and prior.std, or a coarser box.spacing or "
        "smaller box, whose scales are learnt more easily",
    )


def _facts(found: Learnt, stars: int, allowance: Allowance) -> dict[str, Any]:
    by_time = found.status == "stopped"
    return {
        "stars": stars,
        "steps": len(found.history),
        "products": found.products,
        "status": "stopped by its time" if by_time else found.status,
        "converged": found.converged,
        "seconds": round(allowance.spent, 3),
        "seconds_allowed": allowance.limit,
        # Of the logarithms; infinite where nothing tells.
        "errors": {n: e if math.isfinite(e) else None for n, e in found.errors.items()},
    }
