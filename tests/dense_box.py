"""Small problems on a box, and the dense algebra of their very own model.

The kernel is the plain one, the inducing points are the box's and the functionals keep
their own nodes: what HIP-GP approximates by nothing but its inducing points.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
import torch
from reference import Covariance, functional_covariance, points_as_rows, rows_of

from dustmap.functionals import (
    Derivatives,
    Functionals,
    LineIntegrals,
    MonteCarlo,
    PointValues,
    Stack,
)
from dustmap.grid import Grid
from dustmap.inference.svi import HipSettings, NaturalGaussian, initial_family
from dustmap.inference.svi.bound import Observations
from dustmap.kernels import KERNELS
from dustmap.likelihoods import Gaussian
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.means import ConstantMean
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import ToeplitzWhitening

SHAPES = {1: (24,), 2: (7, 6), 3: (4, 4, 3)}
SPACING = {1: (0.5,), 2: (0.5, 0.4), 3: (0.5, 0.4, 0.6)}
VARIANCE = 1.7
OFFSET = 0.6
TIGHT = ConjugateGradients(rtol=1e-13, max_steps=5000)

# Every dimension, kernel and end of 1 ≤ ℓ/h ≤ 3 (the smooth kernel only where it is
# not singular to working precision).
CASES = [
    (1, "matern12", 3.0),
    (1, "matern52", 3.0),
    (1, "squared-exponential", 2.0),
    (2, "matern12", 1.0),
    (2, "matern32", 2.0),
    (2, "squared-exponential", 1.0),
    (3, "matern32", 1.0),
    (3, "matern52", 1.2),
]


@dataclass(frozen=True, kw_only=True, eq=False)
class Box:
    """A model, its data, functionals to predict, and dense covariances of all."""

    model: RowwiseGaussian
    data: Observations
    targets: Functionals
    K_uu: np.ndarray
    K_nu: np.ndarray
    K_nn: np.ndarray
    K_su: np.ndarray
    K_ss: np.ndarray

    @property
    def noise(self) -> np.ndarray:
        """σ_n²."""
        return known(self.data).numpy()

    @property
    def residual(self) -> np.ndarray:
        """y − Lμ."""
        return (self.data.values - self.data.offset).numpy()

    def explained(self) -> np.ndarray:
        """``Q_nn = K_nu K_uu⁻¹ K_un``."""
        return self.K_nu @ np.linalg.solve(self.K_uu, self.K_nu.T)


def grid_of(dimension: int) -> Grid:
    return Grid(
        shape=SHAPES[dimension],
        spacing=SPACING[dimension],
        origin=(-0.3,) * dimension,
    )


def observed(
    grid: Grid, count: int, generator: torch.Generator, *, derivatives: bool
) -> Functionals:
    """Mixed point, line integral and derivative functionals inside a box."""

    def draw(n: int) -> torch.Tensor:
        unit = torch.rand(n, grid.dimension, generator=generator, dtype=torch.float64)
        lower, upper = torch.tensor(grid.lower), torch.tensor(grid.upper)
        return lower + unit * (upper - lower)

    rule = MonteCarlo(count=3, seed=1)
    parts: list[Functionals] = [
        PointValues(draw(count)),
        LineIntegrals(draw(count), rule, start=draw(count)),
    ]
    if derivatives:
        axes = torch.arange(count) % grid.dimension
        parts.append(Derivatives(draw(count), axes))
    return Stack(parts)


def lengthscales(dimension: int, ratio: float) -> tuple[float, ...]:
    return tuple(ratio * h for h in SPACING[dimension])


def whitened(dimension: int, name: str, ratio: float) -> ToeplitzWhitening:
    scales = lengthscales(dimension, ratio)
    kernel = KERNELS[name](lengthscale=scales, variance=VARIANCE)
    grid = grid_of(dimension)
    return ToeplitzWhitening(kernel, grid, lengthscales=scales, solver=TIGHT)


def known(data: Observations) -> torch.Tensor:
    """σ_n² of data with normal noise."""
    assert isinstance(data.likelihood, Gaussian) and data.likelihood.known is not None
    return data.likelihood.known


def noisy(data: Observations, factor: float = 1.0, common: float = 0.0) -> Observations:
    """The same values with other noise."""
    noise = Gaussian(variance=common, known=factor * known(data))
    return replace(data, likelihood=noise)


@functools.lru_cache
def box(dimension: int, name: str, ratio: float) -> Box:
    """The problem of one case (cached: models may keep their rows)."""
    generator = torch.Generator().manual_seed(dimension)
    whitening = whitened(dimension, name, ratio)
    grid = whitening.grid
    smooth = name != "matern12"
    data = observed(grid, 5, generator, derivatives=smooth)
    targets = observed(grid, 3, generator, derivatives=smooth)
    covariance = Covariance(
        name=name, lengthscale=lengthscales(dimension, ratio), variance=VARIANCE
    )
    inducing, rows, wanted = (
        points_as_rows(grid.points().numpy()),
        rows_of(data),
        rows_of(targets),
    )
    dense = functools.partial(functional_covariance, covariance)
    model = RowwiseGaussian(whitening, data, mean=ConstantMean(value=OFFSET))
    count = len(data)
    y = model.offset + torch.randn(count, generator=generator, dtype=torch.float64)
    noise = 0.05 + 0.1 * torch.rand(count, generator=generator, dtype=torch.float64)
    return Box(
        model=model,
        data=Observations.of(model, y, noise),
        targets=targets,
        K_uu=dense(inducing, inducing),
        K_nu=dense(rows, inducing),
        K_nn=dense(rows, rows),
        K_su=dense(wanted, inducing),
        K_ss=dense(wanted, wanted),
    )


def fresh_model(problem: Box) -> RowwiseGaussian:
    """The problem's model without kept rows or reports."""
    return problem.model.at(problem.model.functionals)


def optimum(
    model: RowwiseGaussian, data: Observations, **family: object
) -> NaturalGaussian:
    """The best q of a family: the blocks of ``Λ = I + Φᵀ Σ⁻¹ Φ``, and ``m = Λ⁻¹ b``."""
    rows = model.rows(torch.arange(len(data)))
    weight = 1 / data.noise(model)
    Lambda = torch.eye(model.latent_size, dtype=torch.float64)
    Lambda += (rows.features * weight[:, None]).mT @ rows.features
    q = initial_family(model, HipSettings(**family))
    # The identity in the padding.
    padded = torch.eye(len(Lambda) + 1, dtype=torch.float64)
    padded[:-1, :-1] = Lambda
    blocks = padded[q.index[:, :, None], q.index[:, None, :]]
    eye = torch.eye(blocks.shape[-1], dtype=torch.float64)
    blocks = torch.where((q.index == len(Lambda))[:, :, None], eye, blocks)
    target = rows.features.mT @ (weight * (data.values - data.offset))
    return replace(q, precision=blocks, mean=torch.linalg.solve(Lambda, target))
