"""The density averaged over pixels of spherical shells around the observer."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import healpy
import numpy as np
import torch
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.moments import Moments, moments_over_samples
from pipelines.base.geometry import unit_vectors
from pipelines.base.progress import Progress
from pipelines.base.quantiles import summaries
from pipelines.cubes.sky import ShellMaps
from pipelines.products.provenance import provenance
from pipelines.products.reach import (
    checked_distances,
    checked_nside,
    default_distances,
    default_nside,
)
from pipelines.products.segments import SegmentMoments
from pipelines.run.folder import Run

# Segments of rays looked at together: some 400 bytes each while W is made.
_SEGMENTS = 2**20
# Rays across a pixel, at most.
_ACROSS = 8


def shell_maps(
    run: Run, *, edges: np.ndarray | None = None, nside: int | None = None
) -> ShellMaps:
    """Mean density between each two ``edges`` [pc] in every pixel, with its std.

    What is averaged are the line integrals ``∫ ρ ds / (d1 − d0)`` between the two
    spheres along rays through a pixel: one at its centre, or as many as make them no
    further apart than a grid step at the outer sphere, 8 × 8 at most (and one with the
    engine svi, which pays a solve for each). All volume along a ray counts alike,
    whereas a mean by volume would favour the outer part.

    The std is that of the average: samples are averaged before the variance is taken.
    What the grid cannot resolve is taken to be the same for all rays of a pixel, which
    is the most it can be. Edges are 0 and `default_distances` unless given.

    Raises
    ------
    InputError
        If edges are not increasing or begin beyond the map, or nside is no power of 2.
    """
    if edges is None:
        edges = np.concatenate([[0.0], default_distances(run)])
    edges = checked_distances(run, edges, edges=True)
    nside = checked_nside(default_nside(run) if nside is None else nside)
    segments = SegmentMoments(run)
    shells = []
    with Progress(description="shells", total=len(edges) - 1, unit="shell") as progress:
        for low, high in pairwise(edges):
            shells.append(_shell(run, segments, low, high, nside))
            progress.update(1)
    arrays = {name: np.stack([shell[name] for shell in shells]) for name in shells[0]}
    return ShellMaps(edges=edges, arrays=arrays, meta=provenance(run))


def rays_across(run: Run, distance: float, nside: int) -> int:
    """Rays along a pixel's side that are a grid step apart or less at a distance."""
    across = 1
    width = healpy.nside2resol(nside) * distance
    while (
        run.plan.is_full_batch
        and across < _ACROSS
        and width / across > run.plan.step_at(distance)
    ):
        across *= 2
    return across


def _shell(
    run: Run, segments: SegmentMoments, low: float, high: float, nside: int
) -> dict[str, np.ndarray]:
    """Mean, std and quantiles of one shell, shape ``(npix,)`` each."""
    across = rays_across(run, high, nside)
    each, npix = across**2, 12 * nside**2
    step = max(1, _SEGMENTS // each)

    def average(values: Tensor) -> Tensor:
        return values.reshape(-1, each).mean(dim=1)

    arrays: dict[str, np.ndarray] = {}
    for start in range(0, npix, step):
        part = np.arange(start, min(start + step, npix))
        # The centres of each pixel's parts.
        children = each * part[:, None] + np.arange(each)
        places = healpy.pix2ang(nside * across, children, nest=True, lonlat=True)
        along = torch.as_tensor(unit_vectors(*places))
        ends = high * along
        inside = run.plan.grid.contains(ends.reshape(-1, 3)).reshape(-1, each).all(1)
        along = along[inside].reshape(-1, 3)
        if run.posterior.residual is None:
            moments = segments.of(high * along, low * along, average, joint=False)
        else:
            moments = _corrected(run, along, (low, high), average)
        for name, value in summaries(moments).items():
            whole = arrays.setdefault(name, np.full(npix, np.nan, dtype=np.float32))
            whole[part[inside.numpy()]] = value / (high - low)
    return arrays


def _corrected(
    run: Run,
    along: Tensor,
    edges: tuple[float, float],
    average: Callable[[Tensor], Tensor],
) -> Moments:
    """Integrals between two spheres [mag] of the density that stars correct.

    By the midpoint rule, a grid step apart at most. What is unresolved is taken to be
    the same within a pixel and independent along rays.
    """
    low, high = edges
    count = math.ceil((high - low) / run.plan.step_at(low))
    step = (high - low) / count
    total, variance = torch.zeros(()), torch.zeros(())
    for number in range(count):
        points = PointValues((low + (number + 0.5) * step) * along)
        values, unresolved = run.posterior.sampled(points)
        parts = zip(values, unresolved.sqrt(), strict=True)
        found = [(average(value), average(std)) for value, std in parts]
        mean, std = (torch.stack(part) for part in zip(*found, strict=True))
        total, variance = total + step * mean, variance + (step * std) ** 2
    return moments_over_samples(total, variance, positive=True)
