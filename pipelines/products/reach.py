"""How far a map goes and how fine its sky maps are, where nothing is said."""

from __future__ import annotations

import math

import healpy
import numpy as np

from pipelines.run import Run


def default_distances(run: Run, count: int = 6) -> np.ndarray:
    """Even, round distances [pc] out to the box's furthest face."""
    reach = reach_of(run)
    step = reach / count
    power = 10.0 ** math.floor(math.log10(step))
    step = max(f * power for f in (1, 2, 2.5, 5, 10) if f * power <= step * 1.0001)
    return step * np.arange(1, math.floor(reach / step + 1e-9) + 1)


def reach_of(run: Run) -> float:
    """Distance to the furthest face of the box along an axis [pc]."""
    corners = (*run.plan.grid.lower, *run.plan.grid.upper)
    return max(abs(edge) for edge in corners)


def farthest(run: Run) -> float:
    """Distance to the box's furthest corner [pc]."""
    grid = run.plan.grid
    sides = zip(grid.lower, grid.upper, strict=True)
    return math.hypot(*(max(-low, high) for low, high in sides))


def default_nside(run: Run) -> int:
    """The coarsest resolution whose pixels are a grid step or less, within 16..128.

    The published engine pays a solve for every pixel and distance: 8.
    """
    if run.plan.engine == "svi":
        return 8
    angle = min(run.plan.grid.spacing) / (reach_of(run) / 2)
    nside = 16
    while nside < 128 and healpy.nside2resol(nside) > angle:
        nside *= 2
    return nside
