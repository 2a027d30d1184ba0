"""Covariances of rays a pair at a time, and kriging by dense algebra."""

from __future__ import annotations

import numpy as np
import torch
from scipy.interpolate import RegularGridInterpolator

from dustmap.residual.covariance import RayCovariance, Rays, ray_table
from dustmap.residual.kriging import JITTER


def components(covariance: RayCovariance, one: Rays, other: Rays) -> torch.Tensor:
    """The summands of unit weight, of rays that broadcast."""
    chord = (one.directions - other.directions).norm(dim=-1)
    if covariance.edges is None:
        lengths = torch.broadcast_tensors(one.lengths, other.lengths)
        scales = covariance.lengthscales
        parts = [s**2 * integrals(chord, *(x / s for x in lengths)) for s in scales]
        return (one.density * other.density)[..., None] * torch.stack(parts, dim=-1)
    assert covariance.cells is not None
    assert one.profile is not None
    assert other.profile is not None
    shorter = torch.minimum(one.lengths, other.lengths)
    total = shorter.new_zeros(*shorter.shape, len(covariance.lengthscales))
    edges, cells = covariance.edges.tolist(), covariance.cells.tolist()
    for b, (start, end, cell) in enumerate(zip(edges, edges[1:], cells)):
        within = (shorter.clamp_max(end) - start).clamp_min(0.0)
        product = one.profile[..., b] * other.profile[..., b] * within
        for j, scale in enumerate(cell * s for s in covariance.lengthscales):
            x = (chord * (start + end) / 2 / scale).clamp_min(1e-9)
            bessel = x * torch.special.modified_bessel_k1(x)
            total[..., j] += product * 2 * scale * bessel
    return total


def integrals(chord, one, other):
    """``I`` by SciPy's interpolation of the table."""
    ratio, (starts, steps) = ray_table()
    axes = [a + h * np.arange(n) for a, h, n in zip(starts, steps, ratio.shape)]
    shorter, apart = torch.minimum(one, other), (one - other).abs()
    ends = [(axis[0], axis[-1]) for axis in axes]
    logarithms = chord.log(), shorter.log(), apart.log1p()
    at = [x.clamp(*end) for x, end in zip(logarithms, ends)]
    found = RegularGridInterpolator(axes, ratio)(
        torch.stack(torch.broadcast_tensors(*at), dim=-1).numpy()
    )
    parallel = 2 * shorter + torch.expm1(-shorter) + torch.expm1(-shorter - apart)
    return torch.from_numpy(found) * (parallel - torch.expm1(-apart))


def dense(covariance: RayCovariance, one: Rays, other: Rays) -> torch.Tensor:
    """The covariance of all rays with all others."""
    return components(covariance, one[:, None], other[None]) @ covariance.weights


def kriged(covariance, rows, noise, places, neighbours):
    """Weights of the neighbours of every place, and the variance that is left."""
    found, left = [], []
    for place, near in enumerate(neighbours):
        own, some = places[place : place + 1], rows[near]
        among, across = (dense(covariance, x, some) for x in (some, own))
        prior = dense(covariance, own, own)[0]
        among = among + torch.diag(JITTER * torch.diagonal(among) + noise[near])
        found.append(torch.linalg.solve(among, across[0]))
        left.append(torch.maximum(prior - found[-1] @ across[0], JITTER * prior))
    return torch.stack(found), torch.cat(left)
