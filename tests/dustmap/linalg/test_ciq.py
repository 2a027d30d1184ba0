"""Roots by contour quadrature against eigendecompositions."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from test_lanczos import with_spectrum

from dustmap.linalg.ciq import CIQ, RootQuadrature, RootWarning

SIZE = 80


def decades(condition, size=SIZE):
    exponents = torch.linspace(0, -float(np.log10(condition)), size)
    return 10.0 ** exponents.to(torch.float64)


def clustered(condition, size=SIZE):
    """Like a smooth kernel with a nugget: a few large ones over a floor."""
    values = torch.full((size,), 1 / condition, dtype=torch.float64)
    values[:20] += decades(condition, 20)
    return values


SPECTRA = {"decades": decades, "clustered": clustered}


def symmetric(values):
    K = with_spectrum(values)
    return (K + K.mT) / 2


def power(K, exponent):
    values, vectors = torch.linalg.eigh(K)
    return (vectors * values**exponent) @ vectors.mT


def right_hand_sides(K, generator):
    """White, smooth (the large eigenvalues dominate), a draw, and zero."""
    rhs = torch.randn(4, len(K), generator=generator, dtype=torch.float64)
    rhs[1] = K[3]
    rhs[2] = power(K, 0.5)[1]
    rhs[3] = 0
    return rhs


def relative(found, exact):
    scale = exact.norm(dim=1)
    return (found - exact).norm(dim=1) / torch.where(scale > 0, scale, 1.0)


def ciq(rtol=1e-3, max_steps=200):
    return CIQ(rtol=rtol, max_steps=max_steps)


# The last digits of the last ones are beyond products in float64.
REACHABLE = [
    (condition, rtol)
    for condition in (1e2, 1e4, 1e6, 1e8)
    for rtol in (1e-3, 1e-6, 1e-10)
    if condition * 1e-16 < rtol / 3
]


@pytest.mark.parametrize(("condition", "rtol"), REACHABLE)
@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("positive", [False, True])
def test_roots_are_as_exact_as_asked(positive, spectrum, condition, rtol, generator):
    # Nothing may depend on the matrix' unit.
    K = 3e5 * symmetric(SPECTRA[spectrum](condition))
    rhs = right_hand_sides(K, generator)
    method = ciq(rtol).root if positive else ciq(rtol).inverse_root
    solution = method(lambda x: x @ K, rhs)
    exact = rhs @ power(K, 0.5 if positive else -0.5)
    error = relative(solution.value, exact)
    assert solution.converged.all() and (solution.error <= rtol).all()
    assert (error <= solution.error + 1e-15).all(), "the bound is none"
    # Sharp enough to be of use.
    assert (solution.error[:3] <= 1e2 * error[:3] + 0.3 * rtol).all()
    back = (rhs - solution.value @ power(K, -0.5 if positive else 0.5)).norm(dim=1)
    norm = rhs.norm(dim=1)
    assert (back <= (solution.residual + 1e-12) * norm).all()
    assert "roots known to" in solution.message


@pytest.mark.parametrize("condition", [1e4, 1e8])
def test_too_few_steps_warn_and_fail(condition, generator):
    K = symmetric(decades(condition))
    rhs = right_hand_sides(K, generator)
    with pytest.warns(RootWarning, match="max_steps"):
        solution = ciq(1e-6, max_steps=15).inverse_root(lambda x: x @ K, rhs)
    error = relative(solution.value, rhs @ power(K, -0.5))
    assert (error[:3] > 1e-6).all()
    assert solution.converged.tolist() == [False, False, False, True]
    assert solution.iterations.tolist() == [15, 15, 15, 0]


def test_digits_beyond_the_precision_are_not_claimed(generator):
    K = symmetric(decades(1e8))
    rhs = right_hand_sides(K, generator)
    with pytest.warns(RootWarning, match="bounded"):
        solution = ciq(1e-10).inverse_root(lambda x: x @ K, rhs)
    assert not solution.converged[0] and 1e-10 < solution.error[0] < 1e-6
    # The eigendecomposition has its own rounding.
    error = relative(solution.value, rhs @ power(K, -0.5))
    assert (error <= solution.error + 1e-8).all()


def test_an_indefinite_matrix_is_refused(generator):
    K = symmetric(decades(1e2) - 0.1)
    with pytest.raises(ValueError, match="positive definite"):
        ciq().inverse_root(lambda x: x @ K, right_hand_sides(K, generator))


def test_products_that_are_not_finite_are_refused(generator):
    K = symmetric(decades(1e2))
    with pytest.raises(ValueError, match="not finite"):
        ciq().inverse_root(lambda x: x @ K * torch.nan, K[:2])


def test_the_number_of_points_follows_from_the_tolerance(generator):
    K = symmetric(decades(1e6))
    with pytest.raises(ValueError, match="quadrature"):
        ciq(1e-18).inverse_root(lambda x: x @ K, K[:2])
    assert ciq(1e-9).inverse_root(lambda x: x @ K, K[:2]).points > 15
    assert ciq().inverse_root(lambda x: x @ K, K[:2]).points == 15


@pytest.mark.parametrize("positive", [False, True])
def test_derivatives_are_those_of_the_dense_root(positive, generator):
    points = torch.rand(12, 2, generator=generator, dtype=torch.float64)
    distance = (points[:, None] - points).norm(dim=-1)
    rhs = torch.randn(3, 12, generator=generator, dtype=torch.float64)

    def matrix(theta):
        return (
            theta[1] * torch.exp(-distance / theta[0]) + 1e-3 * torch.eye(12).double()
        )

    def by_ciq(theta, rhs):
        def product(x):
            return x @ matrix(theta)

        method = ciq(1e-11).root if positive else ciq(1e-11).inverse_root
        return method(product, rhs).value

    def dense(theta, rhs):
        values, vectors = torch.linalg.eigh(matrix(theta))
        return rhs @ (vectors * values ** (0.5 if positive else -0.5)) @ vectors.mT

    theta = torch.tensor([0.7, 1.3], dtype=torch.float64, requires_grad=True)
    rhs.requires_grad_(True)
    weights = torch.randn(3, 12, generator=generator, dtype=torch.float64)
    expected = torch.autograd.grad((weights * dense(theta, rhs)).sum(), (theta, rhs))
    found = torch.autograd.grad((weights * by_ciq(theta, rhs)).sum(), (theta, rhs))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)
    assert torch.autograd.gradcheck(by_ciq, (theta, rhs), fast_mode=True)


def test_a_derivative_that_did_not_converge_warns(generator):
    K = symmetric(decades(1e6)).requires_grad_(True)
    smooth = (K @ K).detach()[:1]
    solution = ciq(1e-3, max_steps=40).inverse_root(lambda x: x @ K, smooth)
    white = torch.randn(1, SIZE, generator=generator, dtype=torch.float64)
    with pytest.warns(RootWarning, match="derivative"):
        (solution.value * white).sum().backward()


def test_a_gradient_that_sees_more_of_the_spectrum_warns(generator):
    K = symmetric(decades(1e8)).requires_grad_(True)
    smooth = torch.linalg.matrix_power(K.detach(), 3)[:1]
    solution = ciq(1e-3).inverse_root(lambda x: x @ K, smooth)
    assert solution.converged.all() and solution.smallest > 1e-4
    white = torch.randn(1, SIZE, generator=generator, dtype=torch.float64)
    with pytest.warns(RootWarning, match="gradient"):
        (solution.value * white).sum().backward()


@pytest.mark.parametrize("condition", [1.0, 1e3, 1e8, 1e14])
def test_the_quadrature_converges_as_its_theory_says(condition):
    grid = torch.from_numpy(np.geomspace(1 / condition, 1, 777))
    for points in (4, 9, 15, 24):
        rule = RootQuadrature.build(1 / condition, 1.0, points)
        values = (rule.weights / (grid[:, None] + rule.shifts)).sum(1)
        error = float((1 - values * grid.sqrt()).abs().max())
        assert error <= 1.001 * rule.error + 1e-12
        rate = np.exp(-2 * np.pi**2 * points / (np.log(condition) + 3))
        assert rule.error <= 5 * rate + 1e-10


def test_the_shortest_rule_is_taken():
    rule = RootQuadrature.within(1e-6, 1.0, 1e-5)
    points = len(rule.shifts)
    assert rule.error <= 1e-5 < RootQuadrature.build(1e-6, 1.0, points - 1).error
    assert len(RootQuadrature.within(0.5, 1.0, 1e-3, least=15).shifts) == 15
    with pytest.raises(ValueError, match="quadrature"):
        RootQuadrature.within(1e-12, 1.0, 1e-18)


def test_settings_are_checked():
    with pytest.raises(ValueError, match="rtol"):
        CIQ(rtol=0.0)
    with pytest.raises(ValueError, match="max_steps"):
        CIQ(max_steps=0)


def test_a_known_floor_is_the_smallest_eigenvalue(generator):
    K = symmetric(clustered(1e6))
    rhs = right_hand_sides(K, generator)
    known = ciq(1e-6).inverse_root(lambda x: x @ K, rhs, floor=1e-6)
    assert known.converged.all() and known.smallest == 1e-6
    error = relative(known.value, rhs @ power(K, -0.5))
    assert (error <= known.error + 1e-15).all()
    # A floor that rounding cannot tell from zero is none.
    found = ciq(1e-6).inverse_root(lambda x: x @ K, rhs, floor=1e-18)
    assert found.smallest > 1e-9


def test_the_status_is_that_of_the_bound(generator):
    K = symmetric(decades(1e3))
    rhs = right_hand_sides(K, generator)
    seen = set()
    for steps in range(40, 72, 2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RootWarning)
            found = ciq(1e-4, max_steps=steps).inverse_root(lambda x: x @ K, rhs)
        assert torch.equal(found.converged, found.error <= 1e-4)
        assert (relative(found.value, rhs @ power(K, -0.5)) <= found.error).all()
        seen.update(found.converged[:3].tolist())
    assert seen == {False, True}
