"""The density at the points of the grid, and its integral along an axis of the box."""

from __future__ import annotations

import numpy as np
import torch

from dustmap.functionals import FixedStep, LineIntegrals, PointValues
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.posterior import Moments, Posterior
from pipelines.base.quantiles import summaries
from pipelines.maps.columns import Columns
from pipelines.maps.cube import AXES, Cube
from pipelines.products.provenance import provenance
from pipelines.run.folder import Run

# Nodes of rays that are held at once: bounds the memory of the projection.
_NODES = 2**22


def map_cube(run: Run) -> Cube:
    """Posterior mean and std of the density at the grid points, and sight lines.

    At its own points the grid resolves the field, so that no sub-grid variance is
    added there.
    """
    grid, model = run.plan.grid, run.posterior.model
    if isinstance(model, RowwiseGaussian):
        moments = _inducing_moments(run.posterior, model)
    else:
        moments = run.posterior.moments(PointValues(grid.points()), rows=2**18)
    found = {**summaries(moments), "support": run.support.numpy()}
    # From C order of (x, y, z) to (z, y, x).
    arrays = {
        name: np.ascontiguousarray(values.reshape(grid.shape).T, dtype=np.float32)
        for name, values in found.items()
    }
    x, y, z = (grid.axis(d).numpy() for d in range(3))
    return Cube(x=x, y=y, z=z, arrays=arrays, meta=provenance(run))


def columns(
    run: Run, along: str = "z", between: tuple[float, float] | None = None
) -> Columns:
    """The density integrated along an axis, from the first grid point to the last.

    ``between`` [pc] are other ends, within these.

    Every posterior sample is integrated before moments are taken, since errors of
    cells in one column are correlated: a sum of the cells' variances would be wrong
    either way. Cost: the samples are coloured once per four million nodes.
    """
    grid, axis = run.plan.grid, AXES.index(along)
    across, up = (i for i in range(3) if i != axis)
    low, high = between or (grid.lower[axis], grid.upper[axis])
    if not grid.lower[axis] <= low < high <= grid.upper[axis]:
        raise ValueError(
            f"columns along {along} lie within {grid.lower[axis]:g} and "
            f"{grid.upper[axis]:g} pc, got {low:g} to {high:g} pc"
        )
    shape = (grid.shape[up], grid.shape[across])
    start = torch.zeros(*shape, 3, dtype=torch.float64)
    start[..., up] = grid.axis(up)[:, None]
    start[..., across] = grid.axis(across)
    start[..., axis] = low
    end = start.clone()
    end[..., axis] = high
    step = run.plan.ray_step * grid.spacing[axis] / run.plan.refinement
    rows = max(1, int(_NODES * step / (high - low)))
    through = LineIntegrals(
        end.reshape(-1, 3), FixedStep(step=step), start=start.reshape(-1, 3)
    )
    found = summaries(run.posterior.moments(through, rows=rows))
    arrays = {name: value.reshape(shape) for name, value in found.items()}
    return Columns(along=along, low=low, high=high, arrays=arrays)


def _inducing_moments(posterior: Posterior, model: RowwiseGaussian) -> Moments:
    """At its inducing points the published engine needs no solve: ``u = R ε``."""
    mean = model.whitening.colour(posterior.mean)
    deviations = model.whitening.colour(posterior.samples) - mean
    if len(deviations):
        std = (deviations**2).mean(dim=0).sqrt()
    else:
        std = torch.full_like(mean, float("nan"))
    offset = model.mean(model.whitening.points.cpu())
    return Moments(mean=mean.cpu() + offset, std=std.cpu())
