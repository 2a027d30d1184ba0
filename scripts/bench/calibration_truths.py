"""Priors of the calibration, and the catalogues' truths that are drawn from them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from simulated import HALF
from torch import Tensor

from dustmap.functionals import FixedStep, LineIntegrals, PointValues, Stack
from dustmap.grid import Grid, Torus
from dustmap.kernels import Matern32
from dustmap.models.base import ForwardModel
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean
from dustmap.whitening import TorusWhitening, padded_torus

# Density [mag/pc] (of the log-normal the median), its relative scatter, scale [pc].
DENSITY, SCATTER, LENGTHSCALE = 5e-4, 0.6, 400.0


def gaussian(
    whitening: TorusWhitening, seen: Stack, generator: torch.Generator
) -> ForwardModel:
    """The density is the field itself, its scatter relative to the mean."""
    return TorusGaussian(
        whitening,
        seen,
        mean=ConstantMean(value=DENSITY),
        residual_refinement=2,
        residual_count=16,
        generator=generator,
    )


def lognormal(
    whitening: TorusWhitening, seen: Stack, generator: torch.Generator
) -> ForwardModel:
    """The density is the exponential of the field."""
    seed = int(torch.randint(2**31, (1,), generator=generator))
    return LogNormal(whitening, seen, mean=ConstantMean(value=DENSITY), seed=seed)


Build = Callable[[TorusWhitening, Stack, torch.Generator], ForwardModel]
MODELS: dict[str, tuple[Build, float]] = {
    "gaussian": (gaussian, SCATTER * DENSITY),
    "lognormal": (lognormal, SCATTER),
}


def whitening_of(shape: tuple[int, int, int], std: float) -> TorusWhitening:
    """The prior on the box of 4 × 4 × 2 kpc."""
    spacing = tuple(2 * h / (n - 1) for h, n in zip(HALF, shape, strict=True))
    grid = Grid(shape=shape, spacing=spacing, origin=tuple(-h for h in HALF))
    kernel = Matern32(lengthscale=LENGTHSCALE, variance=std**2)
    return TorusWhitening(kernel, padded_torus(grid, kernel, 1e-2))


def places(count: int, generator: torch.Generator) -> Tensor:
    """Stars evenly in the box."""
    unit = torch.rand(count, 3, generator=generator, dtype=torch.float64) * 2 - 1
    return 0.999 * unit * torch.tensor(HALF, dtype=torch.float64)


def seen_by(ends: Tensor, there: Tensor, whitening: TorusWhitening) -> Stack:
    """Rays to the stars; rays to the test places, and the density there."""
    rule = FixedStep(step=0.5 * min(whitening.torus.grid.spacing))
    rays = LineIntegrals(ends, rule)
    return Stack([rays, LineIntegrals(there, rule), PointValues(there)])


def as_assumed(
    build: Build,
    whitening: TorusWhitening,
    places: tuple[Tensor, Tensor],
    generator: torch.Generator,
) -> Tensor:
    """A draw of the model as inference takes it: unresolved parts are independent."""
    world = build(whitening, seen_by(*places, whitening), generator)
    eps = torch.randn(1, world.latent_size, generator=generator, dtype=torch.float64)
    if not world.linear:
        return world.apply(eps[0]) + world.residual_draws(eps, generator)[0]
    tangent = world.linearise(eps[0])
    size = len(tangent.prediction)
    white = torch.randn(size, generator=generator, dtype=torch.float64)
    return tangent.prediction + tangent.variance.sqrt() * white


def twice_as_fine(
    build: Build,
    whitening: TorusWhitening,
    places: tuple[Tensor, Tensor],
    generator: torch.Generator,
) -> Tensor:
    """A draw on twice as fine a grid: what the map cannot resolve, stars share."""
    torus = whitening.torus
    grid = Grid(
        shape=tuple(2 * n - 1 for n in torus.grid.shape),
        spacing=tuple(h / 2 for h in torus.grid.spacing),
        origin=torus.grid.origin,
    )
    finer = Torus(grid=grid, shape=tuple(2 * n for n in torus.shape))
    fine = TorusWhitening(whitening.kernel, finer)
    world = build(fine, seen_by(*places, fine), generator)
    eps = torch.randn(world.latent_size, generator=generator, dtype=torch.float64)
    return world.apply(eps)


TRUTHS = {"as assumed": as_assumed, "twice as fine": twice_as_fine}
