"""The density at the points of the grid, and its integral along an axis of the box."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dustmap.functionals import FixedStep, LineIntegrals, PointValues
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.posterior import Moments, Posterior, moments_over_samples
from pipelines.base.errors import InputError
from pipelines.base.quantiles import summaries
from pipelines.maps.columns import Columns
from pipelines.maps.cube import AXES, Cube
from pipelines.products.provenance import provenance
from pipelines.run.folder import Run

# Nodes of rays that are held at once: bounds the memory of the projection.
_NODES = 2**22
# Points whose corrected densities of all samples are held at once.
_POINTS = 2**18


def map_cube(
    run: Run,
    *,
    spacing: float | None = None,
    within: Mapping[str, tuple[float, float]] | None = None,
) -> Cube:
    """Posterior mean and std of the density at the grid points, and sight lines.

    At its own points the grid resolves the field, so that no sub-grid variance is added
    there but what a residual of neighbouring stars leaves. With ``spacing`` [pc] at
    points so far apart, from the box's lower corner on; then ``within`` ranges of x, y
    and z alone. A run with finer grids has a finer cube for each, unless the spacing
    is given.

    Raises
    ------
    InputError
        If the spacing is not positive or leaves fewer than two points along an axis.
    """
    if spacing is not None:
        axes = _axes(run, spacing, within or {})
        points = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
        support = run.support_at(points.numpy()).reshape(-1)
        return _cube(run, axes, support, _at(run, points.reshape(-1, 3)))
    cubes = []
    for grid, support in zip(
        (run.plan.grid, *run.plan.finer_grids), run.supports, strict=True
    ):
        axes, model = [grid.axis(d) for d in range(3)], run.posterior.model
        if isinstance(model, RowwiseGaussian):
            moments = _inducing_moments(run.posterior, model)
        else:
            moments = _at(run, grid.points())
        cubes.append(_cube(run, axes, support.numpy(), moments))
    return replace(cubes[0], finer=tuple(cubes[1:]))


def _at(run: Run, points: Tensor) -> Moments:
    """Of the density at points [pc]."""
    return run.posterior.moments(PointValues(points), rows=2**18)


def _cube(run: Run, axes: list[Tensor], support: np.ndarray, moments: Moments) -> Cube:
    """Moments and support in C order of x, y and z."""
    shape = tuple(len(axis) for axis in axes)
    # From C order of (x, y, z) to (z, y, x).
    arrays = {
        name: np.ascontiguousarray(values.reshape(shape).T, dtype=np.float32)
        for name, values in {**summaries(moments), "support": support}.items()
    }
    x, y, z = (axis.numpy() for axis in axes)
    return Cube(x=x, y=y, z=z, arrays=arrays, meta=provenance(run))


def _axes(
    run: Run, spacing: float, within: Mapping[str, tuple[float, float]]
) -> list[Tensor]:
    """Coordinates [pc] that are ``spacing`` apart in the box and in these ranges."""
    if not spacing > 0:
        raise InputError(f"--spacing is a positive number of pc, got {spacing:g}")
    grid, found = run.plan.grid, []
    for name, low, high in zip(AXES, grid.lower, grid.upper, strict=True):
        count = math.floor((high - low) / spacing + 1e-9) + 1
        axis = low + spacing * torch.arange(count, dtype=torch.float64)
        first, last = within.get(name, (low, high))
        axis = axis[(axis >= first - 1e-9) & (axis <= last + 1e-9)]
        if len(axis) < 2:
            raise InputError(
                f"--spacing {spacing:g} leaves {len(axis)} points along {name} between "
                f"{max(low, first):g} and {min(high, last):g} pc, expected 2 or more"
            )
        found.append(axis)
    return found


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
    if run.posterior.residual is None:
        found = _line_moments(run, start, axis, high)
    else:
        found = _node_moments(run.posterior, start, axis, _nodes(run, axis, low, high))
    arrays = {k: value.reshape(shape) for k, value in summaries(found).items()}
    return Columns(along=along, low=low, high=high, arrays=arrays)


def _line_moments(run: Run, start: Tensor, axis: int, high: float) -> Moments:
    """Of integrals along an axis from ``start`` to ``high`` [pc]."""
    end = start.clone()
    end[..., axis] = high
    step = run.plan.ray_step * run.plan.grid.spacing[axis] / run.plan.refinement
    rows = max(1, int(_NODES * step / float((end - start)[..., axis].max())))
    through = LineIntegrals(
        end.reshape(-1, 3), FixedStep(step=step), start=start.reshape(-1, 3)
    )
    return run.posterior.moments(through, rows=rows)


def _nodes(run: Run, axis: int, low: float, high: float) -> Tensor:
    """Both ends and the grid points between them [pc]."""
    points = run.plan.grid.axis(axis)
    ends = torch.tensor([low, high], dtype=torch.float64)
    return torch.cat([points[(points > low) & (points < high)], ends]).sort().values


def _node_moments(
    posterior: Posterior, start: Tensor, axis: int, nodes: Tensor
) -> Moments:
    """The same from corrected densities at nodes, by the trapezoidal rule.

    What is unresolved at the nodes counts as independent.
    """
    steps = nodes.diff()
    weights = torch.nn.functional.pad(steps, (1, 0)) + torch.nn.functional.pad(
        steps, (0, 1)
    )
    columns = start[..., 0].numel()
    total = torch.zeros(len(posterior.samples), columns, dtype=torch.float64)
    variance = torch.zeros_like(total)
    # Planes together: places near one star share what its neighbours cost.
    for part in torch.arange(len(nodes)).split(max(1, _POINTS // columns)):
        points = start.reshape(1, columns, 3).repeat(len(part), 1, 1)
        points[..., axis] = nodes[part, None]
        found = posterior.sampled(PointValues(points.reshape(-1, 3)))
        values, unresolved = (x.unflatten(1, (len(part), columns)) for x in found)
        weight = weights[part, None] / 2
        total += (weight * values).sum(dim=1)
        variance += (weight**2 * unresolved).sum(dim=1)
    return moments_over_samples(total, variance, positive=posterior.model.positive)


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
