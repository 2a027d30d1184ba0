"""Extinction along rays with its error, all directions at once."""

from __future__ import annotations

import numpy as np
import torch

from pipelines.model.engine import rays
from pipelines.run.folder import Run


def cumulative(
    run: Run, directions: np.ndarray, edges: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and std [mag] of ``∫_0^d ρ ds`` at distances ``edges`` [pc].

    ``edges`` has shape ``(e,)``, or ``(e, n)`` with other distances for each of n
    directions. Returns shape ``(e, n)``; NaN where the ray has left the box.
    """
    edges = np.broadcast_to(
        edges.reshape(len(edges), -1), (len(edges), len(directions))
    )
    mean, std = np.full((2, *edges.shape), np.nan)
    inside = edges <= (1 + 1e-9) * run.box.exits(directions)
    ends = torch.from_numpy((edges[..., None] * directions)[inside])
    found = run.posterior.moments(rays(run.plan, ends, outwards=True))
    mean[inside], std[inside] = found.mean.numpy(), found.std.numpy()
    return mean, std
