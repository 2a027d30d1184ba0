"""The density averaged over pixels of spherical shells around the observer."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import healpy
import numpy as np
import torch
from torch import Tensor

from dustmap.models.base import ForwardModel
from dustmap.posterior import Moments, Posterior
from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.progress import Progress
from pipelines.base.quantiles import summaries
from pipelines.maps.shells import ShellMaps, check_edges
from pipelines.model.observations import rays
from pipelines.products.provenance import provenance
from pipelines.products.ray_sums import LogMoments
from pipelines.products.reach import (
    checked_nside,
    default_distances,
    default_nside,
    farthest,
)
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
    edges = checked_edges(run, edges)
    nside = checked_nside(default_nside(run) if nside is None else nside)
    found: dict[str, list[np.ndarray]] = {}
    with Progress(description="shells", total=len(edges) - 1, unit="shell") as progress:
        for low, high in pairwise(edges):
            for name, values in _shell(run, low, high, nside).items():
                found.setdefault(name, []).append(values)
            progress.update(1)
    arrays = {name: np.stack(maps) for name, maps in found.items()}
    return ShellMaps(edges=edges, arrays=arrays, meta=provenance(run))


def checked_edges(run: Run, edges: np.ndarray) -> np.ndarray:
    """The edges of shells [pc] as float64.

    Raises
    ------
    InputError
        If they are not two or more, do not increase from 0 on, or end beyond the map.
    """
    edges = np.asarray(edges, dtype=np.float64)
    try:
        check_edges(edges)
    except ValueError as error:
        raise InputError(str(error)) from error
    if edges[-1] > farthest(run):
        raise InputError(
            f"shells go to {edges[-1]:g} pc, where no sight line is still inside the "
            f"map: its furthest corner is {farthest(run):.6g} pc away"
        )
    return edges


def _shell(run: Run, low: float, high: float, nside: int) -> dict[str, np.ndarray]:
    """Mean, std and quantiles of one shell, shape ``(npix,)`` each."""
    across = rays_across(run, high, nside)
    npix = 12 * nside**2
    step = max(1, _SEGMENTS // across**2)
    arrays: dict[str, np.ndarray] = {}
    for start in range(0, npix, step):
        part = np.arange(start, min(start + step, npix))
        moments, inside = _pixels(run, low, high, _directions(part, nside, across))
        for name, value in summaries(moments).items():
            whole = arrays.setdefault(name, np.full(npix, np.nan, dtype=np.float32))
            whole[part[inside]] = value / (high - low)
    return arrays


def rays_across(run: Run, distance: float, nside: int) -> int:
    """Rays along a pixel's side that are a grid step apart or less at a distance."""
    across = 1
    width = healpy.nside2resol(nside) * distance
    while (
        run.plan.engine != "svi"
        and across < _ACROSS
        and width / across > min(run.plan.grid.spacing)
    ):
        across *= 2
    return across


def _directions(pixels: np.ndarray, nside: int, across: int) -> np.ndarray:
    """Centres of the ``across²`` parts of each pixel, shape ``(n, across², 3)``."""
    parts = across**2 * pixels[:, None] + np.arange(across**2)
    lon, lat = healpy.pix2ang(nside * across, parts, nest=True, lonlat=True)
    return unit_vectors(lon, lat)


def _pixels(
    run: Run, low: float, high: float, directions: np.ndarray
) -> tuple[Moments, np.ndarray]:
    """Moments [mag] of the mean over each pixel's rays, and which pixels are inside."""
    plan, (count, each, _) = run.plan, directions.shape
    along = torch.as_tensor(directions.reshape(-1, 3))
    inside = plan.grid.contains(high * along).reshape(count, each).all(dim=1)
    along = along.reshape(count, each, 3)[inside].reshape(-1, 3)
    # Short segments need shorter steps than the stars' whole rays.
    fine = replace(plan, ray_step=plan.ray_step / 2)
    model = run.posterior.model.at(rays(fine, high * along, low * along))
    return _averaged(model, run.posterior, each), inside.numpy()


def _averaged(model: ForwardModel, posterior: Posterior, each: int) -> Moments:
    """Moments of means over ``each`` consecutive functionals."""

    def mean(values: Tensor) -> Tensor:
        return values.to(torch.float64).cpu().reshape(-1, each).mean(dim=1)

    samples = posterior.samples
    if not model.linear and len(samples):
        seen = LogMoments(len(model.functionals) // each)
        for sample in samples:
            tangent = model.linearise(sample)
            seen.add(mean(tangent.prediction), mean(tangent.variance))
        return seen.moments()
    tangent = model.linearise(posterior.mean)
    first = mean(tangent.prediction)
    variance = torch.zeros_like(first)
    for sample in samples:
        variance += (mean(model.apply(sample)) - first) ** 2 / len(samples)
    std = (variance + mean(tangent.variance)).sqrt()
    if not len(samples):
        std = torch.full_like(first, float("nan"))
    return Moments(mean=first, std=std)
