"""Shifted systems from one Krylov space against dense solves."""

from __future__ import annotations

import pytest
import torch
from test_lanczos import with_spectrum

from dustmap.linalg.minres import MultiShiftMinres

SHIFTS = torch.tensor([0.0, 1e-4, 1e-2, 1.0, 1e3], dtype=torch.float64)


def decade(condition, size=60):
    """Eigenvalues evenly spread over the decades: nothing clusters."""
    return torch.logspace(0, -1, size, dtype=torch.float64) ** torch.log10(
        torch.tensor(condition, dtype=torch.float64)
    )


def problem(condition, generator, rows=4):
    K = with_spectrum(decade(condition))
    K = (K + K.mT) / 2
    rhs = torch.randn(rows, len(K), generator=generator, dtype=torch.float64)
    # One row that the largest eigenvalues dominate, and one that is zero.
    rhs[1] = K[3]
    rhs[2] = 0
    return K, rhs


def true_residuals(K, rhs, solution):
    shifted = solution.value @ K + SHIFTS[:, None, None] * solution.value
    norm = rhs.norm(dim=1)
    return (rhs - shifted).norm(dim=2) / torch.where(norm > 0, norm, 1.0)


@pytest.mark.parametrize("memory", [2**30, 1])
@pytest.mark.parametrize("rtol", [1e-3, 1e-9])
@pytest.mark.parametrize("condition", [1e1, 1e3])
def test_every_shift_is_solved_to_the_tolerance(condition, rtol, memory, generator):
    K, rhs = problem(condition, generator)
    solver = MultiShiftMinres(rtol=rtol, max_steps=500, memory=memory)
    solution = solver.solve(lambda x: x @ K, rhs, SHIFTS)
    found = true_residuals(K, rhs, solution)
    assert (found <= 1.01 * rtol).all()
    torch.testing.assert_close(solution.residual, found, rtol=1e-6, atol=1e-14)
    assert solution.converged.all() and "converged in" in solution.message
    torch.testing.assert_close(solution.images, solution.value @ K)
    eye = torch.eye(len(K), dtype=K.dtype)
    exact = torch.stack([torch.linalg.solve(K + t * eye, rhs.mT).mT for t in SHIFTS])
    # ‖e‖ ≤ ‖r‖ / (λ_min + t).
    bound = rtol * rhs.norm(dim=1) / (1 / condition + SHIFTS[:, None])
    assert ((solution.value - exact).norm(dim=2) <= 1.01 * bound + 1e-14).all()


def test_one_product_a_step_serves_all_shifts(generator):
    K, rhs = problem(1e3, generator)
    seen = []

    def product(x):
        seen.append(len(x))
        return x @ K

    solution = MultiShiftMinres(rtol=1e-6).solve(product, rhs, SHIFTS)
    assert len(seen) == int(solution.iterations.max()) + 1
    # Columns that are done leave; the last product is that of the true residual.
    assert sum(seen[:-1]) == int(solution.iterations.sum())
    assert seen[-1] == len(SHIFTS) * len(rhs)
    assert solution.iterations[2] == 0 and not solution.value[:, 2].any()


@pytest.mark.parametrize("memory", [2**30, 1])
def test_a_limit_on_steps_is_a_status(memory, generator):
    K, rhs = problem(1e6, generator)
    solver = MultiShiftMinres(rtol=1e-6, max_steps=7, memory=memory)
    solution = solver.solve(lambda x: x @ K, rhs, SHIFTS)
    assert solution.converged.tolist() == [False, False, True, False]
    assert solution.iterations.tolist() == [7, 7, 0, 7]
    assert "3 of 4 columns did not converge in 7 iterations" in solution.message
    torch.testing.assert_close(solution.residual, true_residuals(K, rhs, solution))
    # MINRES: no other element of the Krylov space has a smaller residual.
    space = [rhs[0]]
    for _ in range(6):
        space.append(space[-1] @ K)
    basis = torch.linalg.qr(torch.stack(space, 1)).Q
    for q, shift in enumerate(SHIFTS[:3]):
        A = (K + shift * torch.eye(len(K), dtype=K.dtype)) @ basis
        best = rhs[0] - A @ torch.linalg.lstsq(A, rhs[0]).solution
        expected = best.norm() / rhs[0].norm()
        torch.testing.assert_close(solution.residual[q, 0], expected, rtol=1e-7, atol=0)


def test_an_orthogonal_basis_ends_after_as_many_steps_as_rows(generator):
    K, rhs = problem(1e8, generator)
    solver = MultiShiftMinres(rtol=1e-4, max_steps=600)
    found = solver.solve(lambda x: x @ K, rhs, SHIFTS[:1])
    assert found.converged.all() and int(found.iterations.max()) <= len(K)


def test_rows_that_do_not_fit_together_are_solved_apart(generator):
    K, rhs = problem(1e2, generator)
    product = lambda x: x @ K  # noqa: E731
    whole = MultiShiftMinres(rtol=1e-8).solve(product, rhs, SHIFTS)
    two = MultiShiftMinres(rtol=1e-8, memory=2 * 8 * 60 * 60)
    parts = two.solve(product, rhs, SHIFTS)
    torch.testing.assert_close(parts.value, whole.value, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(parts.iterations, whole.iterations)


def test_what_lanczos_knows_of_the_spectrum(generator):
    K, rhs = problem(1e3, generator)
    solution = MultiShiftMinres(rtol=1e-10).solve(lambda x: x @ K, rhs, SHIFTS)
    eigenvalues = torch.linalg.eigvalsh(K)
    energy = (rhs * torch.linalg.solve(K, rhs.mT).mT).sum(dim=1)
    torch.testing.assert_close(solution.scales[0], rhs.norm(dim=1))
    torch.testing.assert_close(solution.scales[1] ** 2, (rhs * (rhs @ K)).sum(dim=1))
    torch.testing.assert_close(solution.scales[2] ** 2, energy, rtol=1e-9, atol=0)
    assert eigenvalues[0] <= solution.smallest[0] * (1 + 1e-9)
    torch.testing.assert_close(solution.largest[0], eigenvalues[-1])
    last = 0.0
    for steps in range(1, 21):
        solver = MultiShiftMinres(rtol=1e-10, max_steps=steps)
        found = solver.solve(lambda x: x @ K, rhs[:1], SHIFTS).scales[2, 0] ** 2
        assert last <= found <= energy[0] * (1 + 1e-9)
        last = found


def test_a_goal_is_a_sum_over_shifts(generator):
    K, rhs = problem(1e4, generator)
    gains = 1 / (SHIFTS + 1e-3)

    def goal(residual, scales, smallest):
        scale = torch.where(scales[2] > 0, 1e-4 * scales[2], 1.0)
        return (gains[:, None] * residual).sum(dim=0) / scale

    solution = MultiShiftMinres(rtol=1.0).solve(lambda x: x @ K, rhs, SHIFTS, goal=goal)
    residual = solution.residual * rhs.norm(dim=1)
    energy = (rhs * torch.linalg.solve(K, rhs.mT).mT).sum(dim=1)
    used = (gains[:, None] * residual).sum(dim=0)
    assert (used <= 1e-4 * energy.sqrt() * (1 + 1e-9)).all()
    assert (used >= 1e-7 * energy.sqrt())[[0, 1, 3]].all()
    assert solution.converged.all()


def test_single_precision_is_told_apart_from_a_solution(generator):
    K, rhs = problem(1e5, generator)
    solver = MultiShiftMinres(rtol=1e-8, max_steps=200)
    solution = solver.solve(lambda x: x @ K.float(), rhs.float(), SHIFTS)
    assert solution.value.dtype == torch.float32
    assert not solution.converged[0] and float(solution.residual[0, 0]) > 1e-7


@pytest.mark.parametrize("shift", [-1.0, torch.nan, torch.inf])
def test_shifts_that_make_no_sense_are_refused(shift, generator):
    K, rhs = problem(1e2, generator)
    with pytest.raises(ValueError, match="negative"):
        MultiShiftMinres().solve(lambda x: x @ K, rhs, torch.tensor([shift]))


def test_settings_are_checked():
    with pytest.raises(ValueError, match="rtol"):
        MultiShiftMinres(rtol=0.0)
    with pytest.raises(ValueError, match="max_steps"):
        MultiShiftMinres(max_steps=0)
