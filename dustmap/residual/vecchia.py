r"""The precision of all stars' residuals, each conditioned on its nearest earlier ones.

In a random order row n is predicted from its nearest earlier rows with weights
:math:`B_n` and remaining variance :math:`F_n` (Vecchia 1988, JRSS B 50, 297), noise
included:

.. math::
   (C + D)^{-1} \approx L^\top L, \qquad L = F^{-1/2} (I - B) .

With all earlier rows as neighbours this is exact. L has k + 1 entries in a row.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.linalg.sparse import SparseMatrix
from dustmap.noise import NoiseModel
from dustmap.residual.field import ResidualField
from dustmap.residual.kriging import JITTER, Kriging, krige_rays, walk
from dustmap.residual.neighbours import nearest_earlier

# Earlier neighbours of a row. Between 20 and 40, extinctions change by less than 1%.
_COUNT = 30


class Vecchia(NoiseModel):
    """``Σ⁻¹ = LᵀL`` of rows; products have the dtype of the vectors.

    Parameters
    ----------
    order
        Numbers of the rows in the order of conditioning.
    neighbours
        Positions in this order; the first k rows give later rows no weight.
    weights, std
        B and ``√F`` in this order.
    variance
        ``Σ_nn`` of every row, in the rows' own order.
    """

    def __init__(
        self,
        order: Int[Tensor, " n"],
        neighbours: Int[Tensor, "n k"],
        weights: Float[Tensor, "n k"],
        std: Float[Tensor, " n"],
        variance: Float[Tensor, " n"],
    ) -> None:
        self._variance = variance
        self._order, self._neighbours = order, neighbours
        self._weights, self._std = weights, std

    @classmethod
    def of(
        cls,
        field: ResidualField,
        rows: Int[Tensor, " n"],
        generator: torch.Generator,
        count: int = _COUNT,
    ) -> Vecchia:
        """Make the precision of some rows of a field, in a random order.

        Raises
        ------
        FloatingPointError
            If the covariance of neighbours is not positive definite.
        """
        order = torch.randperm(len(rows), generator=generator)
        rays = field.rays[rows[order]]
        noise = (field.noise + field.nugget)[rows[order]]
        count = min(count, len(rows) - 1)

        def krige(first: int, near: Tensor) -> Kriging:
            places = rays[slice(first, first + len(near))]
            return krige_rays(field.covariance, rays, noise, places, near)

        # The first rows have all earlier rows as neighbours.
        neighbours = torch.zeros(len(rows), count, dtype=torch.int64)
        weights = torch.zeros(len(rows), count, dtype=torch.float64)
        left, prior = torch.zeros(2, len(rows), dtype=torch.float64)
        for row in range(count):
            found = krige(row, torch.arange(row)[None])
            neighbours[row, :row] = torch.arange(row)
            weights[row, :row], left[row] = found.weights[0], found.variance[0]
            prior[row] = found.prior[0]
        if count:
            neighbours[count:] = nearest_earlier(rays.coordinates(field.stretch), count)
        found = krige(count, neighbours[count:])
        weights[count:], left[count:] = found.weights, found.variance
        prior[count:] = found.prior
        variance = torch.empty_like(noise)
        variance[order] = prior + noise
        std = (left + JITTER * prior + noise).sqrt()
        return cls(order, neighbours, weights, std, variance)

    @property
    def variance(self) -> Float[Tensor, " n"]:
        return self._variance

    def prepared(
        self, place: Tensor, share: float, generator: torch.Generator
    ) -> Vecchia:
        variance = self._variance.to(place)
        return Vecchia(
            self._order, self._neighbours, self._weights, self._std, variance
        )

    def whitened(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
        """Return ``L x``."""
        return self._root_for(x).matvec(x)

    def weighed(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
        root = self._root_for(x)
        return root.rmatvec(root.matvec(x))

    def coloured(self, white: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return ``L⁻¹ z``, of covariance Σ for standard normals (float64, CPU)."""
        white = white.to(torch.float64).cpu()[self._order]
        drawn = (self._std * white).numpy()[None]
        walk(drawn, 0, self._neighbours.numpy(), self._weights.numpy(), drawn.copy())
        values = torch.empty_like(self._std)
        values[self._order] = torch.from_numpy(drawn[0])
        return values

    def _root_for(self, x: Tensor) -> SparseMatrix:
        """Return L, cached, with the dtype and on the device of these vectors."""
        place = x.dtype, x.device
        if place not in self._roots:
            root = SparseMatrix(self._root(), dtype=x.dtype, device=x.device)
            self._roots[place] = root
        return self._roots[place]

    @cached_property
    def _roots(self) -> dict[tuple[torch.dtype, torch.device], SparseMatrix]:
        return {}

    def _root(self) -> scipy.sparse.csr_matrix:
        """Return L with rows and columns in the rows' own order.

        Stars nearby follow each other there, and products stay in the cache: for a
        million stars they take a third of the time, or less.
        """
        (n, k), std = self._weights.shape, self._std.numpy()[:, None]
        own, at = np.arange(n)[:, None], self._order.argsort().numpy()
        values = np.hstack([-self._weights.numpy() / std, 1 / std])[at]
        columns = np.hstack([self._neighbours.numpy(), own])[at]
        columns = self._order.numpy()[columns]
        pointers = np.arange(n + 1) * (k + 1)
        root = scipy.sparse.csr_matrix(
            (values.ravel(), columns.ravel(), pointers), shape=(n, n)
        )
        # The first rows name row 0 in place of missing neighbours.
        root.sum_duplicates()
        return root
