"""Log determinants by stochastic Lanczos quadrature against dense ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dustmap.linalg.lanczos import Lanczos, LanczosQuadrature
from dustmap.linalg.preconditioners import NystromPreconditioner


def with_spectrum(values, seed=1):
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    generator = torch.Generator().manual_seed(seed)
    n = len(values)
    basis = torch.linalg.qr(torch.randn(n, n, generator=generator).double()).Q
    return (basis * values) @ basis.mT


def decaying(size=120, largest=1e4, slope=2.0):
    return 1 + largest * torch.arange(1, size + 1, dtype=torch.float64) ** -slope


def test_full_lanczos_has_the_matrix_spectrum():
    values = torch.linspace(1, 50, 30, dtype=torch.float64)
    A = with_spectrum(values)
    start = torch.randn(2, 30, generator=torch.Generator().manual_seed(2)).double()
    krylov = Lanczos(start, 30)
    krylov.run(lambda x: x @ A, 30)
    for row in range(2):
        np.testing.assert_allclose(krylov.eigenpairs(row)[0], values, rtol=1e-9)


@pytest.mark.parametrize("rank", [0, 40])
def test_estimates_scatter_about_the_truth_as_they_say(rank):
    A = with_spectrum(decaying())
    exact = float(torch.linalg.slogdet(A)[1])
    scores, sizes = [], []
    for seed in range(24):
        generator = torch.Generator().manual_seed(seed)
        P = None
        if rank:
            H = A - torch.eye(len(A)).double()
            P = NystromPreconditioner.build(
                lambda x, H=H: x @ H, 120, rank, generator, dtype=H.dtype
            )
        found = LanczosQuadrature(probes=12, steps=25).estimate(
            lambda x: x @ A, 120, generator, preconditioner=P
        )
        scores.append((found.value - exact) / found.error)
        sizes.append(found.error)
        assert found.products == 12 * 25
    # Twelve probes: the score has Student's distribution with 11 degrees of freedom.
    assert np.abs(scores).max() < 4
    assert 0.6 < np.std(scores) < 1.5
    assert np.median(sizes) < (0.015 if rank else 0.05) * exact


def test_few_steps_are_told_by_the_error():
    A = with_spectrum(decaying(largest=1e6, slope=1.0))
    exact = float(torch.linalg.slogdet(A)[1])
    for steps in (4, 6, 8):
        found = LanczosQuadrature(probes=64, steps=steps).estimate(
            lambda x: x @ A, 120, torch.Generator().manual_seed(1)
        )
        assert abs(found.value - exact) < 4 * found.error
        assert found.truncation > 0


def test_an_exhausted_space_ends_the_quadrature_not_the_estimate():
    # Three distinct eigenvalues: Lanczos has nothing to add after three steps.
    values = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64).repeat(20)
    A = with_spectrum(values)
    exact = float(values.log().sum())
    quadrature = LanczosQuadrature(probes=200, steps=12, block=50)
    found = quadrature.estimate(lambda x: x @ A, 60, torch.Generator().manual_seed(1))
    assert abs(found.value - exact) < 4 * found.error
    assert found.truncation < 1e-9 * exact
    identity = quadrature.estimate(lambda x: x, 60, torch.Generator().manual_seed(1))
    assert identity.value == pytest.approx(0.0, abs=1e-12)
    assert identity.error == pytest.approx(0.0, abs=1e-12)


def test_one_step_per_row_is_a_diagonal_matrix_exactly():
    diagonal = torch.linspace(1, 9, 12, dtype=torch.float64)
    found = LanczosQuadrature(probes=2, steps=40).estimate(
        lambda x: x * diagonal, 12, torch.Generator().manual_seed(1)
    )
    assert found.value == pytest.approx(float(diagonal.log().sum()), rel=1e-10)
    assert found.truncation == 0.0


def test_an_indefinite_matrix_is_refused():
    A = with_spectrum(torch.linspace(-1, 5, 30, dtype=torch.float64))
    with pytest.raises(ValueError, match="positive definite"):
        LanczosQuadrature(probes=2, steps=30).estimate(
            lambda x: x @ A, 30, torch.Generator().manual_seed(1)
        )


def test_senseless_settings_are_refused():
    with pytest.raises(ValueError, match="probes"):
        LanczosQuadrature(probes=1)
    with pytest.raises(ValueError, match="steps"):
        LanczosQuadrature(steps=0)
