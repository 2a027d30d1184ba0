"""Sparse matrices applied from both sides."""

from __future__ import annotations

import math
import warnings

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from dustmap.linalg.operator import LinearOperator


class SparseMatrix(LinearOperator):
    """A compressed-row matrix with its transpose, both ready for fast products.

    Storing the transpose doubles the memory (``2 nnz (index + value)`` bytes) and
    makes ``rmatvec`` as fast as ``matvec`` on every device.
    """

    def __init__(
        self,
        matrix: scipy.sparse.csr_matrix,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        self.shape = _shape(matrix)
        self.dtype = dtype
        self.device = torch.device(device)
        self.nonzeros = int(matrix.nnz)
        self._forward = _torch_csr(matrix, dtype, self.device)
        self._backward = _torch_csr(matrix.T.tocsr(), dtype, self.device)

    def matvec(self, x: Tensor) -> Tensor:
        return _product(self._forward, x)

    def rmatvec(self, y: Tensor) -> Tensor:
        return _product(self._backward, y)


def _shape(matrix: scipy.sparse.csr_matrix) -> tuple[int, int]:
    assert matrix.shape is not None
    return int(matrix.shape[0]), int(matrix.shape[1])


def _product(matrix: Tensor, x: Tensor) -> Tensor:
    flat = x.reshape(math.prod(x.shape[:-1]), matrix.shape[1])
    product = (matrix @ flat.mT).mT.contiguous()
    return product.reshape(*x.shape[:-1], matrix.shape[0])


def _torch_csr(
    matrix: scipy.sparse.csr_matrix, dtype: torch.dtype, device: torch.device
) -> Tensor:
    # 32-bit indices: MKL and cuSPARSE are several times faster with them.
    index = np.int32 if matrix.nnz < 2**31 else np.int64
    with warnings.catch_warnings():
        # torch announces the beta state of its CSR layout once per process.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(index)),
            torch.from_numpy(matrix.indices.astype(index)),
            torch.from_numpy(matrix.data).to(dtype),
            size=_shape(matrix),
            device=device,
            check_invariants=False,
        )
