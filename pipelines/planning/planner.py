"""The plan: box and grid from the budget, scales from the stars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from dustmap.grid import Grid
from dustmap.inference.scales.prior_scales import lognormal_scales
from dustmap.inference.scales.search import Fixed
from dustmap.kernels import KERNELS
from dustmap.whitening import nested_tori
from pipelines.config import FitConfig
from pipelines.model import cost
from pipelines.model.plan import (
    RESOLVED,
    WEIGHTS_SHARE,
    EmbeddingPlan,
    MeanPlan,
    Plan,
    choose_box,
    make_grid,
    memory_limit,
    residual_refinement,
    resolution_notes,
    work_of,
)
from pipelines.planning.learning import ChooseGrid
from pipelines.planning.prior_search import (
    Catalogue,
    PriorChoice,
    mean_candidates,
    search_prior,
    with_value,
)
from pipelines.planning.spacing import finest_grids, nested_grids


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
    choose_grid = _chooser(
        lower, upper, chosen.distances, config, speed, ranks=ranks, here=here
    )
    if choose_grid is not None:
        grids = choose_grid(prior.lengthscale, prior.std)
    else:
        grid = make_grid(lower, upper, config.box.spacing or (1.0,) * 3, config)
        grids = nested_grids(grid, chosen.distances, config, config.levels)
    resolved = _resolved(prior.lengthscale, grids[0])
    if config.prior.lengthscale is None and resolved != prior.lengthscale:
        notes.append(
            f"lengthscale raised from {min(prior.lengthscale):.4g} pc to "
            f"{RESOLVED:g} grid steps: the grid does not resolve the one found"
        )
        # The other scales that go with a longer lengthscale are others, too.
        given = _with_prior(config, lengthscale=resolved)
        prior = choose_prior(chosen, given, generator)
    plan = _plan_of(grids, prior, config)
    work = work_of(grids, plan.build_kernel(), chosen.distances, config, std=plan.std)
    notes += [*prior.notes, *resolution_notes(plan)]
    return replace(plan, notes=tuple(notes)), work.shared_out(ranks, here), speed


def grid_chooser(
    plan: Plan,
    distances: np.ndarray,
    config: FitConfig,
    speed: cost.Speed,
    *,
    ranks: int = 1,
    here: int = 1,
    box: tuple[np.ndarray, np.ndarray] | None = None,
) -> ChooseGrid | None:
    """Choose the grid over the plan's box anew; ``None`` where its spacing is given.

    Or over the ``box`` between two other corners [pc].
    """
    box = box or (np.array(plan.grid.lower), np.array(plan.grid.upper))
    return _chooser(*box, distances, config, speed, ranks=ranks, here=here)


def _chooser(
    lower: np.ndarray,
    upper: np.ndarray,
    distances: np.ndarray,
    config: FitConfig,
    speed: cost.Speed,
    *,
    ranks: int,
    here: int,
) -> ChooseGrid | None:
    """The grid over a box by budget and scales; ``None`` where its spacing is given."""
    if config.box.spacing is not None or config.box.shape is not None:
        return None

    def choose(lengthscale: Sequence[float], std: float) -> tuple[Grid, ...]:
        kernel = KERNELS[config.kernel](lengthscale=list(lengthscale))
        place = (lower, upper, kernel, distances, config)
        return finest_grids(*place, speed, std=std, ranks=ranks, here=here)

    return choose


def _with_prior(config: FitConfig, **values: object) -> FitConfig:
    prior = config.prior.model_copy(update=values)
    return config.model_copy(update={"prior": prior})


def _resolved(
    lengthscale: tuple[float, float, float], grid: Grid
) -> tuple[float, float, float]:
    """The lengthscales, at least as long as the grid resolves."""
    steps = zip(lengthscale, grid.spacing, strict=True)
    x, y, z = (max(scale, RESOLVED * step) for scale, step in steps)
    return x, y, z


def _plan_of(grids: tuple[Grid, ...], prior: PriorChoice, config: FitConfig) -> Plan:
    """The plan of these grids and this prior, with the rest from the configuration."""
    model, is_svi = config.model, config.inference.engine == "svi"
    kernel = KERNELS[config.kernel](lengthscale=list(prior.lengthscale))
    first, *finer = nested_tori(grids, kernel, model.wrap_tolerance)
    return Plan(
        grid=first.grid,
        # The published engine's embedding grows when it is made.
        torus_shape=() if is_svi else first.shape,
        finer=tuple(finer),
        kernel=config.kernel,
        lengthscale=prior.lengthscale,
        std=prior.std,
        mean=prior.mean,
        common_noise=prior.common_noise,
        engine=config.inference.engine,
        density=config.density,
        outliers=model.outliers and not is_svi,
        degrees=model.degrees,
        subgrid_share=model.subgrid_share or 1.0,
        refinement=model.refinement,
        residual_refinement=residual_refinement(model.refinement),
        interpolation=model.interpolation,
        ray_step=model.ray_step,
        subgrid_noise=model.subgrid_noise,
        weights_budget=memory_limit(config) * WEIGHTS_SHARE,
        embedding=EmbeddingPlan(
            nugget=config.svi.nugget * prior.std**2,
            max_points=config.svi.max_embedding,
            tolerance=config.svi.pcg_tolerance,
            max_steps=config.svi.pcg_max_iterations,
            quadrature=config.svi.quadrature,
            nodes=config.svi.nodes,
            seed=config.inference.seed,
        ),
    )


def choose_prior(
    catalogue: Catalogue, config: FitConfig, generator: torch.Generator
) -> PriorChoice:
    """Scales of the prior; of a lognormal density those with the same two moments."""
    if config.density == "gaussian":
        return choose_moments(catalogue, config, generator)
    # What is given is the logarithm's: the moments are searched without it.
    moments = choose_moments(catalogue, _with_prior(config, std=None), generator)
    return as_lognormal(moments, config, config.prior.std)


def as_lognormal(
    moments: PriorChoice, config: FitConfig, std: float | None
) -> PriorChoice:
    """The lognormal density with these moments, or with this std of its logarithm.

    A lengthscale that is given is the logarithm's already.
    """
    relative = moments.std / moments.mean.value
    if std is not None:
        relative = math.sqrt(math.expm1(std**2))
    kernel = KERNELS[config.kernel](lengthscale=1.0, variance=relative**2)
    variance, factor, median = lognormal_scales(kernel)
    if config.prior.lengthscale is not None:
        factor = 1.0
    x, y, z = (factor * scale for scale in moments.lengthscale)
    return replace(
        moments,
        lengthscale=(x, y, z),
        std=math.sqrt(variance),
        mean=with_value(moments.mean, median * moments.mean.value),
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
    if _is_given(config) or not config.inference.search:
        return _simple_moments(catalogue, config)
    prior = config.prior
    fixed = Fixed(
        variance=1.0 if prior.std is not None else None,
        common_noise=config.model.common_noise,
        amplitude=prior.mean_density,
    )
    found = search_prior(catalogue, config, fixed, generator)
    if config.density == "lognormal" and not found.mean.value > 0:
        note = "mean density: that of all sight lines, since a lognormal needs one"
        mean = MeanPlan(kind="constant", value=mean_density(catalogue))
        return replace(found, mean=mean, notes=(*found.notes, note))
    return found


def _is_given(config: FitConfig) -> bool:
    """Whether the configuration leaves nothing to search."""
    prior = config.prior
    values = [prior.lengthscale, prior.std, config.model.common_noise]
    if prior.mean != "zero":
        values.append(prior.mean_density)
    if prior.mean == "exponential-disc":
        values.append(prior.scale_height)
    return prior.mean != "auto" and None not in values


def _simple_moments(catalogue: Catalogue, config: FitConfig) -> PriorChoice:
    prior, density = config.prior, mean_density(catalogue)
    typical = float(np.median(catalogue.distances)) / 10
    mean = mean_candidates(catalogue, config)[0]
    value = density if prior.mean_density is None else prior.mean_density
    return PriorChoice(
        lengthscale=prior.lengthscale or (typical, typical, typical),
        std=density if prior.std is None else prior.std,
        mean=with_value(mean, 0.0 if mean.kind == "zero" else value),
        common_noise=config.model.common_noise or 0.0,
    )


def mean_density(catalogue: Catalogue) -> float:
    """Total extinction over total path length [mag/pc], positive."""
    total = float(np.abs(catalogue.extinction.sum()))
    scale = float(np.abs(catalogue.extinction).sum() + catalogue.noise.sum())
    return max(total, 1e-3 * scale) / float(catalogue.distances.sum())
