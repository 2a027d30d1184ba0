r"""The likelihood of many stars along few rays, as normal equations.

With a tree of rays (:mod:`dustmap.projection.ray_tree`) stars see a density through the
integrals :math:`v = C\, T\, \rho` at the places of rays, :math:`y = P v + \eta`. If the
noise is independent, the log likelihood is, but for a constant,

.. math::
   -\tfrac12\, v^\top G\, v + b^\top v , \qquad
   G = P^\top \Sigma^{-1} P , \quad b = P^\top \Sigma^{-1} y .

G has as many entries as places have neighbours, however many stars there are, and an
iteration costs the same for ten million and for a billion. A pass over the stars, in
blocks whose rows of P are made and forgotten, gives G and b for one Σ; samples add
:math:`P^\top \Sigma^{-1/2} z`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import Functionals
from dustmap.linalg.compiled_tasks import in_parallel
from dustmap.linalg.operator import inner
from dustmap.linalg.sparse import Rows, SparseMatrix
from dustmap.noise import Likelihood, NoiseModel
from dustmap.projection.ray_gram import Entries, block_gram
from dustmap.projection.ray_tree import Ends, RayIntegrals

# Stars from which the number of entries is estimated.
_SOME = 2**18


@dataclass(frozen=True, slots=True, kw_only=True)
class StarRows:
    """P of stars, whose rows are made block by block for every product.

    ``integrals`` are rays that the ``stars`` need (`RayIntegrals.needed`). Stars along
    neighbouring rays should follow each other.
    """

    integrals: RayIntegrals
    stars: Functionals
    _pattern: list[scipy.sparse.csr_matrix] = field(default_factory=list)

    def matvec(self, x: Float[Tensor, "*b p"]) -> Float[Tensor, "*b n"]:
        """Return ``P x``."""
        found = x.new_empty(*x.shape[:-1], len(self.stars))
        for own, rows in self._blocks():
            found[..., own] = SparseMatrix.of_rows(rows, x.shape[-1]).matvec(x)
        return found

    def rmatvec(self, y: Float[Tensor, "*b n"]) -> Float[Tensor, "*b p"]:
        """Return ``Pᵀ y``, added up in float64."""
        count = self.integrals.shape[0]
        total = y.new_zeros(*y.shape[:-1], count, dtype=torch.float64)
        for own, rows in self._blocks():
            block = SparseMatrix.of_rows(rows, count)
            total += block.rmatvec(y[..., own].contiguous())
        return total.to(y.dtype)

    def gram_matrix(self, weights: Float[Tensor, " n"]) -> SparseMatrix:
        """Return ``Pᵀ diag(w) P``; where its entries lie is found once."""
        size, w = self.integrals.shape[0], weights.numpy()
        if not self._pattern:
            # Sums of equally many blocks: every entry is added a few times only.
            sums: list[tuple[int, scipy.sparse.csr_matrix]] = []
            for entries in self._products(w):
                new, blocks = entries.pattern(size), 1
                while sums and sums[-1][0] <= blocks:
                    more, before = sums.pop()
                    new, blocks = scipy.sparse.csr_matrix(before + new), blocks + more
                sums.append((blocks, new))
            pattern = scipy.sparse.csr_matrix((size, size), dtype=np.int8)
            while sums:
                pattern = scipy.sparse.csr_matrix(pattern + sums.pop()[1])
            pattern.sort_indices()
            self._pattern.append(pattern)
        pattern = self._pattern[0]
        parts = np.zeros(pattern.nnz, w.dtype), pattern.indices, pattern.indptr
        total = scipy.sparse.csr_matrix(parts, shape=(size, size))
        for entries in self._products(w):
            entries.add_to(total)
        return SparseMatrix(total, dtype=weights.dtype)

    def _products(self, weights: np.ndarray) -> Iterator[Entries]:
        """Yield the products of every block, as many at a time as there are threads."""
        starts, threads = self.integrals.starts, torch.get_num_threads()
        blocks = self._blocks()
        while some := list(itertools.islice(blocks, threads)):
            found: dict[int, Entries] = {}

            def task(n: int, some=some, found=found) -> None:
                own, rows = some[n]
                found[n] = block_gram(rows, weights[own], starts)

            in_parallel(task, len(some))
            yield from (found[n] for n in range(len(some)))

    def relative_size(self) -> float:
        """Estimate entries of ``Pᵀ P`` over those of P, by stars that follow others."""
        count, middle = min(len(self.stars), _SOME), len(self.stars) // 2
        some = torch.arange(count) + middle - count // 2
        ends = Ends.of(self.stars.select(some))
        assert ends is not None
        rows = self.integrals.rows(ends)
        ones = np.ones(len(some), rows.values.dtype)
        entries = block_gram(rows, ones, self.integrals.starts)
        return entries.count / len(rows.values)

    def _blocks(self) -> Iterator[tuple[slice, Rows]]:
        for own, ends in Ends.blocks(self.stars):
            yield own, self.integrals.rows(ends)


class NormalEquations(Likelihood):
    """``½ vᵀ G v − bᵀ v`` of the integrals v at the places of rays; y is b.

    ``rows`` is P, and ``noise`` Σ of the stars.
    """

    def __init__(self, rows: StarRows, noise: NoiseModel, dtype: torch.dtype) -> None:
        self._rows, self._noise = rows, noise
        self._matrix = rows.gram_matrix((1.0 / noise.variance).to(dtype))

    def of_stars(self, y: Float[Tensor, "*b n"]) -> Float[Tensor, "*b p"]:
        """Return ``Pᵀ Σ⁻¹ y``."""
        return self._rows.rmatvec(self._noise.apply_precision(y))

    def apply_precision(self, x: Float[Tensor, "*b p"]) -> Float[Tensor, "*b p"]:
        return self._matrix.matvec(x)

    def pull(
        self, y: Float[Tensor, "*b p"], x: Float[Tensor, "*b p"]
    ) -> Float[Tensor, "*b p"]:
        return y - self._matrix.matvec(x)

    def misfit(
        self, y: Float[Tensor, "*b p"], x: Float[Tensor, "*b p"]
    ) -> Float[Tensor, "*b"]:
        return inner(x, self._matrix.matvec(x) - 2 * y)

    def errors(
        self, white: Float[Tensor, "*b n"], shared: Float[Tensor, "*b n"] | float = 0.0
    ) -> Float[Tensor, "*b p"]:
        return self.of_stars(self._noise.errors(white, shared))
