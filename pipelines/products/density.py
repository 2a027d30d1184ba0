"""The density at the points of the grid."""

from __future__ import annotations

import numpy as np
import torch

from dustmap.functionals import PointValues
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.posterior import Moments, Posterior
from pipelines.base.quantiles import summaries
from pipelines.maps.cube import Cube
from pipelines.products.provenance import provenance
from pipelines.run.folder import Run


def map_cube(run: Run) -> Cube:
    """Posterior mean and std of the density at the grid points, and sight lines.

    At its own points the grid resolves the field, so that no sub-grid variance is
    added there.
    """
    grid = run.plan.grid
    model = run.posterior.model
    if isinstance(model, RowwiseGaussian):
        moments = _inducing_moments(run.posterior, model)
    else:
        moments = run.posterior.moments(PointValues(grid.points()), rows=2**18)
    arrays = {
        **{n: _cube_order(v, grid.shape) for n, v in summaries(moments).items()},
        "support": _cube_order(run.support.numpy().reshape(-1), grid.shape),
    }
    x, y, z = (grid.axis(d).numpy() for d in range(3))
    return Cube(x=x, y=y, z=z, arrays=arrays, meta=provenance(run))


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


def _cube_order(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """From C order of (x, y, z) to an array (z, y, x)."""
    cube = values.reshape(shape).transpose(2, 1, 0)
    return np.ascontiguousarray(cube, dtype=np.float32)
