"""The planner chooses scales from the data alone, and keeps what it is given."""

from dataclasses import replace

import numpy as np
import one_cloud
import pytest
import torch

from dustmap.kernels import KERNELS
from pipelines.config import FitConfig
from pipelines.model.plan import RESOLVED, MeanPlan
from pipelines.planning.planner import (
    Catalogue,
    PriorChoice,
    as_lognormal,
    choose_moments,
    choose_prior,
    make_plan,
    mean_density,
)


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
    """Of a Gaussian density: what the search finds is what the plan has."""
    model = {"density": "gaussian", **sections.pop("model", {})}
    return FitConfig.model_validate({**sections, "model": model})


def positive_config(**sections):
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


MOMENTS = PriorChoice(
    lengthscale=(90.0, 80.0, 40.0),
    std=0.003,
    mean=MeanPlan(kind="exponential-disc", value=0.002, scale_height=150.0),
    common_noise=0.01,
    notes=("as found",),
)


def lognormal_moments(prior):
    """Mean and std of ``m exp(g)`` with median m and ``g ~ N(0, std^2)``."""
    mean = prior.mean.value * np.exp(prior.std**2 / 2)
    return mean, mean * np.sqrt(np.expm1(prior.std**2))


@pytest.mark.parametrize("relative", [0.1, 1.5, 6.0])
def test_a_lognormal_density_has_the_mean_and_variance_that_were_found(relative):
    moments = replace(MOMENTS, std=relative * MOMENTS.mean.value)
    prior = as_lognormal(moments, positive_config(), None)
    mean, std = lognormal_moments(prior)
    assert mean == pytest.approx(moments.mean.value, rel=1e-9)
    assert std == pytest.approx(moments.std, rel=1e-9)
    assert prior.mean.value < moments.mean.value
    assert prior.mean.kind == "exponential-disc" and prior.mean.scale_height == 150.0
    assert prior.notes == ("as found",)


@pytest.mark.parametrize("name", ["matern12", "matern32", "matern52"])
def test_the_logarithm_is_correlated_further_so_that_the_density_is_as_far(name):
    prior = as_lognormal(MOMENTS, positive_config(prior={"kernel": name}), None)
    ratio = np.array(prior.lengthscale) / MOMENTS.lengthscale
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-12)
    # exp of a field forgets faster than the field, the more so the wider it is.
    assert 1.0 < ratio[0] < 2.0
    wide = replace(MOMENTS, std=5 * MOMENTS.std)
    wider = as_lognormal(wide, positive_config(prior={"kernel": name}), None)
    assert wider.lengthscale[0] > prior.lengthscale[0]
    # Half the density's variance is left at the distance at which it was asked for.
    kernel = KERNELS[name](lengthscale=prior.lengthscale[0], variance=prior.std**2)
    linear = KERNELS[name](lengthscale=MOMENTS.lengthscale[0], variance=MOMENTS.std**2)
    r = torch.linspace(0, 400, 801, dtype=torch.float64)
    points = torch.stack([r, 0 * r, 0 * r], dim=1)
    positive = torch.expm1(kernel(points)) / torch.expm1(kernel(points[:1]))
    plain = linear(points) / linear(points[:1])
    apart = [float(r[(c - 0.5).abs().argmin()]) for c in (positive, plain)]
    assert apart[0] == pytest.approx(apart[1], rel=0.25)


def test_a_std_and_a_lengthscale_that_are_given_are_those_of_the_logarithm():
    given = positive_config(prior={"std": 1.2, "lengthscale": [90.0, 80.0, 40.0]})
    prior = as_lognormal(MOMENTS, given, 1.2)
    assert prior.std == pytest.approx(1.2, rel=1e-12)
    assert prior.lengthscale == (90.0, 80.0, 40.0)
    assert lognormal_moments(prior)[0] == pytest.approx(0.002, rel=1e-9)


def test_a_lognormal_fit_learns_its_common_noise_itself_unless_it_is_given():
    assert as_lognormal(MOMENTS, positive_config(), None).common_noise == 0.0
    given = positive_config(model={"common_noise": 0.01})
    assert as_lognormal(MOMENTS, given, None).common_noise == 0.01


def test_the_lognormal_plan_is_that_of_the_moments_of_the_same_search():
    settings = positive_config(prior={"mean": "constant"})
    prior = prior_of(view(), settings)
    generator = torch.Generator().manual_seed(0)
    moments = choose_moments(view(), settings, generator)
    mean, std = lognormal_moments(prior)
    assert mean == pytest.approx(moments.mean.value, rel=1e-9)
    assert std == pytest.approx(moments.std, rel=1e-9)


@pytest.mark.parametrize("search", [True, False])
def test_lognormal_scales_follow_units_but_the_std_of_a_logarithm_has_none(search):
    settings = positive_config(inference={"search": search}, prior={"mean": "constant"})
    plain = prior_of(view(), settings)
    scale, dust = 2.0**-4, 2.0**-9
    other = prior_of(view(scale=scale, dust=dust), settings)
    np.testing.assert_allclose(
        other.lengthscale, scale * np.array(plain.lengthscale), rtol=1e-6
    )
    assert other.std == pytest.approx(plain.std, rel=1e-4)
    assert other.mean.value == pytest.approx(plain.mean.value * dust / scale, rel=1e-4)


def test_a_lognormal_density_gets_a_positive_mean_from_data_that_prefer_none():
    catalogue = view(sign=-1.0)
    prior = prior_of(catalogue, positive_config(prior={"mean": "constant"}))
    assert prior.mean.kind == "constant" and prior.mean.value > 0
    assert lognormal_moments(prior)[0] == pytest.approx(mean_density(catalogue))
    assert any("a lognormal needs one" in note for note in prior.notes)


def test_the_plan_names_density_and_outliers():
    settings = {"box": {"spacing": 100.0}, "inference": {"search": False}}
    plan, _, _ = plan_of(view(), positive_config(**settings))
    assert (plan.density, plan.outliers, plan.degrees) == ("lognormal", True, None)
    settings["model"] = {"density": "gaussian", "outliers": False, "degrees": 5.0}
    plan, _, _ = plan_of(view(), positive_config(**settings))
    assert (plan.density, plan.outliers, plan.degrees) == ("gaussian", False, 5.0)
    settings = {"box": {"spacing": 100.0}, "inference": {"engine": "svi"}}
    plan, _, _ = plan_of(view(), positive_config(**settings))
    assert (plan.density, plan.outliers) == ("gaussian", False)
