"""The search for hyperparameters, and the places of inducing points."""

import numpy as np
import pytest
import torch

from dustmap.functionals import PointValues
from dustmap.gp.evidence import LBFGS, maximise
from dustmap.gp.exact import ExactGP
from dustmap.gp.inducing import kmeans_points
from dustmap.gp.sgpr import SGPR
from dustmap.kernels import Matern32, SquaredExponential

TRUTH = Matern32(lengthscale=(0.5, 2.0), variance=2.0)
NOISE, MEAN = 0.05, 5.0


@pytest.fixture(scope="module")
def data():
    """A draw of the model at 300 places."""
    generator = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(300, 2, generator=generator, dtype=torch.float64)
    K = TRUTH(x[:, None] - x[None]) + NOISE * torch.eye(300)
    white = torch.randn(300, generator=generator, dtype=torch.float64)
    return PointValues(x), MEAN + torch.linalg.cholesky(K) @ white


def start(data, scale=1.0, factor=1.0):
    kernel = Matern32(lengthscale=(scale, scale), variance=factor**2)
    return ExactGP(kernel, data[0], factor * data[1], noise=0.3 * factor**2)


def test_a_draw_gives_its_hyperparameters_back(data):
    found = maximise(start(data))
    values = found.model.parameters()
    assert found.converged
    assert found.at_bounds == ()
    np.testing.assert_allclose(values["lengthscale"], (0.5, 2.0), rtol=0.35)
    assert float(values["noise"]) == pytest.approx(NOISE, rel=0.3)
    assert float(values["mean"]) == pytest.approx(MEAN, abs=1.5)
    truth = found.model.with_parameters({"lengthscale": TRUTH.lengthscale})
    assert found.log_marginal == found.model.log_marginal() > truth.log_marginal()


def test_the_unit_of_the_data_does_not_matter(data):
    plain, huge = (maximise(start(data, factor=f)) for f in (1.0, 1e6))
    a, b = (f.model.parameters()["lengthscale"] for f in (plain, huge))
    np.testing.assert_allclose(a, b, rtol=1e-2)
    shift = 300 * np.log(1e6)
    assert huge.log_marginal == pytest.approx(plain.log_marginal - shift, abs=0.01)


def test_only_what_is_named_is_learnt(data):
    before = start(data)
    after = maximise(before, LBFGS(names=("noise",))).model.parameters()
    for name, value in before.parameters().items():
        assert bool((after[name] == value).all()) == (name != "noise")


def test_what_stops_the_search_is_said(data):
    short = maximise(start(data), LBFGS(max_steps=1))
    assert not short.converged
    assert "ITERATIONS" in short.message.upper()
    narrow = maximise(start(data), LBFGS(reach=0.1))
    assert set(narrow.at_bounds) >= {"lengthscale", "noise"}
    with pytest.raises(ValueError, match="cannot learn wavelength: there are"):
        maximise(start(data), LBFGS(names=("wavelength",)))


def test_the_search_stays_within_a_range_by_axis(data):
    ends = torch.tensor([[0.8, 0.01], [9.0, 1.5]], dtype=torch.float64)
    found = maximise(start(data), LBFGS(ranges={"lengthscale": tuple(ends)}))
    scales = found.model.parameters()["lengthscale"]
    np.testing.assert_allclose(scales, (0.8, 1.5), rtol=1e-6)
    assert found.at_bounds == ("lengthscale",) and found.converged
    with pytest.raises(ValueError, match="out of its range"):
        maximise(start(data), LBFGS(ranges={"lengthscale": tuple(2 * ends)}))


def test_a_short_reach_does_not_pass_for_a_flat_top(data):
    settings = LBFGS(gradient_tolerance=1.0, reach=1.0)
    near = maximise(start(data), settings)
    assert near.steps > 2
    assert near.log_marginal > start(data).log_marginal() + 30


def test_a_missing_factor_is_counted_and_survived():
    # Of a smooth kernel without a nugget only a short lengthscale has a factor.
    x = torch.linspace(0, 1, 40, dtype=torch.float64)[:, None]
    kernel = SquaredExponential(lengthscale=0.02)
    model = SGPR(kernel, PointValues(x), x[:, 0], x, noise=1e-4, jitter=0.0)
    found = maximise(model, LBFGS(max_steps=10, reach=30.0))
    assert found.failures > 0
    assert found.log_marginal > model.log_marginal()


def test_only_a_missing_factor_is_survived(data, monkeypatch):
    def fail(self):
        raise ValueError("a shape that does not fit")

    monkeypatch.setattr(type(start(data)), "value_and_gradient", fail)
    with pytest.raises(ValueError, match="a shape that does not fit"):
        maximise(start(data))


def squares(x, centres):
    return float((torch.cdist(x, centres).min(dim=1).values ** 2).mean())


def test_centres_are_nearer_than_random_rows():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2000, 3, generator=generator, dtype=torch.float64)
    centres = kmeans_points(x, 20, generator)
    assert centres.shape == (20, 3)
    assert squares(x, centres) < 0.75 * squares(x, x[:20])
    again = [
        kmeans_points(x, 20, torch.Generator().manual_seed(7), rows=500)
        for _ in range(2)
    ]
    assert torch.equal(*again)


def test_few_distinct_positions_are_all_taken():
    x = torch.tensor([[0.0], [1.0], [1.0], [2.0]], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    assert kmeans_points(x, 9, generator).tolist() == [[0.0], [1.0], [2.0]]
    with pytest.raises(ValueError, match="at least one position"):
        kmeans_points(x[:0], 3, generator)


def test_clusters_without_members_do_no_harm():
    generator = torch.Generator().manual_seed(0)
    clumps = torch.arange(3.0, dtype=torch.float64).repeat(100)[:, None]
    x = clumps + 1e-9 * torch.randn(300, 1, generator=generator, dtype=torch.float64)
    centres = kmeans_points(x, 50, generator)
    assert len(centres) == 50
    assert bool(centres.isfinite().all())
