"""The density on the grids of a run, its integrals along axes, and its samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dustmap.functionals import FixedStep, LineIntegrals, PointValues
from dustmap.grid import Grid
from dustmap.isotonic import Ranked
from dustmap.keyed_noise import Purpose, stream, torch_stream
from dustmap.memory import rows_within
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.moments import Moments, moments_over_samples, sample_order
from dustmap.posterior import Posterior
from pipelines.base.progress import doing
from pipelines.base.quantiles import summaries
from pipelines.cubes.cube import AXES, Cube, Level
from pipelines.cubes.sky import Columns, Ends, near_the_sun
from pipelines.run.folder import Run


def density_levels(run: Run) -> list[Level]:
    """Return the density of a run on its grids, the coarsest first.

    Values are means over cells: only the cell-averaged part of the unresolved variance
    is added.
    """
    found = []
    for number, (grid, support) in enumerate(zip(run.plan.grids, run.supports)):
        doing(f"the density on grid {number + 1} of {len(run.plan.grids)}")
        x, y, z = (grid.axis(d).numpy() for d in range(3))
        ends = {"z": (float(z[0]), float(z[-1])), "y": near_the_sun(y)}
        if run.posterior.residual is not None and len(run.posterior.samples):
            moments, columns, samples = _swept(run, number, ends)
        else:
            moments, samples = _on(run, number)
            columns = _columns(run, grid, ends)
        arrays = {**summaries(moments), "support": support.numpy().reshape(-1)}
        cube = Cube(x=x, y=y, z=z, arrays={n: _zyx(a, grid) for n, a in arrays.items()})
        found.append(Level(cube=cube, columns=columns, samples=samples))
    return found


def _zyx(values: np.ndarray, grid: Grid) -> np.ndarray:
    """Return numbers of the grid's points ``(..., n)`` as ``(..., z, y, x)``."""
    shaped = values.reshape(*values.shape[:-1], *grid.shape)
    return np.ascontiguousarray(shaped.swapaxes(-3, -1), dtype=np.float32)


def _on(run: Run, number: int) -> tuple[Moments, np.ndarray]:
    """Return moments at a grid's points, and samples ``(s, z, y, x)``."""
    posterior, grid = run.posterior, run.plan.grids[number]
    model, points = posterior.model, grid.points()
    if isinstance(model, RowwiseGaussian):
        # At its inducing points the published engine needs no solve: u = R ε.
        mean = model.whitening.colour(posterior.mean)
        draws = model.whitening.colour(posterior.samples)
        std = torch.full_like(mean, torch.nan)
        if len(draws):
            std = ((draws - mean) ** 2).mean(dim=0).sqrt()
        offset = model.mean(model.whitening.points.cpu())
        moments = Moments(mean=mean.cpu() + offset, std=std.cpu())
        return moments, _zyx((draws.cpu() + offset).numpy(), grid)
    cells = posterior.over_cells(grid.spacing)
    moments = cells.moments(PointValues(points), rows=2**18)
    samples = np.empty((len(posterior.samples), len(points)), dtype=np.float32)
    noise = stream(run.seed, Purpose.UNRESOLVED, number)
    # 32 samples of a point, and weights.
    start = 0
    for some in points.split(rows_within(512)):
        rows, start = slice(start, start + len(some)), start + len(some)
        if model.linear:
            # The field below the grid is drawn once for all blocks.
            below = torch_stream(run.seed, Purpose.UNRESOLVED)
            samples[:, rows] = posterior.draws(PointValues(some), below)
        else:
            values, unresolved = cells.sampled(PointValues(some))
            part = replace(moments, mean=moments.mean[rows], std=moments.std[rows])
            samples[:, rows] = _draws(part, values, unresolved, noise)
    return moments, _zyx(samples, grid)


def _draws(
    moments: Moments, values: Tensor, unresolved: Tensor, noise: np.random.Generator
) -> np.ndarray:
    """Return samples ``(s, n)`` of positive densities, of the moments' distribution.

    Structure below the grid is independent between cells.
    """
    white = torch.from_numpy(noise.standard_normal(tuple(values.shape)))
    order = sample_order(values, unresolved, white).numpy()
    law = Ranked.log_normal(moments.mean.numpy(), moments.std.numpy())
    return law.samples(order)


def _columns(run: Run, grid: Grid, ends: Mapping[str, Ends]) -> dict[str, Columns]:
    """Return the density integrated along axes, of a fit without a shared residual.

    Every posterior sample is integrated before moments are taken, because errors of
    cells in one column are correlated. There are none with the published engine, which
    needs a solve for every column.
    """
    found = {}
    if isinstance(run.posterior.model, RowwiseGaussian):
        return found
    for along, (low, high) in ends.items():
        axis = AXES.index(along)
        across, up = (i for i in range(3) if i != axis)
        start = torch.zeros(grid.shape[up], grid.shape[across], 3, dtype=torch.float64)
        start[..., up] = grid.axis(up)[:, None]
        start[..., across] = grid.axis(across)
        start[..., axis] = low
        end = start.clone()
        end[..., axis] = high
        step = run.plan.ray_step * grid.spacing[axis]
        through = LineIntegrals(
            end.reshape(-1, 3), FixedStep(step=step), start=start.reshape(-1, 3)
        )
        # Four million nodes: their weights bound the memory.
        rows = max(1, int(2**22 * step / (high - low)))
        moments = summaries(run.posterior.moments(through, rows=rows))
        arrays = {name: x.reshape(start.shape[:2]) for name, x in moments.items()}
        found[along] = Columns(along=along, low=low, high=high, arrays=arrays)
    return found


def _swept(
    run: Run, number: int, ends: Mapping[str, Ends]
) -> tuple[Moments, dict[str, Columns], np.ndarray]:
    """Return moments, columns and samples of a density that neighbours correct.

    A sample's density is linear between the grid's points. The unresolved variance v
    adds ``∫ v F ds`` to an integral, with F of `ResidualField.correlation_length`.
    """
    grid = run.plan.grids[number]
    posterior: Posterior = run.posterior.over_cells(grid.spacing)
    residual = posterior.residual
    assert residual is not None
    positive, points = posterior.model.positive, grid.points().reshape(*grid.shape, 3)
    weights = {a: _node_weights(grid.axis(AXES.index(a)), *e) for a, e in ends.items()}
    parts: list[Moments] = []
    samples = np.empty((len(posterior.samples), *grid.shape[::-1]), dtype=np.float32)
    noise = stream(run.seed, Purpose.UNRESOLVED, number)
    # Integrals of samples and variances by axis, one plane of x at a time.
    sums: dict[str, list[list[Tensor]]] = {along: [] for along in ends}
    # Planes of x together: places near one star share the cost of its neighbours.
    planes = rows_within(512 * math.prod(grid.shape[1:]))
    for chosen in torch.arange(grid.shape[0]).split(planes):
        some = points[chosen].reshape(-1, 3)
        values, unresolved = posterior.sampled(PointValues(some))
        moments = posterior.moments_of(PointValues(some), values, unresolved)
        parts.append(moments)
        draws = _draws(moments, values, unresolved, noise)
        shape = (len(draws), len(chosen), *grid.shape[1:])
        samples[..., chosen.numpy()] = draws.reshape(shape).swapaxes(1, 3)
        length = residual.correlation_length(some)
        for along, (low, high) in ends.items():
            fields = (
                field.unflatten(1, shape[1:])
                for field in (values, unresolved * length.clamp_max(high - low))
            )
            axis = 1 + AXES.index(along)
            sums[along].append(
                [field.movedim(axis, -1) @ weights[along] for field in fields]
            )
    found = {}
    for along, (low, high) in ends.items():
        totals, variances = (
            torch.cat(pieces, dim=1) for pieces in zip(*sums[along], strict=True)
        )
        moments = moments_over_samples(
            totals.flatten(1), variances.flatten(1), positive=positive
        )
        shape = totals.shape[1:]
        arrays = {n: v.reshape(shape).T for n, v in summaries(moments).items()}
        found[along] = Columns(along=along, low=low, high=high, arrays=arrays)
    return Moments.joined(parts), found, samples


def _node_weights(points: Tensor, low: float, high: float) -> Tensor:
    """Return quadrature weights of a linear interpolant at points."""
    ends = points[:-1].clamp(low, high), points[1:].clamp(low, high)
    width, step = ends[1] - ends[0], points.diff()
    middle = ((ends[0] + ends[1]) / 2 - points[:-1]) / step
    weights = torch.zeros_like(points)
    weights[:-1] += width * (1 - middle)
    weights[1:] += width * middle
    return weights
