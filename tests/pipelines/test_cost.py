"""Estimates of memory and time: in proportion, and near what is measured."""

import math
from dataclasses import replace

import one_cloud
import pytest
import torch

from dustmap.models.gaussian import TorusGaussian
from pipelines.config import FitConfig
from pipelines.model import cost
from pipelines.model.cost import work_of
from pipelines.model.forward import build_model
from pipelines.model.observations import rays

WORK = cost.Work(torus_points=100_000, stars=20_000, ray_cells=15.0)
SPEED = cost.Speed(fft=1e-9, entry=1e-9, flop=1e-10, streamed=1e-10)


def total(work):
    return sum(cost.memory(work).values())


@pytest.mark.parametrize(
    "change",
    [
        {"torus_points": 400_000},
        {"stars": 200_000},
        {"ray_cells": 60.0},
        {"samples": 320},
        {"rank": 800},
        {"refinement": 2},
        {"interpolation": "cubic"},
    ],
)
def test_more_of_anything_costs_more_time_and_memory(change):
    more = replace(WORK, **change)
    assert cost.seconds(more, SPEED) > cost.seconds(WORK, SPEED)
    assert total(more) > total(WORK)


def test_a_tighter_tolerance_costs_more_time_and_no_memory():
    tight = replace(WORK, tolerance=1e-6)
    assert cost.seconds(tight, SPEED) == pytest.approx(
        2 * cost.seconds(WORK, SPEED), rel=0.1
    )
    assert total(tight) == total(WORK)


def test_double_precision_doubles_what_numbers_take():
    single, double = cost.memory(WORK), cost.memory(replace(WORK, itemsize=8))
    assert double["posterior samples"] == 2 * single["posterior samples"]
    assert double["program and libraries"] == single["program and libraries"]


def test_entries_of_the_projection_are_near_those_of_a_model(cloud_run):
    plan, config = cloud_run.plan, one_cloud.settings()
    ends = torch.as_tensor(one_cloud.catalogue(1000).positions())
    model = build_model(
        plan,
        rays(plan, ends),
        dtype=torch.float32,
        device=torch.device("cpu"),
        generator=torch.Generator().manual_seed(0),
    )
    assert isinstance(model, TorusGaussian)
    work = work_of(
        (plan.grid,),
        plan.build_kernel(),
        ends.norm(dim=1).numpy(),
        FitConfig.model_validate(config),
    )
    assert work.entries == pytest.approx(model.weights.nonzeros, rel=0.35)
    assert work.torus_points == math.prod(model.whitening.report.shape)


def test_the_machine_is_measured_in_positive_numbers():
    speed = cost.measure(torch.float32, torch.device("cpu"))
    assert 1e-12 < speed.fft < 1e-5
    assert 1e-12 < speed.entry < 1e-5
    assert 1e-14 < speed.flop < 1e-6
    assert cost.available_memory() > 2**28
