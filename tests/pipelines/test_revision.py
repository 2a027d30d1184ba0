"""Scales of the prior that a first map calls for."""

import math
from dataclasses import replace

import pytest
from pipelines.planning.revision import revised_plan

from dustmap.grid import Grid
from dustmap.inference.scales.band_power import BandPower
from pipelines.config import FitConfig
from pipelines.model.plan import MeanPlan, Plan

LEARNING = {"errors": {"lengthscale": 0.4, "variance": 0.4}}


def plan() -> Plan:
    grid = Grid(shape=(41, 41, 21), spacing=(20.0,) * 3, origin=(-400, -400, -200))
    return Plan(
        grid=grid,
        torus_shape=(48, 48, 28),
        kernel="matern12",
        lengthscale=(40.0,) * 3,
        std=1.2,
        mean=MeanPlan(kind="constant", value=1e-3),
        common_noise=0.0,
        density="lognormal",
    )


def bands(*ratios: float) -> list[BandPower]:
    """Octaves from 800 pc on."""
    return [
        BandPower(
            longest=800.0 / 2**number,
            shortest=400.0 / 2**number,
            determined=300.0,
            ratio=ratio,
            error=ratio * math.sqrt(2 / 300),
        )
        for number, ratio in enumerate(ratios)
    ]


def config(**sections) -> FitConfig:
    return FitConfig.model_validate(sections)


def test_power_at_long_wavelengths_calls_for_a_longer_lengthscale():
    found = revised_plan(plan(), bands(5.0, 2.0, 1.0), LEARNING, config(), None)
    assert found is not None
    revised, learning = found
    assert revised.lengthscale[0] > 55.0
    assert revised.grid == plan().grid

    # The mean density stays, and the torus keeps the faces of the box apart.
    def mean(p: Plan) -> float:
        return p.mean.value * math.exp(p.std**2 / 2)

    assert mean(revised) == pytest.approx(mean(plan()))
    assert revised.torus_shape > plan().torus_shape
    (once,) = learning["revisions"]
    assert once["lengthscale"] == [40.0] * 3 and once["gain"] > 40
    assert LEARNING.keys() == {"errors"}


def test_a_shorter_lengthscale_is_one_that_the_grid_resolves():
    low = bands(0.05, 0.2, 0.6)
    found = revised_plan(plan(), low, LEARNING, config(), lambda *_: (plan().grid,))
    assert found is not None
    assert found[0].lengthscale == (30.0,) * 3


@pytest.mark.parametrize(
    ("given", "learning", "asked"),
    [
        ((1.1, 1.0, 0.95), LEARNING, {}),
        ((1.5, 1.5, 1.5), {"errors": {"lengthscale": 0.01, "variance": 0.4}}, {}),
        ((), LEARNING, {}),
        ((5.0, 2.0, 1.0), None, {}),
        ((5.0, 2.0, 1.0), {**LEARNING, "revisions": [{}, {}]}, {}),
        ((5.0, 2.0, 1.0), LEARNING, {"prior": {"lengthscale": 40}}),
        ((5.0, 2.0, 1.0), LEARNING, {"prior": {"std": 1.2}}),
    ],
)
def test_scales_stay_that_suit_or_are_given(given, learning, asked):
    assert revised_plan(plan(), bands(*given), learning, config(**asked), None) is None


def test_a_kernel_without_a_power_law_is_not_revised():
    smooth = replace(plan(), kernel="squared-exponential")
    found = revised_plan(smooth, bands(5.0, 2.0, 1.0), LEARNING, config(), None)
    assert found is None
