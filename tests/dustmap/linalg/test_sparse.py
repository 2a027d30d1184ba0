"""Sparse matrices against SciPy's and dense ones."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from linear_operators import check_linear_operator
from stand_in_device import STAND_IN, stand_in_device

import dustmap.linalg.sparse as subject
from dustmap.linalg.sparse import SparseMatrix


def random_matrix(rows, columns, density=0.3):
    rng = np.random.default_rng(2)
    dense = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < density)
    return scipy.sparse.csr_matrix(dense)


@pytest.fixture
def threads():
    """Set torch's number of threads; put back afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def relative(found, expected):
    gap = torch.linalg.vector_norm(found.double() - expected)
    return float(gap / torch.linalg.vector_norm(expected))


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
    nothing = sparse.gram(torch.ones(3, dtype=torch.float64), torch.ones(0).double())
    assert nothing.tolist() == [0.0] * 3


# Rows of 0 to 9 entries and of about 60, so that every remainder of 4 occurs, and fewer
# entries than columns.
@pytest.mark.parametrize(
    ("shape", "density"),
    [((400, 15), 0.3), ((150, 200), 0.3), ((1500, 200), 0.3), ((60, 9000), 8e-4)],
)
@pytest.mark.parametrize("batch", [0, 1, 2, 8, 9, 16, 35])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_of_any_batch_are_the_dense_ones(
    shape, density, batch, dtype, generator
):
    matrix = random_matrix(shape[0], shape[1], density)
    sparse = SparseMatrix(matrix, dtype=dtype)
    dense = torch.from_numpy(matrix.toarray()).to(dtype).double()
    rows, columns = shape
    x = torch.randn(batch, columns, generator=generator, dtype=dtype)
    y = torch.randn(batch, rows, generator=generator, dtype=dtype)
    weights = torch.rand(rows, generator=generator, dtype=dtype)
    image = x.double() @ dense.mT
    pairs = [
        (sparse.matvec(x), image),
        (sparse.rmatvec(y), y.double() @ dense),
        (sparse.gram(x, weights), (weights.double() * image) @ dense),
    ]
    for found, expected in pairs:
        assert found.shape == expected.shape
        assert found.dtype == dtype
        if batch:
            assert relative(found, expected) < 10 * torch.finfo(dtype).eps


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("name", ["matvec", "rmatvec", "gram"])
def test_a_number_of_threads_fixes_every_bit(name, batch, threads, generator):
    matrix = random_matrix(3000, 150)
    sparse = SparseMatrix(matrix, dtype=torch.float32)
    length = sparse.shape[0 if name == "rmatvec" else 1]
    x = torch.randn(batch, length, generator=generator)
    weights = torch.rand(3000, generator=generator)
    arguments = (x, weights) if name == "gram" else (x,)
    for count in (1, 2, 5):
        threads(count)
        first = getattr(sparse, name)(*arguments)
        for _ in range(3):
            assert torch.equal(getattr(sparse, name)(*arguments), first)
        if count == 1:
            alone = first
        assert relative(first, alone.double()) < 1e-6


@pytest.mark.parametrize("batch", [1, 5])
def test_columns_without_entries_are_zero(batch, generator):
    matrix = random_matrix(300, 150)
    matrix.data[matrix.indices % 3 > 0] = 0.0
    matrix.eliminate_zeros()
    dense, sparse = torch.from_numpy(matrix.toarray()), SparseMatrix(matrix)
    x = torch.randn(batch, 150, generator=generator, dtype=torch.float64)
    y = torch.randn(batch, 300, generator=generator, dtype=torch.float64)
    weights = torch.rand(300, generator=generator, dtype=torch.float64)
    for found, expected in (
        (sparse.matvec(x), x @ dense.T),
        (sparse.rmatvec(y), y @ dense),
        (sparse.gram(x, weights), (x @ dense.T * weights) @ dense),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert bool((sparse.rmatvec(y)[:, 1] == 0).all())


def test_wide_vectors_and_few_accumulators_change_nothing(monkeypatch, generator):
    matrix = random_matrix(1500, 200)
    sparse = SparseMatrix(matrix)
    y = torch.randn(20, 1500, generator=generator, dtype=torch.float64)
    expected = sparse.rmatvec(y)
    monkeypatch.setattr(subject, "_WIDE", 1)
    assert torch.allclose(sparse.rmatvec(y), expected, rtol=1e-12)
    monkeypatch.setattr(subject, "rows_within", lambda *_: 1)
    assert torch.allclose(sparse.rmatvec(y), expected, rtol=1e-12)


def test_products_whose_derivative_is_needed_are_refused():
    sparse = SparseMatrix(random_matrix(7, 4))
    x, y = torch.ones(4).double(), torch.ones(7).double()
    for product, vectors in (
        (sparse.matvec, (x.requires_grad_(),)),
        (sparse.rmatvec, (y.requires_grad_(),)),
        (sparse.gram, (x.detach(), y)),
    ):
        with pytest.raises(RuntimeError, match="requires grad"):
            product(*vectors)


def test_what_does_not_fit_is_refused():
    sparse = SparseMatrix(random_matrix(5, 3))
    with pytest.raises(ValueError, match=r"\(…, 3\) numbers of torch\.float64"):
        sparse.matvec(torch.ones(4, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"of torch\.float32"):
        sparse.rmatvec(torch.ones(5))
    with pytest.raises(ValueError, match="one for each row"):
        sparse.gram(torch.ones(3).double(), torch.ones(3).double())
    with pytest.raises(ValueError, match="float32 or float64"):
        SparseMatrix(random_matrix(5, 3), dtype=torch.float16)
    with pytest.raises(ValueError, match="columns"):
        SparseMatrix(scipy.sparse.csr_matrix((1, 2**31)))


def test_a_matrix_of_many_entries_is_several_on_a_device(monkeypatch, generator):
    # torch's count of entries overflows beyond 2³¹ (pytorch issue 102520).
    monkeypatch.setattr(subject, "_MOST_ENTRIES", 700)
    matrix = random_matrix(300, 40)
    assert matrix.nnz > 3 * 700
    here = SparseMatrix(matrix)
    x = torch.randn(2, 40, generator=generator, dtype=torch.float64)
    y = torch.randn(2, 300, generator=generator, dtype=torch.float64)
    with stand_in_device():
        there = SparseMatrix(matrix, device=STAND_IN)
        assert there.matvec(x.to(STAND_IN)).cpu().allclose(here.matvec(x), rtol=1e-12)
        assert there.rmatvec(y.to(STAND_IN)).cpu().allclose(here.rmatvec(y), rtol=1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_matrix_on_a_device_is_the_same_operator(generator):
    matrix = random_matrix(50, 30)
    here, there = SparseMatrix(matrix), SparseMatrix(matrix, device="cuda")
    x = torch.randn(3, 30, generator=generator, dtype=torch.float64)
    w = torch.rand(50, generator=generator, dtype=torch.float64)
    found = there.gram(x.cuda(), w.cuda()).cpu()
    assert torch.allclose(found, here.gram(x, w), rtol=1e-12)
    assert there.bytes > here.bytes
