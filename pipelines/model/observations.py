"""Sight lines by even steps, and the noise of the stars' extinctions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dustmap.functionals import (
    DistanceMarginalizedIntegrals,
    FixedStep,
    LineIntegrals,
    StepsOutwards,
)
from dustmap.grid import Grid
from dustmap.noise import Normal, StudentT
from dustmap.residual.neighbours import nearest, without_self
from pipelines.base.geometry import Box
from pipelines.catalog.schema import Stars
from pipelines.config import FitConfig
from pipelines.model.plan import Plan


def step_rays(
    plan: Plan, end: Tensor, start: Tensor | None = None, *, outwards: bool = False
) -> LineIntegrals:
    """Return line integrals [pc] with steps of ``plan.ray_step`` cells.

    With ``outwards`` even steps begin at the observer, half as long.
    """
    step, grids = plan.ray_step * min(plan.grid.spacing), plan.nested_grids
    if outwards:
        return LineIntegrals(end, StepsOutwards(step=step / 2, grids=grids))
    return LineIntegrals(end, FixedStep(step=step, grids=grids), start=start)


def sight_lines(
    plan: Plan, stars: Stars
) -> LineIntegrals | DistanceMarginalizedIntegrals:
    """Return the stars' line integrals, averaged over uncertain distances."""
    ends = torch.as_tensor(stars.positions())
    plain = step_rays(plan, ends)
    if stars.distance_error is None:
        return plain
    spread = torch.as_tensor(np.nan_to_num(stars.distance_error, nan=0.0))
    reach = exit_distances(plan.grid, ends)
    return DistanceMarginalizedIntegrals(ends, spread, reach, plain.rule)


def exit_distances(grid: Grid, ends: Tensor) -> Tensor:
    """Return distances [pc] at which rays to these ends leave the box."""
    distance = torch.linalg.vector_norm(ends, dim=1)
    cosines = ends / distance.clamp(min=torch.finfo(ends.dtype).tiny)[:, None]
    return torch.maximum(torch.as_tensor(Box.of(grid).exits(cosines.numpy())), distance)


def noise_of(plan: Plan, stars: Stars, config: FitConfig) -> Normal:
    """Return the independent noise of the stars' extinctions.

    A distance error adds an integral through the star from d − σ_d to d + σ_d, scaled
    to the error of the star's place. The fit learns parameters that the configuration
    leaves open: the common noise of a lognormal density (the linear model of its scales
    would confuse it with the scatter behind dense clouds), and the stars' share of the
    unresolved variance.
    """
    ends = torch.as_tensor(stars.positions())
    blur = scale = None
    if stars.distance_error is not None:
        error = torch.as_tensor(np.nan_to_num(stars.distance_error, nan=0.0))
        distance = torch.linalg.vector_norm(ends, dim=1)
        outer = torch.minimum(distance + error, exit_distances(plan.grid, ends))
        inner = (distance - error).clamp(min=0.0)
        along = ends / distance.clamp(min=1e-12)[:, None]
        blur = step_rays(plan, outer[:, None] * along, inner[:, None] * along)
        std, length = torch.as_tensor(stars.distance_std), outer - inner
        scale = torch.where(length > 0, std / length.clamp(min=1e-12), 0.0)
    given: dict[str, Any] = {
        "stated": torch.as_tensor(stars.variance(0.0, plan.common_noise)),
        "blur": blur,
        "blur_scale": scale,
        "learn_common": plan.is_lognormal and config.model.common_noise is None,
        "learn_share": plan.is_lognormal
        and plan.subgrid_noise
        and config.model.subgrid_share is None,
    }
    if not plan.outliers:
        return Normal(**given)
    return StudentT(
        **given,
        degrees=4.0 if plan.degrees is None else plan.degrees,
        learn_degrees=plan.degrees is None,
        neighbours=near_stars(ends),
    )


def near_stars(ends: Tensor) -> Tensor | None:
    """Return eight stars, nearest in direction and ln distance; ``None`` for few."""
    if len(ends) <= 16:
        return None
    distance = torch.linalg.vector_norm(ends, dim=1, keepdim=True).clamp(min=1e-9)
    place = torch.cat([ends / distance, 0.25 * distance.log()], dim=1)
    return without_self(nearest(place, place, 9))
