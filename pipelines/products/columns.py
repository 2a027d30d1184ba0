"""Extinction through the box along an axis, with the std of the integral."""

from __future__ import annotations

import torch

from dustmap.functionals import FixedStep, LineIntegrals
from pipelines.base.quantiles import summaries
from pipelines.maps.columns import Columns
from pipelines.run.folder import Run

# Nodes of rays that are held at once: bounds the memory of the projection.
_NODES = 2**22


def columns(
    run: Run, along: str = "z", between: tuple[float, float] | None = None
) -> Columns:
    """The density integrated along an axis, from the first grid point to the last.

    ``between`` [pc] are other ends, within these.

    Every posterior sample is integrated before moments are taken, since errors of
    cells in one column are correlated: a sum of the cells' variances would be wrong
    either way. Quantiles as of `Moments.quantile`. Cost: the samples are coloured once
    per four million nodes.
    """
    grid = run.plan.grid
    axis = "xyz".index(along)
    rest = [i for i in range(3) if i != axis]
    low, high = between or (grid.lower[axis], grid.upper[axis])
    if not grid.lower[axis] <= low < high <= grid.upper[axis]:
        raise ValueError(
            f"columns along {along} lie within {grid.lower[axis]:g} and "
            f"{grid.upper[axis]:g} pc, got {low:g} to {high:g} pc"
        )
    up, across = grid.axis(rest[1]), grid.axis(rest[0])
    start = torch.zeros(len(up), len(across), 3, dtype=torch.float64)
    start[..., rest[1]], start[..., rest[0]] = up[:, None], across[None, :]
    start[..., axis] = low
    end = start.clone()
    end[..., axis] = high
    step = run.plan.ray_step * grid.spacing[axis] / run.plan.refinement
    rows = max(1, int(_NODES * step / (high - low)))
    through = LineIntegrals(
        end.reshape(-1, 3), FixedStep(step=step), start=start.reshape(-1, 3)
    )
    moments = run.posterior.moments(through, rows=rows)
    shape = tuple(start.shape[:2])
    return Columns(
        along=along,
        low=low,
        high=high,
        arrays={
            name: value.reshape(shape) for name, value in summaries(moments).items()
        },
    )
