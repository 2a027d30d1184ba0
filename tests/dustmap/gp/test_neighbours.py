"""Prediction from nearest rows against dense algebra, and the score's gradient."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from dustmap.functionals import Derivatives, PointValues
from dustmap.gp.evidence import LBFGS, maximise
from dustmap.gp.exact import ExactGP
from dustmap.gp.neighbours import NeighbourGP
from dustmap.kernels import Matern12, Matern32, Matern52, SquaredExponential
from tests.reference import Covariance, exact_posterior

SCALES, VARIANCE, NOISE, MEAN = (0.7, 1.3), 1.7, 0.08, 0.9
KERNEL = Matern52(lengthscale=SCALES, variance=VARIANCE)
DENSE = Covariance(name="matern52", lengthscale=SCALES, variance=VARIANCE)


def drawn(count, seed=0, axes=2):
    """Places in a box, and values with structure and noise."""
    generator = torch.Generator().manual_seed(seed)
    x = 3 * torch.rand(count, axes, generator=generator, dtype=torch.float64)
    white = torch.randn(count, generator=generator, dtype=torch.float64)
    return x, 1 + torch.sin(2 * x[:, 0]) * x[:, 1] + 0.3 * white


def neighbours(x, y, count, kernel=KERNEL, **changes):
    options = {"noise": NOISE, "mean": MEAN, "jitter": 0.0}
    options |= {"scored": torch.arange(len(x)), **changes}
    return NeighbourGP(kernel, PointValues(x), y, count=count, **options)


def known_noise(count):
    return torch.linspace(0.0, 0.2, count, dtype=torch.float64)


def test_all_rows_as_neighbours_are_the_exact_posterior():
    x, y = drawn(60)
    there, known = PointValues(drawn(15, seed=1)[0]), known_noise(60)
    found = neighbours(x, y, 60, known_noise=known).predict(there)
    exact = ExactGP(
        KERNEL, PointValues(x), y, noise=NOISE, mean=MEAN, known_noise=known
    ).predict(there)
    assert_allclose(found.mean, exact.mean, rtol=1e-8)
    assert_allclose(found.variance, exact.variance, rtol=1e-8)


def test_few_neighbours_are_the_dense_posterior_of_these():
    x, y = drawn(80)
    places = drawn(6, seed=1)[0]
    found = neighbours(x, y, 9).predict(PointValues(places))
    for n, place in enumerate(places):
        scaled = ((x - place) / torch.tensor(SCALES)).norm(dim=1)
        near = scaled.argsort()[:9]
        rows, at = x[near].numpy(), place[None].numpy()
        mean, covariance = exact_posterior(
            DENSE.matrix(rows, rows),
            DENSE.matrix(at, rows),
            DENSE.matrix(at, at),
            y[near].numpy() - MEAN,
            np.full(9, NOISE),
        )
        assert_allclose(found.mean[n], MEAN + mean[0], rtol=1e-9)
        assert_allclose(found.variance[n], covariance[0, 0], rtol=1e-9)


def test_the_score_from_all_other_rows_is_leave_one_out():
    """Rasmussen & Williams 2006, eq. 5.10 to 5.12."""
    x, y = drawn(40)
    A = DENSE.matrix(x.numpy(), x.numpy()) + NOISE * np.eye(40)
    inverse, residual = np.linalg.inv(A), y.numpy() - MEAN
    variance = 1 / np.diag(inverse)
    error = (inverse @ residual) * variance
    expected = -0.5 * (error**2 / variance + np.log(2 * np.pi * variance))
    model = neighbours(x, y, 39)
    assert_allclose(model.log_scores(), expected, rtol=1e-8)
    assert model.log_marginal() == pytest.approx(expected.sum(), rel=1e-10)


@pytest.mark.parametrize("kind", [Matern12, Matern32, Matern52, SquaredExponential])
def test_the_gradient_is_that_of_finite_differences(kind):
    x, y = drawn(70)
    kernel = kind(lengthscale=SCALES, variance=VARIANCE)
    scored = torch.tensor([3, 60, 8, 41, 22])
    model = neighbours(
        *(x, y, 12, kernel), scored=scored, known_noise=known_noise(70), jitter=0.01
    )
    value, gradient = model.value_and_gradient()
    assert value == pytest.approx(model.log_marginal(), rel=1e-12)
    for name, parameter in model.parameters().items():
        for place in range(parameter.numel()):
            step = torch.zeros(parameter.numel(), dtype=torch.float64)
            step[place] = 1e-5 * float(parameter.reshape(-1)[place])
            step = step.reshape(parameter.shape)
            up, down = (
                model.with_parameters({name: parameter + s}).log_marginal()
                for s in (step, -step)
            )
            slope = (up - down) / (2 * float(step.sum()))
            found = float(gradient[name].reshape(-1)[place])
            assert found == pytest.approx(slope, rel=1e-5, abs=1e-6)


def test_blocks_do_not_change_the_score(monkeypatch):
    model = neighbours(*drawn(50), 7)
    value, gradient = model.value_and_gradient()
    monkeypatch.setattr("dustmap.gp.neighbours.rows_within", lambda *_: 3)
    again, parts = model.value_and_gradient()
    assert again == pytest.approx(value, rel=1e-12)
    for name, whole in gradient.items():
        assert_allclose(parts[name], whole, rtol=1e-9, atol=1e-10)


def test_the_search_finds_the_scales_of_a_draw():
    x, _ = drawn(600, axes=2)
    generator = torch.Generator().manual_seed(5)
    white = torch.randn(2, 600, generator=generator, dtype=torch.float64)
    K = KERNEL(x[:, None] - x)
    eye = torch.eye(600, dtype=torch.float64)
    y = torch.linalg.cholesky(K + 1e-10 * eye) @ white[0] + NOISE**0.5 * white[1]
    start = Matern52(lengthscale=(2.0, 2.0), variance=0.5)
    model = neighbours(
        *(x, y, 15, start), noise=0.5, mean=0.0, scored=torch.arange(300)
    )
    found = maximise(model, LBFGS(gradient_tolerance=1.0))
    values = found.model.parameters()
    assert found.converged
    assert float(values["noise"]) == pytest.approx(NOISE, rel=0.2)
    ratio = values["lengthscale"][1] / values["lengthscale"][0]
    assert float(ratio) == pytest.approx(SCALES[1] / SCALES[0], rel=0.3)


def test_neighbours_are_renewed_when_an_axis_is_stretched():
    model = neighbours(*drawn(100), 5)
    alike = model.with_parameters({"lengthscale": 3 * model.kernel.lengthscale})
    assert alike.renewed().index is model.index
    assert torch.equal(alike.renewed().near, model.near)
    other = torch.tensor([7.0, 0.1], dtype=torch.float64)
    stretched = model.with_parameters({"lengthscale": other})
    assert torch.equal(stretched.near, model.near)
    expected = neighbours(*drawn(100), 5, Matern52(lengthscale=other)).near
    assert torch.equal(stretched.renewed().near, expected)
    assert not torch.equal(expected, model.near)


def test_rows_at_one_place_without_noise_have_a_factor_by_the_jitter():
    x, y = drawn(30)
    x[1:4] = x[0]
    bare = neighbours(x, y, 12, noise=1e-30)
    with pytest.raises(FloatingPointError, match="not positive definite"):
        bare.log_marginal()
    assert np.isfinite(bare.renewed(jitter=1e-10).log_marginal())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"count": 0}, "at least one neighbour"),
        ({"jitter": 1.0}, r"jitter in \[0, 1\)"),
    ],
)
def test_what_neighbours_cannot_do_is_refused(changes, said):
    x, y = drawn(20)
    with pytest.raises(ValueError, match=said):
        neighbours(x, y, **{"count": 5, **changes})


def test_derivatives_are_refused_as_rows_and_as_places():
    x, y = drawn(20)
    slopes = Derivatives(x, 0)
    with pytest.raises(ValueError, match="values at points, got Derivatives"):
        NeighbourGP(KERNEL, slopes, y, noise=1.0, count=3, scored=torch.arange(20))
    with pytest.raises(ValueError, match="values at points, got Derivatives"):
        neighbours(x, y, 5).predict(slopes)
