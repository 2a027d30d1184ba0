"""On which part of a problem the prior's scales are learnt: a box around the observer.

The spacing stays, and with it what the grid leaves unresolved.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from dustmap.grid import Grid, Torus
from dustmap.models.base import ForwardModel
from dustmap.models.lognormal import LogNormal
from dustmap.models.modulated import Modulated, lognormal_scales
from dustmap.whitening import padded_torus
from pipelines.model.forward import build_model
from pipelines.model.observations import Data, sight_lines
from pipelines.model.plan import RESOLVED, Plan

# Stars and torus points that learning uses at most: some seconds for a step.
_STARS, _POINTS = 8_000, 150_000
# Fewer stars tell little of a lengthscale (126 found one of 113 pc, where 37 pc maps
# others 8% better): for so many the torus may have more points.
_ENOUGH, _MOST_POINTS = 2_000, 1_500_000
# Lengthscales may grow by this factor: the torus is padded for it.
_GROWTH = 2.0


def part_of(plan: Plan, data: Data, generator: torch.Generator) -> tuple[Plan, Data]:
    """A box around the observer with the same spacing, and some stars in it."""
    shrink = 1.0
    while True:
        box = _box_around(plan.grid, shrink)
        size = _wide_torus(plan, box).size
        if size <= _POINTS or max(box.shape) <= 8:
            break
        smaller = _box_around(plan.grid, 0.9 * shrink)
        left = int(smaller.contains(data.ends).sum())
        if size <= _MOST_POINTS and left < _ENOUGH:
            break
        shrink *= 0.9
    inside = torch.nonzero(box.contains(data.ends))[:, 0]
    if len(inside) > _STARS:
        order = torch.randperm(len(inside), generator=generator)[:_STARS]
        inside = inside[order.sort().values]
    torus = _wide_torus(plan, box)
    return replace(plan, grid=box, torus_shape=torus.shape), data.select(inside)


def _box_around(grid: Grid, shrink: float) -> Grid:
    """The points of a grid in a box so many times smaller around the observer."""
    lower = [round(-o / h * shrink) for o, h in zip(grid.origin, grid.spacing)]
    upper = [round((u / h) * shrink) for u, h in zip(grid.upper, grid.spacing)]
    shape = tuple(max(a + b, 3) + 1 for a, b in zip(lower, upper, strict=True))
    origin = tuple(
        o + (round(-o / h) - a) * h
        for o, h, a in zip(grid.origin, grid.spacing, lower, strict=True)
    )
    return Grid(shape=shape, spacing=grid.spacing, origin=origin)


def _wide_torus(plan: Plan, box: Grid) -> Torus:
    """A torus that is padded for the longest lengthscale that may be learnt."""
    kernel = plan.build_kernel()
    wide = kernel.with_parameters({"lengthscale": _GROWTH * kernel.lengthscale})
    return padded_torus(box, wide, 0.05)


def linear_model(
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
        subgrid_share=model.subgrid_share,
    )


def lengthscale_range(plan: Plan) -> tuple[float, float]:
    """Lengthscales that the grid resolves and the torus was padded for [pc]."""
    longest = _GROWTH * max(plan.lengthscale)
    shortest = min(RESOLVED * max(plan.grid.spacing), *plan.lengthscale)
    return 0.5 * shortest, longest
