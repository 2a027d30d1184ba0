"""The density at the points of the grid, and its integral along an axis of the box."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import FixedStep, LineIntegrals, PointValues
from dustmap.grid import Grid, tolerant_faces
from dustmap.memory import row_blocks, rows_within
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.moments import Moments, moments_over_samples
from dustmap.posterior import Posterior
from pipelines.base.errors import InputError
from pipelines.base.progress import doing
from pipelines.base.quantiles import summaries
from pipelines.cubes.cube import AXES, Cube
from pipelines.cubes.sky import Columns, Ends, near_the_sun
from pipelines.maps.provenance import provenance
from pipelines.run.folder import Run


def map_cube(
    run: Run,
    *,
    spacing: float | None = None,
    within: Mapping[str, Ends] | None = None,
) -> Cube:
    """Return the posterior of the density at the grid points, and the support.

    Values are means over cells as wide as the spacing, so only the cell-averaged part
    of the unresolved variance is added. ``spacing`` [pc] counts from the box's lower
    corner, restricted to the ranges ``within`` of x, y and z; without it, each finer
    grid of the run gives a finer cube.

    Raises `InputError` if the spacing is not positive or leaves fewer than two points
    along an axis.
    """
    if spacing is None:
        return map_and_columns(run, {})[0]
    if not spacing > 0:
        raise InputError(f"--spacing must be positive [pc], got {spacing:g}")
    axes, grid = [], run.plan.grid
    for name, low, high in zip(AXES, grid.lower, grid.upper, strict=True):
        count = math.floor((high - low) / spacing + 1e-9) + 1
        axis = low + spacing * torch.arange(count, dtype=torch.float64)
        first, last = (within or {}).get(name, (low, high))
        axes.append(axis[(axis >= first - 1e-9) & (axis <= last + 1e-9)])
        if len(axes[-1]) < 2:
            raise InputError(
                f"--spacing {spacing:g} leaves {len(axes[-1])} points along {name} "
                f"between {max(low, first):g} and {min(high, last):g} pc, expected 2 "
                "or more"
            )
    posterior, shape = run.posterior.over_cells((spacing,)), tuple(map(len, axes))

    def planes(x: Tensor) -> dict[str, np.ndarray]:
        """Return the arrays ``(x, y, z)`` of some planes of x."""
        points = torch.cartesian_prod(x, *axes[1:])
        found = summaries(posterior.moments(PointValues(points), rows=2**18))
        found["support"] = run.support_at(points.numpy())
        return {n: v.astype("f4").reshape(-1, *shape[1:]) for n, v in found.items()}

    cells: dict[str, np.ndarray] = {}
    # 128 bytes a cell: a million cells at once.
    for some in row_blocks(shape[0], 128 * shape[1] * shape[2]):
        part = planes(axes[0][some])
        cells = cells or {name: np.empty(shape[::-1], np.float32) for name in part}
        for name, values in part.items():
            cells[name][..., some] = values.T
        doing(f"{some.stop * shape[1] * shape[2]:,} of {math.prod(shape):,} cells")
    return _cube(run, axes, cells)


def map_and_columns(
    run: Run, between: Mapping[str, Ends | None]
) -> tuple[Cube, dict[str, Columns]]:
    """Return the cube of `map_cube` and `columns`, from one pass over the grid.

    ``between`` maps an axis to the ends [pc] of its columns, ``None`` for the box.
    """
    if _is_corrected(run):
        moments, found = _swept(run, run.plan.grid, between)
    else:
        moments = _moments_on(run, run.plan.grid)
        found = {along: columns(run, along, ends) for along, ends in between.items()}
    supports = run.supports
    every = [moments, *(_moments_on(run, grid) for grid in run.plan.grids[1:])]
    cubes = []
    for grid, support, each in zip(run.plan.grids, supports, every, strict=True):
        arrays = {
            name: np.ascontiguousarray(values.reshape(grid.shape).T, dtype=np.float32)
            for name, values in {**summaries(each), "support": support.numpy()}.items()
        }
        cubes.append(_cube(run, [grid.axis(d) for d in range(3)], arrays))
    cube, *finer = cubes
    return replace(cube, finer=tuple(finer)), found


def usual_ends(run: Run) -> dict[str, Ends | None]:
    """Return the ends of the columns that figures show, by axis; ``None`` for the box.

    There are none with the published engine, which needs a solve for every column.
    """
    if not run.plan.abilities.cheap_integrals:
        return {}
    return {"z": None, "y": near_the_sun(run.plan.grid.axis(1).numpy())}


def density_samples(run: Run, cube: Cube, count: int) -> Float[np.ndarray, "s z y x"]:
    """Return the first ``count`` posterior samples of the density [mag/pc] (float32).

    They are taken at the points of one level of a cube, with the correction by
    neighbouring stars but without unresolved variance; NaN as in the cube.
    """
    points = cube.points
    places = torch.from_numpy(points.reshape(-1, 3))
    values = np.empty((count, len(places)), dtype=np.float32)
    posterior = run.posterior.over_cells(cube.spacing)
    # 32 samples of a point, and what corrects them.
    for part in row_blocks(len(places), 512):
        found, _ = posterior.sampled(PointValues(places[part]))
        values[:, part] = found[:count].numpy()
    values = values.reshape(count, *points.shape[:3])
    values[:, np.isnan(cube.arrays["mean"])] = np.nan
    return values


def cell_means(run: Run, points: Tensor, widths: Sequence[float]) -> Moments:
    """Return moments of the mean density in cells of these widths around points [pc].

    See `Posterior.over_cells`.
    """
    return run.posterior.over_cells(widths).moments(PointValues(points), rows=2**18)


def columns(
    run: Run, along: str = "z", between: Ends | None = None, *, level: int = 0
) -> Columns:
    """Return the density integrated along an axis, from first to last grid point.

    ``between`` [pc] are narrower ends; ``level`` is the nested grid, coarsest first.

    Every posterior sample is integrated before moments are taken, because errors of
    cells in one column are correlated. Cost: the samples are coloured once per four
    million nodes.
    """
    grid, axis = run.plan.grids[level], AXES.index(along)
    across, up = (i for i in range(3) if i != axis)
    low, high = between or (grid.lower[axis], grid.upper[axis])
    first, last = (face[axis] for face in tolerant_faces(grid.lower, grid.upper))
    if not first <= low < high <= last:
        raise ValueError(
            f"columns along {along} lie within {grid.lower[axis]:g} and "
            f"{grid.upper[axis]:g} pc, got {low:g} to {high:g} pc"
        )
    if _is_corrected(run):
        return _swept(run, grid, {along: (low, high)})[1][along]
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
    found = summaries(run.posterior.moments(through, rows=rows))
    arrays = {name: values.reshape(start.shape[:2]) for name, values in found.items()}
    return Columns(along=along, low=low, high=high, arrays=arrays)


def _is_corrected(run: Run) -> bool:
    """Return true if residuals of neighbouring stars correct the samples."""
    return run.posterior.residual is not None and len(run.posterior.samples) > 0


def _moments_on(run: Run, grid: Grid) -> Moments:
    posterior: Posterior = run.posterior
    model = posterior.model
    if not isinstance(model, RowwiseGaussian):
        return cell_means(run, grid.points(), grid.spacing)
    # At its inducing points the published engine needs no solve: u = R ε.
    mean = model.whitening.colour(posterior.mean)
    std = torch.full_like(mean, torch.nan)
    if len(posterior.samples):
        deviations = model.whitening.colour(posterior.samples) - mean
        std = (deviations**2).mean(dim=0).sqrt()
    offset = model.mean(model.whitening.points.cpu())
    return Moments(mean=mean.cpu() + offset, std=std.cpu())


def _cube(run: Run, axes: list[Tensor], arrays: dict[str, np.ndarray]) -> Cube:
    """Return arrays ``(z, y, x)`` with the run's provenance."""
    x, y, z = (axis.numpy() for axis in axes)
    return Cube(x=x, y=y, z=z, arrays=arrays, meta=provenance(run))


def _swept(
    run: Run, grid: Grid, between: Mapping[str, Ends | None]
) -> tuple[Moments, dict[str, Columns]]:
    """Return moments of the corrected density at a grid's points, and of integrals.

    A sample's density is linear between the points. The unresolved variance v adds
    ``∫ v F ds`` to an integral, with F of `ResidualField.correlation_length`.
    """
    posterior = run.posterior.over_cells(grid.spacing)
    residual = posterior.residual
    assert residual is not None
    positive, points = posterior.model.positive, grid.points().reshape(*grid.shape, 3)
    ends = {
        along: given or (grid.lower[AXES.index(along)], grid.upper[AXES.index(along)])
        for along, given in between.items()
    }
    weights = {a: _node_weights(grid.axis(AXES.index(a)), *e) for a, e in ends.items()}
    parts: list[Moments] = []
    # Integrals of samples and variances by axis, one plane of x at a time.
    sums: dict[str, list[list[Tensor]]] = {along: [] for along in ends}
    # Planes of x together: places near one star share the cost of its neighbours.
    planes = rows_within(512 * math.prod(grid.shape[1:]))
    for chosen in torch.arange(grid.shape[0]).split(planes):
        some = points[chosen].reshape(-1, 3)
        values, unresolved = posterior.sampled(PointValues(some))
        parts.append(posterior.moments_of(PointValues(some), values, unresolved))
        length = residual.correlation_length(some)
        for along, (low, high) in ends.items():
            weight = weights[along][chosen] if along == "x" else weights[along]
            fields = (
                field.unflatten(1, (len(chosen), *grid.shape[1:]))
                for field in (values, unresolved * length.clamp_max(high - low))
            )
            axis = 1 + AXES.index(along)
            sums[along].append([field.movedim(axis, -1) @ weight for field in fields])
    found = {}
    for along, (low, high) in ends.items():
        totals, variances = (
            torch.stack(pieces).sum(0) if along == "x" else torch.cat(pieces, dim=1)
            for pieces in zip(*sums[along], strict=True)
        )
        shape = totals.shape[1:]
        moments = moments_over_samples(
            totals.flatten(1), variances.flatten(1), positive=positive
        )
        arrays = {k: v.reshape(shape).T for k, v in summaries(moments).items()}
        found[along] = Columns(along=along, low=low, high=high, arrays=arrays)
    return Moments.joined(parts), found


def _node_weights(points: Tensor, low: float, high: float) -> Tensor:
    """Return quadrature weights of a linear interpolant at points."""
    ends = points[:-1].clamp(low, high), points[1:].clamp(low, high)
    width, step = ends[1] - ends[0], points.diff()
    middle = ((ends[0] + ends[1]) / 2 - points[:-1]) / step
    weights = torch.zeros_like(points)
    weights[:-1] += width * (1 - middle)
    weights[1:] += width * middle
    return weights
