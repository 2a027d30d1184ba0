"""Makes the plan: box and grid from the budget, scales from the stars themselves."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from dustmap.grid import Grid
from dustmap.inference.scales.search import Fixed
from dustmap.kernels import KERNELS
from dustmap.models.modulated import lognormal_scales
from dustmap.whitening import padded_torus
from pipelines.config import FitConfig
from pipelines.model import cost
from pipelines.model.plan import (
    RESOLVED,
    WEIGHTS_SHARE,
    EmbeddingPlan,
    MeanPlan,
    Plan,
    choose_box,
    finest_spacing,
    make_grid,
    memory_limit,
    residual_refinement,
    resolution_note,
    round_spacing,
    svi_spacing,
    with_notes,
    work_of,
)
from pipelines.planning.prior_search import (
    Catalogue,
    PriorChoice,
    mean_candidates,
    search_prior,
    with_value,
)


def make_plan(
    catalogue: Catalogue,
    config: FitConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
    ranks: int = 1,
    here: int = 1,
) -> tuple[Plan, cost.Work, cost.Speed]:
    """Choose what the configuration leaves open.

    ``ranks`` processes share out the fit, ``here`` of them on this machine: together
    they may have a finer grid than one.

    Raises
    ------
    InputError
        If no grid fits the budget.
    """
    lower, upper, notes = choose_box(catalogue.positions, config)
    speed = cost.measure(dtype, device)
    chosen = catalogue.inside(lower, upper)
    prior = choose_prior(chosen, config, generator)
    spacing = _choose_spacing(
        lower, upper, prior, chosen, config, speed, ranks=ranks, here=here
    )
    grid = make_grid(lower, upper, spacing, config)
    resolved = _resolved(prior.lengthscale, grid)
    if config.prior.lengthscale is None and resolved != prior.lengthscale:
        notes.append(
            f"lengthscale raised from {min(prior.lengthscale):.4g} pc to "
            f"{RESOLVED:g} grid steps: the grid does not resolve the one found"
        )
        # The other scales that go with a longer lengthscale are others, too.
        fixed = config.prior.model_copy(update={"lengthscale": resolved})
        prior = choose_prior(
            chosen, config.model_copy(update={"prior": fixed}), generator
        )
    plan = with_notes(_plan_of(grid, prior, config), [*notes, *prior.notes])
    note = resolution_note(plan)
    if note is not None:
        plan = with_notes(plan, [note])
    work = work_of(grid, plan.build_kernel(), chosen.distances, config)
    return plan, work.shared_out(ranks, here), speed


def _resolved(
    lengthscale: tuple[float, float, float], grid: Grid
) -> tuple[float, float, float]:
    """The lengthscales, at least as long as the grid resolves."""
    floor = [RESOLVED * h for h in grid.spacing]
    x, y, z = (max(s, f) for s, f in zip(lengthscale, floor, strict=True))
    return x, y, z


def _plan_of(grid: Grid, prior: PriorChoice, config: FitConfig) -> Plan:
    """The plan of this grid and prior, with the rest from the configuration."""
    model, svi = config.model, config.inference.engine == "svi"
    kernel = KERNELS[config.kernel](lengthscale=list(prior.lengthscale))
    torus = padded_torus(grid, kernel, model.wrap_tolerance)
    return Plan(
        grid=grid,
        # The published engine's embedding grows when it is made.
        torus_shape=() if svi else torus.shape,
        kernel=config.kernel,
        lengthscale=prior.lengthscale,
        std=prior.std,
        mean=prior.mean,
        common_noise=prior.common_noise,
        engine=config.inference.engine,
        density=config.density,
        outliers=model.outliers and not svi,
        degrees=model.degrees,
        subgrid_share=model.subgrid_share or 1.0,
        refinement=model.refinement,
        residual_refinement=residual_refinement(model.refinement),
        interpolation=model.interpolation,
        ray_step=model.ray_step,
        subgrid_noise=model.subgrid_noise,
        weights_budget=memory_limit(config) * WEIGHTS_SHARE,
        embedding=_embedding(config, prior.std),
    )


def _choose_spacing(
    lower: np.ndarray,
    upper: np.ndarray,
    prior: PriorChoice,
    catalogue: Catalogue,
    config: FitConfig,
    speed: cost.Speed,
    *,
    ranks: int,
    here: int,
) -> tuple[float, ...]:
    """As given, or the finest that the budget and the lengthscale call for."""
    spacing = config.box.spacing
    if spacing is None and config.box.shape is None:
        kernel = KERNELS[config.kernel](lengthscale=list(prior.lengthscale))
        distances = catalogue.distances
        free = finest_spacing(
            lower, upper, kernel, distances, config, speed, ranks=ranks, here=here
        )
        if config.inference.engine == "svi":
            free = max(free, svi_spacing(lower, upper, len(distances), config))
        return (round_spacing(free),) * 3
    return spacing or (1.0,) * 3


def _embedding(config: FitConfig, std: float) -> EmbeddingPlan:
    return EmbeddingPlan(
        nugget=config.svi.nugget * std**2,
        max_points=config.svi.max_embedding,
        tolerance=config.svi.pcg_tolerance,
        max_steps=config.svi.pcg_max_iterations,
        quadrature=config.svi.quadrature,
        nodes=config.svi.nodes,
        seed=config.inference.seed,
    )


def choose_prior(
    catalogue: Catalogue, config: FitConfig, generator: torch.Generator
) -> PriorChoice:
    """Scales of the prior; of a lognormal density those with the same two moments."""
    if config.density == "gaussian":
        return choose_moments(catalogue, config, generator)
    given = config.prior.std
    # What is given is the logarithm's: the moments are searched without it.
    free = config.model_copy(
        update={"prior": config.prior.model_copy(update={"std": None})}
    )
    return as_lognormal(choose_moments(catalogue, free, generator), config, given)


def as_lognormal(
    moments: PriorChoice, config: FitConfig, std: float | None
) -> PriorChoice:
    """The lognormal density with these moments, or with this std of its logarithm.

    A lengthscale that is given is the logarithm's already.
    """
    mean = moments.mean
    relative = (
        moments.std / mean.value if std is None else math.sqrt(math.expm1(std**2))
    )
    kernel = KERNELS[config.kernel](lengthscale=1.0, variance=relative**2)
    variance, factor, median = lognormal_scales(kernel)
    factor = 1.0 if config.prior.lengthscale is not None else factor
    x, y, z = (factor * scale for scale in moments.lengthscale)
    return replace(
        moments,
        lengthscale=(x, y, z),
        std=math.sqrt(variance),
        mean=with_value(mean, median * mean.value),
        # Learnt in the fit, where dense clouds do not pass for noise.
        common_noise=config.model.common_noise or 0.0,
    )


def choose_moments(
    catalogue: Catalogue, config: FitConfig, generator: torch.Generator
) -> PriorChoice:
    """Lengthscale, amplitude, mean and common noise by the evidence of a subset.

    What the configuration gives is kept. Without ``inference.search`` what is open
    follows from simple moments of the data: a lengthscale of a tenth of the median
    distance, and a constant mean and standard deviation of the mean density.
    """
    prior = config.prior
    density = mean_density(catalogue)
    fixed = Fixed(
        variance=1.0 if prior.std is not None else None,
        common_noise=config.model.common_noise,
        amplitude=prior.mean_density,
    )
    everything = (
        prior.lengthscale is not None
        and prior.std is not None
        and config.model.common_noise is not None
        and (prior.mean == "zero" or prior.mean_density is not None)
        and prior.mean != "auto"
        and (prior.mean != "exponential-disc" or prior.scale_height is not None)
    )
    if everything or not config.inference.search:
        typical = float(np.median(catalogue.distances)) / 10
        mean = mean_candidates(catalogue, config)[0]
        value = prior.mean_density if prior.mean_density is not None else density
        value = 0.0 if mean.kind == "zero" else value
        return PriorChoice(
            lengthscale=prior.lengthscale or (typical, typical, typical),
            std=prior.std if prior.std is not None else density,
            mean=with_value(mean, value),
            common_noise=config.model.common_noise or 0.0,
        )
    found = search_prior(catalogue, config, fixed, generator)
    if config.density == "lognormal" and not found.mean.value > 0:
        note = "mean density: that of all sight lines, since a lognormal needs one"
        mean = with_value(MeanPlan(kind="constant"), density)
        found = replace(found, mean=mean, notes=(*found.notes, note))
    return found


def mean_density(catalogue: Catalogue) -> float:
    """Total extinction over total path length [mag/pc], positive."""
    total = float(np.abs(catalogue.extinction.sum()))
    scale = float(np.abs(catalogue.extinction).sum() + catalogue.noise.sum())
    return max(total, 1e-3 * scale) / float(catalogue.distances.sum())
