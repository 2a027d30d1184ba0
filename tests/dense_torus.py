"""Small problems on a torus, and the dense algebra of their very own model.

The model's kernel is the periodically summed one, its inducing points fill the torus
and its functionals are the rows of W; what is checked here is everything behind these.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np
import torch
from reference import Covariance, conditional_features

from dustmap.functionals import (
    Derivatives,
    Functionals,
    GaussLegendre,
    LineIntegrals,
    PointValues,
    Stack,
)
from dustmap.grid import Grid, Torus
from dustmap.kernels import KERNELS
from dustmap.linalg.operator import LinearOperator
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean
from dustmap.whitening import TorusWhitening

# Box, torus and lengthscales in steps of the grid (1 ≤ ℓ/h ≤ 3); odd and even sizes.
SETTINGS = {
    1: ((40,), (48,), (0.25,), (3.0,)),
    2: ((12, 10), (15, 14), (0.5, 0.4), (2.0, 1.5)),
    3: ((5, 4, 4), (6, 6, 5), (0.5, 0.4, 0.6), (1.6, 1.0, 1.3)),
}
VARIANCE = 1.7
OFFSET = 0.6


def torus(dimension: int) -> Torus:
    """A torus around the observer at zero, who is not on a point of the grid."""
    box, shape, spacing, _ = SETTINGS[dimension]
    origin = tuple(-0.37 * (n - 1) * h for n, h in zip(box, spacing, strict=True))
    return Torus(grid=Grid(shape=box, spacing=spacing, origin=origin), shape=shape)


@functools.cache
def whitening(name: str, dimension: int, refinement: int) -> TorusWhitening:
    """The package's whitening of the same setting."""
    _, _, spacing, ratio = SETTINGS[dimension]
    scales = [q * h for q, h in zip(ratio, spacing, strict=True)]
    kernel = KERNELS[name](lengthscale=scales, variance=VARIANCE)
    return TorusWhitening(kernel, torus(dimension), refinement=refinement)


def inside(dimension: int, count: int, seed: int) -> torch.Tensor:
    """Positions in the box."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(count, dimension, generator=generator, dtype=torch.float64)
    box = torus(dimension).grid
    lower, upper = torch.tensor(box.lower), torch.tensor(box.upper)
    return lower + u * (upper - lower)


def mixed(name: str, dimension: int, seed: int, count: int = 8) -> Functionals:
    """Points, line integrals and, where the field has them, derivatives."""
    parts: list[Functionals] = [
        PointValues(inside(dimension, count, seed)),
        LineIntegrals(inside(dimension, 2 * count, seed + 1), GaussLegendre(count=6)),
    ]
    if name != "matern12":
        axes = torch.arange(count) % dimension
        parts.append(Derivatives(inside(dimension, count, seed + 2), axes))
    return Stack(parts)


def model(
    name: str,
    dimension: int,
    functionals: Functionals,
    *,
    refinement: int = 1,
    residual_refinement: int | None = None,
    interpolation="linear",
    residual_count: int = 32,
) -> TorusGaussian:
    """The package's model with a constant mean."""
    return TorusGaussian(
        whitening(name, dimension, refinement),
        functionals,
        mean=ConstantMean(value=OFFSET),
        interpolation=interpolation,
        residual_refinement=residual_refinement,
        residual_count=residual_count,
        generator=torch.Generator().manual_seed(11),
    )


def white_features(whitening: TorusWhitening, operator: LinearOperator) -> np.ndarray:
    """``Φ T``, dense: the features of white noise at the points of the torus."""
    white = torch.eye(whitening.torus.size, dtype=torch.float64)
    return operator.matvec(whitening.modes.of(white)).mT.numpy()


@functools.cache
def log_normal(variance: float, count: int, seed: int = 3) -> LogNormal:
    """A density whose logarithm has this variance, seen along so many rays."""
    kernel = whitening("matern52", 2, 1).kernel
    kernel = kernel.with_parameters({"variance": torch.tensor(variance).double()})
    return LogNormal(
        TorusWhitening(kernel, torus(2)),
        LineIntegrals(inside(2, count, seed), GaussLegendre(count=6)),
        mean=ConstantMean(value=0.6),
    )


@functools.cache
def _column(name: str, dimension: int, refinement: int) -> np.ndarray:
    """``k_P`` at every displacement of the refined torus, image by image."""
    _, shape, spacing, ratio = SETTINGS[dimension]
    covariance = Covariance(
        name=name,
        lengthscale=tuple(q * h for q, h in zip(ratio, spacing, strict=True)),
        variance=VARIANCE,
        periods=tuple(n * h for n, h in zip(shape, spacing, strict=True)),
        images=(6,) * dimension,
    )
    places = itertools.product(*(range(n * refinement) for n in shape))
    step = np.array(spacing) / refinement
    # The shortest of the equal displacements, so that few images are enough.
    size = np.array(shape) * refinement
    lags = [((np.array(p) + size // 2) % size - size // 2) * step for p in places]
    return np.array([covariance(lag) for lag in lags]).reshape(tuple(size))


@functools.cache
def torus_covariance(
    name: str, dimension: int, refinement: int, every: tuple[int, int]
) -> np.ndarray:
    """Dense covariance between every a-th and every b-th point of the refined torus."""
    column = _column(name, dimension, refinement)
    size = np.array(column.shape)
    sides = []
    for step in every:
        axes = [range(0, n, step) for n in column.shape]
        sides.append(np.array(list(itertools.product(*axes))))
    lag = (sides[0][:, None, :] - sides[1][None, :, :]) % size
    return column[tuple(np.moveaxis(lag, -1, 0))]


@dataclass(frozen=True, kw_only=True)
class Dense:
    """``Φ T``, the mean and the covariance of a model's functionals, all dense."""

    features: np.ndarray
    offset: np.ndarray
    covariance: np.ndarray


def dense(name: str, dimension: int, subject: TorusGaussian) -> Dense:
    """``Φ = W K_fu K_uu⁻¹ K_uu^{1/2}`` and ``W K_ff Wᵀ`` of a model's own W."""
    r = subject.whitening.refinement
    W = subject.weights.to_dense().numpy()
    K_fu = torus_covariance(name, dimension, r, (1, r))
    K_uu = torus_covariance(name, dimension, r, (r, r))
    nodes = subject.functionals.nodes()
    offset = np.zeros(nodes.count)
    for j, row in enumerate(nodes.rows.tolist()):
        if nodes.axes is None or int(nodes.axes[j]) < 0:
            offset[row] += float(nodes.weights[j]) * OFFSET
    return Dense(
        features=conditional_features(W @ K_fu, K_uu),
        offset=offset,
        covariance=W @ torus_covariance(name, dimension, r, (1, 1)) @ W.T,
    )
