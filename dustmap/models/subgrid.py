r"""Local statistics of the part of a stationary field that a grid cannot resolve.

The residual ``δ = f − E[f | grid]``, interpolation error included, is correlated over
about one cell. In line integrals much longer than that it acts like white noise,
``Var ∫ ρ δ ds ≈ κ ∫ ρ² ds``, and a point value at phase p of its cell has the variance
``c(p)``. κ and c are measured on a small torus with white noise from a fixed seed,
which makes them smooth functions of the hyperparameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy.ndimage
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.grid import Grid, Torus
from dustmap.kernels import Radial
from dustmap.linalg.operator import LinearOperator
from dustmap.projection import projection
from dustmap.whitening import TorusWhitening
from dustmap.whitening.bands import band_covariance, shortest_time, variance_below

# Longer lengthscales, in cells, are reduced to this: they would need many images. For
# 16 cells κ is 0.3% too low for Matérn-1/2, and 23% for the smoother Matérn-3/2.
_MOST_CELLS = 8.0
# Points per cell and axis at which the residual is measured.
_PHASES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalResidual:
    """Integral scale and variance of the residual.

    ``line`` is κ, the variance of the residual's line integral per unit length,
    averaged over directions [field² · length]; ``phases`` are ``c(p)`` at even phases
    of a cell along every axis.
    """

    line: float
    phases: Float[Tensor, "*q"]

    def at(self, points: Float[Tensor, "n d"], grid: Grid) -> Float[Tensor, " n"]:
        """Return ``c`` at positions by periodic multilinear interpolation in phase."""
        steps = torch.tensor(grid.spacing, dtype=torch.float64)
        cells = (points - torch.tensor(grid.origin, dtype=torch.float64)) / steps
        phases = (cells - cells.floor()) * self.phases.shape[0]
        # ``grid-wrap``: the last phase is followed by the first one of the next cell.
        known, places = self.phases.numpy(), phases.numpy().T
        values = scipy.ndimage.map_coordinates(known, places, order=1, mode="grid-wrap")
        return torch.from_numpy(values)


@lru_cache(maxsize=64)
def local_residual(
    kernel: Radial, spacing: tuple[float, ...], *, cut: float = 0.0
) -> LocalResidual:
    r"""Measure the residual of a kernel on a grid of this spacing, once for each.

    κ is the residual's power spectrum P averaged over the planes through the origin,
    ``κ = (2π)^{-D} ∫ P(k) ⟨2π δ(k·u)⟩_u d^Dk`` with ``⟨δ(k·u)⟩ = 1/(2|k|)`` in three
    dimensions and ``1/(π|k|)`` in two; in one it is ``P(0)``.

    Cost: a few transforms of some hundred thousand points.

    Parameters
    ----------
    cut
        The shortest scale of the field on the grid, in its steps. Shorter scales are an
        independent part of the residual; its exponential has the κ
        :math:`\int (e^{k_{[0, t]}(x)} - 1) dx`.
    """
    dimension, prior = len(spacing), kernel
    kernel = _as_rough(kernel, spacing)
    # Four draws of about ten thousand cells give c to 2% and κ to 5%. The number is
    # independent of the lengthscale, or κ would jump where the white noise changes. The
    # periodic boundary does not affect the residual.
    draws, cells = 4, ((4096, 108, 20)[dimension - 1],) * dimension
    box = Grid(shape=cells, spacing=tuple(spacing), origin=(0.0,) * dimension)
    torus = Torus(grid=box, shape=cells)
    fine = TorusWhitening(
        kernel,
        torus,
        refinement=_PHASES,
        cut=cut,
        # Smaller images of the kernel are smooth, and thus resolved: κ and c change by
        # 0.3% at most for lengthscales of 6.5 cells.
        image_tolerance=1e-6,
    )
    known = fine.refined(1)
    # Interpolation along every axis to all phases of all cells but the last.
    weights: list[LinearOperator] = []
    for h in spacing:
        axis = Grid(shape=cells[:1], spacing=(h,), origin=(0.0,))
        around = Torus(grid=axis, shape=cells[:1])
        points = PointValues(axis.refined(_PHASES).points()[:-1])
        weights.append(projection(around, points))
    generator = torch.Generator().manual_seed(0)
    variance = torch.zeros(fine.fine_shape, dtype=torch.float64)
    power = torch.zeros_like(variance)
    for _ in range(draws):
        field, eps = fine.prior_draw(generator)
        resolved = known.colour(eps)[0].reshape(known.fine_shape)
        for axis, matrix in enumerate(weights):
            values = resolved.movedim(axis, -1)
            # The last cell is the previous one, shifted.
            last = matrix.matvec(values.roll(-1, dims=-1))[..., -_PHASES:]
            along = torch.cat([matrix.matvec(values), last], dim=-1)
            resolved = along.movedim(-1, axis)
        residual = field[0].reshape(fine.fine_shape) - resolved
        variance += residual**2 / draws
        power += torch.fft.fftn(residual).abs() ** 2 / draws / residual.numel()
    # Average over cells.
    for axis in range(dimension):
        variance = variance.unflatten(axis, (-1, _PHASES)).mean(dim=axis)
    line = _line_variance(power, [h / _PHASES for h in spacing]) * _kinks(variance)
    if cut:
        line += _line_below(prior, spacing, cut)
        variance += variance_below(prior, spacing, cut)
    return LocalResidual(line=line, phases=variance)


def _line_below(kernel: Radial, spacing: tuple[float, ...], cut: float) -> float:
    """Return κ of scales below the cut, by Gauss–Legendre panels towards the cusp."""
    time = shortest_time(kernel, spacing, cut)
    nodes, weights = np.polynomial.legendre.leggauss(8)
    edges = np.concatenate([[0.0], np.geomspace(1e-4, 10.0, 40)])
    halves = np.diff(edges)[:, None] / 2
    at = torch.from_numpy((edges[:-1, None] + halves * (nodes + 1)).ravel())
    value = band_covariance(kernel, 0.0, time, at * math.sqrt(time)).expm1()
    total = float(value @ torch.from_numpy((halves * weights).ravel()))
    return 2 * total * kernel.mean_lengthscale * math.sqrt(time)


def _as_rough(kernel: Radial, spacing: tuple[float, ...]) -> Radial:
    """Return a kernel of the same roughness with ℓ of at most ``_MOST_CELLS`` cells.

    A grid much finer than the lengthscale leaves the tail of the spectrum unresolved,
    which depends on ``σ² ℓ^{-2ν}`` alone. Bands of a bent kernel need no images.
    """
    scale = kernel.lengthscale.detach().expand(len(spacing))
    cells = float((scale / torch.tensor(spacing, dtype=torch.float64)).min())
    if kernel.smoothness is None or kernel.bend or cells <= _MOST_CELLS:
        return kernel
    shorter = _MOST_CELLS / cells
    return kernel.with_parameters(
        {
            "lengthscale": kernel.lengthscale * shorter,
            "variance": kernel.variance * shorter ** (2 * kernel.smoothness),
        }
    )


def _kinks(phases: Tensor) -> float:
    """Return the mean of c over a cell by Simpson's rule, over its mean at the phases.

    c has kinks at the points of the grid. Its plain mean over few phases, and thus the
    mean power of the residual, is too low by some per cent.
    """
    mean = phases
    for _ in range(phases.ndim):
        mean = (2 * mean[0::2].mean(dim=0) + 4 * mean[1::2].mean(dim=0)) / 6
    return float(mean / phases.mean())


def _line_variance(power: Tensor, step: list[float]) -> float:
    """Return κ from the periodogram of the residual (per point)."""
    waves = [
        2 * math.pi * torch.fft.fftfreq(n, h, dtype=torch.float64)
        for n, h in zip(power.shape, step, strict=True)
    ]
    if len(waves) == 1:
        # Use the lowest modes only, since P falls towards the scale of a cell.
        lowest = max(8, power.shape[0] // 256)
        return float(power[1 : lowest + 1].mean()) * step[0]
    squares = torch.meshgrid(*[k**2 for k in waves], indexing="ij")
    length = torch.stack(squares).sum(dim=0).sqrt()
    length.view(-1)[0] = math.inf
    factor = math.pi if len(waves) == 3 else 2.0
    return float((power * factor / length).sum() / power.numel())
