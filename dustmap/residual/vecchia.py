r"""The precision of all stars' residuals, each given its nearest earlier stars.

In a random order row n is predicted from its nearest earlier rows with weights
:math:`B_n` and remaining variance :math:`F_n` (Vecchia 1988, JRSS B 50, 297), noise
included:

.. math::
   (C + D)^{-1} \approx L^\top L, \qquad L = F^{-1/2} (I - B) .

With all earlier rows as neighbours this is exact. L has k + 1 entries in a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.linalg.compiled_tasks import compiled, in_parallel
from dustmap.linalg.sparse import SparseMatrix, precision
from dustmap.memory import row_blocks
from dustmap.noise import NoiseModel
from dustmap.residual.field import ResidualField
from dustmap.residual.kriging import TABLE_ERROR
from dustmap.residual.neighbours import nearest_earlier


@dataclass(eq=False)
class Vecchia(NoiseModel):
    """``Σ⁻¹ = LᵀL`` of rows; products have the dtype of the vectors.

    Parameters
    ----------
    order
        Numbers of the rows in the order of conditioning.
    columns, values
        Entries of every row of L, the one on the diagonal last. Rows and columns are in
        the rows' own order: stars nearby follow each other there, and products stay in
        the cache. For a million stars they take a third of the time, or less.
    variance
        ``Σ_nn`` of every row.
    """

    order: Int[np.ndarray, " n"]
    columns: Int[np.ndarray, "n k+1"]
    values: Float[np.ndarray, "n k+1"]
    variance: Float[Tensor, " n"]

    @classmethod
    def of(
        cls,
        field: ResidualField,
        rows: Int[Tensor, " n"],
        generator: torch.Generator,
        count: int = 30,
        dtype: torch.dtype = torch.float64,
    ) -> Vecchia:
        """Make the precision of some rows of a field, conditioned in a random order.

        L is stored in ``dtype``. Between 20 and 40 neighbours, extinctions change by
        less than 1%.

        Raises `FloatingPointError` if the covariance of neighbours is not positive
        definite.
        """
        size, count = len(rows), min(count, len(rows) - 1)
        order = torch.randperm(size, generator=generator).numpy()
        columns = np.empty((size, count + 1), dtype=np.int32)
        columns[:, count] = np.arange(size)
        values = np.zeros((size, count + 1), dtype=precision(dtype))
        noise = (field.noise + field.nugget)[rows]
        variance = torch.empty_like(noise)

        def fill(own: Int[np.ndarray, " m"], known: int) -> None:
            """Write rows whose neighbours are their first known columns."""
            near = torch.from_numpy(columns[own, :known])
            found = field.krige(field.rays[rows[own]], rows[near])
            std = (found.variance + TABLE_ERROR * found.prior + noise[own]).sqrt()
            values[own, :known] = -(found.weights / std[:, None]).numpy()
            values[own, count] = 1 / std.numpy()
            variance[own] = found.prior + noise[own]

        # The first rows have all earlier rows as neighbours, and no weight elsewhere.
        first, later = order[: count + 1], order[count:]
        for number, row in enumerate(first[:-1]):
            columns[row, :count] = np.delete(first, number)
            fill(first[number : number + 1], number)
        if count:
            points = field.rays.coordinates(field.stretch)[rows[order]]
            found = nearest_earlier(points, count).numpy()
            for some in row_blocks(len(later), 16 * count):
                columns[later[some], :count] = order[found[some]]
        later = np.sort(later)
        # Numbers and weights of neighbours.
        for some in row_blocks(len(later), 16 * count):
            fill(later[some], count)
        return cls(order, columns, values, variance)

    def prepared(
        self, place: Tensor, share: float, generator: torch.Generator
    ) -> Vecchia:
        return replace(self, variance=self.variance.to(place))

    def whitened(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
        """Return ``L x``."""
        return self._root_for(x).matvec(x)

    def apply_precision(self, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
        root = self._root_for(x)
        return root.rmatvec(root.matvec(x))

    def coloured(self, white: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
        """Return ``L⁻¹ z``, of covariance Σ for standard normals (float64, CPU).

        Rows are visited in random order: eight vectors that lie side by side in memory
        take hardly longer than one. Threads share the vectors.
        """
        vectors = white.to(torch.float64).cpu().reshape(-1, white.shape[-1])
        parts = vectors.tensor_split(min(torch.get_num_threads(), len(vectors)))
        # Copies: a vector alone is contiguous already.
        drawn = [part.T.clone(memory_format=torch.contiguous_format) for part in parts]
        factor = self.order, self.columns, self.values
        in_parallel(lambda n: _solve_rows(*factor, drawn[n].numpy()), len(drawn))
        return torch.cat([part.T for part in drawn]).reshape(white.shape)

    def _root_for(self, x: Tensor) -> SparseMatrix:
        """Return L, cached, with the dtype and on the device of these vectors."""
        place = x.dtype, x.device
        if place not in self._roots:
            size, entries = self.columns.shape
            pointers = np.arange(size + 1) * entries
            parts = self.values.ravel(), self.columns.ravel(), pointers
            root = scipy.sparse.csr_matrix(parts, shape=(size, size))
            self._roots[place] = SparseMatrix(root, dtype=x.dtype, device=x.device)
        return self._roots[place]

    @cached_property
    def _roots(self) -> dict[tuple[torch.dtype, torch.device], SparseMatrix]:
        return {}


@compiled
def _solve_rows(order, columns, values, x):
    """Set the columns of x to ``L⁻¹ x``, row by row in the order of conditioning."""
    last = columns.shape[1] - 1
    for row in order:
        own = x[row]
        for k in range(last):
            entry, other = values[row, k], x[columns[row, k]]
            for i in range(len(own)):
                own[i] -= entry * other[i]
        for i in range(len(own)):
            own[i] /= values[row, last]
