"""Extinction along rays with its error, all directions at once."""

from __future__ import annotations

import numpy as np

from pipelines.maps.integrals import ray_integrals
from pipelines.run.folder import Run


def cumulative(
    run: Run, directions: np.ndarray, edges: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and std [mag] of ``∫_0^d ρ ds`` at distances ``edges`` [pc].

    ``edges`` has shape ``(e,)``, or ``(e, n)`` with other distances for each of n
    directions. Returns shape ``(e, n)``; NaN where the ray has left the box.
    """
    mean, std = np.full((2, len(edges), len(directions)), np.nan)
    for part, moments, _ in ray_integrals(run, directions, edges):
        mean[:, part], std[:, part] = np.asarray(moments.mean), np.asarray(moments.std)
    return mean, std
