"""What the stars tell: their sight lines, and what they are uncertain by."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

from dustmap.functionals import (
    DistanceMarginalizedIntegrals,
    FixedStep,
    GaussLegendre,
    LineIntegrals,
    MonteCarlo,
    Rule,
    StepsOutwards,
)
from dustmap.grid import Grid
from dustmap.noise import Normal, StudentT
from pipelines.base.geometry import Box
from pipelines.config import FitConfig
from pipelines.model.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What the stars tell: ray ends [pc], extinction, variance [mag²], σ_d [pc].

    Of merged stars ``distance_error`` is how far their distances are apart, and
    ``mean_distance_error`` how far the mean of these may be off
    (`pipelines.catalog.merging`).
    """

    ends: Tensor
    extinction: Tensor
    variance: Tensor
    distance_error: Tensor | None = None
    mean_distance_error: Tensor | None = None

    @property
    def placing_error(self) -> Tensor | None:
        """How far from their true places stars may be [pc]: noise of the extinction."""
        merged = self.mean_distance_error
        return self.distance_error if merged is None else merged

    def select(self, rows: Tensor) -> Data:
        """Some of the stars."""
        columns = {item.name: getattr(self, item.name) for item in fields(self)}
        kept: dict[str, Any] = {
            name: None if column is None else column[rows]
            for name, column in columns.items()
        }
        return Data(**kept)


def rays(plan: Plan, end: Tensor, start: Tensor | None = None) -> LineIntegrals:
    """Line integrals [pc] by the quadrature of the plan's engine."""
    rule: Rule
    if plan.is_full_batch:
        rule = FixedStep(step=_step(plan), grids=plan.nested_grids)
    elif plan.embedding.quadrature == "gauss-legendre":
        rule = GaussLegendre(count=plan.embedding.nodes)
    else:
        generator = torch.Generator().manual_seed(plan.embedding.seed)
        rule = MonteCarlo.draw(len(end), plan.embedding.nodes, generator)
    return LineIntegrals(end, rule, start=start)


def outward_rays(plan: Plan, end: Tensor) -> LineIntegrals:
    """Line integrals [pc] from the observer that go evenly with distance.

    Half the steps of the stars' own rays, counted from the observer: the integrals
    that `pipelines.maps.integrals` adds up. Engine svi has its nodes as `rays`.
    """
    if not plan.is_full_batch:
        return rays(plan, end)
    rule = StepsOutwards(step=_step(plan) / 2, grids=plan.nested_grids)
    return LineIntegrals(end, rule)


def _step(plan: Plan) -> float:
    """Distance [pc] of the nodes of the stars' rays on the coarsest level, at most."""
    return plan.ray_step * min(plan.grid.spacing) / plan.refinement


def sight_lines(
    plan: Plan, data: Data
) -> LineIntegrals | DistanceMarginalizedIntegrals:
    """The stars' line integrals, averaged over their distances where these err."""
    plain = rays(plan, data.ends)
    if data.distance_error is None:
        return plain
    return DistanceMarginalizedIntegrals(
        data.ends, data.distance_error, exit_distances(plan.grid, data.ends), plain.rule
    )


def exit_distances(grid: Grid, ends: Tensor) -> Tensor:
    """Distance [pc] at which the rays from the observer to these ends leave the box."""
    distance = torch.linalg.vector_norm(ends, dim=1)
    cosines = ends / distance.clamp(min=torch.finfo(ends.dtype).tiny)[:, None]
    far = Box(lower=grid.lower, upper=grid.upper).exits(cosines.numpy())
    return torch.maximum(torch.as_tensor(far), distance)


def learns_common(plan: Plan, config: FitConfig) -> bool:
    """Whether the common noise is learnt in the fit itself.

    In the linear model that a lognormal density's scales are learnt in, it would take
    in what dense clouds do to the stars behind them.
    """
    return plan.is_lognormal and config.model.common_noise is None


def learns_share(plan: Plan, config: FitConfig) -> bool:
    """Whether the stars' share of the unresolved variance is learnt in the fit."""
    return plan.is_lognormal and config.model.subgrid_share is None


def noise_of(
    plan: Plan, data: Data, *, learn_common: bool = False, learn_share: bool = False
) -> Normal:
    """What the stars' extinctions are uncertain by."""
    blur = scale = None
    if data.distance_error is not None:
        blur, scale = _distance_blur(plan, data, data.distance_error)
    given: dict[str, Any] = {
        "stated": data.variance + plan.common_noise**2,
        "blur": blur,
        "blur_scale": scale,
        "learn_common": learn_common,
        "learn_share": learn_share,
    }
    if not plan.outliers:
        return Normal(**given)
    return StudentT(
        **given,
        degrees=4.0 if plan.degrees is None else plan.degrees,
        learn_degrees=plan.degrees is None,
        neighbours=near_stars(data.ends),
    )


def _distance_blur(
    plan: Plan, data: Data, error: Tensor
) -> tuple[LineIntegrals, Tensor]:
    """Integrals through the stars from d − σ_d to d + σ_d, and their factors."""
    distance = torch.linalg.vector_norm(data.ends, dim=1)
    outer = torch.minimum(distance + error, exit_distances(plan.grid, data.ends))
    inner = (distance - error).clamp(min=0.0)
    along = data.ends / distance.clamp(min=1e-12)[:, None]
    blur = rays(plan, outer[:, None] * along, inner[:, None] * along)
    assert data.placing_error is not None
    length = (outer - inner).clamp(min=1e-12)
    return blur, torch.where(outer > inner, data.placing_error / length, 0.0)


def near_stars(ends: Tensor, count: int = 8) -> Tensor | None:
    """Stars nearest in direction and logarithm of distance; none if there are few."""
    if len(ends) <= 2 * count:
        return None
    distance = torch.linalg.vector_norm(ends, dim=1, keepdim=True).clamp(min=1e-9)
    place = torch.cat([ends / distance, 0.25 * distance.log()], dim=1).numpy()
    index = np.asarray(KDTree(place).query(place, count + 1)[1])
    # Among stars at one place a star need not be the first that is found.
    drop = index == np.arange(len(ends))[:, None]
    drop[~drop.any(axis=1), -1] = True
    return torch.as_tensor(index[~drop].reshape(len(ends), count))
