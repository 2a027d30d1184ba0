"""Lanczos' recursion against dense eigenvalues."""

from __future__ import annotations

import numpy as np
import torch

from dustmap.linalg.lanczos import Lanczos


def with_spectrum(values, seed=1):
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    generator = torch.Generator().manual_seed(seed)
    n = len(values)
    basis = torch.linalg.qr(torch.randn(n, n, generator=generator).double()).Q
    return (basis * values) @ basis.mT


def test_full_lanczos_has_the_matrix_spectrum():
    values = torch.linspace(1, 50, 30, dtype=torch.float64)
    A = with_spectrum(values)
    start = torch.randn(2, 30, generator=torch.Generator().manual_seed(2)).double()
    krylov = Lanczos(start, 30)
    krylov.run(lambda x: x @ A, 30)
    for row in range(2):
        np.testing.assert_allclose(krylov.eigenpairs(row)[0], values, rtol=1e-9)
