"""Scales learnt on catalogues drawn from a field whose scales are known."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dustmap.grid import Grid
from pipelines.config import FitConfig
from pipelines.model.forward import build_model
from pipelines.model.observations import Data, rays
from pipelines.model.plan import MeanPlan, Plan
from pipelines.planning.learning import learn_plan, open_names

CPU = torch.device("cpu")
GRID = Grid(shape=(13, 13, 7), spacing=(10.0,) * 3, origin=(-60.0, -60.0, -30.0))
SCALE, ERROR, STARS = 18.0, 0.05, 400
GAUSSIAN = Plan(
    grid=GRID,
    torus_shape=(32, 32, 24),
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
    model = build_model(
        truth, rays(truth, ends), dtype=torch.float64, device=CPU, generator=generator
    )
    white = torch.randn(model.latent_size, generator=generator, dtype=torch.float64)
    # What the grid cannot resolve is there, too, as the model says.
    seen = model.linearise(white)
    noise = torch.randn(count, generator=generator, dtype=torch.float64)
    return Data(
        ends=ends,
        extinction=seen.prediction + (ERROR**2 + seen.variance).sqrt() * noise,
        variance=torch.full((count,), ERROR**2, dtype=torch.float64),
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
        dtype=torch.float64,
        device=CPU,
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


@pytest.mark.parametrize("why", ["all given", "learn = false", "engine svi"])
def test_nothing_is_learnt_where_nothing_is_open(gaussian_data, why):
    everything = {"lengthscale": 30.0, "std": 0.01, "mean_density": 0.02}
    plan, settings = GAUSSIAN, config()
    if why == "all given":
        settings = config(everything)
    elif why == "learn = false":
        settings = config(learn=False)
    else:
        plan = replace(GAUSSIAN, engine="svi")
    assert learnt(plan, gaussian_data, settings) is None


def test_scales_of_a_gaussian_field_are_found(gaussian):
    plan, errors = gaussian.plan, gaussian.facts["errors"]
    assert gaussian.facts["converged"] and gaussian.facts["stars"] == STARS
    assert plan.lengthscale == (plan.lengthscale[0],) * 3
    # A step that gains less than a nat is not taken: a standard error or two.
    assert 0 < errors["lengthscale"] < 0.3 and 0 < errors["variance"] < 0.6
    assert abs(math.log(plan.lengthscale[0] / SCALE)) < 2.5 * errors["lengthscale"]
    assert abs(2 * math.log(plan.std / 0.01)) < 2.5 * errors["variance"]
    # The mean of a box a few lengthscales wide is told to that of the field in it.
    assert plan.mean.value == pytest.approx(0.02, rel=0.3)


def test_scales_of_a_lognormal_field_are_found():
    start = replace(
        LOGNORMAL,
        lengthscale=(27.0,) * 3,
        std=1.0,
        mean=MeanPlan(kind="constant", value=0.006),
    )
    found = learnt(start, drawn(LOGNORMAL), config(density="lognormal"))
    assert found is not None and found.facts["converged"]
    plan, errors = found.plan, found.facts["errors"]
    assert abs(math.log(plan.lengthscale[0] / SCALE)) < 2.5 * errors["lengthscale"]
    relative = [math.expm1(std**2) for std in (plan.std, LOGNORMAL.std)]
    assert abs(math.log(relative[0] / relative[1])) < 2.5 * errors["variance"]
    density = [p.mean.value * math.exp(p.std**2 / 2) for p in (plan, LOGNORMAL)]
    assert abs(math.log(density[0] / density[1])) < 2.5 * errors["mean"]
    # The errors themselves say something.
    assert errors["lengthscale"] < 0.2 and errors["mean"] < 0.4


def test_scales_are_the_fields_even_if_the_fit_leaves_the_subgrid_noise_out(
    gaussian, gaussian_data, gaussian_start
):
    settings = config()
    model = settings.model.model_copy(update={"subgrid_noise": False})
    settings = settings.model_copy(update={"model": model})
    start = replace(gaussian_start, subgrid_noise=False)
    found = learnt(start, gaussian_data, settings)
    assert found is not None
    assert not found.plan.subgrid_noise
    assert replace(found.plan, subgrid_noise=True) == gaussian.plan


def test_stars_that_are_far_off_do_not_make_the_field_rough(
    gaussian, gaussian_data, gaussian_start
):
    off = torch.zeros(STARS, dtype=torch.float64)
    off[::40] = 1.5
    spoilt = replace(gaussian_data, extinction=gaussian_data.extinction + off)
    seen = []
    found = learnt(
        replace(gaussian_start, outliers=True),
        spoilt,
        config(),
        on_step=lambda stage, *_: seen.append(stage),
    )
    assert found is not None and "scales misfit" in seen
    assert found.plan.std == pytest.approx(gaussian.plan.std, rel=0.25)
    assert found.plan.lengthscale[0] == pytest.approx(
        gaussian.plan.lengthscale[0], rel=0.25
    )


def test_learning_stops_by_its_time_after_a_step_and_says_so(
    gaussian, gaussian_data, gaussian_start
):
    now = [0.0]

    def clock():
        """Every look takes a minute, of the 10 that the budget has."""
        now[0] += 60.0
        return now[0]

    found = learnt(gaussian_start, gaussian_data, config(), clock=clock)
    assert found is not None
    assert found.facts["status"] == "stopped by its time"
    assert not found.facts["converged"] and found.facts["steps"] == 2
    assert found.facts["seconds"] > found.facts["seconds_allowed"] == 150.0
    (note,) = found.notes
    assert "stopped by its time after 1 step and" in note and found.plan.notes == (
        note,
    )
    # What one step found is kept: on its way to where it goes with more time.
    start, end = gaussian_start.lengthscale[0], gaussian.plan.lengthscale[0]
    assert end < found.plan.lengthscale[0] < start
    assert gaussian.facts["status"] == "converged" and gaussian.notes == ()


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


@pytest.mark.slow
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
