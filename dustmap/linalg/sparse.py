"""Sparse matrices applied from both sides."""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from dataclasses import replace

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from dustmap.linalg.compiled_rows import (
    Blocks,
    RowOperator,
    Rows,
    even_parts,
    precision,
)


class SparseMatrix(RowOperator):
    """A compressed-row matrix, ready for fast products from both sides.

    On the CPU it holds the rows once (``nnz (value + 4) + 8 rows`` bytes), and compiled
    loops walk over them for every product. On other devices it holds torch's matrix and
    its transpose (twice that), and ``gram`` is their two products.

    Raises
    ------
    ValueError
        If ``dtype`` is not float32 or float64 (on the CPU), or there are 2³¹ columns.
    """

    stored = True

    def __init__(
        self,
        matrix: scipy.sparse.csr_matrix,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        assert matrix.shape is not None
        rows, columns = int(matrix.shape[0]), int(matrix.shape[1])
        if columns >= 2**31:
            raise ValueError(f"at most 2³¹ − 1 columns are possible, got {columns}")
        self.shape = (rows, columns)
        self.dtype = dtype
        self.device = torch.device(device)
        self.nonzeros = int(matrix.nnz)
        self._pair: tuple[Tensor, Tensor] | None = None
        if self.device.type == "cpu":
            self._rows = Rows(
                pointers=matrix.indptr.astype(np.uint64),
                columns=matrix.indices.astype(np.int32, copy=False).view(np.uint32),
                values=matrix.data.astype(precision(dtype), copy=False),
                first=0,
                count=rows,
            )
        else:
            self._pair = (
                _torch_csr(matrix, dtype, self.device),
                _torch_csr(matrix.T.tocsr(), dtype, self.device),
            )

    @classmethod
    def of_rows(
        cls, rows: Rows, columns: int, *, device: torch.device | str = "cpu"
    ) -> SparseMatrix:
        """The matrix of all these rows, which it keeps on the CPU without a copy."""
        dtype = torch.from_numpy(rows.values[:0]).dtype
        if torch.device(device).type != "cpu":
            parts = (rows.values, rows.columns.view(np.int32), rows.pointers)
            matrix = scipy.sparse.csr_matrix(parts, shape=(rows.count, columns))
            return cls(matrix, dtype=dtype, device=device)
        held = cls(scipy.sparse.csr_matrix((0, columns)), dtype=dtype)
        held.shape = (rows.count, columns)
        held.nonzeros = int(rows.pointers[-1])
        held._rows = rows
        return held

    @property
    def bytes(self) -> int:
        if self._pair is None:
            rows = self._rows
            return rows.pointers.nbytes + rows.columns.nbytes + rows.values.nbytes
        return sum(
            part.nbytes
            for m in self._pair
            for part in (m.crow_indices(), m.col_indices(), m.values())
        )

    def _parts(self, count: int) -> list[Blocks]:
        parts: list[Blocks] = []
        pointers = self._rows.pointers
        for a, b in itertools.pairwise(even_parts(pointers, count).tolist()):
            own = replace(
                self._rows, pointers=pointers[a : b + 1], first=a, count=b - a
            )
            parts.append(functools.partial(iter, (own,)))
        return parts

    def matvec(self, x: Tensor) -> Tensor:
        return super().matvec(x) if self._pair is None else _product(self._pair[0], x)

    def rmatvec(self, y: Tensor) -> Tensor:
        return super().rmatvec(y) if self._pair is None else _product(self._pair[1], y)

    def gram(self, x: Tensor, weights: Tensor) -> Tensor:
        if self._pair is None:
            return super().gram(x, weights)
        return self.rmatvec(weights * self.matvec(x))


def _product(matrix: Tensor, x: Tensor) -> Tensor:
    flat = x.reshape(math.prod(x.shape[:-1]), matrix.shape[1])
    product = (matrix @ flat.mT).mT.contiguous()
    return product.reshape(*x.shape[:-1], matrix.shape[0])


def _torch_csr(
    matrix: scipy.sparse.csr_matrix, dtype: torch.dtype, device: torch.device
) -> Tensor:
    assert matrix.shape is not None
    # 32-bit indices: cuSPARSE is several times faster with them.
    index = np.int32 if matrix.nnz < 2**31 else np.int64
    with warnings.catch_warnings():
        # torch announces the beta state of its CSR layout once per process.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(index)),
            torch.from_numpy(matrix.indices.astype(index)),
            torch.from_numpy(matrix.data).to(dtype),
            size=(int(matrix.shape[0]), int(matrix.shape[1])),
            device=device,
            check_invariants=False,
        )
