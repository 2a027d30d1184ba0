"""Exact and sparse regression against dense algebra, finite differences, each other."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from dustmap.functionals import (
    Derivatives,
    GaussLegendre,
    LineIntegrals,
    PointValues,
    Stack,
)
from dustmap.gp.exact import ExactGP
from dustmap.gp.sgpr import SGPR
from dustmap.kernels import Matern52, SquaredExponential
from tests.reference import (
    Covariance,
    conditional_covariance,
    exact_posterior,
    functional_covariance,
    log_evidence,
    points_as_rows,
    rows_of,
)

SCALES, VARIANCE, NOISE, MEAN = (0.7, 1.3), 1.7, 0.08, 0.9
KERNEL = Matern52(lengthscale=SCALES, variance=VARIANCE)
DENSE = Covariance(name="matern52", lengthscale=SCALES, variance=VARIANCE)


def positions(count, seed, dimension=2):
    generator = torch.Generator().manual_seed(seed)
    shape = (count, dimension)
    return 3 * torch.rand(shape, generator=generator, dtype=torch.float64)


def mixed(seed, count=8):
    """Values, slopes and line integrals in one data set."""
    x = positions(3 * count, seed)
    return Stack(
        [
            PointValues(x[:count]),
            Derivatives(x[count : 2 * count], torch.arange(count) % 2),
            LineIntegrals(x[2 * count :], GaussLegendre(count=4)),
        ]
    )


@dataclass(frozen=True)
class Problem:
    functionals: object
    y: torch.Tensor
    known: torch.Tensor

    @property
    def noise(self):
        return NOISE + self.known.numpy()

    @property
    def ones(self):
        rows = rows_of(self.functionals)
        return np.array([sum(w for _, w, a in row if a is None) for row in rows])

    @property
    def K(self):
        rows = rows_of(self.functionals)
        return functional_covariance(DENSE, rows, rows)

    @property
    def residual(self):
        return self.y.numpy() - MEAN * self.ones


@pytest.fixture(scope="module")
def problem():
    functionals = mixed(1)
    generator = torch.Generator().manual_seed(2)
    count = len(functionals)
    y = 1 + torch.randn(count, generator=generator, dtype=torch.float64)
    known = 0.1 * torch.rand(count, generator=generator, dtype=torch.float64)
    return Problem(functionals, y, known)


def exact(problem, **changes):
    options = {"noise": NOISE, "mean": MEAN, "known_noise": problem.known, **changes}
    return ExactGP(KERNEL, problem.functionals, problem.y, **options)


def sparse(problem, points=None, **changes):
    options = {"noise": NOISE, "mean": MEAN, "known_noise": problem.known}
    options |= {"jitter": 0.0, **changes}
    points = positions(12, 3) if points is None else points
    return SGPR(KERNEL, problem.functionals, problem.y, points, **options)


def dense_sparse(problem, points):
    """K_nu, K_uu and the Nyström covariance Q by loops."""
    rows, at = rows_of(problem.functionals), points_as_rows(points.numpy())
    K_nu = functional_covariance(DENSE, rows, at)
    K_uu = functional_covariance(DENSE, at, at)
    return K_nu, K_uu, K_nu @ np.linalg.solve(K_uu, K_nu.T)


def test_the_exact_evidence_is_the_dense_one(problem):
    expected = log_evidence(problem.K, problem.residual, problem.noise)
    assert_allclose(exact(problem).log_marginal(), expected, rtol=1e-10)


def test_the_exact_posterior_is_the_dense_one(problem):
    there = mixed(4, count=3)
    rows, star = rows_of(problem.functionals), rows_of(there)
    mean, covariance = exact_posterior(
        problem.K,
        functional_covariance(DENSE, star, rows),
        functional_covariance(DENSE, star, star),
        problem.residual,
        problem.noise,
    )
    ones = Problem(there, problem.y, problem.known).ones
    moments = exact(problem).predict(there)
    assert_allclose(moments.mean, mean + MEAN * ones, rtol=1e-8, atol=1e-10)
    assert_allclose(moments.variance, np.diag(covariance), rtol=1e-7)


def test_the_bound_is_titsias_dense_one(problem):
    points = positions(12, 3)
    _, _, Q = dense_sparse(problem, points)
    missed = (np.diag(problem.K) - np.diag(Q)) / problem.noise
    expected = log_evidence(Q, problem.residual, problem.noise) - 0.5 * missed.sum()
    assert_allclose(sparse(problem, points).log_marginal(), expected, rtol=1e-9)


def test_the_sparse_posterior_is_the_dense_one(problem):
    points, there = positions(12, 3), mixed(4, count=3)
    K_nu, K_uu, Q = dense_sparse(problem, points)
    star = rows_of(there)
    K_su = functional_covariance(DENSE, star, points_as_rows(points.numpy()))
    Q_sn, Q_ss = (K_su @ np.linalg.solve(K_uu, k.T) for k in (K_nu, K_su))
    mean, kept = exact_posterior(Q, Q_sn, Q_ss, problem.residual, problem.noise)
    K_ss = functional_covariance(DENSE, star, star)
    variance = np.diag(conditional_covariance(K_ss, K_su, K_uu) + kept)
    ones = Problem(there, problem.y, problem.known).ones
    moments = sparse(problem, points).predict(there)
    assert_allclose(moments.mean, mean + MEAN * ones, rtol=1e-7, atol=1e-9)
    assert_allclose(moments.variance, variance, rtol=1e-7)


def finite_differences(model):
    """Central differences of log_marginal, entry by entry, in relative steps."""
    slopes = {}
    for name, value in model.parameters().items():
        slope = torch.zeros(value.numel(), dtype=torch.float64)
        for i in range(value.numel()):
            step = torch.zeros(value.numel(), dtype=torch.float64)
            step[i] = 1e-5 * (float(value.reshape(-1)[i]) or 1.0)
            ends = [
                model.with_parameters({name: value + s * step.reshape(value.shape)})
                for s in (1, -1)
            ]
            up, down = (end.log_marginal() for end in ends)
            slope[i] = (up - down) / (2 * float(step[i]))
        slopes[name] = slope.reshape(value.shape)
    return slopes


@pytest.mark.parametrize("build", [exact, sparse])
def test_gradients_are_those_of_finite_differences(problem, build):
    model = build(problem)
    value, gradient = model.value_and_gradient()
    assert value == pytest.approx(model.log_marginal(), rel=1e-12)
    expected = finite_differences(model)
    assert (
        set(gradient) == set(expected) == {"lengthscale", "variance", "noise", "mean"}
    )
    for name, slope in expected.items():
        assert_allclose(gradient[name], slope, rtol=2e-5, atol=1e-6, err_msg=name)


def test_gradients_do_not_depend_on_how_the_rows_are_cut(problem, monkeypatch):
    models = [exact(problem), sparse(problem)]
    whole = [model.value_and_gradient() for model in models]
    monkeypatch.setattr("dustmap.gp.regression.rows_within", lambda *_: 3)
    for (value, gradient), again in zip(whole, [exact(problem), sparse(problem)]):
        parts = again.value_and_gradient()
        assert parts[0] == pytest.approx(value, rel=1e-12)
        for name, slope in gradient.items():
            assert_allclose(parts[1][name], slope, rtol=1e-10)


def test_a_jitter_keeps_the_bound_below_the_evidence():
    x = positions(30, 9)
    y = torch.sin(x).sum(dim=1)
    kernel = SquaredExponential(lengthscale=3.0)
    options = {"noise": 0.01}
    evidence = ExactGP(kernel, PointValues(x), y, **options).log_marginal()
    loose, tight = (
        SGPR(kernel, PointValues(x), y, x, jitter=j, **options).log_marginal()
        for j in (1e-3, 1e-8)
    )
    assert loose < tight < evidence
    assert tight == pytest.approx(evidence, abs=0.01)


X = positions(6, 10)


@pytest.mark.wrong_shapes
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"noise": 0.0}, "noise variance must"),
        ({"noise": float("nan")}, "noise variance must"),
        ({"mean": float("inf")}, "mean must be finite"),
        ({"known_noise": -torch.ones(6)}, "known_noise must be"),
        ({"known_noise": torch.ones(5)}, r"known_noise must have shape \(6,\)"),
        ({"observations": torch.ones(5)}, r"observations must have shape \(6,\)"),
        ({"observations": torch.full((6,), torch.nan)}, "6 of 6 are not"),
    ],
)
def test_unsound_input_is_refused(changes, said):
    options = {"observations": torch.ones(6), "noise": 0.1, **changes}
    with pytest.raises(ValueError, match=said):
        ExactGP(KERNEL, PointValues(X), options.pop("observations"), **options)


@pytest.mark.parametrize(
    ("points", "jitter", "kind", "said"),
    [
        (torch.ones(3, 1), 0.0, ValueError, r"shape \(m, 2\)"),
        (torch.ones(0, 2), 0.0, ValueError, "at least one point"),
        (torch.ones(3, 2), 1.5, ValueError, "jitter"),
        (torch.ones(3, 2), 0.0, FloatingPointError, "raise jitter"),
    ],
)
def test_unsound_inducing_points_are_refused(points, jitter, kind, said):
    with pytest.raises(kind, match=said):
        SGPR(
            KERNEL, PointValues(X), torch.ones(6), points, noise=0.1, jitter=jitter
        ).log_marginal()
