"""Shifted systems from one Krylov space against dense solves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dustmap.linalg import ciq
from dustmap.linalg.ciq import CIQ
from dustmap.linalg.lanczos import Lanczos
from dustmap.linalg.operator import ratio

SHIFTS = torch.tensor([0.0, 1e-4, 1e-2, 1.0, 1e3], dtype=torch.float64)


def with_spectrum(values, seed=1):
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    generator = torch.Generator().manual_seed(seed)
    n = len(values)
    basis = torch.linalg.qr(torch.randn(n, n, generator=generator).double()).Q
    return (basis * values) @ basis.mT


def problem(condition, generator, rows=4):
    """Eigenvalues evenly spread over the decades: nothing clusters."""
    decades = torch.linspace(0, -np.log10(condition), 60, dtype=torch.float64)
    K = with_spectrum(10.0**decades)
    K = (K + K.mT) / 2
    rhs = torch.randn(rows, len(K), generator=generator, dtype=torch.float64)
    # One row that the largest eigenvalues dominate, and one that is zero.
    rhs[1] = K[3]
    rhs[2] = 0
    return K, rhs


def solved(K, rhs, rtol, limit=60):
    """A recursion until every shift is solved, and how many rows each product had."""
    seen, krylov = [], Lanczos(rhs, limit)

    def product(x):
        seen.append(len(x))
        return x @ K

    def used(krylov):
        return ratio(krylov.residuals(SHIFTS)[0].amax(dim=0), rtol * krylov.scale)

    krylov.run(product, used)
    return krylov, seen


def residuals(K, rhs, value):
    off = rhs - value @ K - SHIFTS[:, None, None] * value
    return off.norm(dim=2)


@pytest.mark.parametrize("rtol", [1e-3, 1e-9])
@pytest.mark.parametrize("condition", [1e1, 1e3])
def test_every_shift_is_solved_to_the_tolerance(condition, rtol, generator):
    K, rhs = problem(condition, generator)
    krylov, seen = solved(K, rhs, rtol)
    value = krylov.answers(SHIFTS)
    found = residuals(K, rhs, value)
    assert (found <= rtol * rhs.norm(dim=1)).all()
    torch.testing.assert_close(krylov.residuals(SHIFTS)[0], found, rtol=1e-4, atol=1e-9)
    eye = torch.eye(len(K), dtype=K.dtype)
    exact = torch.stack([torch.linalg.solve(K + t * eye, rhs.mT).mT for t in SHIFTS])
    # ‖e‖ ≤ ‖r‖ / (λ_min + t).
    bound = rtol * rhs.norm(dim=1) / (1 / condition + SHIFTS[:, None])
    assert ((value - exact).norm(dim=2) <= 1.01 * bound + 1e-14).all()
    # One product a step serves all shifts, and rows that are done leave it.
    assert len(seen) == int(krylov.steps.max()) and sum(seen) == int(krylov.steps.sum())
    assert krylov.steps[2] == 0 and not value[:, 2].any()


def test_no_element_of_the_space_has_a_smaller_residual(generator):
    K, rhs = problem(1e6, generator)
    krylov, _ = solved(K, rhs, 1e-6, limit=7)
    assert krylov.steps.tolist() == [7, 7, 0, 7]
    found = residuals(K, rhs, krylov.answers(SHIFTS))
    space = [rhs[0]]
    for _ in range(6):
        space.append(space[-1] @ K)
    basis = torch.linalg.qr(torch.stack(space, 1)).Q
    for q, shift in enumerate(SHIFTS[:3]):
        A = (K + shift * torch.eye(len(K), dtype=K.dtype)) @ basis
        best = rhs[0] - A @ torch.linalg.lstsq(A, rhs[0]).solution
        torch.testing.assert_close(found[q, 0], best.norm(), rtol=1e-7, atol=0)


def test_what_lanczos_knows_of_the_spectrum(generator):
    K, rhs = problem(1e3, generator)
    eigenvalues = torch.linalg.eigvalsh(K)
    energy = (rhs * torch.linalg.solve(K, rhs.mT).mT).sum(dim=1)
    krylov, _ = solved(K, rhs, 1e-10)
    torch.testing.assert_close(krylov.scale, rhs.norm(dim=1))
    first = (rhs * (rhs @ K)).sum(dim=1)
    torch.testing.assert_close(krylov.scale**2 * krylov.diagonal[:, 0], first)
    found = krylov.residuals(SHIFTS)[1]
    torch.testing.assert_close(found, energy, rtol=1e-9, atol=0)
    np.testing.assert_allclose(krylov.ends(), eigenvalues[[0, -1]], rtol=1e-7)
    last = 0.0
    for steps in range(1, 21):
        krylov, _ = solved(K, rhs[:1], 1e-10, limit=steps)
        found = float(krylov.residuals(SHIFTS)[1])
        assert last <= found <= energy[0] * (1 + 1e-9)
        last = found


def test_an_orthogonal_basis_ends_after_as_many_steps_as_rows(generator):
    K, rhs = problem(1e8, generator)
    krylov, _ = solved(K, rhs, 1e-4, limit=600)
    assert (residuals(K, rhs, krylov.answers(SHIFTS)) <= 1e-4 * rhs.norm(dim=1)).all()
    assert int(krylov.steps.max()) <= len(K)


def test_rows_that_do_not_fit_together_are_solved_apart(generator, monkeypatch):
    K, rhs = problem(1e2, generator)
    whole = CIQ(rtol=1e-8).inverse_root(lambda x: x @ K, rhs)
    monkeypatch.setattr(ciq, "_MEMORY", 2 * 8 * 60 * 61)
    parts = CIQ(rtol=1e-8).inverse_root(lambda x: x @ K, rhs)
    torch.testing.assert_close(parts.value, whole.value, rtol=1e-6, atol=1e-8)
    assert torch.equal(parts.iterations, whole.iterations)
