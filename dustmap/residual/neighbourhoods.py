"""Places with their nearest rows, predicted with gradients in the covariance.

The prediction is that of `dustmap.residual.kriging`. Its factors, and the products with
the components of the covariance that gradients take, are compiled: of 1,200 places with
30 neighbours and three components 10 ms, where batches of torch took 160 ms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.linalg.compiled_tasks import compiled
from dustmap.residual.along_ray import AlongRay
from dustmap.residual.compiled_covariance import CompiledCovariance, covariances
from dustmap.residual.compiled_kriging import factorise, in_parts, solve
from dustmap.residual.free_spectrum import FreeSpectrum
from dustmap.residual.kriging import JITTER
from dustmap.residual.rays import Rays


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhoods:
    """Places with their neighbours, and the components of all their covariances.

    Components do not depend on their weights, which may be varied without making them
    again. Memory: ``8 m k² j`` bytes.
    """

    neighbours: Int[Tensor, "m k"]
    among: Float[Tensor, "m j k k"]
    across: Float[Tensor, "m j k"]
    prior: Float[Tensor, "m j"]

    @classmethod
    def of(
        cls,
        form: FreeSpectrum | AlongRay,
        rays: Rays,
        places: Rays,
        neighbours: Int[Tensor, "m k"],
    ) -> Neighbourhoods:
        """Places and their neighbours, from tables of the form."""
        used, near = neighbours.unique(return_inverse=True)
        (count, size), scales = neighbours.shape, len(form.lengthscales)
        among = np.empty((count, scales, size, size))
        across, prior = np.empty((count, scales, size)), np.empty((count, scales))
        for j, unit in enumerate(torch.eye(scales, dtype=torch.float64)):
            component = CompiledCovariance(form, unit)
            columns = component.columns(rays[used]), component.columns(places)
            found = among[:, j], across[:, j], prior[:, j]
            in_parts(
                _components, near, *columns, near.numpy(), component.tables, *found
            )
        return cls(
            neighbours=neighbours,
            among=torch.from_numpy(among),
            across=torch.from_numpy(across),
            prior=torch.from_numpy(prior),
        )

    def predict(
        self,
        weights: Float[Tensor, " j"],
        noise: Float[Tensor, " n"],
        residuals: Float[Tensor, " n"],
    ) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        r"""Mean and variance of every place, with gradients in weights and noise.

        With :math:`a = K^{-1} c` and :math:`b = K^{-1} r` held fixed,
        :math:`c^\top b + a^\top r - a^\top K b` and
        :math:`C_{**} - 2 c^\top a + a^\top K a` have the values and the gradients of
        the prediction, and are linear in the weights: factors are not differentiated.

        Raises
        ------
        FloatingPointError
            If a neighbourhood's covariance is not positive definite.
        """
        near, own = residuals[self.neighbours], noise[self.neighbours]
        a, b, products = self._solved(weights, own, near)
        across = (self.across * weights[:, None]).sum(1)
        inner = products @ weights
        mean = (across * b).sum(1) + (a * near).sum(1)
        mean = mean - inner[:, 0] - (a * b * own).sum(1)
        known = 2 * (across * a).sum(1) - inner[:, 1] - (a * a * own).sum(1)
        # At least the tables' accuracy.
        prior = self.prior @ weights
        return mean, torch.maximum(prior - known, JITTER * prior)

    def _solved(
        self, weights: Tensor, own: Float[Tensor, "m k"], near: Float[Tensor, "m k"]
    ) -> tuple[Tensor, Tensor, Float[Tensor, "m 2 j"]]:
        """a, b, and their products with every component, aᵀ K_j b and aᵀ K_j a."""
        count, size = self.neighbours.shape
        a, b = np.empty((count, size)), np.empty((count, size))
        products = np.full((count, 2, len(weights)), np.nan)
        given = (self.among, self.across, weights, own, near)
        arrays = [part.detach().numpy() for part in given]
        in_parts(_solve_all, self.neighbours, *arrays, a, b, products)
        failed = int(np.isnan(products[:, 0, 0]).sum())
        if failed:
            raise FloatingPointError(
                f"{failed} of {count} neighbourhoods have a covariance that is not "
                "positive definite"
            )
        return torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(products)


@compiled
def _components(first, last, rays, places, neighbours, tables, among, across, prior):
    """Fill in the covariances of the places from ``first`` to ``last``."""
    size = neighbours.shape[1]
    found, own = np.empty(size), np.empty(1)
    for m in range(first, last):
        rows = rays[neighbours[m]]
        columns = rows.T.copy()
        for i in range(size):
            covariances(rows[i], rows, columns, i + 1, tables, found)
            for j in range(i + 1):
                among[m, i, j] = among[m, j, i] = found[j]
        place = places[m : m + 1]
        covariances(place[0], rows, columns, size, tables, found)
        across[m] = found
        covariances(place[0], place, place.T.copy(), 1, tables, own)
        prior[m] = own[0]


@compiled
def _solve_all(first, last, among, across, weights, noise, near, a, b, products):
    """Fill in what `Neighbourhoods._solved` returns, from ``first`` to ``last``."""
    scales, size = across.shape[1:]
    matrix, product = np.empty((size, size)), np.empty(size)
    for m in range(first, last):
        matrix[:], a[m], b[m] = 0.0, 0.0, near[m]
        for s in range(scales):
            weight = weights[s]
            for i in range(size):
                a[m, i] += weight * across[m, s, i]
                row, component = matrix[i], among[m, s, i]
                for j in range(i, size):
                    row[j] += weight * component[j]
        for i in range(size):
            matrix[i, i] += JITTER * matrix[i, i] + noise[m, i]
        if not factorise(matrix):
            continue
        solve(matrix, a[m])
        solve(matrix, b[m])
        for s in range(scales):
            for i in range(size):
                product[i] = JITTER * among[m, s, i, i] * a[m, i]
            for i in range(size):
                entry, component = a[m, i], among[m, s, i]
                for j in range(size):
                    product[j] += entry * component[j]
            products[m, 0, s] = (product * b[m]).sum()
            products[m, 1, s] = (product * a[m]).sum()
