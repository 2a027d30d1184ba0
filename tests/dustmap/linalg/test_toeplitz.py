"""Circulant embeddings of hierarchical Toeplitz matrices, and their gradient."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from linear_operators import check_linear_operator

from dustmap.grid import Grid, Torus
from dustmap.kernels import Matern12, Matern32, SquaredExponential
from dustmap.linalg.circulant import Circulant
from dustmap.linalg.toeplitz import (
    CirculantEmbedding,
    EmbeddingLimits,
    ToeplitzOperator,
    extend,
    first_column,
    restrict,
    toeplitz_gradient,
)


def box(*shape, spacing=1.0):
    d = len(shape)
    return Grid(shape=shape, spacing=(spacing,) * d, origin=(0.5,) * d)


def dense(kernel, grid, nugget=0.0):
    points = grid.points()
    K = kernel(points[:, None] - points[None])
    return K + nugget * torch.eye(grid.size, dtype=torch.float64)


def root_rows(embedding):
    """``R``: the box's rows of ``C^{1/2}``."""
    root = embedding.circulant.power(0.5)
    return restrict(root.to_dense(), embedding.grid.shape, root).mT


def slab(kernel=None, **limits):
    kernel = Matern32(lengthscale=0.3) if kernel is None else kernel
    return CirculantEmbedding(
        kernel,
        box(10, 10, 3, spacing=1 / 9),
        lengthscales=[0.3] * 3,
        limits=EmbeddingLimits(**limits),
    )


@pytest.mark.parametrize("shape", [(9,), (6, 5), (4, 3, 2), (2, 2)])
@pytest.mark.parametrize("nugget", [0.0, 1e-3])
def test_products_and_roots_are_those_of_the_dense_covariance(shape, nugget, generator):
    grid, kernel = box(*shape), Matern32(lengthscale=1.1, variance=2.0)
    embedding = CirculantEmbedding(
        kernel, grid, lengthscales=[1.1] * len(shape), nugget=nugget
    )
    K = dense(kernel, grid, nugget)
    operator = ToeplitzOperator(embedding.circulant, grid)
    check_linear_operator(operator, generator=generator)
    assert torch.allclose(operator.to_dense(), K, atol=1e-13)
    R = root_rows(embedding).mT
    assert torch.allclose(R.mT @ R, K, atol=1e-13)
    report = embedding.report
    assert report.minimum > 0 and report.negative_modes == 0 and not report.clipped
    assert report.covariance_error < 1e-14


def test_a_thin_slab_grows_until_its_root_is_exact():
    smallest = Torus(grid=box(10, 10, 3, spacing=1 / 9), shape=(18, 18, 4))
    kernel = Matern32(lengthscale=0.3)
    before = Circulant.from_first_column(first_column(kernel, smallest, 0.0)).spectrum
    assert float(before.min()) < -1e-2 * float(before.max())
    embedding = slab()
    report = embedding.report
    assert report.minimum >= -1e-12 * report.maximum and not report.clipped
    # The thinnest axis grows most, to the size the others need.
    assert report.shape[2] >= 5 * 4 and math.prod(report.shape) < 40**3
    # Products only: R is 300 rows of a matrix of 27,000 columns.
    root = embedding.circulant.power(0.5)
    unit = torch.zeros(3, embedding.grid.size, dtype=torch.float64)
    unit[range(3), [0, 157, 299]] = 1.0
    shape = embedding.grid.shape
    product = restrict(root.matvec(root.matvec(extend(unit, shape, root))), shape, root)
    K = dense(kernel, embedding.grid)[[0, 157, 299]]
    assert torch.allclose(product, K, atol=1e-13)


def test_beyond_the_memory_limit_the_message_says_what_to_do():
    with pytest.raises(ValueError, match="eigenvalues") as caught:
        slab(max_points=10_000)
    assert "10000" in str(caught.value)
    with pytest.raises(ValueError, match="1296"):
        slab(max_points=1000)


def test_clipping_happens_on_request_and_reports_its_covariance_error():
    embedding = slab(max_points=4000, clip=True, max_error=0.5)
    report = embedding.report
    assert report.clipped and report.negative_modes > 0
    full = torch.fft.fftn(
        first_column(Matern32(lengthscale=0.3), embedding.torus, 0.0)
    ).real
    assert report.negative_modes == int((full <= 1e-14 * full.max()).sum())
    positive = embedding.circulant.power(1.0)
    realised = ToeplitzOperator(positive, embedding.grid).to_dense()
    error = (realised - dense(Matern32(lengthscale=0.3), embedding.grid)).abs().max()
    assert report.covariance_error == pytest.approx(float(error), rel=1e-9)
    assert 1e-3 < report.covariance_error < 0.5


def test_rounding_of_a_smooth_kernel_is_dropped_and_counted_not_refused():
    kernel = SquaredExponential(lengthscale=3.0)
    embedding = CirculantEmbedding(kernel, box(40), lengthscales=[3.0])
    report = embedding.report
    assert report.negative_modes > 0 and not report.clipped
    assert report.covariance_error < 1e-12


def test_a_stated_shape_is_kept_or_refused():
    grid, kernel = box(6), Matern12(lengthscale=1.0)
    embedding = CirculantEmbedding(kernel, grid, lengthscales=[1.0], shape=(24,))
    assert embedding.report.shape == (24,)
    with pytest.raises(ValueError, match="embedding"):
        CirculantEmbedding(kernel, grid, lengthscales=[1.0], shape=(9,))


@pytest.mark.parametrize("shape", [(6,), (4, 5), (3, 2, 4)])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_the_folded_correlation_is_the_gradient_of_the_quadratic_form(
    shape, batch, generator
):
    size = math.prod(shape)
    a, b = (
        torch.randn(*batch, size, generator=generator, dtype=torch.float64)
        for _ in range(2)
    )
    index = list(itertools.product(*(range(n) for n in shape)))
    c = torch.randn(shape, generator=generator, dtype=torch.float64)
    c.requires_grad_(True)
    rows = [
        torch.stack([c[tuple(abs(p - q) for p, q in zip(i, j))] for j in index])
        for i in index
    ]
    form = (a * (b @ torch.stack(rows).mT)).sum()
    (exact,) = torch.autograd.grad(form, c)
    found = toeplitz_gradient(a, b, shape)
    assert found.shape == shape
    assert torch.allclose(found, exact, atol=1e-12)
