"""Places where a map is informed, and what a run says there."""

from __future__ import annotations

import numpy as np

from pipelines.catalog.schema import Stars
from pipelines.run.folder import Run
from pipelines.run.predict import predict_columns

# Within a cell, along each axis, in cells: their average is that over the cell.
OFFSETS = (-1 / 3, 0.0, 1 / 3)


def seen_cells(
    run: Run, count: int, generator: np.random.Generator
) -> tuple[np.ndarray, int]:
    """Centres [pc] of at most ``count`` cells that sight lines cross, and their number.

    The outermost layer is left out, whose cells reach beyond the box, and so are the
    cells around the observer.
    """
    grid = run.plan.grid
    seen = run.support.numpy() > 0
    for axis in range(3):
        edge = [slice(None)] * 3
        for side in (0, -1):
            edge[axis] = slice(side, None) if side else slice(0, 1)
            seen[tuple(edge)] = False
    index = np.argwhere(seen)
    points = np.array(grid.origin) + index * np.array(grid.spacing)
    points = points[np.linalg.norm(points, axis=1) > max(grid.spacing)]
    total = len(points)
    if total > count:
        points = points[np.sort(generator.permutation(total)[:count])]
    return points, total


def predicted_at(
    run: Run,
    l: np.ndarray,  # noqa: E741
    b: np.ndarray,
    d: np.ndarray,
) -> dict[str, np.ndarray]:
    """Columns of `predict_columns` at places [deg, deg, pc], shape ``(n,)``."""
    return predict_columns(run.plan, run.posterior, Stars(l=l, b=b, distance=d))
