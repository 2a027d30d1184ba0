"""Conjugate gradients: the answer, its status, and its honesty."""

from __future__ import annotations

import pytest
import torch

from dustmap.linalg.cg import ConjugateGradients


def spectrum_matrix(eigenvalues, generator, dtype=torch.float64):
    """A symmetric matrix with these eigenvalues, and its eigenvectors."""
    n = len(eigenvalues)
    random = torch.randn(n, n, generator=generator, dtype=torch.float64)
    Q = torch.linalg.qr(random).Q
    A = (Q * eigenvalues.double()) @ Q.mT
    return ((A + A.mT) / 2).to(dtype), Q


def counting(A):
    calls = []

    def product(x):
        calls.append(len(x))
        return x @ A

    return product, calls


@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e9])
def test_the_answer_is_the_dense_one_at_any_scale(condition, scale, generator):
    values = scale * torch.logspace(0, float(torch.tensor(condition).log10()), 40)
    A, _ = spectrum_matrix(values, generator)
    b = scale**2 * torch.randn(3, 40, generator=generator, dtype=torch.float64)
    solution = ConjugateGradients(rtol=1e-10, max_steps=2000).solve(lambda x: x @ A, b)
    assert bool(solution.converged.all()) and "converged in" in solution.message
    exact = torch.linalg.solve(A, b.mT).mT
    error = torch.linalg.vector_norm(solution.value - exact, dim=1)
    size = torch.linalg.vector_norm(exact, dim=1)
    assert bool((error <= 2e-10 * condition * size).all())
    residual = torch.linalg.vector_norm(b - solution.value @ A, dim=1)
    norm = torch.linalg.vector_norm(b, dim=1)
    assert torch.allclose(solution.residual, residual / norm, rtol=1e-6, atol=1e-14)


def test_running_out_of_steps_is_said_per_column_with_the_true_residual(generator):
    A, Q = spectrum_matrix(torch.logspace(0, 4, 60), generator)
    b = torch.stack([Q[:, 5], torch.randn(60, generator=generator).double()])
    solution = ConjugateGradients(rtol=1e-10, max_steps=7).solve(lambda x: x @ A, b)
    assert solution.converged.tolist() == [True, False]
    assert solution.iterations.tolist() == [1, 7]
    true = torch.linalg.vector_norm(b[1] - solution.value[1] @ A)
    true = true / torch.linalg.vector_norm(b[1])
    assert float(solution.residual[1]) == pytest.approx(float(true))
    message = solution.message
    assert "1 of 2 columns did not converge in 7 iterations" in message
    assert "preconditioner" in message and "float64" in message


def test_an_indefinite_matrix_is_not_called_solved(generator):
    values = torch.linspace(-1.0, 2.0, 30)
    A, _ = spectrum_matrix(values, generator)
    b = torch.randn(2, 30, generator=generator, dtype=torch.float64)
    solution = ConjugateGradients(rtol=1e-10, max_steps=500).solve(lambda x: x @ A, b)
    true = torch.linalg.vector_norm(b - solution.value @ A, dim=1)
    true = true / torch.linalg.vector_norm(b, dim=1)
    assert torch.allclose(solution.residual, true)
    assert torch.equal(solution.converged, true <= 1e-10)
    assert not bool(solution.converged.any())


def test_a_column_that_is_not_a_number_spoils_no_other(generator):
    A, _ = spectrum_matrix(torch.linspace(1, 9, 20), generator)
    b = torch.randn(3, 20, generator=generator, dtype=torch.float64)
    b[1, 4] = torch.nan
    solution = ConjugateGradients(rtol=1e-9).solve(lambda x: x @ A, b)
    assert solution.converged.tolist() == [True, False, True]
    assert "1 of 3" in solution.message


def test_a_warm_start_saves_steps_and_keeps_the_answer(generator):
    A, _ = spectrum_matrix(torch.logspace(0, 3, 50), generator)
    b = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    solver = ConjugateGradients(rtol=1e-8)
    cold = solver.solve(lambda x: x @ A, b)
    exact = torch.linalg.solve(A, b.mT).mT
    start = exact * (1 + 1e-5)
    warm = solver.solve(lambda x: x @ A, b, start=start)
    assert bool(warm.converged.all())
    assert int(warm.iterations.max()) < int(cold.iterations.max())
    assert torch.allclose(warm.value, exact, rtol=1e-5)
    there = solver.solve(lambda x: x @ A, b, start=exact)
    assert there.iterations.tolist() == [0, 0] and bool(there.converged.all())
    assert torch.equal(start, exact * (1 + 1e-5))


@pytest.mark.parametrize("scale", [1.0, 1e-9])
def test_the_answer_to_zero_is_zero_wherever_it_starts(scale):
    b = torch.zeros(2, 5, dtype=torch.float64)
    solution = ConjugateGradients().solve(lambda x: 3 * x, b, start=b + scale)
    assert solution.value.abs().max() == 0 and bool(solution.converged.all())


def test_single_precision_stalls_honestly_and_restarts_from_the_true_residual(
    generator,
):
    A, _ = spectrum_matrix(torch.logspace(0, 3, 80), generator, torch.float32)
    b = torch.randn(2, 80, generator=generator)
    solution = ConjugateGradients(rtol=1e-4).solve(lambda x: x @ A, b)
    assert solution.value.dtype == torch.float32
    assert solution.residual.dtype == torch.float64
    assert bool(solution.converged.all())
    hopeless = ConjugateGradients(rtol=1e-9).solve(lambda x: x @ A, b)
    assert not bool(hopeless.converged.any())
    assert 1e-9 < float(hopeless.residual.max()) < 1e-4


def test_columns_may_have_matrices_of_their_own(generator):
    values = [torch.logspace(0, decades, 30) for decades in (0.5, 2.0, 1.0)]
    A = torch.stack([spectrum_matrix(each, generator)[0] for each in values])
    b = torch.randn(3, 30, generator=generator, dtype=torch.float64)

    def product_of(index):
        return lambda x: torch.einsum("bn,bnm->bm", x, A[index])

    solver = ConjugateGradients(rtol=1e-10)
    together = solver.solve(
        product_of(torch.arange(3)), b, product_of=product_of, preconditioner=None
    )
    assert len(set(together.iterations.tolist())) == 3
    exact = torch.linalg.solve(A, b[..., None])[..., 0]
    torch.testing.assert_close(together.value, exact, rtol=1e-8, atol=1e-8)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="rtol"):
        ConjugateGradients(rtol=0.0)
    with pytest.raises(ValueError, match="max_steps"):
        ConjugateGradients(max_steps=0)


@pytest.mark.parametrize("every", [2, 3, 8, 100])
def test_rare_looks_at_the_residuals_change_no_answer(every, generator, monkeypatch):
    A, Q = spectrum_matrix(torch.logspace(0, 3, 60), generator)
    b = torch.randn(4, 60, generator=generator, dtype=torch.float64)
    b[1], b[2] = Q[:, 3], 0.0
    looks = []
    options = {"rtol": 1e-8, "max_steps": 70}
    often = ConjugateGradients(**options).solve(lambda x: x @ A, b)
    monkeypatch.setattr("dustmap.linalg.cg._LOOKS", {"cpu": every})
    rarely = ConjugateGradients(**options).solve(
        lambda x: x @ A, b, on_step=lambda step, worst: looks.append(step)
    )
    # Products of another number of rows differ by rounding.
    assert torch.equal(rarely.iterations[1:3], often.iterations[1:3])
    assert bool((rarely.iterations - often.iterations).abs().max() <= 1)
    assert torch.allclose(rarely.value, often.value, rtol=1e-6)
    assert rarely.converged.tolist() == often.converged.tolist()
    assert int(rarely.iterations.max()) <= 70
    assert looks[0] == min(every, int(rarely.iterations.max()))


def test_without_a_check_the_recursive_residual_is_told_for_one_product_less(generator):
    A, _ = spectrum_matrix(torch.logspace(0, 3, 80), generator)
    b = torch.randn(2, 80, generator=generator, dtype=torch.float64)
    calls = []

    def product(x):
        calls.append(len(x))
        return x @ A

    found = ConjugateGradients(rtol=0.1, restarts=None).solve(product, b)
    assert len(calls) == int(found.iterations.max())
    true = (b - found.value @ A).norm(dim=1) / b.norm(dim=1)
    assert torch.allclose(found.residual, true, rtol=1e-9)


def test_a_solve_ends_where_it_gains_little(generator):
    scale = torch.logspace(0, 3, 400, dtype=torch.float64)
    b = torch.randn(3, 400, generator=generator, dtype=torch.float64)
    b[1] *= 1e-6
    exact = b / scale

    def solved(gain):
        solver = ConjugateGradients(
            rtol=1e-12, max_steps=2000, restarts=None, gain=gain
        )
        return solver.solve(lambda x: scale * x, b)

    whole, part = solved(0.0), solved(1e-2)
    assert (part.iterations < whole.iterations).all()
    # A column has sixteen steps, however little they decrease.
    assert part.iterations[1] == 16
    missing = part.value - exact
    left = (scale * missing**2).sum(dim=1) / 2
    assert (left < 2e-2).all()
    assert left[0] > 1e-8
