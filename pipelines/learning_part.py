"""On which part of a problem the prior's scales are learnt: a box around the observer.

The spacing stays, and with it what the grid leaves unresolved.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from dustmap.grid import Grid
from dustmap.models.base import ForwardModel
from dustmap.models.lognormal import LogNormal
from dustmap.models.modulated import Modulated, lognormal_scales
from dustmap.whitening import padded_torus
from pipelines.engines import build_model
from pipelines.observations import Data, sight_lines
from pipelines.plan import RESOLVED, Plan

# Stars and torus points that learning uses at most: some seconds for a step.
_STARS, _POINTS = 8_000, 150_000
# Lengthscales may grow by this factor: the torus is padded for it.
_GROWTH = 2.0


def part_of(plan: Plan, data: Data, generator: torch.Generator) -> tuple[Plan, Data]:
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
