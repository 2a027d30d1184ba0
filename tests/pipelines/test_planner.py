"""The planner chooses scales from the data alone, and keeps what it is given."""

import numpy as np
import one_cloud
import pytest
import torch

from pipelines.config import FitConfig
from pipelines.plan import RESOLVED
from pipelines.planner import Catalogue, choose_prior, make_plan, mean_density


def view(count=60, seed=2, *, scale=1.0, dust=1.0, sign=1.0):
    rng = np.random.default_rng(seed)
    ends = rng.uniform(*np.array(one_cloud.BOX).T, size=(count, 3))
    noise = rng.normal(scale=0.05, size=count)
    values = sign * one_cloud.extinction(ends) + noise
    return Catalogue(
        positions=ends * scale,
        extinction=values * dust,
        noise=np.full(count, 0.05 * dust),
    )


def config(**sections):
    return FitConfig.model_validate(sections)


def prior_of(catalogue, settings, seed=0):
    return choose_prior(catalogue, settings, torch.Generator().manual_seed(seed))


def plan_of(catalogue, settings):
    return make_plan(
        catalogue,
        settings,
        dtype=torch.float32,
        device=torch.device("cpu"),
        generator=torch.Generator().manual_seed(0),
    )


FIXED = {
    "lengthscale": [90.0, 80.0, 40.0],
    "std": 0.004,
    "mean": "exponential-disc",
    "mean_density": 0.001,
    "scale_height": 120.0,
}


@pytest.mark.parametrize("search", [True, False])
def test_what_the_configuration_gives_is_kept(search):
    prior = prior_of(
        view(),
        config(prior=FIXED, model={"common_noise": 0.01}, inference={"search": search}),
    )
    assert prior.lengthscale == (90.0, 80.0, 40.0)
    assert (prior.std, prior.common_noise) == (0.004, 0.01)
    assert (prior.mean.kind, prior.mean.value) == ("exponential-disc", 0.001)
    assert prior.mean.scale_height == 120.0


def test_parts_that_are_given_are_kept_while_the_rest_is_searched():
    settings = config(prior={"std": 0.004, "lengthscale": [90.0, 90.0, 45.0]})
    prior = prior_of(view(), settings)
    assert prior.std == 0.004 and prior.lengthscale == (90.0, 90.0, 45.0)
    assert prior.mean.value > 0 and prior.common_noise >= 0


def test_without_a_search_scales_are_moments_of_the_data():
    catalogue = view()
    prior = prior_of(
        catalogue, config(inference={"search": False}, prior={"mean": "constant"})
    )
    density = catalogue.extinction.sum() / catalogue.distances.sum()
    assert prior.std == prior.mean.value == pytest.approx(density)
    assert prior.lengthscale[0] == pytest.approx(np.median(catalogue.distances) / 10)


@pytest.mark.parametrize("search", [True, False])
def test_scales_follow_the_unit_of_length_and_the_amount_of_dust(search):
    settings = config(inference={"search": search}, prior={"mean": "constant"})
    plain = prior_of(view(), settings)
    scale, dust = 2.0**-4, 2.0**-9
    other = prior_of(view(scale=scale, dust=dust), settings)
    np.testing.assert_allclose(
        other.lengthscale, scale * np.array(plain.lengthscale), rtol=1e-6
    )
    assert other.std == pytest.approx(plain.std * dust / scale, rel=1e-4)
    assert other.mean.value == pytest.approx(plain.mean.value * dust / scale, rel=1e-4)
    # A noise that the data do not call for may be any number far below the errors.
    assert other.common_noise == pytest.approx(
        plain.common_noise * dust, rel=1e-3, abs=1e-3 * 0.05 * dust
    )


def test_a_negative_mean_is_refused_by_the_model_and_said():
    prior = prior_of(view(sign=-1.0), config(prior={"mean": "constant"}))
    assert prior.mean.kind == "zero" and prior.mean.value == 0.0
    assert any("cannot be negative" in note for note in prior.notes)


def test_mean_density_is_positive_whatever_the_data():
    catalogue = view()
    zero = Catalogue(
        positions=catalogue.positions,
        extinction=np.zeros(60),
        noise=catalogue.noise,
    )
    assert mean_density(zero) > 0
    assert mean_density(catalogue) == pytest.approx(
        catalogue.extinction.sum() / catalogue.distances.sum()
    )


def test_a_zero_mean_has_no_value():
    settings = config(prior={"mean": "zero"}, inference={"search": False})
    assert prior_of(view(), settings).mean.value == 0.0


def test_a_lengthscale_the_grid_cannot_carry_is_raised_and_said():
    settings = config(
        box={"spacing": 200.0}, inference={"search": False}, prior={"mean": "constant"}
    )
    plan, _, _ = plan_of(view(), settings)
    assert plan.lengthscale == (RESOLVED * 200.0,) * 3
    assert any("lengthscale raised" in note for note in plan.notes)
    given = config(box={"spacing": 200.0}, prior=FIXED, model={"common_noise": 0.0})
    plan, _, _ = plan_of(view(), given)
    assert plan.lengthscale == (90.0, 80.0, 40.0)
    assert any("below 1.5" in note for note in plan.notes)


def test_the_torus_contains_the_grid_and_the_engine_svi_has_none_yet():
    settings = {"box": {"spacing": 100.0}, "inference": {"search": False}}
    plan, work, _ = plan_of(view(), config(**settings))
    assert all(n > m for n, m in zip(plan.torus_shape, plan.grid.shape))
    assert work.torus_points == np.prod(plan.torus_shape) and work.stars == 60
    settings["inference"]["engine"] = "svi"
    plan, _, _ = plan_of(view(), config(**settings))
    assert plan.torus_shape == () and plan.engine == "svi"


def test_the_disc_keeps_its_physical_scales_in_any_box():
    settings = config(prior={"mean": "exponential-disc"}, inference={"search": False})
    small = prior_of(view(scale=0.1), settings).mean
    large = prior_of(view(), settings).mean
    assert small.scale_length == large.scale_length > 1000.0
    assert small.scale_height == pytest.approx(0.1 * large.scale_height)
