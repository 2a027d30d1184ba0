"""The independent share of the unresolved variance."""

from __future__ import annotations

import math

import dense_torus
import numpy as np
import pytest
import torch

from dustmap.functionals import PointValues, Stack
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.linalg.cg import ConjugateGradients
from dustmap.noise import Normal, StudentT, learn_share


def rng(seed=1):
    return torch.Generator().manual_seed(seed)


def normal(count, seed=1):
    return torch.randn(count, generator=rng(seed), dtype=torch.float64)


@pytest.mark.parametrize("share", [0.05, 0.4, 1.0, 4.0])
@pytest.mark.parametrize("degrees", [None, 5.0])
def test_the_share_that_residuals_were_drawn_with_is_found(share, degrees):
    count = 8_000
    rest = 0.5 + torch.rand(count, generator=rng(3), dtype=torch.float64)
    variance = 5 * torch.rand(count, generator=rng(4), dtype=torch.float64) ** 2
    noise = normal(count)
    if degrees is not None:
        chi2 = sum(normal(count, seed) ** 2 for seed in range(10, 15))
        noise = noise / (chi2 / degrees).sqrt()
    residual = (rest + share * variance).sqrt() * noise
    found = learn_share(residual, rest, variance, degrees, learn_common=True)[0]
    # An eighth of an octave between shares, and their own error.
    assert abs(math.log(found / share)) < (0.15 if share > 0.1 else 0.7)


def test_without_data_that_tell_the_share_is_one():
    rest = torch.ones(30, dtype=torch.float64)
    for r, variance in [(normal(30), 1e-6 * rest), (normal(0), rest[:0])]:
        found = learn_share(r, rest[: len(r)], variance, None, learn_common=False)
        assert found[:2] == (1.0, 0.0)


@pytest.mark.parametrize("common", [0.0, 0.3, 2.0])
def test_a_common_variance_is_told_from_the_share(common):
    count = 20_000
    rest = 0.2 + torch.rand(count, generator=rng(3), dtype=torch.float64)
    variance = 5 * torch.rand(count, generator=rng(4), dtype=torch.float64) ** 2
    residual = (rest + common + 0.4 * variance).sqrt() * normal(count)
    found = learn_share(residual, rest, variance, None, learn_common=True)
    assert abs(math.log(found[0] / 0.4)) < 0.2
    assert abs(found[1] - common) < 0.05 + 0.25 * common
    assert learn_share(residual, rest, variance, None, learn_common=False)[1] == 0.0


@pytest.mark.parametrize(
    ("share", "at_edge"), [(2.0**-12, True), (0.5, False), (40, True)]
)
def test_a_share_at_the_edge_of_those_tried_is_said_to_be(share, at_edge):
    variance = torch.full((20_000,), 3.0, dtype=torch.float64)
    residual = (share * variance).sqrt() * normal(20_000)
    found = learn_share(residual, 1e-9 * variance, variance, None, learn_common=False)
    assert found[2] == at_edge


def held_out_of(count, seed=1):
    noise = Normal(stated=torch.ones(count), learn_share=True)
    return noise.prepared(noise.stated, 1.0, rng(seed)).held_out


def test_a_tenth_is_held_out_and_never_more_than_two_thousand():
    held_out = held_out_of(500)
    assert held_out.dtype == torch.bool and int(held_out.sum()) == 50
    assert int(held_out_of(100_000).sum()) == 2_000
    assert not torch.equal(held_out, held_out_of(500, 2))
    assert torch.equal(held_out, held_out_of(500))


def test_held_out_observations_have_no_influence():
    noise = Normal(stated=torch.full((40,), 0.01), learn_share=True)
    noise = noise.prepared(noise.stated, 1.0, rng())
    unresolved, held_out = torch.full((40,), 0.02), noise.held_out
    after = noise.given_unresolved(unresolved).variance
    before = noise.including_all().given_unresolved(unresolved).variance
    assert torch.equal(after[~held_out], before[~held_out])
    assert bool((after[held_out] > 1e11 * before[held_out]).all())


def test_a_share_scales_the_variance_of_lines_and_of_nothing_else():
    rays = dense_torus.log_normal(1.0, 12)
    points = PointValues(dense_torus.inside(2, 5, 7))
    model = rays.at(Stack([rays.functionals, points]))
    eps = normal(model.latent_size)
    whole, part = model.linearise(eps), model.with_subgrid_share(0.3).linearise(eps)
    torch.testing.assert_close(part.variance[:12], 0.3 * whole.variance[:12])
    assert torch.equal(part.variance[12:], whole.variance[12:])
    assert torch.equal(part.prediction, whole.prediction)
    assert model.with_subgrid_share(0.3).at(points).subgrid_share == 0.3
    assert model.subgrid_share == 1.0


def fitted(seed, factor, **options):
    """A fit to data whose unresolved parts have so many times their variance."""
    model = dense_torus.log_normal(1.5, 1200, seed=20 + seed)
    generator = rng(100 + seed)
    eps = model.white_noise(np.random.default_rng(seed))
    clean = model.apply(eps)
    local = model.with_subgrid_share(factor).residual_draws(eps[None], generator)[0]
    sigma = 0.01 * float(clean.mean())
    y = clean + local + sigma * normal(len(clean), seed)
    kind = StudentT if options else Normal
    noise = kind(stated=torch.full_like(y, sigma**2), learn_share=True, **options)
    settings = FullBatch(solver=ConjugateGradients(rtol=1e-5, max_steps=500), samples=8)
    return infer(model, y, noise, settings=settings, generator=rng(seed))


@pytest.mark.parametrize("factor", [0.2, 3.0])
def test_a_fit_finds_the_share_of_its_data(factor):
    result = fitted(0, factor)
    assert abs(math.log(result.subgrid_share / factor)) < math.log(1.5)
    assert result.share_settled


def test_a_share_beyond_those_tried_has_not_settled():
    result = fitted(0, 100.0)
    assert result.subgrid_share == 8.0 and not result.share_settled


@pytest.mark.parametrize(
    "options", [{"samples": 0}, {"subgrid_noise": False}, {"count": 299}]
)
def test_where_no_share_can_be_learnt_the_common_noise_is(options):
    options = dict(options)
    model = dense_torus.log_normal(1.0, options.pop("count", 400), seed=5)
    eps = model.white_noise(np.random.default_rng(1))
    clean = model.apply(eps)
    sigma = 0.03 * float(clean.mean())
    y = clean + 3 * sigma * normal(len(clean), 3)
    noise = Normal(
        stated=torch.full_like(y, sigma**2), learn_share=True, learn_common=True
    )
    settings = FullBatch(
        **{"solver": ConjugateGradients(rtol=1e-6), "samples": 4, **options}
    )
    result = infer(model, y, noise, settings=settings, generator=rng(1))
    assert result.subgrid_share == 1.0
    # 8 σ², less what passes for unresolved.
    assert 0.0 < result.common_noise < 14 * sigma**2
    assert float(result.noise_variance.max()) < 1.0


def test_a_linear_model_holds_nothing_out():
    rays = dense_torus.log_normal(1.0, 400).functionals
    model = dense_torus.model("matern52", 2, rays)
    y = normal(400)
    noise = Normal(stated=torch.full_like(y, 0.1), learn_share=True)
    result = infer(model, y, noise, settings=FullBatch(samples=4), generator=rng(1))
    assert float(result.noise_variance.max()) < 10.0


def test_held_out_stars_are_no_outliers():
    result = fitted(1, 1.0, degrees=4.0)
    # Normal data: nobody is one, and held-out ones are not either.
    held_out = held_out_of(1200)
    weights = result.weights
    assert float(weights[held_out].mean()) > 0.9 * float(weights[~held_out].mean())


def test_a_share_that_is_no_number_is_refused():
    model = dense_torus.log_normal(1.0, 5)
    for share in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="positive"):
            model.with_subgrid_share(share)
