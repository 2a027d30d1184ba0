"""The grid that suits a lengthscale and a cloud of inputs."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.grid import Grid, Torus
from dustmap.kernels import Radial
from dustmap.whitening import padded_torus

# Grid points to a lengthscale where they are cheap and where not. Against the exact
# posterior of 200 rows in one input with a Matérn-3/2 the mean is off by 0.03 posterior
# standard deviations (median) with eight, by 0.15 with four, by 0.29 with 2.5.
_FINE, _COARSE = 8.0, 2.5
# How many points of the torus are cheap for a fit and for each of the many fits that
# learn something, and are allowed at all.
CHEAP_POINTS, LEARNING_POINTS, MOST_POINTS = 40_000, 15_000, 400_000
_FEWEST = 6
# Longest lengthscale in extents of the inputs.
_LONGEST = 3.0
# Correlation through the torus that is let pass.
_WRAP = 0.02


def within_reach(kernel: Radial, everywhere: Float[Tensor, "m d"]) -> Radial:
    """The kernel with no lengthscale beyond three times the inputs' extent.

    A field that hardly varies along an axis would ask for a torus far larger than the
    box; within it the difference is below what data can tell.
    """
    extent = everywhere.max(dim=0).values - everywhere.min(dim=0).values
    own = kernel.lengthscale.detach().expand(len(extent))
    return kernel.with_parameters(
        {"lengthscale": torch.minimum(own, _LONGEST * extent)}
    )


def torus_over(
    kernel: Radial, everywhere: Float[Tensor, "m d"], cheap: int = CHEAP_POINTS
) -> Torus:
    """A grid over all inputs with some points to a lengthscale, and its torus.

    The spacing grows by one factor for all axes until the torus has ``cheap`` points
    or 2.5 points are left to a lengthscale, and then until it is allowed.
    """
    axes = everywhere.shape[1]
    scales = kernel.lengthscale.detach().expand(axes)
    low, high = everywhere.min(dim=0).values, everywhere.max(dim=0).values
    extent = high - low
    ratio = _FINE
    while True:
        wanted = torch.minimum(scales / ratio, extent / (_FEWEST - 1))
        counts = torch.ceil(extent / wanted).to(torch.int64) + 1
        spacing = extent / (counts - 1) * (1 + 1e-9)
        grid = Grid(
            shape=tuple(counts.tolist()),
            spacing=tuple(spacing.tolist()),
            origin=tuple((low - 1e-10 * extent).tolist()),
        )
        torus = padded_torus(grid, kernel, _WRAP)
        limit = cheap if ratio > _COARSE else MOST_POINTS
        if torus.size <= limit:
            return torus
        smaller = ratio / max(1.05, (torus.size / limit) ** (1 / axes))
        ratio = max(smaller, _COARSE) if ratio > _COARSE else smaller


def points_to_a_lengthscale(kernel: Radial, torus: Torus) -> list[float]:
    """Lengthscale over spacing, axis by axis."""
    own = kernel.lengthscale.detach().expand(torus.grid.dimension).tolist()
    return [s / h for s, h in zip(own, torus.grid.spacing, strict=True)]


def held_axes(kernel: Radial, torus: Torus) -> list[str]:
    """A line for people if an axis holds a lengthscale at its limit."""
    ratios = points_to_a_lengthscale(kernel, torus)
    axes = [
        str(number)
        for number, (ratio, n) in enumerate(zip(ratios, torus.grid.shape), start=1)
        if ratio >= 0.99 * _LONGEST * (n - 1)
    ]
    if not axes:
        return []
    return [
        f"the lengthscale of input {', '.join(axes)} is held at {_LONGEST:g} times its "
        "extent: along it the target hardly bends"
    ]
