"""Extinction along rays with its error, all directions at once."""

from __future__ import annotations

import numpy as np

from pipelines.maps.integrals import RayIntegrals
from pipelines.run.folder import Run


def cumulative(
    run: Run, directions: np.ndarray, edges: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and std [mag] of ``∫_0^d ρ ds`` at distances ``edges`` [pc].

    ``edges`` has shape ``(e,)``, or ``(e, n)`` with other distances for each of n
    directions. Returns shape ``(e, n)``; NaN where the ray has left the box.
    """
    asked = RayIntegrals(run, directions, edges)
    mean, std = (np.full(asked.shape, np.nan) for _ in range(2))
    for part in asked.parts():
        moments = asked.moments(part)
        mean[:, part], std[:, part] = moments.mean.numpy(), moments.std.numpy()
    return mean, std
