"""Roots by contour quadrature against eigendecompositions in float64."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from dustmap.linalg import roots
from dustmap.linalg.roots import CIQ, RootWarning, root_quadrature

SIZE = 60


def decades(condition, size=SIZE):
    """Eigenvalues evenly spread over the decades: nothing clusters."""
    return torch.logspace(0, -np.log10(condition), size, dtype=torch.float64)


def clustered(condition):
    """Like a smooth kernel with a nugget: a few large ones over a floor."""
    values = torch.full((SIZE,), 1 / condition, dtype=torch.float64)
    values[:20] += decades(condition, 20)
    return values


def matrix(values):
    generator = torch.Generator().manual_seed(1)
    basis = torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64)
    basis = torch.linalg.qr(basis).Q
    K = (basis * values) @ basis.mT
    return (K + K.mT) / 2


def power(K, exponent):
    values, vectors = torch.linalg.eigh(K)
    return (vectors * values**exponent) @ vectors.mT


def right_hand_sides(K, generator):
    """White, smooth (the large eigenvalues dominate), a draw, and zero."""
    b = torch.randn(4, SIZE, generator=generator, dtype=torch.float64)
    b[1], b[2], b[3] = K[3], power(K, 0.5)[1], 0
    return b


def relative(found, exact):
    scale = exact.norm(dim=1)
    return (found - exact).norm(dim=1) / torch.where(scale > 0, scale, 1.0)


# The last digits of the last ones are beyond products in float64.
REACHABLE = [(1e2, 1e-3), (1e4, 1e-10), (1e6, 1e-6), (1e8, 1e-3), (1e8, 1e-6)]


@pytest.mark.parametrize(("condition", "rtol"), REACHABLE)
@pytest.mark.parametrize("spectrum", [decades, clustered])
@pytest.mark.parametrize("sign", [1, -1])
def test_roots_are_as_exact_as_asked(sign, spectrum, condition, rtol, generator):
    # Nothing may depend on the unit of the matrix.
    K = 3e5 * matrix(spectrum(condition))
    b = right_hand_sides(K, generator)
    ciq = CIQ(rtol=rtol)
    solution = (ciq.root if sign > 0 else ciq.inverse_root)(lambda x: x @ K, b)
    error = relative(solution.value, b @ power(K, sign / 2))
    assert solution.converged.all() and (solution.error <= rtol).all()
    assert (error <= solution.error + 1e-15).all(), "the bound is none"
    # Sharp enough to be of use.
    assert (solution.error[:3] <= 1e2 * error[:3] + 0.3 * rtol).all()
    back = (b - solution.value @ power(K, -sign / 2)).norm(dim=1)
    assert (back <= (solution.residual + 1e-12) * b.norm(dim=1)).all()


def test_the_status_is_that_of_the_bound(generator):
    K = matrix(decades(1e3))
    b, seen = right_hand_sides(K, generator), set()
    for steps in range(30, 54, 2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RootWarning)
            found = CIQ(rtol=1e-4, max_steps=steps).inverse_root(lambda x: x @ K, b)
        assert torch.equal(found.converged, found.error <= 1e-4)
        assert (relative(found.value, b @ power(K, -0.5)) <= found.error).all()
        seen.update(found.converged[:3].tolist())
    assert seen == {False, True}


def test_too_few_steps_warn_and_fail(generator):
    K = matrix(decades(1e8))
    b = right_hand_sides(K, generator)
    with pytest.warns(RootWarning):
        found = CIQ(rtol=1e-6, max_steps=15).inverse_root(lambda x: x @ K, b)
    assert (relative(found.value, b @ power(K, -0.5))[:3] > 1e-6).all()
    assert found.converged.tolist() == [False, False, False, True]
    assert found.iterations.tolist() == [15, 15, 15, 0]


def test_digits_beyond_the_precision_are_not_claimed(generator):
    K = matrix(decades(1e8))
    b = right_hand_sides(K, generator)
    with pytest.warns(RootWarning):
        found = CIQ(rtol=1e-10).inverse_root(lambda x: x @ K, b)
    assert not found.converged[0] and 1e-10 < found.error[0] < 1e-6
    # The eigendecomposition has its own rounding.
    assert (relative(found.value, b @ power(K, -0.5)) <= found.error + 1e-8).all()


def test_an_exhausted_krylov_space_has_the_exact_root(generator):
    values = decades(1e4)
    values[3:] = values[3]
    K = matrix(values)
    b = torch.randn(2, SIZE, generator=generator, dtype=torch.float64)
    # Four eigenvalues end the space of one row, a single one that of the other.
    b[1] = torch.linalg.eigh(K).eigenvectors[:, -1]
    found = CIQ(rtol=1e-12).inverse_root(lambda x: x @ K, b)
    assert found.converged.all() and found.iterations.max() <= 8
    assert (relative(found.value, b @ power(K, -0.5)) < 1e-11).all()


def test_a_known_floor_makes_the_bound_rigorous(generator):
    K = matrix(decades(1e6))
    b = right_hand_sides(K, generator)
    for steps in (4, 12, 30):
        with pytest.warns(RootWarning):
            found = CIQ(max_steps=steps).inverse_root(lambda x: x @ K, b, floor=1e-6)
        assert (relative(found.value, b @ power(K, -0.5)) <= found.error).all()


def test_matrices_without_a_root_are_refused():
    K = matrix(decades(1e2) - 0.1)
    with pytest.raises(ValueError, match="positive definite"):
        CIQ().inverse_root(lambda x: x @ K, K[:2])
    with pytest.raises(ValueError, match="not finite"):
        CIQ().inverse_root(lambda x: x @ K * torch.nan, K[:2])
    with pytest.raises(ValueError, match="quadrature"):
        CIQ(rtol=1e-18).inverse_root(lambda x: x @ matrix(decades(1e2)), K[:2])
    for wrong in ({"rtol": 0.0}, {"max_steps": 0}):
        with pytest.raises(ValueError, match="positive"):
            CIQ(**wrong)


def test_rows_that_do_not_fit_together_are_solved_apart(generator, monkeypatch):
    K = matrix(decades(1e2))
    b = right_hand_sides(K, generator)
    whole = CIQ(rtol=1e-8).inverse_root(lambda x: x @ K, b)
    monkeypatch.setattr(roots, "rows_within", lambda *_: 1)
    parts = CIQ(rtol=1e-8).inverse_root(lambda x: x @ K, b)
    torch.testing.assert_close(parts.value, whole.value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("condition", [1.001, 1e3, 1e8, 1e14])
def test_the_quadrature_converges_as_its_theory_says(condition):
    grid = torch.from_numpy(np.geomspace(1 / condition, 1, 777))
    for rtol in (1e-2, 1e-4, 1e-8):
        rule = root_quadrature(1 / condition, 1.0, rtol)
        values = (rule.weights / (grid[:, None] + rule.shifts)).sum(1)
        error = float((1 - values * grid.sqrt()).abs().max())
        assert error <= 1.001 * rule.error + 1e-12 and rule.error <= rtol
        rate = 2 * np.pi**2 / (np.log(condition) + 3)
        assert len(rule.shifts) <= max(15, np.log(5 / rtol) / rate + 1)


@pytest.mark.parametrize("sign", [1, -1])
def test_derivatives_are_those_of_the_dense_root(sign, generator):
    points = torch.rand(12, 2, generator=generator, dtype=torch.float64)
    distance = (points[:, None] - points).norm(dim=-1)
    b = torch.randn(3, 12, generator=generator, dtype=torch.float64).requires_grad_()
    weights = torch.randn(3, 12, generator=generator, dtype=torch.float64)
    # Lengthscale and variance.
    theta = torch.tensor([0.7, 1.3], dtype=torch.float64, requires_grad=True)
    ciq = CIQ(rtol=1e-11)

    def kernel():
        nugget = 1e-3 * torch.eye(12, dtype=torch.float64)
        return theta[1] * torch.exp(-distance / theta[0]) + nugget

    method = ciq.root if sign > 0 else ciq.inverse_root
    value = method(lambda x: x @ kernel(), b).value
    dense = b @ power(kernel(), sign / 2)
    found = torch.autograd.grad((weights * value).sum(), (theta, b))
    expected = torch.autograd.grad((weights * dense).sum(), (theta, b))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
    value = method(lambda x: x @ kernel(), b).value
    with pytest.raises(NotImplementedError):
        torch.autograd.grad(value.sum(), theta, create_graph=True)


@pytest.mark.parametrize(("condition", "steps"), [(1e6, 32), (1e8, 200)])
def test_a_derivative_that_is_not_converged_warns(condition, steps, generator):
    """A white gradient needs more steps, or sees more eigenvalues, than a smooth b."""
    K = matrix(decades(condition)).requires_grad_()
    smooth = torch.linalg.matrix_power(K.detach(), 3)[:1]
    solution = CIQ(rtol=1e-3, max_steps=steps).inverse_root(lambda x: x @ K, smooth)
    assert solution.converged.all()
    white = torch.randn(1, SIZE, generator=generator, dtype=torch.float64)
    with pytest.warns(RootWarning):
        (solution.value * white).sum().backward()
