"""Covariances of rays a pair at a time, and kriging by dense algebra."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import torch
from scipy.integrate import quad
from scipy.interpolate import CubicSpline, RegularGridInterpolator
from scipy.special import erfc

from dustmap.residual.covariance import (
    RayCovariance,
    Rays,
    SubgridCovariance,
    ray_table,
)
from dustmap.residual.cube import DensityCube
from dustmap.residual.kriging import TABLE_ERROR


def components(covariance: RayCovariance, one: Rays, other: Rays) -> torch.Tensor:
    """The summands of unit weight, of rays that broadcast."""
    chord = (one.directions - other.directions).norm(dim=-1)
    if covariance.cube is None:
        lengths = torch.broadcast_tensors(one.lengths, other.lengths)
        scales = covariance.lengthscales
        parts = [s**2 * integrals(chord, *(x / s for x in lengths)) for s in scales]
        return (one.density * other.density)[..., None] * torch.stack(parts, dim=-1)
    cube, subgrid = covariance.cube, covariance.subgrid
    assert subgrid is not None
    each = [along(cube, rays) for rays in (one, other)]
    shorter = torch.minimum(one.lengths, other.lengths)
    total = shorter.new_zeros(*shorter.shape, len(subgrid.cuts))
    edges, levels = cube.edges().tolist(), cube.levels().tolist()
    for b, (start, end, level) in enumerate(zip(edges, edges[1:], levels)):
        within = (shorter.clamp_max(end) - start).clamp_min(0.0)
        product = each[0][..., b] * each[1][..., b] * within
        impact = (chord * (start + end) / 2).numpy()
        total[..., level] += product * torch.from_numpy(line(subgrid, level, impact))
    return total


def along(cube: DensityCube, rays: Rays) -> torch.Tensor:
    """The density in shells of rays of any shape."""
    directions = rays.directions.reshape(-1, 3).contiguous()
    found = cube.in_shells(directions, rays.lengths.flatten())
    return found.reshape(*rays.lengths.shape, -1)


def relative(
    subgrid: SubgridCovariance, level: int, distance: np.ndarray
) -> np.ndarray:
    """``e^k - 1`` of a Matern-1/2 covariance's shortest band, in closed form."""
    assert subgrid.kernel == "matern12"
    root = subgrid.cuts[level] / subgrid.lengthscale
    half = distance / subgrid.lengthscale / 2
    near = np.exp(-2 * half) * erfc(half / root - root)
    far = np.exp(2 * half) * erfc(half / root + root)
    return np.expm1(subgrid.variance * (near - far) / 2)


@cache
def _line(subgrid: SubgridCovariance, level: int) -> CubicSpline:
    """``κ`` over logarithms of impact parameters, by adaptive quadrature."""
    cut = subgrid.cuts[level]
    impacts = cut * np.geomspace(1e-6, 20.0, 300)

    def at(impact: float) -> float:
        def along(x: float) -> float:
            return float(relative(subgrid, level, np.hypot(impact, x)))

        breaks = sorted({0.0, min(impact, cut), cut, 12 * cut})
        return 2 * sum(quad(along, *part)[0] for part in pairwise(breaks))

    values = [at(impact) if impact < 12 * cut else 0.0 for impact in impacts]
    return CubicSpline(np.log(impacts), values)


def line(subgrid: SubgridCovariance, level: int, impact: np.ndarray) -> np.ndarray:
    """``κ`` at impact parameters [pc]."""
    spline = _line(subgrid, level)
    return spline(np.log(np.maximum(impact, 1e-300)).clip(spline.x[0], spline.x[-1]))


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
        among = among + torch.diag(TABLE_ERROR * torch.diagonal(among) + noise[near])
        found.append(torch.linalg.solve(among, across[0]))
        left.append(torch.maximum(prior - found[-1] @ across[0], TABLE_ERROR * prior))
    return torch.stack(found), torch.cat(left)
