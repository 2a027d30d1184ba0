"""Sparse matrices against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch

from dustmap.linalg.sparse import SparseMatrix
from dustmap.testing import check_linear_operator


def random_matrix(rows, columns):
    rng = np.random.default_rng(2)
    dense = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < 0.3)
    return scipy.sparse.csr_matrix(dense)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (1, 4)])
def test_a_sparse_matrix_is_an_operator(shape, dtype, generator):
    matrix = random_matrix(*shape)
    sparse = SparseMatrix(matrix, dtype=dtype)
    check_linear_operator(sparse, generator=generator)
    np.testing.assert_allclose(sparse.to_dense(), matrix.toarray(), rtol=1e-6)
    assert sparse.nonzeros == matrix.nnz


def test_a_matrix_without_rows_maps_to_nothing_and_back_to_zero():
    sparse = SparseMatrix(scipy.sparse.csr_matrix((0, 3)))
    assert sparse.matvec(torch.ones(2, 3, dtype=torch.float64)).shape == (2, 0)
    back = sparse.rmatvec(torch.ones(2, 0, dtype=torch.float64))
    assert back.tolist() == [[0.0] * 3] * 2
