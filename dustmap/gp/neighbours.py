r"""Gaussian process regression of point values from their nearest neighbours.

Each row is given its nearest earlier rows only (Vecchia 1988, JRSS B 50, 297):

``log p(y) ≈ log p(y_1 … y_k) + Σ_{n>k} log N(y_n | m_n, v_n)``,

with mean and variance from the ``k`` neighbours. With all earlier rows for neighbours
it is exact. Cost: ``N k³/3`` per value, about three times that with the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.functionals import Functionals, PointValues
from dustmap.gp.regression import Regression, gradients_of, leaves_of
from dustmap.kernels import Kernel, Radial
from dustmap.residual.earlier_rows import nearest_earlier
from dustmap.residual.neighbours import nearest

# Entries of neighbourhoods' covariances that are held at once.
_BLOCK = 2**21


@dataclass(eq=False)
class NeighbourGP(Regression):
    """The posterior of point values, from the nearest rows.

    Parameters
    ----------
    kernel, functionals, observations, noise, mean, known_noise
        As in :class:`~dustmap.gp.regression.Regression`, in random order.
    near
        Earlier rows for each row from number ``k`` on; see `among`.

    Raises
    ------
    ValueError
        Also if an observation is no point value.
    """

    _: KW_ONLY
    near: Int[Tensor, "m k"]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.functionals, PointValues):
            raise ValueError(
                "neighbours are found for point values, got "
                f"{type(self.functionals).__name__}: use ExactGP"
            )

    @classmethod
    def among(
        cls,
        kernel: Radial,
        x: Float[Tensor, "n d"],
        y: Float[Tensor, " n"],
        *,
        neighbours: int,
        noise: float,
        mean: float,
    ) -> Self:
        """Neighbours by distance in the kernel's lengthscales."""
        near = nearest_earlier(x / kernel.lengthscale, neighbours)
        return cls(kernel, PointValues(x), y, noise=noise, mean=mean, near=near)

    @property
    def points(self) -> Float[Tensor, "n d"]:
        """Where the values are."""
        assert isinstance(self.functionals, PointValues)
        return self.functionals.points

    def log_marginal(self) -> float:
        with torch.no_grad():
            return sum(float(part) for part in self._log_densities(self.kernel))

    def value_and_gradient(self) -> tuple[float, dict[str, Tensor]]:
        leaves = leaves_of(self.parameters())
        moved, value = self.with_parameters(leaves), 0.0
        for part in moved._log_densities(moved.kernel):
            part.backward()
            value += float(part.detach())
        return value, gradients_of(leaves)

    def _log_densities(self, kernel: Kernel) -> Iterator[Tensor]:
        """Of the first rows together, then of many rows given their neighbours."""
        count = self.near.shape[1]
        first = torch.arange(count)[None]
        factor, white = self._whitened(kernel, first)
        yield _log_normal(white, factor.diagonal(dim1=1, dim2=2))
        rows = torch.arange(count, len(self))
        for own in rows.split(max(1, _BLOCK // (count + 1) ** 2)):
            hoods = torch.cat([self.near[own - count], own[:, None]], dim=1)
            factor, white = self._whitened(kernel, hoods)
            yield _log_normal(white[:, -1], factor[:, -1, -1])

    def _whitened(
        self, kernel: Kernel, hoods: Int[Tensor, "b k"]
    ) -> tuple[Float[Tensor, "b k k"], Float[Tensor, "b k"]]:
        """Cholesky factors of rows' covariances, and their residuals whitened.

        The last entry is that of the last row given the others.
        """
        x = self.points[hoods]
        covariance = kernel(x[:, :, None] - x[:, None])
        covariance = covariance + torch.diag_embed(self.noise_variance[hoods])
        factor, fault = torch.linalg.cholesky_ex(covariance)
        if bool(fault.any()):
            raise ValueError(
                f"{int((fault > 0).sum())} neighbourhoods have a covariance that is "
                "not positive definite in double precision: raise the noise above "
                f"{float(self.noise):.3g}"
            )
        residual = self.residual[hoods][..., None]
        white = torch.linalg.solve_triangular(factor, residual, upper=False)
        return factor, white[..., 0]

    @property
    def _width(self) -> int:
        return self.near.shape[1] ** 2

    def _moments(self, part: Functionals) -> tuple[Tensor, Tensor]:
        assert isinstance(part, PointValues)
        assert isinstance(self.kernel, Radial)
        scale = self.kernel.lengthscale
        hoods = nearest(self.points / scale, part.points / scale, self.near.shape[1])
        factor, white = self._whitened(self.kernel, hoods)
        cross = self.kernel(part.points[:, None] - self.points[hoods])[..., None]
        seen = torch.linalg.solve_triangular(factor, cross, upper=False)[..., 0]
        prior = self.kernel(torch.zeros_like(part.points))
        return (seen * white).sum(dim=1), prior - (seen**2).sum(dim=1)


def _log_normal(white: Tensor, scale: Tensor) -> Tensor:
    """The log density of values that are whitened by division through ``scale``."""
    constant = white.numel() * math.log(2 * math.pi)
    return -0.5 * (white.square().sum() + constant) - scale.log().sum()
