"""Scales of the prior: a start from moments, learnt from stars, revised by a map."""

import math
from dataclasses import replace

import numpy as np
import one_cloud
import pytest
import torch

from dustmap.grid import Grid, Torus
from dustmap.inference.scales.band_power import BandPower
from dustmap.models.means import ConstantMean, ExponentialDisc
from dustmap.tori import Tori
from pipelines.config import FitConfig
from pipelines.model.engine import build_model, rays
from pipelines.model.plan import Plan
from pipelines.model.problem import Device
from pipelines.planning.prior import (
    learn_prior,
    mean_density,
    open_names,
    revised_prior,
    spread_rows,
    start_scales,
)

CPU = torch.device("cpu")
GRID = Grid(shape=(19, 19, 11), spacing=(10.0,) * 3, origin=(-90.0, -90.0, -50.0))
SCALE, ERROR, STARS = 18.0, 0.02, 600
GAUSSIAN = Plan(
    tori=Tori(tori=(Torus(grid=GRID, shape=(36, 36, 30)),)),
    kernel="matern32",
    lengthscale=(SCALE,) * 3,
    std=0.01,
    mean=ConstantMean(value=0.02),
    common_noise=0.0,
)
LOGNORMAL = replace(
    GAUSSIAN, density="lognormal", std=0.8, mean=ConstantMean(value=0.01)
)
GIVEN = {
    "lengthscale": [90.0, 80.0, 40.0],
    "std": 0.004,
    "mean": "exponential-disc",
    "mean_density": 0.001,
    "scale_height": 120.0,
}


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def config(prior=None, density="gaussian", **model):
    return FitConfig.model_validate(
        {"prior": prior or {}, "model": {"density": density, **model}}
    )


@pytest.mark.parametrize("density", ["gaussian", "lognormal"])
def test_what_the_configuration_gives_is_kept(density):
    settings = config(GIVEN, density, common_noise=0.01)
    scales, notes = start_scales(one_cloud.catalogue(60), settings)
    assert scales.lengthscale.tolist() == [90.0, 80.0, 40.0] and not notes
    assert scales.std == 0.004 and scales.common_noise == pytest.approx(1e-4)
    assert isinstance(scales.mean, ExponentialDisc)
    assert (scales.mean.value, scales.mean.scale_height) == (0.001, 120.0)


@pytest.mark.parametrize("density", ["gaussian", "lognormal"])
def test_a_start_follows_the_units_of_length_and_of_dust(density):
    scale, dust = 2.0**-4, 2.0**-9
    settings = config({"mean": "constant"}, density)
    plain, _ = start_scales(one_cloud.catalogue(200), settings)
    other, _ = start_scales(one_cloud.catalogue(200, scale=scale, dust=dust), settings)
    assert torch.allclose(other.lengthscale, scale * plain.lengthscale)
    by = dust / scale
    # The std of a logarithm has no unit.
    std = plain.std * (by if density == "gaussian" else 1.0)
    assert other.std == pytest.approx(std, rel=1e-6)
    assert other.mean.value == pytest.approx(by * plain.mean.value, rel=1e-6)


def drawn(truth, count=STARS, seed=1):
    """Stars evenly in the box around a field of the truth's own prior."""
    generator = seeded(seed)
    low, high = (torch.tensor(corner) for corner in (GRID.lower, GRID.upper))
    uniform = torch.rand(count, 3, generator=generator, dtype=torch.float64)
    ends = low + (high - low) * uniform
    # On a finer grid than the plan's, which interpolates hardly.
    fine = Grid(shape=(46, 46, 26), spacing=(4.0,) * 3, origin=GRID.origin)
    truth = replace(truth, tori=Tori(tori=(Torus(grid=fine, shape=(72, 72, 54)),)))
    device = Device(device=CPU, dtype=torch.float64, generator=generator)
    model = build_model(truth, rays(truth, ends), device)
    white = model.white_noise(np.random.default_rng(seed))
    # What the grid cannot resolve is there, too, as the model says.
    seen = model.linearise(white)
    own = torch.randn(count, generator=generator, dtype=torch.float64)
    variance = ERROR**2 + seen.variance
    y = seen.prediction + variance.sqrt() * own
    stars = one_cloud.at(ends.numpy(), y.numpy(), 1.0)
    return replace(stars, extinction_error=variance.sqrt().numpy())


@pytest.mark.parametrize(
    "truth",
    [
        pytest.param(GAUSSIAN, id="gaussian", marks=pytest.mark.slow),
        pytest.param(LOGNORMAL, id="lognormal"),
    ],
)
def test_the_start_has_the_mean_and_the_scatter_of_the_stars(truth):
    settings = config({"mean": "constant", "lengthscale": SCALE}, truth.density)
    found = [start_scales(drawn(truth, seed=seed), settings)[0] for seed in range(4)]
    # One field has a mean of its own.
    mean = np.mean([scales.mean.value for scales in found])
    assert mean == pytest.approx(truth.scales.mean.value, rel=0.15)
    # Paths are not much longer than the lengthscale.
    assert 0.5 < np.mean([scales.std for scales in found]) / truth.std < 1.2


def test_the_shape_of_the_mean_that_made_the_stars_is_found():
    rng = np.random.default_rng(1)
    ends = rng.uniform([-900, -900, -500], [900, 900, 500], size=(500, 3))
    path = np.linalg.norm(ends, axis=1)
    height = np.abs(ends[:, 2])
    disc = 100 * path / height * -np.expm1(-height / 100)
    for shape, kind in ((path, ConstantMean), (disc, ExponentialDisc)):
        y = 1e-3 * shape + rng.normal(scale=0.02, size=500)
        scales, _ = start_scales(one_cloud.at(ends, y, 0.02), config())
        assert isinstance(scales.mean, kind)
        assert scales.mean.value == pytest.approx(1e-3, rel=0.3)


def test_a_mean_that_cannot_be_negative_is_replaced_and_said():
    stars = one_cloud.catalogue(60, dust=-1.0)
    stars = replace(stars, extinction_error=np.full(60, 0.02))
    scales, notes = start_scales(stars, config({"mean": "constant"}))
    assert scales.mean.value == 0.0 and "cannot be negative" in notes[0]
    scales, notes = start_scales(stars, config({"mean": "constant"}, "lognormal"))
    assert scales.mean.value == pytest.approx(mean_density(stars)) and scales.std > 0
    assert "a lognormal needs one" in notes[0]


def test_stars_without_extinction_have_a_start_all_the_same():
    stars = replace(one_cloud.catalogue(60), extinction=np.zeros(60))
    scales, _ = start_scales(stars, config(density="lognormal"))
    assert mean_density(stars) > 0 and scales.mean.value > 0
    assert 0 < scales.std < 5
    scales, _ = start_scales(stars, config({"mean": "zero"}))
    assert scales.mean.value == 0.0 and scales.std > 0


def test_open_names_are_what_the_configuration_leaves_and_the_mean_has():
    disc = ExponentialDisc(
        value=0.02, scale_height=50.0, scale_length=3200.0, centre_distance=8178.0
    )
    flat, zero = ConstantMean(value=0.02), ConstantMean(value=0.0)
    free = FitConfig()
    assert set(open_names(flat, free)) == {
        "lengthscale",
        "variance",
        "mean",
        "common_noise",
    }
    assert set(open_names(disc, free)) - set(open_names(flat, free)) == {"scale_height"}
    assert "mean" not in open_names(zero, free)
    for key, name in (
        ("lengthscale", "lengthscale"),
        ("std", "variance"),
        ("mean_density", "mean"),
        ("scale_height", "scale_height"),
    ):
        given = FitConfig.model_validate({"prior": {key: 3.0}})
        assert set(open_names(disc, free)) - set(open_names(disc, given)) == {name}


START = replace(
    GAUSSIAN, lengthscale=(27.0,) * 3, std=0.015, mean=ConstantMean(value=0.012)
).scales


def learnt(start, stars, settings, seed=0):
    return learn_prior(
        start, stars, settings, generator=seeded(seed), on_step=lambda *_: None
    )


@pytest.fixture(scope="module")
def gaussian_stars():
    return drawn(GAUSSIAN)


@pytest.fixture(scope="module")
def gaussian(gaussian_stars):
    found = learnt(START, gaussian_stars, config({"mean": "constant"}, common_noise=0))
    assert found is not None
    return found


@pytest.mark.parametrize("why", ["all given", "learn = false", "few"])
def test_nothing_is_learnt_where_nothing_is_open(gaussian_stars, why):
    settings, stars = config(common_noise=0), gaussian_stars
    if why == "all given":
        given = {"lengthscale": 30.0, "std": 0.01, "mean_density": 0.02}
        settings = config({"mean": "constant", **given})
    elif why == "learn = false":
        settings = FitConfig.model_validate({"inference": {"learn": False}})
    else:
        stars = stars.select(slice(39))
    assert learnt(START, stars, settings) is None


def test_scales_of_a_gaussian_field_are_found(gaussian):
    scales, facts = gaussian
    errors = facts["errors"]
    assert facts["converged"] and facts["stars"] == STARS
    assert len(set(scales.lengthscale.tolist())) == 1
    assert 0 < errors["lengthscale"] < 0.5 and 0 < errors["variance"] < 1.0
    near = math.log(float(scales.lengthscale[0]) / SCALE)
    assert abs(near) < 2.5 * errors["lengthscale"]
    assert abs(2 * math.log(scales.std / 0.01)) < 2.5 * errors["variance"]
    assert abs(math.log(scales.mean.value / 0.02)) < 2.5 * errors["mean"]


def test_scales_of_a_lognormal_field_are_found_from_its_stars_alone():
    settings, stars = config({"mean": "constant"}, "lognormal"), drawn(LOGNORMAL)
    found = learnt(start_scales(stars, settings)[0], stars, settings)
    assert found is not None and found[1]["converged"]
    scales, errors = found[0], found[1]["errors"]
    near = math.log(float(scales.lengthscale[0]) / SCALE)
    assert abs(near) < 2.5 * errors["lengthscale"]
    relative = [math.expm1(std**2) for std in (scales.std, LOGNORMAL.std)]
    assert abs(math.log(relative[0] / relative[1])) < 2.5 * errors["variance"]
    mean = LOGNORMAL.scales.mean.value
    assert abs(math.log(scales.mean.value / mean)) < 2.5 * errors["mean"]
    # Of a lognormal density the common noise is learnt in the fit.
    assert scales.common_noise == 0.0


@pytest.mark.slow
def test_the_same_seed_learns_the_same_and_another_nearly(gaussian, gaussian_stars):
    settings = config({"mean": "constant"}, common_noise=0)
    again, other = (learnt(START, gaussian_stars, settings, seed) for seed in (0, 1))
    assert again is not None and other is not None
    assert again[0].std == gaussian[0].std != other[0].std
    assert torch.equal(again[0].lengthscale, gaussian[0].lengthscale)
    assert other[0].std == pytest.approx(gaussian[0].std, rel=0.3)


@pytest.mark.parametrize(
    ("key", "value"), [("lengthscale", 27.0), ("std", 0.015), ("mean_density", 0.012)]
)
def test_a_value_that_is_given_is_never_changed(gaussian_stars, key, value):
    given = config({"mean": "constant", key: value}, common_noise=0)
    found = learnt(START, gaussian_stars, given)
    assert found is not None
    scales = found[0]
    changed = {
        "lengthscale": not torch.equal(scales.lengthscale, START.lengthscale),
        "std": scales.std != START.std,
        "mean_density": scales.mean.value != START.mean.value,
    }
    assert changed == {name: name != key for name in changed}
    assert scales.common_noise == 0.0


def test_noise_that_no_error_states_is_not_taken_for_structure():
    stars = drawn(replace(GAUSSIAN, kernel="matern12"))
    white = torch.randn(STARS, generator=seeded(7), dtype=torch.float64).numpy()
    noisy = replace(stars, extinction=stars.extinction + 0.05 * white)
    found = learnt(START, noisy, config({"mean": "constant"}))
    assert found is not None
    scales, facts = found
    error = facts["errors"]["common_noise"]
    assert abs(math.log(scales.common_noise / 0.05**2)) < 2.5 * error < 2.5


def test_as_many_stars_come_from_everywhere_as_there_are():
    crowd = torch.randn(3000, 3, generator=seeded(0), dtype=torch.float64)
    few = 1000 * torch.rand(300, 3, generator=seeded(1), dtype=torch.float64)
    ends = torch.cat([crowd, few])
    chosen = spread_rows(ends, 400, seeded(2))
    assert len(chosen) == len(set(chosen.tolist())) == 400
    # The crowd fills a cell or eight of the grid over all.
    assert int((chosen >= 3000).sum()) > 290
    assert sorted(spread_rows(ends, 5000, seeded(2)).tolist()) == list(range(3300))


LEARNING = {"errors": {"lengthscale": 0.4, "variance": 0.4}}
MAPPED = replace(
    LOGNORMAL,
    kernel="matern12",
    lengthscale=(40.0,) * 3,
    std=1.2,
    tori=Tori(tori=(Torus(grid=GRID, shape=(60,) * 3),)),
)


def bands(*ratios):
    """Octaves from 800 pc on."""
    return [
        BandPower(
            longest=800.0 / 2**number,
            shortest=400.0 / 2**number,
            determined=300.0,
            share=0.8,
            ratio=ratio,
            error=ratio * math.sqrt(2 / 300),
        )
        for number, ratio in enumerate(ratios)
    ]


def test_power_at_long_wavelengths_calls_for_a_longer_lengthscale():
    found = revised_prior(MAPPED, bands(5.0, 2.0, 1.0), LEARNING, FitConfig(), [1.0])
    assert found is not None
    scales, learning = found
    assert float(scales.lengthscale[0]) > 55.0
    # The mean density stays.
    assert scales.mean.value == pytest.approx(MAPPED.scales.mean.value)
    once = learning["revision"]
    assert once["lengthscale"] == [40.0] * 3 and once["gain"] > 20
    assert LEARNING.keys() == {"errors"}
    found = revised_prior(MAPPED, bands(0.05, 0.2, 0.6), LEARNING, FitConfig(), [0.6])
    assert found is not None and float(found[0].lengthscale[0]) < 30.0
    # The same change of all octaves is one of the standard deviation.
    found = revised_prior(MAPPED, bands(1.5, 1.5, 1.5), LEARNING, FitConfig(), [1.5])
    assert found is not None
    assert float(found[0].lengthscale[0]) == pytest.approx(40.0, rel=0.05)
    assert 1.1 < found[0].std / MAPPED.std < 1.3


def test_power_below_the_grid_bends_the_prior():
    told, short = bands(5.0, 2.0, 1.0), []
    for alpha in (0.3, 3.0):
        found = revised_prior(MAPPED, told, LEARNING, FitConfig(), [alpha])
        assert found is not None
        short.append(found[0].bend[-1])
    assert short[1] > short[0] + 1
    # It is a reason to change a prior, also alone.
    for told in (bands(1.0, 1.0), []):
        low, high = (
            revised_prior(MAPPED, told, LEARNING, FitConfig(), [alpha])
            for alpha in (0.3, 3.0)
        )
        assert low is not None and high is not None
        assert low[0].std < MAPPED.std < high[0].std


@pytest.mark.parametrize(
    ("learning", "prior"),
    [(None, {}), (LEARNING, {"lengthscale": 40}), (LEARNING, {"std": 1.2})],
)
def test_scales_that_are_given_stay(learning, prior):
    settings = FitConfig.model_validate({"prior": prior})
    told = bands(5.0, 2.0, 1.0)
    assert revised_prior(MAPPED, told, learning, settings, [1.0]) is None


@pytest.mark.parametrize("told", [bands(1.0, 1.0, 1.0), []])
def test_scales_that_suit_hardly_change(told):
    found = revised_prior(MAPPED, told, LEARNING, FitConfig(), [1.0])
    assert found is not None
    assert found[0].lengthscale.tolist() == pytest.approx([40.0] * 3, rel=0.01)
    assert found[0].std == pytest.approx(MAPPED.std, rel=0.01)


def test_a_kernel_without_a_power_law_is_not_revised():
    smooth = replace(MAPPED, kernel="squared-exponential")
    found = revised_prior(smooth, bands(5.0, 2.0, 1.0), LEARNING, FitConfig(), [1.0])
    assert found is None
