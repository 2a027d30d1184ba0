"""Small models of every kind on any device, the same random numbers on each."""

from __future__ import annotations

import torch
from torch import Tensor

from dustmap.functionals import (
    Derivatives,
    DistanceMarginalizedIntegrals,
    FixedStep,
    LineIntegrals,
    PointValues,
    Stack,
    StepsOutwards,
)
from dustmap.grid import Grid
from dustmap.kernels import Matern12, Matern32, Matern52
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import (
    LevelWhitening,
    ToeplitzWhitening,
    TorusWhitening,
    nested_tori,
    padded_torus,
)

MEAN = ConstantMean(value=0.1)


def rng(seed: int) -> torch.Generator:
    """Random numbers of the CPU."""
    return torch.Generator().manual_seed(seed)


def box(dimension: int = 3) -> Grid:
    """A small box around the observer."""
    shape = (8, 9, 6)[:dimension]
    origin = tuple(-(n - 1) / 2 for n in shape)
    return Grid(shape=shape, spacing=(1.0,) * dimension, origin=origin)


def stars(count: int = 80, seed: int = 3) -> Tensor:
    """Where sight lines end."""
    places = torch.rand(count, 3, generator=rng(seed), dtype=torch.float64) - 0.5
    return places * torch.tensor([6.5, 7.5, 4.5], dtype=torch.float64)


def rays(count: int = 80, seed: int = 3) -> LineIntegrals:
    """Sight lines to these stars."""
    return LineIntegrals(stars(count, seed), FixedStep(step=0.5))


def log_normal(device: torch.device, dtype: torch.dtype) -> LogNormal:
    """A positive density along sight lines to uncertain distances."""
    kernel = Matern12(lengthscale=1.5, variance=0.5)
    torus = padded_torus(box(), kernel, 0.05)
    ends = stars()
    length = torch.linalg.vector_norm(ends, dim=1)
    seen = DistanceMarginalizedIntegrals(
        ends, 0.05 * length, 1.05 * length, StepsOutwards(step=0.5)
    )
    whitening = TorusWhitening(kernel, torus, dtype=dtype, device=device)
    return LogNormal(whitening, seen, mean=MEAN)


def nested(device: torch.device, dtype: torch.dtype) -> LogNormal:
    """A positive density on three nested grids, with sight lines in steps of each."""
    kernel = Matern12(lengthscale=3.0, variance=0.5)
    grids = [
        Grid(shape=(9, 9, 9), spacing=(h,) * 3, origin=(-4 * h,) * 3)
        for h in (1.0, 0.5, 0.25)
    ]
    tori = nested_tori(grids, kernel, 0.05)
    whitening = LevelWhitening(kernel, tori, dtype=dtype, device=device)
    steps = StepsOutwards(step=0.5, grids=whitening.tori.grids)
    ends = 0.9 * stars() * torch.tensor([1.0, 1.0, 1.5], dtype=torch.float64)
    return LogNormal(whitening, LineIntegrals(ends, steps), mean=MEAN)


def gaussian(device: torch.device, dtype: torch.dtype) -> TorusGaussian:
    """A Gaussian field along sight lines, W stored."""
    kernel = Matern52(lengthscale=1.5, variance=1e-3)
    torus = padded_torus(box(), kernel, 0.05)
    whitening = TorusWhitening(kernel, torus, dtype=dtype, device=device)
    return TorusGaussian(
        whitening, rays(), mean=MEAN, residual_refinement=2, generator=rng(5)
    )


def rowwise(device: torch.device) -> RowwiseGaussian:
    """The published engine's model of rays, values and slopes, on a tiny box."""
    grid = Grid(shape=(4, 3, 3), spacing=(1.2,) * 3, origin=(-1.8, -1.2, -1.2))
    whitening = ToeplitzWhitening(
        Matern32(lengthscale=1.0, variance=0.3),
        grid,
        lengthscales=(1.0,) * 3,
        nugget=1e-4,
        solver=ConjugateGradients(rtol=1e-11),
        device=device,
    )
    ends = 0.45 * stars(24)
    lines = LineIntegrals(ends, FixedStep(step=0.5))
    seen = Stack([lines, PointValues(0.9 * ends[:4]), Derivatives(ends[:4], 1)])
    return RowwiseGaussian(whitening, seen, mean=MEAN)
