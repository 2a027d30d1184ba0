"""Preconditioners: fewer steps, the same answer."""

from __future__ import annotations

import pytest
import torch

from dustmap.covariance import inducing_covariance
from dustmap.functionals import GaussLegendre, LineIntegrals
from dustmap.grid import Grid
from dustmap.kernels import Matern32, Matern52, SquaredExponential
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.preconditioners import (
    CirculantPreconditioner,
    NystromPreconditioner,
)
from dustmap.linalg.toeplitz import CirculantEmbedding, ToeplitzOperator


def toeplitz_problem(kernel, scale, shape=(28, 28)):
    """K with a nugget of 1e-3, right-hand sides of line integrals."""
    grid = Grid(shape=shape, spacing=(1.0, 1.0), origin=(-13.5, -13.5))
    embedding = CirculantEmbedding(kernel, grid, lengthscales=[scale] * 2, nugget=1e-3)
    end = torch.tensor([[12.0, 5.0], [-7.0, 9.0], [3.0, -12.5]], dtype=torch.float64)
    rays = LineIntegrals(end, GaussLegendre(count=20))
    return grid, embedding, inducing_covariance(kernel, rays, grid.points())


def steps(grid, embedding, rhs, preconditioner):
    operator = ToeplitzOperator(embedding.circulant, grid)
    solver = ConjugateGradients(rtol=1e-6, max_steps=2000)
    solution = solver.solve(operator.matvec, rhs, preconditioner=preconditioner)
    assert bool(solution.converged.all())
    return int(solution.iterations.max()), solution.value


@pytest.mark.parametrize(
    ("kind", "scale", "gain"),
    [(Matern32, 1.6, 6.0), (Matern32, 3.1, 2.5), (Matern52, 3.1, 2.0)],
)
def test_the_circulant_inverse_saves_steps_less_so_for_smooth_kernels(
    kind, scale, gain
):
    grid, embedding, rhs = toeplitz_problem(kind(lengthscale=scale), scale)
    preconditioner = CirculantPreconditioner(embedding.circulant, grid).matvec
    plain, exact = steps(grid, embedding, rhs, None)
    fewer, value = steps(grid, embedding, rhs, preconditioner)
    assert gain * fewer < plain
    K = ToeplitzOperator(embedding.circulant, grid)
    gap = torch.linalg.vector_norm(K.matvec(value - exact), dim=1)
    assert bool((gap <= 3e-6 * torch.linalg.vector_norm(rhs, dim=1)).all())


def test_the_circulant_inverse_is_symmetric_positive_even_with_dropped_modes():
    grid = Grid(shape=(24,), spacing=(1.0,), origin=(0.0,))
    embedding = CirculantEmbedding(
        SquaredExponential(lengthscale=3.0), grid, lengthscales=[3.0]
    )
    assert embedding.report.negative_modes > 0
    P = CirculantPreconditioner(embedding.circulant, grid)
    dense = P.to_dense()
    assert torch.allclose(dense, dense.mT, atol=1e-10 * float(dense.abs().max()))
    values = torch.linalg.eigvalsh(dense)
    assert float(values[0]) > 0


def low_rank_plus_tail(generator, size=160, dtype=torch.float64):
    """H with a few large eigenvalues and a long tail, as precise stars make it."""
    top = 5.0 if dtype == torch.float64 else 3.5
    head, tail = torch.logspace(top, 2, 30), torch.logspace(1, -4, size - 30)
    values = torch.cat([head, tail])
    random = torch.randn(size, size, generator=generator, dtype=torch.float64)
    Q = torch.linalg.qr(random).Q
    return ((Q * values.double()) @ Q.mT).to(dtype), values.double()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_nystrom_sketch_saves_steps_and_keeps_the_answer(dtype, generator):
    H, values = low_rank_plus_tail(generator, dtype=dtype)
    sketch = NystromPreconditioner.build(
        lambda x: x @ H, len(H), 50, generator, dtype=dtype
    )
    assert torch.allclose(sketch.eigenvalues[:20], values[:20], rtol=0.02)
    b = torch.randn(4, len(H), generator=generator, dtype=dtype)
    solver = ConjugateGradients(rtol=1e-8 if dtype == torch.float64 else 1e-3)
    plain = solver.solve(lambda x: x + x @ H, b)
    fewer = solver.solve(lambda x: x + x @ H, b, preconditioner=sketch)
    assert bool(plain.converged.all()) and bool(fewer.converged.all())
    assert 4 * int(fewer.iterations.max()) < int(plain.iterations.min())
    exact = torch.linalg.solve((torch.eye(len(H)) + H).double(), b.double().mT).mT
    tolerance = 1e-6 if dtype == torch.float64 else 3e-2
    assert torch.allclose(fewer.value.double(), exact, atol=tolerance)


def test_a_nystrom_sketch_of_full_rank_is_the_inverse(generator, monkeypatch):
    # Seven vectors at a time.
    monkeypatch.setattr("dustmap.linalg.preconditioners.rows_within", lambda *_: 7)
    values = torch.logspace(3, -1, 20, dtype=torch.float64)
    random = torch.randn(20, 20, generator=generator, dtype=torch.float64)
    Q = torch.linalg.qr(random).Q
    H = (Q * values) @ Q.mT
    sketch = NystromPreconditioner.build(
        lambda x: x @ H, 20, 20, generator, dtype=torch.float64
    )
    assert torch.allclose(sketch.eigenvalues, values, rtol=1e-9)
    identity = torch.eye(20, dtype=torch.float64)
    # P⁻¹ scales the last direction by one instead of 1 / (λ_r + 1).
    expected = (values[-1] + 1) * torch.linalg.inv(H + identity)
    assert torch.allclose(sketch(identity), expected, atol=1e-9)


def test_a_sketch_of_nothing_is_the_identity(generator):
    sketch = NystromPreconditioner.build(
        lambda x: 0 * x, 12, 4, generator, dtype=torch.float64
    )
    x = torch.randn(2, 12, generator=generator, dtype=torch.float64)
    assert torch.equal(sketch(x), x)


def test_a_rank_beyond_that_of_the_matrix_is_cut_to_it(generator):
    a = torch.randn(3, 40, generator=generator, dtype=torch.float64)
    H = a.mT @ a
    sketch = NystromPreconditioner.build(
        lambda x: x @ H, 40, 20, generator, dtype=torch.float64
    )
    assert len(sketch.eigenvalues) >= 3
    exact = torch.linalg.eigvalsh(H).flip(0)[:3]
    assert torch.allclose(sketch.eigenvalues[:3], exact, rtol=1e-6)
    assert float(sketch.eigenvalues[3:].abs().sum()) < 1e-8 * float(exact[0])
    assert bool(torch.isfinite(sketch(torch.eye(40, dtype=torch.float64))).all())


@pytest.mark.parametrize("rank", [0, 41])
def test_a_rank_outside_the_matrix_is_refused(rank, generator):
    with pytest.raises(ValueError, match=r"rank must lie in 1\.\.40"):
        NystromPreconditioner.build(
            lambda x: x, 40, rank, generator, dtype=torch.float64
        )


def test_a_sketch_in_a_subspace_is_that_of_the_block_there(generator):
    a = torch.randn(30, 30, generator=generator, dtype=torch.float64)
    H, some = a.mT @ a, torch.tensor([3, 4, 11, 20, 28])
    sketch = NystromPreconditioner.build(
        lambda x: x @ H, 30, 5, generator, dtype=torch.float64, subspace=some
    )
    identity, expected = torch.eye(30).double(), torch.eye(30).double()
    block = H[some[:, None], some]
    least = torch.linalg.eigvalsh(block)[0]
    inverse = torch.linalg.inv(block + torch.eye(5))
    expected[some[:, None], some] = (least + 1) * inverse
    assert torch.allclose(sketch(identity), expected, atol=1e-9)
    assert sketch.basis.shape == (5, 5)


@pytest.mark.parametrize("some", [None, torch.arange(0, 40, 2)])
def test_the_sketch_of_a_low_rank_matrix_gives_its_inverse(some):
    """Also in a subspace, outside which H + I counts as I."""
    generator = torch.Generator().manual_seed(0)
    size, rank = (40, 5) if some is None else (20, 5)
    root = torch.randn(size, rank, generator=generator, dtype=torch.float64)
    H = torch.zeros(40, 40, dtype=torch.float64)
    rows = torch.arange(40) if some is None else some
    H[rows[:, None], rows] = 10 * root @ root.T
    sketched = NystromPreconditioner.build(
        lambda x: x @ H, 40, 8, generator, dtype=torch.float64, subspace=some
    )
    x = torch.randn(3, 40, generator=generator, dtype=torch.float64)
    exact = torch.linalg.solve(H + torch.eye(40, dtype=torch.float64), x.T).T
    torch.testing.assert_close(sketched.inverse(x), exact, rtol=1e-6, atol=1e-8)
