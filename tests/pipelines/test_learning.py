"""Scales learnt on catalogues drawn from a field whose scales are known."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from pipelines.planning.learning import (
    learn_plan,
    open_names,
    resolved_std,
    spread_rows,
)

from dustmap.grid import Grid
from dustmap.kernels import KERNELS
from pipelines.config import FitConfig
from pipelines.model.forward import build_model
from pipelines.model.observations import Data, rays
from pipelines.model.plan import MeanPlan, Plan

CPU = torch.device("cpu")
GRID = Grid(shape=(19, 19, 11), spacing=(10.0,) * 3, origin=(-90.0, -90.0, -50.0))
SCALE, ERROR, STARS = 18.0, 0.02, 600
GAUSSIAN = Plan(
    grid=GRID,
    torus_shape=(36, 36, 30),
    kernel="matern32",
    lengthscale=(SCALE,) * 3,
    std=0.01,
    mean=MeanPlan(kind="constant", value=0.02),
    common_noise=0.0,
)
LOGNORMAL = replace(
    GAUSSIAN, density="lognormal", std=0.8, mean=MeanPlan(kind="constant", value=0.01)
)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def drawn(truth, count=STARS, seed=1):
    """Stars evenly in the box around a field of the truth's own prior."""
    generator = seeded(seed)
    low, high = (torch.tensor(corner) for corner in (GRID.lower, GRID.upper))
    uniform = torch.rand(count, 3, generator=generator, dtype=torch.float64)
    ends = low + (high - low) * uniform
    # On a finer grid than the plan's, which interpolates hardly.
    fine = Grid(shape=(46, 46, 26), spacing=(4.0,) * 3, origin=GRID.origin)
    truth = replace(truth, grid=fine, torus_shape=(72, 72, 54))
    model = build_model(
        truth, rays(truth, ends), dtype=torch.float64, device=CPU, generator=generator
    )
    white = torch.randn(model.latent_size, generator=generator, dtype=torch.float64)
    # What the grid cannot resolve is there, too, as the model says.
    seen = model.linearise(white)
    noise = torch.randn(count, generator=generator, dtype=torch.float64)
    variance = ERROR**2 + seen.variance
    return Data(
        ends=ends,
        extinction=seen.prediction + variance.sqrt() * noise,
        variance=variance,
    )


def config(prior=None, **sections):
    density = sections.pop("density", "gaussian")
    common = sections.pop("common_noise", 0.0)
    inference = {"dtype": "float64", **sections}
    return FitConfig.model_validate(
        {
            "prior": {"mean": "constant", **(prior or {})},
            "model": {"density": density, "common_noise": common},
            "inference": inference,
        }
    )


def learnt(plan, data, settings, seed=0, **options):
    return learn_plan(
        plan,
        data,
        settings,
        generator=seeded(seed),
        **{"on_step": lambda *_: None, **options},
    )


@pytest.fixture(scope="module")
def gaussian_data():
    return drawn(GAUSSIAN)


@pytest.fixture(scope="module")
def gaussian_start():
    """Scales off by a factor of 1.5 to 2."""
    return replace(
        GAUSSIAN,
        lengthscale=(27.0,) * 3,
        std=0.015,
        mean=MeanPlan(kind="constant", value=0.012),
    )


@pytest.fixture(scope="module")
def gaussian(gaussian_data, gaussian_start):
    found = learnt(gaussian_start, gaussian_data, config())
    assert found is not None
    return found


def test_open_names_are_what_the_configuration_leaves_and_the_mean_has():
    free = FitConfig()
    constant, disc = (
        GAUSSIAN,
        replace(
            GAUSSIAN,
            mean=MeanPlan(kind="exponential-disc", value=0.02, scale_height=50.0),
        ),
    )
    zero = replace(GAUSSIAN, mean=MeanPlan(kind="zero"))
    assert set(open_names(constant, free)) >= {"lengthscale", "variance", "mean"}
    assert "scale_height" not in open_names(constant, free)
    assert "scale_height" in open_names(disc, free)
    assert "mean" not in open_names(zero, free)
    assert "common_noise" in open_names(
        constant, FitConfig.model_validate({"model": {"density": "gaussian"}})
    )
    for key, name in (
        ("lengthscale", "lengthscale"),
        ("std", "variance"),
        ("mean_density", "mean"),
        ("scale_height", "scale_height"),
    ):
        given = FitConfig.model_validate({"prior": {key: 30.0}})
        assert set(open_names(disc, free)) - set(open_names(disc, given)) == {name}


@pytest.mark.parametrize("why", ["all given", "learn = false", "engine svi", "few"])
def test_nothing_is_learnt_where_nothing_is_open(gaussian_data, why):
    everything = {"lengthscale": 30.0, "std": 0.01, "mean_density": 0.02}
    plan, settings = GAUSSIAN, config()
    if why == "all given":
        settings = config(everything)
    elif why == "learn = false":
        settings = config(learn=False)
    elif why == "engine svi":
        plan = replace(GAUSSIAN, engine="svi")
    else:
        gaussian_data = gaussian_data.select(torch.arange(100))
    assert learnt(plan, gaussian_data, settings) is None


def test_scales_of_a_gaussian_field_are_found(gaussian):
    plan, errors = gaussian.plan, gaussian.facts["errors"]
    assert gaussian.facts["converged"] and gaussian.facts["stars"] == STARS
    assert plan.lengthscale == (plan.lengthscale[0],) * 3
    assert 0 < errors["lengthscale"] < 0.5 and 0 < errors["variance"] < 1.0
    assert abs(math.log(plan.lengthscale[0] / SCALE)) < 2.5 * errors["lengthscale"]
    assert abs(2 * math.log(plan.std / 0.01)) < 2.5 * errors["variance"]
    assert abs(math.log(plan.mean.value / 0.02)) < 2.5 * errors["mean"]


def test_scales_of_a_lognormal_field_are_found():
    start = replace(
        LOGNORMAL,
        lengthscale=(27.0,) * 3,
        std=1.0,
        mean=MeanPlan(kind="constant", value=0.006),
    )
    settings = config(density="lognormal", common_noise=None)
    found = learnt(start, drawn(LOGNORMAL), settings)
    assert found is not None and found.facts["converged"]
    plan, errors = found.plan, found.facts["errors"]
    assert abs(math.log(plan.lengthscale[0] / SCALE)) < 2.5 * errors["lengthscale"]
    relative = [math.expm1(std**2) for std in (plan.std, LOGNORMAL.std)]
    assert abs(math.log(relative[0] / relative[1])) < 2.5 * errors["variance"]
    density = [p.mean.value * math.exp(p.std**2 / 2) for p in (plan, LOGNORMAL)]
    assert abs(math.log(density[0] / density[1])) < 2.5 * errors["mean"]
    # Of a lognormal density the common noise is learnt in the fit.
    assert plan.common_noise == 0.0


def test_the_torus_is_padded_for_the_scale_that_was_learnt(gaussian, gaussian_start):
    assert all(n >= m for n, m in zip(gaussian.plan.torus_shape, GRID.shape))
    assert gaussian.plan.torus_shape != gaussian_start.torus_shape
    kept = ("grid", "kernel", "density", "outliers", "engine", "ray_step")
    for name in kept:
        assert getattr(gaussian.plan, name) == getattr(gaussian_start, name)


def test_the_same_seed_learns_the_same_and_another_nearly(
    gaussian, gaussian_data, gaussian_start
):
    again = learnt(gaussian_start, gaussian_data, config())
    other = learnt(gaussian_start, gaussian_data, config(), seed=1)
    assert again is not None and other is not None
    assert again.plan == gaussian.plan
    assert other.plan.std != gaussian.plan.std
    assert other.plan.std == pytest.approx(gaussian.plan.std, rel=0.3)


@pytest.mark.parametrize(
    ("key", "value"), [("lengthscale", 27.0), ("std", 0.015), ("mean_density", 0.012)]
)
def test_a_value_that_is_given_is_never_changed(
    gaussian_data, gaussian_start, key, value
):
    found = learnt(gaussian_start, gaussian_data, config({key: value}))
    assert found is not None
    before, after = gaussian_start, found.plan
    changed = {
        "lengthscale": before.lengthscale != after.lengthscale,
        "std": before.std != after.std,
        "mean_density": before.mean.value != after.mean.value,
    }
    assert changed == {name: name != key for name in changed}
    assert after.common_noise == 0.0


def test_a_lognormal_field_keeps_the_mean_density_that_is_given():
    start = replace(LOGNORMAL, std=1.2)
    given = LOGNORMAL.mean.value * math.exp(1.2**2 / 2)
    settings = config({"mean_density": given}, density="lognormal")
    found = learnt(start, drawn(LOGNORMAL, 400), settings)
    assert found is not None and found.plan.std != 1.2
    density = found.plan.mean.value * math.exp(found.plan.std**2 / 2)
    assert density == pytest.approx(given, rel=1e-9)


def test_a_lengthscale_below_the_grids_is_raised_and_said(gaussian_data):
    coarse = Grid(shape=(5, 5, 3), spacing=(30.0,) * 3, origin=(-60.0, -60.0, -30.0))
    start = replace(GAUSSIAN, grid=coarse, lengthscale=(45.0,) * 3)
    found = learnt(start, gaussian_data, config())
    assert found is not None
    assert found.plan.lengthscale[0] >= 45.0
    raised = any("lengthscale raised" in note for note in found.notes)
    assert raised == (found.plan.lengthscale == (45.0,) * 3)
    np.testing.assert_array_equal(found.plan.notes[-len(found.notes) :], found.notes)


def test_as_many_stars_come_from_everywhere_as_there_are():
    crowd = torch.randn(3000, 3, generator=seeded(0), dtype=torch.float64)
    few = 1000 * torch.rand(300, 3, generator=seeded(1), dtype=torch.float64)
    ends = torch.cat([crowd, few])
    chosen = spread_rows(ends, 400, seeded(2))
    assert len(chosen) == len(set(chosen.tolist())) == 400
    # The crowd fills a cell or eight of the grid over all.
    assert int((chosen >= 3000).sum()) > 290
    assert sorted(spread_rows(ends, 5000, seeded(2)).tolist()) == list(range(3300))


def test_noise_that_no_error_states_is_not_taken_for_structure(gaussian_start):
    data = drawn(GAUSSIAN)
    white = torch.randn(STARS, generator=seeded(7), dtype=torch.float64)
    noisy = replace(data, extinction=data.extinction + 0.05 * white)
    found = learnt(gaussian_start, noisy, config(common_noise=None))
    assert found is not None
    error = found.facts["errors"]["common_noise"]
    assert abs(2 * math.log(found.plan.common_noise / 0.05)) < 2.5 * error < 2.5


def test_a_raised_lengthscale_keeps_the_variance_of_a_cells_mean_density():
    coarse = Grid(shape=(5, 5, 5), spacing=(30.0,) * 3, origin=(-60.0,) * 3)
    plan = replace(LOGNORMAL, grid=coarse)
    std = resolved_std(1.5, [15.0] * 3, (45.0,) * 3, plan)
    # Simulated: pairs of points of a cell, and the covariance of their densities.
    pairs = 30 * torch.rand(2, 400_000, 3, generator=seeded(0), dtype=torch.float64)
    apart = pairs[0] - pairs[1]

    def variance(std, scale):
        kernel = KERNELS[plan.kernel](lengthscale=[scale] * 3, variance=std**2)
        return float(kernel(apart).expm1().mean())

    assert 0.3 < std < 1.5
    assert variance(std, 45.0) == pytest.approx(variance(1.5, 15.0), rel=0.02)
    assert resolved_std(1.5, [45.0] * 3, (45.0,) * 3, plan) == 1.5
