"""Scales of the prior learnt from the evidence's gradient, on a part of the problem.

Lengthscale, variance, mean and common noise are few, and some thousand stars around the
observer tell them: the fit itself need not wait for all. A lognormal density is learnt
by its first two moments (:mod:`dustmap.models.modulated`), with linear solves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from dustmap.grid import Grid
from dustmap.inference.full_batch import infer
from dustmap.inference.hyperparameters import learn
from dustmap.inference.learning_settings import Learning, Learnt
from dustmap.inference.noise import Weighing
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.base import ForwardModel
from dustmap.models.lognormal import LogNormal
from dustmap.models.modulated import Modulated, lognormal_scales
from dustmap.whitening import padded_torus
from pipelines.config import FitConfig
from pipelines.engines import (
    Data,
    build_model,
    full_batch_settings,
    learns_common,
    noise_of,
    sight_lines,
)
from pipelines.plan import RESOLVED, Plan

# Stars and torus points that learning uses at most: some seconds for a step.
_STARS, _POINTS = 8_000, 150_000
_STEPS, _PAIRS, _RANK = 6, 4, 64
# Lengthscales may grow by this factor: the torus is padded for it.
_GROWTH = 2.0
# Variance at which an unknown common noise starts, relative to the stars' own.
_COMMON = 1e-3


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
    on_step: Callable[[str, int, float], None],
) -> Learned | None:
    """The plan with hyperparameters of largest evidence; ``None`` if all are given."""
    names = open_names(plan, config)
    if not config.inference.learn or plan.engine != "full-batch" or not names:
        return None
    part, some = _part(plan, data, generator)
    model = _linear(part, some, dtype, device, generator)
    settings = replace(
        full_batch_settings(config, model.latent_size),
        samples=0,
        solver=ConjugateGradients(rtol=1e-3, max_steps=500),
    )
    noise = noise_of(part, some)
    first = infer(
        model,
        some.extinction,
        noise,
        settings=settings,
        generator=generator,
        on_step=lambda stage, step, value: on_step(f"scales {stage}", step, value),
    )
    weighing = Weighing(model, some.extinction, noise, subgrid_noise=False)
    stated = weighing.normal(first.mean[None], torch.zeros_like(first.weights))
    sigma2 = (stated / first.weights).to(torch.float64).cpu()
    common = float(sigma2.median()) * _COMMON
    count = len(some.extinction)
    found = learn(
        model,
        some.extinction.to(device=device),
        sigma2.to(device),
        settings=Learning(
            names=names,
            anisotropic=config.inference.anisotropic,
            pairs=_PAIRS,
            subgrid_noise=plan.subgrid_noise,
            max_steps=_STEPS,
            # A gain of so little moves no map.
            tolerance=1.0 + 5e-4 * count,
            residual=0.06 * math.sqrt(count),
            preconditioner_rank=min(_RANK, model.latent_size),
            lengthscale_range=_range(part),
        ),
        generator=generator,
        common_noise=common,
        on_step=lambda step: on_step("scales", step.products, step.predicted_gain),
    )
    return _learned(plan, found, config, count)


def _part(plan: Plan, data: Data, generator: torch.Generator) -> tuple[Plan, Data]:
    """A box around the observer with the same spacing, and some stars in it."""
    grid = plan.grid
    shrink = 1.0
    while True:
        lower = [round(-o / h * shrink) for o, h in zip(grid.origin, grid.spacing)]
        upper = [round((u / h) * shrink) for u, h in zip(grid.upper, grid.spacing)]
        shape = tuple(max(a + b, 3) + 1 for a, b in zip(lower, upper, strict=True))
        origin = tuple(
            o + (round(-o / h) - a) * h
            for o, h, a in zip(grid.origin, grid.spacing, lower, strict=True)
        )
        box = Grid(shape=shape, spacing=grid.spacing, origin=origin)
        kernel = plan.build_kernel()
        wide = kernel.with_parameters({"lengthscale": _GROWTH * kernel.lengthscale})
        torus = padded_torus(box, wide, 0.05)
        if torus.size <= _POINTS or max(shape) <= 8:
            break
        shrink *= 0.9
    inside = torch.nonzero(box.contains(data.ends))[:, 0]
    if len(inside) > _STARS:
        order = torch.randperm(len(inside), generator=generator)[:_STARS]
        inside = inside[order.sort().values]
    return replace(plan, grid=box, torus_shape=torus.shape), data.select(inside)


def _linear(
    plan: Plan,
    data: Data,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
) -> ForwardModel:
    """The model itself, or the linear one with the moments of a lognormal density."""
    lines = sight_lines(plan, data)
    model = build_model(plan, lines, dtype=dtype, device=device, generator=generator)
    if not isinstance(model, LogNormal):
        return model
    # lognormal_scales, inverted.
    relative = math.expm1(plan.std**2)
    unit = model.kernel.with_parameters({"variance": torch.tensor(relative)})
    _, factor, median = lognormal_scales(unit)
    kernel = unit.with_parameters({"lengthscale": unit.lengthscale / factor})
    mean = replace(plan.mean, value=plan.mean.value / median).build()
    return Modulated(
        model.whitening.with_kernel(kernel),
        lines,
        mean=mean,
        interpolation=model.interpolation,
    )


def _range(plan: Plan) -> tuple[float, float]:
    """Lengthscales that the grid resolves and the torus was padded for [pc]."""
    longest = _GROWTH * max(plan.lengthscale)
    shortest = min(RESOLVED * max(plan.grid.spacing), *plan.lengthscale)
    return 0.5 * shortest, longest


def _learned(plan: Plan, found: Learnt, config: FitConfig, stars: int) -> Learned:
    values = found.parameters
    scale = [float(s) for s in values["lengthscale"].expand(3)]
    variance, mean = float(values["variance"]), plan.mean
    amplitude = float(values["mean"]) if "mean" in values else mean.value
    if plan.density == "lognormal":
        kernel = plan.build_kernel().with_parameters({"variance": values["variance"]})
        variance, factor, median = lognormal_scales(kernel)
        scale = [factor * s for s in scale]
        amplitude *= median
        if "mean" not in open_names(plan, config):
            # The mean density that was given stays; its median goes with the std.
            amplitude = mean.value * math.exp((plan.std**2 - variance) / 2)
    names = open_names(plan, config)
    floor = [RESOLVED * h for h in plan.grid.spacing]
    notes = []
    if "lengthscale" in names:
        raised = [max(s, f) for s, f in zip(scale, floor, strict=True)]
        if raised != scale:
            notes.append(
                f"lengthscale raised from {min(scale):.4g} pc to {RESOLVED:g} grid "
                "steps: the grid does not resolve the one learnt"
            )
        scale = raised
    else:
        scale = list(plan.lengthscale)
    if not found.converged:
        notes.append("learning the scales stopped before it converged")
    changed = replace(
        plan,
        lengthscale=(scale[0], scale[1], scale[2]),
        std=math.sqrt(variance) if "variance" in names else plan.std,
        mean=replace(
            mean,
            value=amplitude,
            scale_height=float(values["scale_height"])
            if "scale_height" in names
            else mean.scale_height,
        ),
        common_noise=(
            math.hypot(plan.common_noise, math.sqrt(found.common_noise))
            if "common_noise" in names and not learns_common(plan, config)
            else plan.common_noise
        ),
        notes=(*plan.notes, *notes),
    )
    kernel = changed.build_kernel()
    torus = padded_torus(plan.grid, kernel, config.model.wrap_tolerance)
    facts = {
        "stars": stars,
        "steps": len(found.history),
        "products": found.products,
        "converged": found.converged,
        # Of the logarithms; infinite where nothing tells.
        "errors": {n: e if math.isfinite(e) else None for n, e in found.errors.items()},
    }
    return Learned(
        plan=replace(changed, torus_shape=torus.shape), notes=tuple(notes), facts=facts
    )
