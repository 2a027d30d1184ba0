"""Where a map has been told anything: cells that sight lines cross."""

from __future__ import annotations

import numpy as np
import torch

from pipelines.observations import exit_distances
from pipelines.run import Run


def support_at(run: Run, points: np.ndarray) -> np.ndarray:
    """Sight-line length [cells] in the cell around each point [pc], shape (..., 3).

    Zero outside the box.
    """
    grid = run.plan.grid
    places = (np.asarray(points) - np.array(grid.lower)) / np.array(grid.spacing)
    index = np.rint(places).astype(np.int64)
    last = np.array(grid.shape) - 1
    inside = np.all((places >= 0) & (places <= last), axis=-1)
    index = np.where(np.expand_dims(inside, -1), index, 0)
    values = run.support.numpy()[index[..., 0], index[..., 1], index[..., 2]]
    return np.where(inside, values, 0.0).astype(np.float64)


def reach(run: Run, directions: np.ndarray) -> np.ndarray:
    """Distance [pc] at which rays along unit vectors ``(n, 3)`` leave the box."""
    ends = torch.as_tensor(directions, dtype=torch.float64)
    far = exit_distances(run.plan.grid, ends * 1e-3)
    return far.numpy() * (1 - 1e-9)
